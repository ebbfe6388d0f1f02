"""Reads records, one per line: JSON objects, or Python dictionaries like those of the Steam reviews."""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import pyarrow as pa

from bert4rec_tf.data.reading import blocks
from bert4rec_tf.data.reading.columns import JSON, Layout
from bert4rec_tf.data.reading.rows import NO_ID, NO_RECORD, BadRow, Rows

_ID, _TIME = (str, type(None)), (str, float)  # tuples, because a union of types takes four times as long to check
_SURROGATES = re.compile("[\ud800-\udfff]")


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
    names = tuple(layout.roles.values())
    for block in blocks.read_blocks(stream, rows.source):
        numbers, records, unreadable = list[int](), list[Sequence[Any]](), list[BadRow]()
        for number, line in blocks.split_lines(block):
            text = line.rstrip("\r\n")
            if not text.strip():
                continue
            values = _parse_values(text, layout.kind, names)
            if isinstance(values, str):
                unreadable.append((number, values, text))
            else:
                numbers.append(number)
                records.append(values)
        columns = {
            role: _make_strings([values[place] for values in records]) for place, role in enumerate(layout.roles)
        }
        yield rows.select_good(columns, numbers, unreadable)


def _parse_values(text: str, kind: str, names: Sequence[str]) -> Sequence[Any] | str:
    """Returns the user, the item and perhaps the time of a record, whose names these are; or what is wrong with it."""
    try:
        record = parse_record(kind, text)
        user, item, *times = [str(value) if type(value) is int else value for value in map(record.get, names)]
    except ValueError:  # also from an integer with too many digits
        return NO_RECORD
    if not (isinstance(user, _ID) and isinstance(item, _ID)):
        return NO_ID
    return user, item, *[time if isinstance(time, _TIME) else None for time in times]


def _make_strings(values: Sequence[str | float | None]) -> pa.Array:
    """Returns values as strings. Lone surrogates, which JSON can write but UTF-8 cannot, become U+FFFD."""
    texts = [value if value is None else str(value) for value in values]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([text and _SURROGATES.sub("\ufffd", text) for text in texts], pa.string())
