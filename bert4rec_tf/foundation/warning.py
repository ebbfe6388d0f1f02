"""What does not stop the work, but should be known: warnings of classes that Python's filters can tell apart."""

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from bert4rec_tf.foundation.errors import word_for_caller

SKIPPED = ("bert4rec_tf", "contextlib", "keras", "tensorflow")
"""Packages that stand between a user's line and its warning. Filters and notebooks want the line."""


class Bert4RecWarning(UserWarning):
    """The base of all warnings here: `warnings.simplefilter("error", b4r.UnknownIdWarning)` stops at unknown ids.

    A filter with this class means all of them. The shell prints every one as a line.
    """


class DataWarning(Bert4RecWarning):
    """Data may not mean what they were read as: odd times, cells left out, few matching ids, repeated rows."""


class DataNote(Bert4RecWarning):
    """A trait of the data that is no mistake, such as users with one action."""


class UnknownIdWarning(Bert4RecWarning):
    """The model does not know an id, which is skipped, or a user, who gets what is popular."""


class FileWarning(Bert4RecWarning):
    """A file is damaged, out of date or in use: it is made again, one from before is used, or its turn is awaited."""


class TrainingWarning(Bert4RecWarning):
    """A model is not trained or filled as asked: another preset, counted only, lost rows, another environment."""


class ServingWarning(Bert4RecWarning):
    """A server has another version, cannot load one, has too many callers, or can be reached by strangers."""


def warn(line: str, category: type[Bert4RecWarning]) -> None:
    """Warns as if from the first line of code outside of SKIPPED."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in SKIPPED:
        frame, level = frame.f_back, level + 1
    warnings.warn(word_for_caller(line), category, stacklevel=level)


def warn_of_unknown(unknown_ids: Sequence[str], total: int, kind: str) -> None:
    """Warns of unknown ids, if there are any among the `total`. `kind`: whose ids."""
    if len(unknown_ids):
        warn(
            f"{len(unknown_ids)} of the {total} {kind} are unknown and were skipped (such as {unknown_ids[0]!r})",
            UnknownIdWarning,
        )


@contextlib.contextmanager
def print_warnings() -> Iterator[None]:
    """Within it, each of these warnings is one line on the error stream, however often and whatever the filters."""
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if not issubclass(category, Bert4RecWarning):
                return show_other(message, category, *place, **options)
            kind = "note" if issubclass(category, DataNote) else "warning"
            print(f"{kind}: {message}", file=sys.stderr, flush=True)

        warnings.simplefilter("always", Bert4RecWarning)
        warnings.showwarning = show
        yield
