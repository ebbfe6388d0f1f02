"""Reads records, one per line: JSON objects, or Python dictionaries like those of the Steam reviews."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from bert4rec_tf.data.reading import rows
from bert4rec_tf.data.reading.blocks import line_ends
from bert4rec_tf.data.reading.columns import JSON, LITERALS, Layout
from bert4rec_tf.data.reading.rows import BadRow, Rows

_TOKEN = re.compile(
    r"""u?('[^'\\]*(?:\\.?[^'\\]*)*(?:'|\Z)|"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z))|\b(?:True|False|None)\b""", re.DOTALL
)
"""A string or a constant. A string that is not closed goes to the end of the line, so that nothing is read twice."""

_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
PIECE = 2 << 20
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_record(line: str) -> Mapping[str, Any]:
    """Returns the JSON object on a line. Raises ValueError for anything else."""
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def python_record(line: str) -> Mapping[str, Any]:
    """Returns the Python dictionary on a line: strings, numbers, truth values, None and lists of these.

    The line is rewritten as JSON, so nothing is evaluated. Raises ValueError for anything else.
    """
    return json_record(_TOKEN.sub(_as_json, line))


def _as_json(token: re.Match) -> str:
    text = token[1]
    if text is None:
        return _CONSTANTS[token[0]]
    if len(text) < 2 or text[-1] != text[0]:
        raise ValueError("a text is never closed")
    if "\\" not in text:
        return json.dumps(text[1:-1], ensure_ascii=False)
    try:
        return json.dumps(ast.literal_eval(text))
    except SyntaxError as error:
        raise ValueError(str(error)) from error


_IDS = frozenset((str, int, type(None)))
_TIMES = frozenset((str, int, float))
_ARROW = ((int, pa.int64()), (float, pa.float64()))
READERS = {JSON: json_record, LITERALS: python_record}


class Reader:
    """Reads the blocks of one file of records.

    Args:
        layout: of the file.
        rows: tells the good rows from the bad ones.
    """

    def __init__(self, layout: Layout, rows: Rows) -> None:
        self._read, self._layout = READERS[layout.kind], layout
        self._rows = rows
        self._schema: pa.Schema | None = None

    def read(self, content: bytes, first: int) -> Iterator[pa.Table]:
        """Yields the good rows of a block that begins with line `first`. Raises UserError at a bad row not skipped."""
        columns, wrong = self._at_once(content), list[BadRow]()
        if columns is not None:
            lines: Sequence[int] = range(first, first + len(columns["user"]))
        else:
            columns, lines, wrong = self._by_line(content, first)
        table, others = self._rows.good(columns)
        self._rows.refuse(wrong + rows.numbered(others, lines))
        yield table

    def _at_once(self, content: bytes) -> dict[str, pa.Array] | None:
        """Returns the columns of a block, or None unless every line is a JSON object like the first.

        Arrow takes a quarter of the time of `json`, but cannot name a bad line.
        """
        num_objects = _num_objects(content) if self._layout.kind == JSON else 0
        if not num_objects:  # Arrow crashes if it meets `null` in place of the first object
            return None
        self._schema = self._schema or self._schema_of(content)
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(content),
                pyarrow.json.ReadOptions(block_size=PIECE),
                pyarrow.json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
            )
            if table.num_rows != num_objects:
                return None
            columns = {role: table[name].combine_chunks() for role, name in self._layout.roles.items()}
            for role in ("user", "item"):
                columns[role] = columns[role].cast(pa.string())
                columns[role].validate(full=True)
        except (pa.ArrowException, UnicodeError):
            return None
        return columns

    def _schema_of(self, content: bytes) -> pa.Schema:
        """Returns the types of the columns in the first line; strings if it has none."""
        try:
            record = self._read(content.split(b"\n", 1)[0].decode())
        except ValueError:
            record = {}
        known = {"user": _ARROW[:1], "item": _ARROW[:1], "time": _ARROW}
        kinds = {role: dict(known[role]).get(type(record.get(name))) for role, name in self._layout.roles.items()}
        return pa.schema([(name, kinds[role] or pa.string()) for role, name in self._layout.roles.items()])

    def _by_line(self, content: bytes, first: int) -> tuple[dict[str, pa.Array], list[int], list[BadRow]]:
        """Returns the columns of the records, the line of each, and the bad lines."""
        names = list(self._layout.roles.values())
        found, numbers, wrong = list[list[Any]](), list[int](), list[BadRow]()
        for number, line in enumerate(re.split(r"\r\n|\r|\n", content.decode("utf-8", "replace")), start=first):
            if not line.strip():
                continue
            try:
                record = self._read(line)
            except ValueError:
                wrong.append((number, rows.NO_RECORD, line))
                continue
            values = [record.get(name) for name in names]
            if not (type(values[0]) in _IDS and type(values[1]) in _IDS):
                wrong.append((number, rows.NO_ID, line))
                continue
            found.append([*values[:2], *(value if type(value) in _TIMES else None for value in values[2:])])
            numbers.append(number)
        columns = zip(*found) if found else [()] * len(names)
        return {role: _texts(values) for role, values in zip(self._layout.roles, columns)}, numbers, wrong


def _num_objects(content: bytes) -> int:
    """Returns the number of lines if all begin and end with a brace, else 0."""
    letters, ends = np.frombuffer(content, np.uint8), line_ends(content)
    ends = ends[:-1] if content.endswith((b"\n", b"\r")) else ends
    before = np.where(letters[ends - 1] == ord("\r"), letters[ends - 2], letters[ends - 1])
    fit = content.startswith(b"{") and (before == ord("}")).all() and (letters[ends + 1] == ord("{")).all()
    return len(ends) + 1 if fit else 0


def _texts(values: Sequence[str | int | float | None]) -> pa.Array:
    """Makes strings. Lone surrogates, which JSON can write but UTF-8 cannot, become U+FFFD."""
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowTypeError, UnicodeEncodeError):
        texts = [value if value is None else _SURROGATES.sub("\ufffd", str(value)) for value in values]
        return pa.array(texts, pa.string())
