"""Reads text in separated columns with Arrow's CSV parser, block by block."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from bert4rec_tf.data.reading import blocks
from bert4rec_tf.data.reading.columns import ANY_BLANKS, TAB, UNQUOTED
from bert4rec_tf.data.reading.rows import BAD_WIDTH, Rows, shorten
from bert4rec_tf.data.reading.times import BLANKS
from bert4rec_tf.foundation.errors import UserError

UNIT_SEPARATOR = "\x1f"
"""Replaces `::`, because Arrow takes one character."""

NEVER_CLOSED = "a quote is never closed"
SWALLOWS = "an opening quote takes in the text up to a later one"
PLAIN_QUOTES = 'if quotes are plain characters there, read it in pandas with sep="\\t", quoting=3, and write it as CSV'

_CLOSED = re.compile(rb'"(?:[^"]++|"")*+"')
_QUOTED = rb'"(?:(?:[^"\t]++|"")*+"|(?:[^"\r\n]++|"")*+")'
_WELL_QUOTED = re.compile(rb'(?:[\t\r\n]++|[^"\t\r\n][^\t\r\n]*+|%b(?=[\t\r\n]|\Z))*+' % _QUOTED)
"""Fields between tabs of which all that begin with a quote end with one, without both a tab and a line end in them."""

csv.field_size_limit(blocks.LONGEST_LINE)


def read_rows(stream: IO[bytes], reader: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of a file. Raises UserError at a bad row, unless `reader` skips them.

    Rows are counted from 1, the header too, but no blank lines.
    """
    layout, used_columns = reader.layout, reader.layout.used_columns
    number, tail, width = int(layout.has_header), b"", len(layout.names)
    column_numbers = [layout.names.index(name) for name in used_columns]
    for content, first in blocks.read_blocks(stream, reader.file_name):
        if first <= layout.skip:
            content = b"".join(content.splitlines(keepends=True)[layout.skip + 1 - first :])
        content = tail + content
        if layout.separator == TAB:
            refuse_lone_quotes(content, reader.file_name, number)
        columns, misfits, tail = _parse_rows(content, layout.separator, width, column_numbers)
        count = columns.num_rows + len(misfits)
        numbers = np.delete(np.arange(number + 1, number + count + 1), [misfit.number - 1 for misfit in misfits])
        arrays = dict(zip(used_columns, (column.combine_chunks() for column in columns.columns)))
        unread_rows = [(number + misfit.number, *_explain_misfit(misfit)) for misfit in misfits]
        yield reader.select_good(arrays, numbers, unread_rows)
        number += count
        ends_in_item = len(arrays[layout.item]) and layout.names[-1] == layout.item
        if ends_in_item and not content.endswith((b"\n", b"\r")) and numbers[-1] == number:
            reader.findings.unended[arrays[layout.item][-1].as_py().strip(BLANKS)] = reader.locate(number)
        if len(tail) > blocks.LONGEST_LINE:
            break
    if tail:
        advice = f"; {PLAIN_QUOTES}" if layout.separator == TAB else ""
        raise UserError(f"{reader.file_name}, row {number + 1}: {NEVER_CLOSED}{advice}")


def refuse_lone_quotes(content: bytes, source: str, number: int = 0) -> None:
    """Raises UserError for a field between tabs whose opening quote swallows rows.

    Text follows its closing quote, or it has a tab and a line end in its quotes, as all that take in a row do.

    `source`, `number`: for messages, the file, and its rows before the content.
    """
    match = _WELL_QUOTED.match(content) if b'"' in content else None
    if match is None or not _CLOSED.match(content, end := match.end()):  # the last field may end in the next block
        return
    start = io.StringIO(content[:end].decode("utf-8", "replace") + "-", newline="")
    row = number + sum(map(bool, csv.reader(start, delimiter=TAB)))
    field = re.split("[\t\r\n]", content[end:].decode("utf-8", "replace"), maxsplit=1)[0]
    raise UserError(f"{source}, row {row}: {SWALLOWS}: {shorten(field)!r}; {PLAIN_QUOTES}")


def split_lines(lines: Iterable[str], separator: str) -> list[list[str]]:
    """Splits lines into fields. Where these may be quoted, they may have line ends, and the last may be unfinished."""
    if separator == ANY_BLANKS:
        return [re.findall("[^ \t]+", line) for line in lines]
    if separator in UNQUOTED:
        return [line.split(separator) for line in lines]
    return [row for row in csv.reader((f"{line}\n" for line in lines), delimiter=separator[0]) if row]


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
