"""Reads records, one per line: JSON objects, or Python dictionaries like those of the Steam reviews."""

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import pyarrow as pa

from bert4rec_tf.data.reading import blocks
from bert4rec_tf.data.reading.columns import JSON, SAMPLE_ROWS, may_be_time
from bert4rec_tf.data.reading.rows import NO_ID, NO_RECORD, BadRow, Rows
from bert4rec_tf.foundation.errors import UserError

_ID = (str, type(None))  # a tuple, because a union of types takes four times as long to check
_SURROGATES = re.compile("[\ud800-\udfff]")


def parse_text(kind: str, text: str) -> Any:
    """Returns the value that a text in JSON, or in Python's form of it, holds. Raises ValueError for any other text."""
    parse: Callable[[str], Any] = json.loads if kind == JSON else ast.literal_eval
    try:
        return parse(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from error


def parse_record(kind: str, line: str) -> Mapping[str, Any]:
    """Returns the JSON object or the Python dictionary of constants on a line. Raises ValueError for anything else."""
    record = parse_text(kind, line)
    if not isinstance(record, dict) or (kind != JSON and not all(isinstance(name, str) for name in record)):
        raise ValueError("not an object")
    return record


def read_rows(stream: IO[bytes], reader: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of a file. Raises UserError at a bad row, unless `reader` skips them."""
    layout, names, known_keys = reader.layout, tuple(reader.layout.used_columns), set(reader.layout.names)
    for content, first in blocks.read_blocks(stream, reader.file_name):
        numbers, records, unread_rows = list[int](), list[Sequence[Any]](), list[BadRow]()
        for number, line in enumerate(content.splitlines(), first):
            text = line.decode("utf-8", "replace")
            if not text.strip():
                continue
            try:
                record = parse_record(layout.kind, text)
                values = _select_values(record, names)
            except ValueError:  # also from an integer with too many digits
                unread_rows.append((number, NO_RECORD, text))
                continue
            if layout.may_lack_times and (late_keys := record.keys() - known_keys):
                _refuse_times(late_keys, f"{reader.file_name}, line {number}")
                known_keys |= late_keys
            if values is None:
                unread_rows.append((number, NO_ID, text))
            else:
                numbers.append(number)
                records.append(values)
        columns = {name: _make_strings([values[place] for values in records]) for place, name in enumerate(names)}
        yield reader.select_good(columns, numbers, unread_rows)


def _select_values(record: Mapping[str, Any], names: Sequence[str]) -> Sequence[Any] | None:
    """Returns a record's values of these names, which begin with user and item; None if one of these is no id."""
    user, item, *values = [str(value) if type(value) is int else value for value in map(record.get, names)]
    if not (isinstance(user, _ID) and isinstance(item, _ID)):
        return None
    return user, item, *[str(value).lower() if type(value) is bool else value for value in values]


def _refuse_times(late_keys: Iterable[str], place: str) -> None:
    """Raises UserError for a key that the first records lack and that may be the time that was not found."""
    for key in sorted(late_keys):
        if may_be_time(key, ()):
            raise UserError(
                f"{place}: the key {key!r} is in no line before the first {SAMPLE_ROWS:,} and may have the times, "
                "which those lines lack. --time_column=none: the rows are in order"
            )


def _make_strings(values: Sequence[Any]) -> pa.Array:
    """Returns values as strings. Lone surrogates, which JSON can write but UTF-8 cannot, become U+FFFD."""
    texts = [value if value is None else str(value) for value in values]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([text and _SURROGATES.sub("\ufffd", text) for text in texts], pa.string())
