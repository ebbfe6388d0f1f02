"""Reads the users of a batch recommendation, from a file of histories or from files of interactions."""

import csv
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion, unpacking
from bert4rec_tf.data.reading.columns import TEXT, USER_NAMES, guess_column
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.foundation.progress import warn

Row = tuple[str, list[str]]
"""A user and their history."""


class Users(NamedTuple):
    """Users with histories: a checksum, about the most users there can be, and a function that yields them anew."""

    checksum: str
    most: int
    rows: Callable[[], Iterator[Row]]


def read_histories(path: Path, items: Lines) -> Users:
    """Reads a file of histories, CSV without a header, `.gz` or not: in a row the user, then the items, oldest first.

    Raises UserError if the file cannot be read, is not CSV, has one action per row, or a user twice. A first line that
    names columns is skipped with a warning, unless it has one of the model's `items`.
    """
    _refuse_interactions(path)
    num_rows = _count_rows(path)
    first_user, first_history = next(_read_rows(path), ("", []))
    has_header = guess_column([first_user], USER_NAMES) is not None and not items.contains_each(first_history).any()
    if has_header:
        warn(f"{path}: the first line is taken for a header: {','.join([first_user, *first_history])[:100]}")
    return Users(
        files.compute_checksum(path), num_rows, lambda: itertools.islice(_read_rows(path), int(has_header), None)
    )


def read_interactions(interactions: Interactions) -> tuple[Users, conversion.Report]:
    """Reads files with one action per row. Returns every user with all items in order of time, and a report.

    Raises UserError as `conversion.convert` does.
    """
    sequences, report = conversion.convert(interactions, min_actions=1)

    def rows() -> Iterator[Row]:
        for place, user in enumerate(sequences.users.tolist()):
            yield user, sequences.vocabulary.decode(sequences[place])

    return Users(sequences.fingerprint, sequences.num_users, rows), report


def _count_rows(path: Path) -> int:
    """Returns the number of rows. Raises UserError if a user has two."""
    users = set[str]()
    for number, (user, _) in enumerate(_read_rows(path), start=1):
        if user in users:
            raise UserError(
                f"{path}, row {number}: each user must have one row. Received: user {user!r} again. If the file has "
                f"one action per row, use --interactions={path} in place of --input"
            )
        users.add(user)
    return len(users)


def _refuse_interactions(path: Path) -> None:
    """Raises UserError if the file has the layout of interactions, other than a CSV without a header."""
    try:
        layout = conversion.read_layout(path, Interactions(str(path)))
    except UserError:  # no file of interactions, or one whose columns must be named
        return
    if layout.kind != TEXT or layout.header or layout.separator != ",":
        raise UserError(
            f"{path}: has one action per row ({layout}), not one history per user. Use --interactions={path} in place "
            "of --input"
        )


def _read_rows(path: Path) -> Iterator[Row]:
    """Yields the users and histories of a file. Empty lines are skipped."""
    with unpacking.open_unpacked(path) as file:
        # Only the first line may begin with a byte order mark.
        encodings = itertools.chain(["utf-8-sig"], itertools.repeat("utf-8"))
        lines = iter(file.readline, b"")
        rows = csv.reader((line.decode(encoding) for encoding, line in zip(encodings, lines)), strict=True)
        try:
            for fields in rows:
                if fields:
                    yield fields[0], fields[1:]
        except (csv.Error, UnicodeDecodeError) as error:
            # `line_num` does not count a line that could not be decoded.
            number = rows.line_num + isinstance(error, UnicodeDecodeError)
            raise UserError(f"{path}:{number}: is not CSV in UTF-8 ({error})") from error
