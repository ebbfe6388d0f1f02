"""Records, one per line: JSON objects, and Python dictionaries as the Steam reviews are written."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bert4rec_tf.data.reading import actions, bad_rows, times
from bert4rec_tf.data.reading.actions import ID
from bert4rec_tf.data.reading.bad_rows import BadRows
from bert4rec_tf.data.reading.blocks import Block
from bert4rec_tf.data.reading.delimited import with_times
from bert4rec_tf.data.reading.layouts import JSON, Layout

PIECE = 2 << 20
SAMPLE_LINES = 100

_TEXT = r"""u?(?:'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")"""
_PLAIN = r"-?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?|True|False|None"
_PAIR = re.compile(rf"([{{,]\s*({_TEXT})\s*:\s*({_TEXT}|{_PLAIN})\s*)(?=[,}}])")
"""One pair of a flat dictionary, from the brace or comma before it."""


def literal_record(line: str) -> Mapping[Any, Any]:
    """Returns the dictionary that a line writes in Python, without evaluating anything.

    A dictionary of texts, numbers, truth values and None goes through one regular expression, whose matches must cover
    the whole line; `ast.literal_eval`, about six times slower, reads all others.

    Raises:
        ValueError: where the line is no dictionary of literals.
    """
    line = line.strip()
    pairs = _PAIR.findall(line)
    if pairs and line.endswith("}") and sum(len(pair[0]) for pair in pairs) == len(line) - 1:
        return {_value(key): value for _, key, value in pairs}
    return _evaluated(line)


def _value(text: str) -> Any:
    """Returns the value of one literal: of a text that has no backslash in it, what stands between its quotes."""
    if "\\" in text or text[-1] not in "'\"":
        return _evaluated_literal(text)
    return text[2:-1] if text[0] == "u" else text[1:-1]


def _evaluated_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _evaluated(line: str) -> Mapping[Any, Any]:
    record = _evaluated_literal(line)
    if not isinstance(record, dict):
        raise ValueError("not a dictionary")
    return {key: repr(value) for key, value in record.items()}


def literal_fields(line: str, names: tuple[str, ...]) -> list[Any]:
    """Returns the values of some keys of a Python dictionary, None for those that are not there.

    Raises:
        ValueError: where the line is no dictionary of literals, or one of these values is none that can be read.
    """
    record = literal_record(line)
    return [_value(record[name]) if name in record else None for name in names]


def json_fields(line: str, names: tuple[str, ...]) -> list[Any]:
    """The same of a JSON object."""
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return [record.get(name) for name in names]


class Reader:
    """Reads the blocks of one file of records.

    Args:
        layout: of the file.
        bad: what to do at a bad row.
    """

    def __init__(self, layout: Layout, bad: BadRows) -> None:
        self.layout = layout
        self.bad = bad
        self._names = tuple(name for name in (layout.user, layout.item, layout.time) if name is not None)
        self._fields = json_fields if layout.kind == JSON else literal_fields
        self._types: dict[str, pa.DataType] | None = None
        self._time_kind = times.NUMBER

    def read(self, block: Block) -> pa.Table:
        """Returns the actions of a block. Raises UserError at a bad row, unless those are passed over."""
        if self._types is None:
            self._guess_types(block)
        found = self._read_at_once(block) if self.layout.kind == JSON else None
        return self._read_by_line(block) if found is None else found

    def _guess_types(self, block: Block) -> None:
        """Takes the types of ids and times from the first good line."""
        self._types = dict.fromkeys(self._names, pa.string())
        for _, line in zip(range(SAMPLE_LINES), self._lines(block)):
            try:
                values = self._fields(line[1], self._names)
            except ValueError:
                continue
            kind = times.kind_of(str(values[-1]).strip()) if self.layout.time is not None else times.NUMBER
            if kind and None not in values:
                self._time_kind = kind
                known = {int: pa.int64(), float: pa.float64()}
                self._types = {name: known.get(type(value), pa.string()) for name, value in zip(self._names, values)}
                return

    def _read_at_once(self, block: Block) -> pa.Table | None:
        try:
            found = pyarrow.json.read_json(
                pa.BufferReader(block.content),
                pyarrow.json.ReadOptions(block_size=PIECE),
                pyarrow.json.ParseOptions(
                    explicit_schema=pa.schema(list(self._types.items())), unexpected_field_behavior="ignore"
                ),
            )
            if found.num_rows != block.num_lines:
                return None
            columns = {"user": self._ids(found[self.layout.user]), "item": self._ids(found[self.layout.item])}
            if self.layout.time is not None:
                columns["time"] = self._times(found[self.layout.time])
        except (pa.ArrowException, UnicodeError):
            return None
        return None if any(column is None for column in columns.values()) else pa.table(columns)

    def _ids(self, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
        if pa.types.is_floating(column.type) or column.null_count:
            return None
        coded = column.cast(pa.string()).dictionary_encode()
        for chunk in coded.chunks:
            chunk.dictionary.validate(full=True)
        return actions.good_ids(coded.cast(ID), trim=False)

    def _times(self, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
        if column.null_count:
            return None
        if pa.types.is_string(column.type):
            column = pc.utf8_trim(column, characters=actions.BLANKS).cast(times.TYPES[self._time_kind][0])
        return column if times.is_finite(column) else None

    def _read_by_line(self, block: Block) -> pa.Table:
        numbers, users, items, texts = [], [], [], []
        for number, line in self._lines(block):
            try:
                values = self._fields(line, self._names)
            except ValueError:
                self.bad.add(bad_rows.NO_RECORD, number, line)
                continue
            problem = _problem(values[0], bad_rows.NO_USER) or _problem(values[1], bad_rows.NO_ITEM)
            if problem or (self.layout.time is not None and not _may_be_time(values[2])):
                self.bad.add(problem or bad_rows.NO_TIME, number, line)
                continue
            numbers.append(number)
            users.append(str(values[0]))
            items.append(str(values[1]))
            if self.layout.time is not None:
                texts.append(str(values[2]).strip(actions.BLANKS))
        if self.layout.time is None:
            return actions.table(users, items, None)
        return with_times(numbers, users, items, texts, self._time_kind, self.bad)

    def _lines(self, block: Block) -> Iterator[tuple[int, str]]:
        text = block.content.decode("utf-8", "surrogateescape")
        for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=block.first):
            if line.strip():
                yield number, line


def _problem(raw: Any, missing: str) -> str | None:
    if raw is None or type(raw) in (str, int):
        return bad_rows.id_problem("" if raw is None else str(raw), missing)
    return bad_rows.NO_ID


def _may_be_time(value: Any) -> bool:
    return type(value) in (str, int, float)
