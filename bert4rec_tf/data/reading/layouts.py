"""Finds the layout of a file of interactions from its name and its first bytes."""

import re
from dataclasses import replace
from pathlib import Path

from bert4rec_tf.data.reading import records, tables
from bert4rec_tf.data.reading.columns import (
    ITEM_NAMES,
    JSON,
    LITERALS,
    PARQUET,
    USER_NAMES,
    Columns,
    Layout,
    guess_column,
)
from bert4rec_tf.data.reading.rows import shorten
from bert4rec_tf.data.reading.text import ANY_BLANKS, split_line
from bert4rec_tf.data.reading.times import is_time
from bert4rec_tf.foundation.errors import UserError

SAMPLE_BYTES = 1 << 20
SAMPLE_ROWS = 1_000
FEW_ROWS = 5
"""How many lines after the first one show whether it is a header."""
_PACKED = re.compile(rb"PK\x03\x04|\x1f\x8b|\xfd7zXZ\0|BZh[1-9]1AY&SY|\x28\xb5\x2f\xfd")
"""The first bytes of archives and packed files: zip, gzip, xz, bzip2, zstandard."""


def find_layout(path: Path, columns: Columns, start: bytes) -> Layout:
    """Returns the layout of a file. Raises UserError if a column is missing or cannot be guessed.

    `columns`: as the user named them. `start`: the file's first bytes, unpacked.
    """
    if _PACKED.match(start):
        raise UserError(f"{path}: is packed; unpack it, or pack only the text with gzip, under a name that ends in .gz")
    if start.startswith(b"PAR1"):
        if path.suffix == ".gz":
            raise UserError(f"{path}: Parquet is packed already and is not read from .gz; unpack it")
        return columns.layout_from_names(PARQUET, tables.read_names(path))
    text = start.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    lines = re.split(r"\r\n|\r|\n", text)
    first_line = next((number for number, line in enumerate(lines, 1) if line.strip(" \t")), None)
    if first_line is None:
        raise UserError(f"{path}: the file is empty")
    line = lines[first_line - 1]
    if re.match(r"\s*\[\s*(\{|$)", line):
        raise UserError(
            f"{path}, line {first_line}: begins a JSON array; write its objects one per line, without brackets"
        )
    if line.lstrip().startswith("{"):
        return _find_record_layout(path, columns, line, first_line)
    separator = _find_separator(path, line, first_line)
    fields = [field.strip() for field in split_line(line, separator)]
    if (
        any(not name.isdigit() for name in columns.requested_names)
        or (guess_column(fields, USER_NAMES) and guess_column(fields, ITEM_NAMES))
        or _is_header(fields, lines[first_line : first_line + FEW_ROWS], separator)
    ):
        return replace(columns.layout_from_header(separator, fields), skip=first_line)
    numbers = fields[1:] if fields[0] == "" else fields
    is_numbered = len(fields) > 2 and numbers == [str(number) for number in range(len(numbers))]  # by pandas
    skip = first_line if is_numbered else first_line - 1
    doubt = "its first line, 0 and 1, may be a header that pandas wrote, and counts as an action"
    rows = [split_line(line, separator) for line in lines[skip : skip + SAMPLE_ROWS] if line.strip(" \t")]
    rows = [row for row in rows if len(row) == len(fields)] or [fields]
    layout = replace(columns.layout_from_rows(separator, rows, fields if is_numbered else ()), skip=skip)
    return replace(layout, doubt=doubt) if fields == ["0", "1"] else layout


def _is_header(fields: list[str], next_lines: list[str], separator: str) -> bool:
    """Returns whether no field is a number or a date, and all fields of a column of the next lines are."""
    if any(map(is_time, fields)):
        return False
    rows = [split_line(line, separator) for line in next_lines if line.strip() and len(line) < 10_000]
    return any(all(map(is_time, column)) for column in zip(*rows))


def _find_separator(path: Path, line: str, number: int) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    candidates = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}.get(suffix, ("\t", "::", ",", ";", ANY_BLANKS))
    separator = next((candidate for candidate in candidates if candidate in line.strip()), None)
    if separator is None:
        raise UserError(f"{path}, line {number}: expected at least two columns, found {shorten(line)!r}")
    return separator


def _find_record_layout(path: Path, columns: Columns, line: str, number: int) -> Layout:
    for kind in (JSON, LITERALS):
        try:
            names = list(records.parse_record(kind, line))
        except ValueError:
            continue
        return columns.layout_from_names(kind, names)
    raise UserError(f"{path}, line {number}: neither a whole JSON object nor a Python dictionary")
