"""Reads the users of a batch recommendation, from a file of histories or from files of interactions."""

import csv
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion, layouts
from bert4rec_tf.data.reading.columns import TEXT, USER_NAMES, Columns, guess_column
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.foundation.progress import warn

SAMPLE_ROWS = 20_000
_TIME = re.compile(r"\d{9,}(\.\d+)?|\d{4}-\d\d-\d\d.*", re.DOTALL)

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
        UserError: if the file cannot be read, is not CSV, or looks like one action per row. `items`: the model's items;
            a row that ends with one of them is a history. A first line that names columns is skipped with a warning.
    """
    checksum, lines = _hash_and_count(path)
    _refuse_interactions(path, items)
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
            raise UserError(f"{path}, row {number}: each user must have one row. Received: user {user!r} again")
        users.add(user)


def _refuse_interactions(path: Path, items: Lines) -> None:
    """Raises UserError if each row looks like one action, which would be read as a history."""
    with files.open_binary(path) as file:
        start = file.read(layouts.SAMPLE_BYTES)
    try:
        layout = layouts.find_layout(path, Columns(str(path)), start)
    except UserError:  # no file of interactions, or one whose columns must be named
        layout = None
    is_other = layout is not None and (layout.kind != TEXT or layout.header or layout.separator != ",")
    if is_other or _are_actions(list(itertools.islice(_read_rows(path), SAMPLE_ROWS)), items):
        raise UserError(
            f"{path}: has one action per row ({layout or 'user, item and more'}), not one history per user. Use "
            f"--interactions={path} in place of --input"
        )


def _are_actions(rows: Sequence[Row], items: Lines) -> bool:
    """Returns whether rows without a header look like actions.

    Rows of two columns do if a user occurs twice. Longer rows do if all are equally long, none ends with an item of the
    model, and either users have at least two rows on average or all rows end with a time.
    """
    lengths, last = {len(history) for _, history in rows}, [history[-1] for _, history in rows if history]
    distinct = len({user for user, _ in rows})
    if lengths == {1}:
        if distinct == len(rows) > 1:
            warn("every history has one item; if each row is one action, use --interactions in place of --input")
        return distinct < len(rows)
    if len(lengths) != 1 or not last or items.contains_each(last).any():
        return False
    return 2 * distinct <= len(rows) or all(_TIME.fullmatch(text) for text in last)


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
