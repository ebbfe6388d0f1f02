"""The user's mistakes, kept apart from bugs in the program."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

_OF_DATA = r"`(columns|separator|duplicates|events|future_times|bad_rows|keep_missing_words)\b"
"""Options that `fit` takes in `Interactions` alone."""

_names_arguments = ContextVar("_names_arguments", default=False)


class UserError(ValueError):
    """A mistake in a flag, a file or a folder. The command line prints it as one line and exits with code 2."""


def format_error(error: Exception) -> str:
    """Returns an error's message on one line: a UserError's in full; any other with its type, cut at 300 characters."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text[:300]}"


@contextlib.contextmanager
def speak_python() -> Iterator[None]:
    """Within it, warnings and the UserError that leaves it name arguments of Python's functions, and not flags."""
    token = _names_arguments.set(True)
    try:
        yield
    except UserError as error:
        error.args = (word_for_caller(str(error)),)
        raise
    finally:
        _names_arguments.reset(token)


def word_for_caller(line: str) -> str:
    """Returns a message in which, within `speak_python`, flags are arguments. Whole commands stay."""
    if not _names_arguments.get() or "--mode" in line:
        return line
    line = re.sub(r"\b(user|item|time)_column\b", r"\1", line)
    line = re.sub(r'(?<![^\s(])--(\w+=?(?:"[^"]+"|(?:[\w,]*\w)?))', r"`\1`", line)
    return f"{line} (options of `b4r.Interactions` and `b4r.interactions`)" if re.search(_OF_DATA, line) else line


def unknown_name_error(kind: str, name: Any, known_names: Iterable[str]) -> UserError:
    """Returns the error for a `name` that is not among `known_names`. It suggests the closest of them."""
    known_names = sorted(known_names)
    suggestion = find_nearest(str(name), known_names)
    hint = f" Did you mean {suggestion!r}?" if suggestion else ""
    return UserError(f"Unknown {kind}: {name!r}.{hint} Known: {', '.join(known_names)}")


def find_nearest(name: str, known_names: Iterable[str]) -> str | None:
    """Returns the known name that `name` is most like; None if it is like none."""
    return next(iter(difflib.get_close_matches(name, sorted(known_names), n=1, cutoff=0.5)), None)


_TYPE_NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


def wrong_type_error(name: str, kind: str, value: object) -> UserError:
    """Returns the error for a value that is not of the type named `kind`."""
    return UserError(f"`{name}` must be {_TYPE_NAMES[kind]}. Received: {name}={value!r}")
