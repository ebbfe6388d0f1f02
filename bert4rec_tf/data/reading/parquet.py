"""Parquet files, row group by row group."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from bert4rec_tf.data.reading import actions, bad_rows, times
from bert4rec_tf.data.reading.actions import ID
from bert4rec_tf.data.reading.bad_rows import BadRows
from bert4rec_tf.data.reading.layouts import Layout
from bert4rec_tf.foundation.errors import UserError

ROWS = 1 << 20
UNREADABLE = (pa.ArrowException, OSError, UnicodeError)
"""What reading a damaged file ends in."""


def names(path: Path) -> list[str]:
    """Returns the names of a file's columns. Raises UserError where it is damaged."""
    try:
        return pyarrow.parquet.read_schema(path).names
    except UNREADABLE as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cut short or damaged ({' '.join(str(error).split())[:200]})")


def read(path: Path, layout: Layout, bad: BadRows) -> Iterator[pa.Table]:
    """Yields the actions of a file. Raises UserError for one that is damaged, and at a bad row."""
    wanted = {"user": layout.user, "item": layout.item, "time": layout.time}
    wanted = {role: name for role, name in wanted.items() if name is not None}
    first = 1
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS, columns=list(dict.fromkeys(wanted.values()))):
                columns = {role: batch.column(name) for role, name in wanted.items()}
                yield _actions(path, columns, first, bad)
                first += batch.num_rows
    except UNREADABLE as error:
        raise damaged(path, error) from error


def _actions(path: Path, columns: dict[str, pa.Array], first: int, bad: BadRows) -> pa.Table:
    texts = {role: _text_ids(path, column) for role, column in columns.items() if role != "time"}
    when = _times(path, columns["time"]) if "time" in columns else None
    coded = {role: pa.chunked_array([column.dictionary_encode()]) for role, column in texts.items()}
    good = {role: actions.good_ids(column.cast(ID), trim=False) for role, column in coded.items()}
    if None not in good.values() and (when is None or times.is_finite(when)):
        return pa.table(good if when is None else {**good, "time": when})
    return _by_row(texts["user"].to_pylist(), texts["item"].to_pylist(), when, first, bad)


def _by_row(users: list, items: list, when: pa.Array | None, first: int, bad: BadRows) -> pa.Table:
    kept = []
    for place, (user, item) in enumerate(zip(users, items)):
        problem = bad_rows.id_problem(user or "", bad_rows.NO_USER) or bad_rows.id_problem(item or "", bad_rows.NO_ITEM)
        if not problem and when is not None and not times.is_finite(when.slice(place, 1)):
            problem = bad_rows.NO_TIME
        if problem:
            bad.add(problem, first + place, (user, item))
        else:
            kept.append(place)
    found = None if when is None else when.take(pa.array(kept, pa.int64()))
    return actions.table([users[place] for place in kept], [items[place] for place in kept], found)


def _text_ids(path: Path, column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UserError(f"{path}: ids must be texts or whole numbers. Found: {kind}")
    texts = column.cast(pa.string())
    texts.validate(full=True)  # Arrow takes it on trust that they are UTF-8
    return texts


def _times(path: Path, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return column.cast(pa.timestamp("ns"))
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    raise UserError(f"{path}: times must be numbers, dates or timestamps. Found: {kind}")
