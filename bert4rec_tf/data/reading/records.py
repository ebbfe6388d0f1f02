"""Reads records, one per line: JSON objects, or Python dictionaries like those of the Steam reviews."""

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import pyarrow as pa

from bert4rec_tf.data.reading import blocks
from bert4rec_tf.data.reading.columns import JSON, Layout
from bert4rec_tf.data.reading.rows import NO_ID, NO_RECORD, Record, Rows

_ID, _TIME = (str, type(None)), (str, float)  # tuples, because a union of types takes four times as long to check


def parse_record(kind: str, line: str) -> Mapping[str, Any]:
    """Returns the JSON object or the Python dictionary of constants on a line. Raises ValueError for anything else."""
    parse: Callable[[str], Any] = json.loads if kind == JSON else ast.literal_eval
    try:
        record = parse(line)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(record, dict) or (kind != JSON and not all(isinstance(name, str) for name in record)):
        raise ValueError("not an object")
    return record


def read_rows(stream: IO[bytes], layout: Layout, rows: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of a file. Raises UserError at a bad row, unless `rows` skips them."""
    lines = (line for block in blocks.read_blocks(stream, rows.source) for line in blocks.split_lines(block))
    return rows.make_tables(_parse_lines(lines, layout), layout.roles)


def _parse_lines(lines: Iterator[tuple[int, str]], layout: Layout) -> Iterator[Record]:
    names = tuple(layout.roles.values())
    for number, line in lines:
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        try:
            record = parse_record(layout.kind, text)
            user, item, *times = [str(value) if type(value) is int else value for value in map(record.get, names)]
        except ValueError:  # also from an integer with too many digits
            yield number, text, NO_RECORD
            continue
        if isinstance(user, _ID) and isinstance(item, _ID):
            yield number, text, (user, item, *[time if isinstance(time, _TIME) else None for time in times])
        else:
            yield number, text, NO_ID
