"""Reads records, one per line: JSON objects, or Python dictionaries like those of the Steam reviews."""

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import pyarrow as pa
import pyarrow.json

from bert4rec_tf.data.reading import blocks
from bert4rec_tf.data.reading.columns import JSON, Layout
from bert4rec_tf.data.reading.rows import NO_ID, NO_RECORD, Record, Rows

_IDS = frozenset((str, type(None)))
_TIMES = frozenset((str, float))


def parse_record(kind: str, line: str) -> Mapping[str, Any]:
    """Returns the JSON object or the Python dictionary of constants on a line. Raises ValueError for anything else."""
    parse: Callable[[str], Any] = json.loads if kind == JSON else ast.literal_eval
    try:
        record = parse(line)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(record, dict) or not all(isinstance(name, str) for name in record):
        raise ValueError("not an object")
    return record


def read_rows(stream: IO[bytes], layout: Layout, rows: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of a file. Raises UserError at a bad row, unless `rows` skips them."""
    for block in blocks.read_blocks(stream, rows.source):
        table = _parse_block(block[0], layout, rows) if layout.kind == JSON else None
        if table is not None:
            yield table
        else:
            yield from rows.make_tables(_parse_lines(blocks.split_lines(block), layout), layout.roles)


def _parse_block(content: bytes, layout: Layout, rows: Rows) -> pa.Table | None:
    """Returns the rows of a block, read by Arrow; None if one of them is bad, or not like the first."""
    lines = content.splitlines()
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        return None  # Arrow would take objects over several lines, and crash if it met `null` in place of the first
    try:
        first = parse_record(JSON, lines[0].decode())
        kinds = {int: pa.int64(), float: pa.float64()}
        types = {name: kinds.get(type(first.get(name)), pa.string()) for name in layout.roles.values()}
        if pa.float64() in (types[layout.user], types[layout.item]):
            return None
        found = pyarrow.json.read_json(
            pa.BufferReader(content),
            pyarrow.json.ReadOptions(block_size=blocks.PIECE),
            pyarrow.json.ParseOptions(explicit_schema=pa.schema(types.items()), unexpected_field_behavior="ignore"),
        )
        if found.num_rows != len(lines):
            return None
        columns = {role: found[name].combine_chunks() for role, name in layout.roles.items()}
        for role in ("user", "item"):
            columns[role] = columns[role].cast(pa.string())
            columns[role].validate(full=True)
    except (pa.ArrowException, ValueError):
        return None
    table, wrong = rows.separate(columns, range(len(lines)))
    return None if wrong else table


def _parse_lines(lines: Iterator[tuple[int, str]], layout: Layout) -> Iterator[Record]:
    for number, line in lines:
        if not line.strip():
            continue
        text = line.rstrip("\r\n")
        try:
            record = parse_record(layout.kind, text)
            values = (record.get(name) for name in layout.roles.values())
            user, item, *times = (str(value) if type(value) is int else value for value in values)
        except ValueError:  # also from a whole number of too many digits
            yield number, text, NO_RECORD
            continue
        if type(user) in _IDS and type(item) in _IDS:
            yield number, text, [user, item, *(time if type(time) in _TIMES else None for time in times)]
        else:
            yield number, text, NO_ID
