"""Reads text in separated columns with Arrow's CSV parser, block by block."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from bert4rec_tf.data.reading import blocks
from bert4rec_tf.data.reading.columns import ANY_BLANKS, UNQUOTED
from bert4rec_tf.data.reading.rows import BAD_WIDTH, Rows, shorten
from bert4rec_tf.data.reading.times import BLANKS
from bert4rec_tf.foundation.errors import UserError

MAY_BE_QUOTED = {"\t": '\t"', ANY_BLANKS: ' "'}
"""Tabs and single blanks -> the separators for these between fields that may be quoted."""

UNIT_SEPARATOR = "\x1f"
"""Replaces `::`, because Arrow takes one character."""

QUOTED, SEVERAL_BLANKS = re.compile('"[^"]*"'), re.compile(r"^ | $|  |\t")

csv.field_size_limit(blocks.LONGEST_LINE)


def read_rows(stream: IO[bytes], reader: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of a file. Raises UserError at a bad row, unless `reader` skips them.

    Rows are counted from 1, the header too, but no blank lines.
    """
    layout, used_columns = reader.layout, reader.layout.used_columns
    number, unfinished, width = int(layout.has_header), b"", len(layout.names)
    column_numbers = [layout.names.index(name) for name in used_columns]
    for content, first in blocks.read_blocks(stream, reader.file_name):
        if first <= layout.skip:
            content = b"".join(content.splitlines(keepends=True)[layout.skip + 1 - first :])
        columns, misfits, unfinished = _parse_rows(unfinished + content, layout.separator, width, column_numbers)
        count = columns.num_rows + len(misfits)
        numbers = np.delete(np.arange(number + 1, number + count + 1), [misfit.number - 1 for misfit in misfits])
        by_name = dict(zip(used_columns, (column.combine_chunks() for column in columns.columns)))
        unreadable = [(number + misfit.number, *_explain_misfit(misfit)) for misfit in misfits]
        yield reader.select_good(by_name, numbers, unreadable)
        number += count
        ends_in_item = len(by_name[layout.item]) and layout.names[-1] == layout.item
        if ends_in_item and not content.endswith((b"\n", b"\r")) and numbers[-1] == number:
            reader.findings.unended[by_name[layout.item][-1].as_py().strip(BLANKS)] = reader.locate(number)
        if len(unfinished) > blocks.LONGEST_LINE:
            break
    if unfinished:
        raise UserError(f"{reader.file_name}, row {number + 1}: a quote is never closed")


def read_table(content: bytes, separator: str, source: str) -> pa.Table:
    """Returns the rows of a small text in UTF-8, the first too, as strings. Blank lines are skipped.

    Raises UserError if a row has more or fewer fields than the first, or a quote is not closed. `source`: for messages.
    """
    content = content.removeprefix(blocks.BOM)
    first = next((line for line in content.splitlines() if line), b"")
    width = len(split_lines([first.decode()], separator)[0]) if first else 0
    if width < 2:
        return pa.table({"0": [first.decode()] if first else []})
    columns, misfits, unfinished = _parse_rows(content, separator, width, range(width))
    if misfits:
        kind, text = _explain_misfit(misfits[0])
        advice = "; put a field that contains the separator in double quotes" if separator not in UNQUOTED else ""
        raise UserError(f"{source}, row {misfits[0].number}: {kind}: {shorten(text)!r}{advice}")
    if unfinished:
        raise UserError(f"{source}, row {columns.num_rows + 1}: a quote is never closed")
    return columns


def split_lines(lines: Iterable[str], separator: str) -> list[list[str]]:
    """Splits lines into fields. Where these may be quoted, they may have line ends, and the last may be unfinished."""
    if separator == ANY_BLANKS:
        return [re.findall("[^ \t]+", line) for line in lines]
    if separator in UNQUOTED:
        return [line.split(separator) for line in lines]
    return [row for row in csv.reader((f"{line}\n" for line in lines), delimiter=separator[0]) if row]


def recognize_quotes(separator: str, lines: Sequence[str]) -> str:
    """Returns the separator; that of MAY_BE_QUOTED if all fields of the first line are in quotes."""
    first = map(QUOTED.fullmatch, lines[0].strip().split(separator))
    return allow_quotes(separator, lines) if separator in MAY_BE_QUOTED and all(first) else separator


def allow_quotes(separator: str, lines: Sequence[str]) -> str:
    """Returns the separator of MAY_BE_QUOTED, unless the columns of the lines are separated by several blanks."""
    is_aligned = separator == ANY_BLANKS and any(map(SEVERAL_BLANKS.search, lines))
    return separator if is_aligned else MAY_BE_QUOTED[separator]


def _make_readable(content: bytes, separator: str) -> bytes:
    """Returns lines as Arrow can read them: in UTF-8, with one character between columns."""
    if not content.isascii():
        content = content.decode("utf-8", "replace").encode()
    if separator == "::":
        unit = UNIT_SEPARATOR.encode()
        return content.replace(unit, "\ufffd".encode()).replace(b"::", unit)
    if separator != ANY_BLANKS:
        return content
    content = content.replace(b"\t", b" ")
    while b"  " in content:
        content = content.replace(b"  ", b" ")
    for end in (b"\n", b"\r"):
        content = content.replace(b" " + end, end).replace(end + b" ", end)
    return content.strip(b" ")


def _explain_misfit(misfit: pyarrow.csv.InvalidRow) -> tuple[str, str]:
    """Returns what is wrong with a row that has another number of columns, and its text."""
    kind = BAD_WIDTH.format(misfit.expected_columns, misfit.actual_columns)
    return kind, misfit.text.replace(UNIT_SEPARATOR, "::")


def _parse_rows(
    content: bytes, separator: str, width: int, column_numbers: Sequence[int]
) -> tuple[pa.Table, list[pyarrow.csv.InvalidRow], bytes]:
    """Parses rows, of which the last is unfinished if its quote is not closed.

    Returns the wanted columns as texts, the rows with another number of columns, and the unfinished row.
    """
    content, is_quoted = _make_readable(content, separator), separator not in UNQUOTED
    if content.startswith(blocks.BOM):  # Arrow takes away the first
        content = blocks.BOM + content
    separator = UNIT_SEPARATOR if separator == "::" else separator[0]
    names = [str(number) for number in range(width)]
    types = {names[number]: pa.string() for number in column_numbers}
    misfits = list[pyarrow.csv.InvalidRow]()

    def skip(row: pyarrow.csv.InvalidRow) -> str:
        misfits.append(row)
        return "skip"

    # An unfinished row with this at its end has too many columns. Otherwise this is a row of its own, with too few
    # columns, or too many if there are no quotes. In both cases Arrow passes it to `skip` with the text before it.
    end = '"' + separator * width
    content += (b"" if content.endswith((b"\n", b"\r")) else b"\n") + end.encode()
    quotes: dict[str, Any] = {"quote_char": '"' if is_quoted else False, "newlines_in_values": is_quoted}
    columns = pyarrow.csv.read_csv(
        pa.BufferReader(content),
        pyarrow.csv.ReadOptions(column_names=names, block_size=len(content), use_threads=False),
        pyarrow.csv.ParseOptions(delimiter=separator, invalid_row_handler=skip, **quotes),
        pyarrow.csv.ConvertOptions(include_columns=list(types), column_types=types, check_utf8=False),
    )
    return columns, misfits, misfits.pop().text.removesuffix(end).encode()
