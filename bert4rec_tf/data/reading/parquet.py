"""Reads Parquet files and tables in memory, whose columns have types."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from bert4rec_tf.data.reading.checks import ID, Checker
from bert4rec_tf.data.reading.columns import Layout
from bert4rec_tf.data.reading.times import is_text
from bert4rec_tf.foundation.errors import UserError

ROWS = 1 << 20
UNREADABLE = (pa.ArrowException, OSError, UnicodeError)
"""What reading a damaged file raises."""


def names(path: Path) -> list[str]:
    """Returns the names of a file's columns. Raises UserError if it is damaged."""
    try:
        return pyarrow.parquet.read_schema(path).names
    except UNREADABLE as error:
        raise _damaged(path, error) from error


def read(path: Path, layout: Layout, checker: Checker) -> Iterator[pa.Table]:
    """Yields the good rows of a file. Raises UserError if it is damaged, and at a bad row unless those are skipped."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from of_batches(file.iter_batches(ROWS, columns=list(layout.roles.values())), layout, checker)
    except UNREADABLE as error:
        raise _damaged(path, error) from error


def of_batches(batches: Iterable[pa.RecordBatch], layout: Layout, checker: Checker) -> Iterator[pa.Table]:
    """Yields the good rows of batches whose columns have types. Rows are counted from 1."""
    first = 1
    for batch in batches:
        columns = {role: batch.column(name) for role, name in layout.roles.items()}
        columns |= {role: _ids(columns[role], checker.bad.source) for role in ("user", "item")}
        table, wrong = checker.good(columns)
        checker.bad.add((first + place, kind, text) for place, kind, text in wrong)
        yield table
        first += batch.num_rows


def _ids(column: pa.Array, source: str) -> pa.DictionaryArray:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if not (pa.types.is_integer(kind) or is_text(kind) or pa.types.is_null(kind)):
        advice = " (pandas makes fractions of whole numbers with gaps: use Int64)" if pa.types.is_floating(kind) else ""
        raise UserError(f"{source}: ids must be texts or whole numbers. Found: {kind}{advice}")
    texts = column.cast(pa.string())
    texts.validate(full=True)  # the cast does not check that they are UTF-8
    return texts.dictionary_encode().cast(ID)


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cut short or damaged ({' '.join(str(error).split())[:200]})")
