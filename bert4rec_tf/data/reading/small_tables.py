"""Reads small tables, such as features and titles: a file, a DataFrame or another table, as columns of cells."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from bert4rec_tf.data.id_texts import normalize_ids
from bert4rec_tf.data.reading import blocks, tables, text
from bert4rec_tf.data.reading.columns import TAB, find_known_columns, guess_column
from bert4rec_tf.data.reading.rows import BAD_WIDTH, shorten
from bert4rec_tf.foundation import files, stores
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import Url

VALUE_SEPARATOR = "|"
"""Separates the values of one cell."""

DOUBLE_COLON, MOVIES = "::", ("id", "title", "genres")
"""The separator of MovieLens' `movies.dat`, which has no header and may be in Latin-1, and its columns."""


def read_columns(source: Any, title: str, id_names: Sequence[str], id_name: str | None) -> tuple[str | None, Mapping]:
    """Returns the column of ids, None if there is none, and all columns: name -> cells.

    A cell is a text, a number, None, a list, or a NumPy array for a list of floats; a period is its text. Ids are None
    or texts in Unicode's form NFC.

    Args:
        source: a path to a text in UTF-8 with a header, `.gz` or not, separated by commas, semicolons or tabs (or
            MovieLens' `movies.dat`), or to a Parquet file; or what `tables.load_frame` takes.
        title: of the source, for messages.
        id_names: common names of the column of ids, preferred ones first.
        id_name: its name, if the table has it.

    Raises UserError if it cannot be read, or has fewer than two columns or two of one name.
    """
    is_file = isinstance(source, (str, Path, Url))
    frame = _read_file(stores.expand_path(source), id_names) if is_file else tables.load_frame(source, title)
    names = tables.list_names(frame)
    if len(set(names)) < len(names):
        raise UserError(f"{title}: must name each column once. Received: {', '.join(names)[:300]}")
    vectors = _find_vector_columns(frame) if isinstance(frame, pd.DataFrame) else {}
    table = tables.select_columns(frame, [name for name in names if name not in vectors], title)
    arrays = {name: table.column(name).combine_chunks() for name in table.column_names}
    columns: dict[str, Any] = {name: vectors.get(name) or _list_cells(arrays[name]) for name in names}
    id_column = _choose_id_column(table, title, id_names, id_name)
    if id_column is not None:
        ids = tables.convert_ids(tables.decode_texts(arrays[id_column]), f"{title}, column {id_column}")
        columns[id_column] = normalize_ids(ids).to_pylist()
    return id_column, columns


def _choose_id_column(table: pa.Table, title: str, id_names: Sequence[str], id_name: str | None) -> str | None:
    """Returns the column `id_name` if there is one, else the first with a known name.

    If that has repeats, it is the column `id` without any: the items of `id,title,artist` are the ids, although data of
    artists may call their items so. Raises UserError if it is another one without any.
    """
    if id_name in table.column_names:
        return id_name
    known_columns = find_known_columns(table.column_names, id_names)
    arrays = {name: table.column(name) for name in known_columns if not pa.types.is_nested(table.column(name).type)}
    unique_names = [name for name, array in arrays.items() if len(array.unique()) == len(array)]
    if unique_names:
        first = next(iter(arrays))
        best = next((name for name in unique_names if name == first or name.lower() == "id"), None)
        if best is None:
            places = f"column {first!r}, where some repeat, or in {unique_names[0]!r}"
            raise UserError(f"{title}: the ids may be in {places}; remove or rename the other")
        return best
    return next(iter(known_columns), None)


def _read_file(path: Path, id_names: Sequence[str]) -> pa.Table:
    files.refuse_pipe(path)
    with blocks.open_unpacked(path) as file:
        start = file.read(len(blocks.PARQUET_MARK))
        is_parquet = start == blocks.PARQUET_MARK
        content = b"" if is_parquet else start + file.read()
    if not is_parquet:
        return _parse_text(content, path, id_names)
    with tables.open_parquet(path) as parquet:
        return parquet.read()


