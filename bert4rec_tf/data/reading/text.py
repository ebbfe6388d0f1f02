"""Reads text in separated columns: with Arrow, and where a row is bad or quoted, line by line."""

import csv
import itertools
import re
from collections.abc import Iterator
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from bert4rec_tf.data.reading import blocks
from bert4rec_tf.data.reading.columns import Layout
from bert4rec_tf.data.reading.rows import COLUMNS, Record, Rows
from bert4rec_tf.foundation.errors import UserError

ANY_BLANKS = " "
"""The separator that stands for any number of blanks and tabs."""

UNIT_SEPARATOR = b"\x1f"
"""Replaces `::`, because Arrow takes one character."""

PIECE = 2 << 20


def read(stream: IO[bytes], layout: Layout, rows: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of a file. Raises UserError at a bad row not skipped."""
    found = blocks.read(stream, rows.source)
    for content, first in found:
        if first <= layout.skip:
            content = b"".join(content.splitlines(keepends=True)[layout.skip + 1 - first :])
            first = layout.skip + 1
        table = _at_once(content, layout, rows)
        if table is not None:
            yield table
            continue
        further = found if layout.quoted and b'"' in content else ()  # a row may end in another block
        lines = blocks.lines(itertools.chain([(content, first)], further))
        yield from rows.tables(_records(lines, layout, rows.source), layout.roles)


def _at_once(content: bytes, layout: Layout, rows: Rows) -> pa.Table | None:
    """Returns the rows of a block; None if one of them is bad, or Arrow cannot read it as `_records` does."""
    separator = layout.separator
    if layout.quoted and b'"' in content:
        return None
    if separator == ANY_BLANKS and _has_more_blanks(content):
        return None
    if separator == "::":
        if UNIT_SEPARATOR in content:
            return None
        content, separator = content.replace(b"::", UNIT_SEPARATOR), UNIT_SEPARATOR.decode()
    names = [str(number) for number in range(layout.width)]
    wanted = [names[number] for number in layout.roles.values()]
    try:
        columns = pyarrow.csv.read_csv(
            pa.BufferReader(content),
            pyarrow.csv.ReadOptions(column_names=names, block_size=PIECE),
            pyarrow.csv.ParseOptions(delimiter=separator, quote_char=False),
            pyarrow.csv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string())),
        )
    except pa.ArrowInvalid:
        return None
    table, wrong = rows.good(dict(zip(layout.roles, (column.combine_chunks() for column in columns.columns))))
    return None if wrong else table


def _has_more_blanks(content: bytes) -> bool:
    """Returns whether other characters than one blank may stand between two columns, or blanks around a row."""
    blank = np.frombuffer(content, np.uint8) <= ord(" ")
    return bool(content[:1] == b" " or content[-1:] == b" " or (blank[1:] & blank[:-1]).any() or b"\t" in content)


def _records(lines: Iterator[tuple[int, str]], layout: Layout, source: str) -> Iterator[Record]:
    """Yields the rows of numbered lines."""
    separator = layout.separator
    found = _quoted(lines, separator, source) if layout.quoted else _separated(lines, separator)
    for number, text, fields in found:
        if len(fields) == layout.width:
            yield number, text, [fields[column] for column in layout.roles.values()]
        else:
            yield number, text, COLUMNS.format(layout.width, len(fields))


def _separated(lines: Iterator[tuple[int, str]], separator: str) -> Iterator[tuple[int, str, list[str]]]:
    for number, line in lines:
        text = line.rstrip("\r\n")
        if separator == ANY_BLANKS:
            text = re.sub("[ \t]+", " ", text).strip(" ")
        if text:
            yield number, text, text.split(separator)


def _quoted(lines: Iterator[tuple[int, str]], separator: str, source: str) -> Iterator[tuple[int, str, list[str]]]:
    taken: list[tuple[int, str]] = []
    at_end = False

    def each() -> Iterator[str]:
        nonlocal at_end
        for number, line in lines:
            taken.append((number, line))
            yield line
        at_end = True

    csv.field_size_limit(blocks.LONGEST_LINE)
    reader = csv.reader(each(), delimiter=separator)
    while True:
        taken.clear()
        try:
            fields = next(reader, None)
        except csv.Error:  # a longer field
            at_end = True
        if taken and at_end:
            raise UserError(f"{source}, line {taken[0][0]}: a quote is never closed")
        if fields is None:
            return
        if fields:
            yield taken[0][0], "".join(line for _, line in taken).rstrip("\r\n"), fields
