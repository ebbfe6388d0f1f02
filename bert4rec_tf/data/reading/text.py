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
from bert4rec_tf.data.reading.blocks import Block
from bert4rec_tf.data.reading.columns import Layout
from bert4rec_tf.data.reading.rows import COLUMNS, SHOWN, Record, Rows
from bert4rec_tf.foundation.errors import UserError

ANY_BLANKS = " "
"""The separator that stands for any number of blanks and tabs."""

UNIT_SEPARATOR = b"\x1f"
"""Replaces `::`, because Arrow takes one character."""


def read(stream: IO[bytes], layout: Layout, rows: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of a file. Raises UserError at a bad row, unless `rows` skips them."""
    found = blocks.read(stream, rows.source)
    for content, first in found:
        if first <= layout.skip:
            content = b"".join(content.splitlines(keepends=True)[layout.skip + 1 - first :])
            first = layout.skip + 1
        table = _at_once(content, layout, rows)
        if table is not None:
            yield table
            continue
        parts = blocks.parts(content, first)
        for part in parts:
            table = _at_once(part[0], layout, rows)
            if table is not None:
                yield table
            else:
                records = _records(part, itertools.chain(parts, found), layout, rows.source)
                yield from rows.tables(records, layout.roles)


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
            pyarrow.csv.ReadOptions(column_names=names, block_size=blocks.PIECE),
            pyarrow.csv.ParseOptions(delimiter=separator, quote_char=False),
            pyarrow.csv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string())),
        )
    except pa.ArrowInvalid:
        return None
    found = dict(zip(layout.roles, (column.combine_chunks() for column in columns.columns)))
    table, wrong = rows.good(found, range(columns.num_rows))
    return None if wrong else table


def _has_more_blanks(content: bytes) -> bool:
    """Returns whether there may be more than one blank between two columns, or any at an end of a row."""
    content = content.replace(b"\r\n", b"\n")
    blank = np.frombuffer(content, np.uint8) <= ord(" ")
    return bool(content[:1] == b" " or content[-1:] == b" " or (blank[1:] & blank[:-1]).any() or b"\t" in content)


def _records(block: Block, further: Iterator[Block], layout: Layout, source: str) -> Iterator[Record]:
    """Yields the rows of a block. The last row may end in a further block."""
    if layout.quoted and b'"' in block[0]:
        found = _quoted(block, further, layout.separator, source)
    else:
        found = _separated(blocks.lines(block), layout.separator)
    for number, text, fields in found:
        if len(fields) == layout.width:
            yield number, text, [fields[column] for column in layout.roles.values()]
        else:
            yield number, text, COLUMNS.format(layout.width, len(fields))


def _separated(lines: Iterator[tuple[int, str]], separator: str) -> Iterator[tuple[int, str, list[str]]]:
    for number, line in lines:
        text = line.rstrip("\r\n")
        if text and (fields := split(text, separator)):
            yield number, text, fields


def split(line: str, separator: str) -> list[str]:
    """Splits a line without quotes."""
    return re.findall("[^ \t]+", line) if separator == ANY_BLANKS else line.split(separator)


def _quoted(
    block: Block, further: Iterator[Block], separator: str, source: str
) -> Iterator[tuple[int, str, list[str]]]:
    begin, text, at_end = 0, "", False  # the row's first line and its first characters

    def each() -> Iterator[str]:
        nonlocal begin, text, at_end
        for current in itertools.chain([block], further):
            for number, line in blocks.lines(current):
                begin = begin or number
                text += line if len(text) < SHOWN else ""
                yield line
            if not begin:  # a row ends with the block
                return
        at_end = True

    reader = csv.reader(each(), delimiter=separator)
    while True:
        begin, text = 0, ""
        try:
            fields = next(reader, None)
        except csv.Error:  # a field longer than LONGEST_LINE
            at_end = True
        if begin and at_end:
            raise UserError(f"{source}, line {begin}: a quote is never closed")
        if fields is None:
            return
        if fields:
            yield begin, text.rstrip("\r\n"), fields
