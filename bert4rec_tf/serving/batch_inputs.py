"""Reads the users of a batch recommendation, from a file of histories or from files of interactions."""

import csv
import hashlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion, layouts
from bert4rec_tf.data.reading.columns import TEXT, USER_NAMES, Columns, guess_column
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

    Raises:
        UserError: if the file cannot be read, is not CSV, has one action per row, or a user twice. A first line that
            names columns is skipped with a warning, unless it has one of the model's `items`.
    """
    checksum, lines = _hash_and_count(path)
    _refuse_interactions(path)
    first_user, first_history = next(_read_rows(path), ("", []))
    has_header = guess_column([first_user], USER_NAMES) is not None and not items.contains_each(first_history).any()
    if has_header:
        warn(f"{path}: the first line is taken for a header: {','.join([first_user, *first_history])[:100]}")
    _refuse_repeated_users(path)
    return Users(checksum, lines, lambda: itertools.islice(_read_rows(path), int(has_header), None))


def read_interactions(interactions: Interactions) -> tuple[Users, conversion.Report]:
    """Reads files with one action per row. Returns every user with all items in order of time, and a report.

    Raises UserError as `conversion.convert` does.
    """
    sequences, report = conversion.convert(interactions, min_actions=1)

    def rows() -> Iterator[Row]:
        for place, user in enumerate(sequences.users.tolist()):
            yield user, sequences.vocabulary.decode(sequences[place])

    return Users(sequences.fingerprint, sequences.num_users, rows), report


def _refuse_repeated_users(path: Path) -> None:
    """Raises UserError if a user has two rows."""
    users = set[str]()
    for number, (user, _) in enumerate(_read_rows(path), start=1):
        if user in users:
            raise UserError(
                f"{path}, row {number}: each user must have one row. Received: user {user!r} again. If the file has "
                f"one action per row, use --interactions={path} in place of --input"
            )
        users.add(user)


def _refuse_interactions(path: Path) -> None:
    """Raises UserError if the file has the layout of interactions, other than a CSV without a header."""
    with files.open_binary(path) as file:
        start = file.read(layouts.SAMPLE_BYTES)
    try:
        layout = layouts.find_layout(path, Columns(str(path)), start)
    except UserError:  # no file of interactions, or one whose columns must be named
        return
    if layout.kind != TEXT or layout.header or layout.separator != ",":
        raise UserError(
            f"{path}: has one action per row ({layout}), not one history per user. Use --interactions={path} in place "
            "of --input"
        )


def _read_rows(path: Path) -> Iterator[Row]:
    """Yields the users and histories of a file. Empty lines are skipped."""
    with files.open_binary(path) as file:
        # Only the first line may begin with a byte order mark.
        encodings = itertools.chain(["utf-8-sig"], itertools.repeat("utf-8"))
        lines = csv.reader((line.decode(encoding) for encoding, line in zip(encodings, file)), strict=True)
        try:
            for fields in lines:
                if fields:
                    yield fields[0], fields[1:]
        except (csv.Error, UnicodeDecodeError) as error:
            # `line_num` does not count a line that could not be decoded.
            number = lines.line_num + isinstance(error, UnicodeDecodeError)
            raise UserError(f"{path}:{number}: is not CSV in UTF-8 ({error})") from error


def _hash_and_count(path: Path) -> tuple[str, int]:
    """Returns the SHA-256 of a file's content and its number of lines."""
    digest, lines, last = hashlib.sha256(), 0, b"\n"
    try:
        with files.open_binary(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
                lines += block.count(b"\n")
                last = block[-1:]
    except files.UNREADABLE as error:
        raise files.unreadable_error(path, error) from error
    return digest.hexdigest(), lines + (last != b"\n")
