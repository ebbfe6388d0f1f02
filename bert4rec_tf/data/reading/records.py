"""Reads records, one per line: JSON objects, or Python dictionaries like those of the Steam reviews."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json

from bert4rec_tf.data.reading import bad_rows
from bert4rec_tf.data.reading.bad_rows import BadRow
from bert4rec_tf.data.reading.blocks import Block
from bert4rec_tf.data.reading.checks import ID, Checker
from bert4rec_tf.data.reading.columns import JSON, LITERALS, Layout

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
        checker: makes the table.
    """

    def __init__(self, layout: Layout, checker: Checker) -> None:
        self._read, self._layout = READERS[layout.kind], layout
        self._checker = checker
        self._schema: pa.Schema | None = None

    def read(self, block: Block) -> Iterator[pa.Table]:
        """Yields the good rows of a block. Raises UserError at a bad row, unless those are skipped."""
        columns, lines, wrong = self._at_once(block.content), None, list[BadRow]()
        if columns is None:
            columns, lines, wrong = self._by_line(block)
        table, others = self._checker.good(columns)
        for place, kind, text in others:
            wrong.append((block.first + place if lines is None else lines[place], kind, text))
        self._checker.bad.add(wrong)
        yield table

    def _at_once(self, content: bytes) -> dict[str, pa.Array] | None:
        """Returns the columns of a block, or None unless every line is a JSON object like the first.

        Arrow takes a quarter of the time of `json`, but cannot name a bad line.
        """
        if self._layout.kind != JSON:
            return None
        self._schema = self._schema or self._schema_of(content)
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(content),
                pyarrow.json.ReadOptions(block_size=PIECE),
                pyarrow.json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
            ).combine_chunks()
            if table.num_rows != 1 + content.count(b"}\n{") + content.count(b"}\r\n{"):
                return None
            columns = {role: table[name].chunk(0) for role, name in self._layout.roles.items()}
            for role in ("user", "item"):
                columns[role] = columns[role].cast(pa.string()).dictionary_encode().cast(ID)
                columns[role].dictionary.validate(full=True)
        except (pa.ArrowException, IndexError, UnicodeError):
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

    def _by_line(self, block: Block) -> tuple[dict[str, pa.Array], list[int], list[BadRow]]:
        """Returns the columns of the records, the line of each, and the bad lines."""
        user, item, time = self._layout.user, self._layout.item, self._layout.time
        users, items, times, numbers, wrong = [], [], [], [], []
        for number, line in enumerate(_lines(block), start=block.first):
            try:
                record = self._read(line)
            except ValueError:
                if line.strip():
                    wrong.append((number, bad_rows.NO_RECORD, line))
                continue
            ids = record.get(user), record.get(item)
            if not (type(ids[0]) in _IDS and type(ids[1]) in _IDS):
                wrong.append((number, bad_rows.NO_ID, line))
                continue
            users.append(ids[0])
            items.append(ids[1])
            times.append(record.get(time))
            numbers.append(number)
        columns = {"user": _texts(users), "item": _texts(items)}
        columns = {role: column.dictionary_encode().cast(ID) for role, column in columns.items()}
        if time is not None:
            columns["time"] = _texts([value if type(value) in _TIMES else None for value in times])
        return columns, numbers, wrong


def _lines(block: Block) -> list[str]:
    text = block.content.decode("utf-8", "replace")
    return re.split(r"\r\n|\r|\n", text) if "\r" in text else text.split("\n")


def _texts(values: list[str | int | float | None]) -> pa.Array:
    """Makes strings. Lone surrogates, which JSON can write but UTF-8 cannot, become U+FFFD."""
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowTypeError, UnicodeEncodeError):
        texts = [value if value is None else _SURROGATES.sub("\ufffd", str(value)) for value in values]
        return pa.array(texts, pa.string())