def _parse_text(content: bytes, path: Path, id_names: Sequence[str]) -> pa.Table:
    blocks.refuse_packed(path, content)
    first = re.split(b"[\r\n]", content, maxsplit=1)[0].decode("utf-8", "replace")
    if first.lstrip().startswith(("{", "[")):
        raise UserError(f"{path}: must be CSV or Parquet, in which each column is a feature. Received: JSON")
    separator = DOUBLE_COLON if DOUBLE_COLON in first else max(",", TAB, ";", key=first.count)
    try:
        file_text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if separator != DOUBLE_COLON:
            raise UserError(f"{path}: cannot be read: must be in UTF-8 ({error.reason})") from error
        file_text = content.decode("latin-1")
    names, *rows = _split_rows(file_text, separator, path) or [[]]
    if separator == DOUBLE_COLON and len(names) > 1 and guess_column(names, id_names) is None:
        names, rows = list(MOVIES[: len(names)]), [names, *rows]
    if len(set(names)) < max(len(names), 2):
        raise UserError(
            f"{path}: the first line must be a header that names at least two columns, each once. Received: {first!r}"
        )
    return pa.table({name: pa.array([row[place] for row in rows], pa.string()) for place, name in enumerate(names)})


def _split_rows(content: str, separator: str, path: Path) -> list[list[str]]:
    """Returns the fields of each row. Blank lines are skipped. Raises UserError for another width, and odd quotes."""
    lines, rows = io.StringIO(content, newline=""), list[list[str]]()
    if separator == DOUBLE_COLON:
        split: Iterator[list[str]] = (line.rstrip("\r\n").split(separator) for line in lines if line.strip("\r\n"))
    else:
        split = filter(None, csv.reader(lines, delimiter=separator, strict=True))
    try:
        for row in split:
            rows.append(row)
            if len(row) != len(rows[0]):
                advice = "" if separator == DOUBLE_COLON else "; put a field with the separator in it in double quotes"
                kind, row_text = BAD_WIDTH.format(len(rows[0]), len(row)), shorten(separator.join(row))
                raise UserError(f"{path}, row {len(rows)}: {kind}: {row_text!r}{advice}")
            if separator == TAB and any(TAB in field and {*"\r\n"} & {*field} for field in row):
                row_text = shorten(separator.join(row))
                raise UserError(f"{path}, row {len(rows)}: {text.SWALLOWS}: {row_text!r}; {text.PLAIN_QUOTES}")
    except csv.Error as error:
        advice = text.PLAIN_QUOTES if separator == TAB else "in a quoted field, write each quote twice"
        raise UserError(f"{path}, row {len(rows) + 1}: {text.NEVER_CLOSED}, or text follows it; {advice}") from error
    return rows


def has_fraction(cell: Any) -> bool:
    """Returns whether a cell is a list with a fraction."""
    if isinstance(cell, np.ndarray):
        return cell.dtype.kind == "f" and cell.size > 0
    return isinstance(cell, (list, tuple)) and any(isinstance(number, (float, np.floating)) for number in cell)


def _find_vector_columns(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Returns the cells of a DataFrame's columns of vectors. Arrow's own errors would not name the item."""
    columns = {str(name): column for name, column in frame.items()}
    is_vector = {name: column.dtype == object and any(map(has_fraction, column)) for name, column in columns.items()}
    return {name: column.where(column.notna(), None).tolist() for name, column in columns.items() if is_vector[name]}


def _list_cells(column: pa.Array) -> list[Any]:
    kind = column.type
    if getattr(kind, "extension_name", "") == "pandas.period":  # Arrow's own values count the periods since 1970
        return [None if pd.isna(period) else str(period) for period in column.to_pandas()]
    if kind.num_fields == 1 and hasattr(kind, "value_type") and pa.types.is_floating(kind.value_type):
        return column.to_numpy(zero_copy_only=False).tolist()  # each list as an array: far smaller than Python's floats
    return column.to_pylist()
