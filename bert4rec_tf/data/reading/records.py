"""Records, one per line: JSON objects, and Python dictionaries as the Steam reviews are written."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from bert4rec_tf.data.reading import bad_rows
from bert4rec_tf.data.reading.blocks import Block
from bert4rec_tf.data.reading.checks import ID, Checker
from bert4rec_tf.data.reading.columns import JSON, LITERALS, Layout

_TOKEN = re.compile(
    r"""u?('[^'\\]*(?:\\.?[^'\\]*)*(?:'|\Z)|"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z))|\b(?:True|False|None)\b""", re.DOTALL
)
"""A text, up to the end of the line where it is not closed so that nothing is looked at twice; or a constant."""

_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_record(line: str) -> Mapping[str, Any]:
    """Returns the JSON object that a line writes. Raises ValueError for anything else."""
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def python_record(line: str) -> Mapping[str, Any]:
    """Returns the Python dictionary of texts, numbers, truth values, None and lists of them that a line writes.

    Its texts and constants are written as JSON does; nothing is evaluated. Raises ValueError for anything else.
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


READERS = {JSON: json_record, LITERALS: python_record}


class Reader:
    """Reads the blocks of one file of records.

    Args:
        layout: of the file.
        checker: makes the table.
    """

    def __init__(self, layout: Layout, checker: Checker) -> None:
        self._read, self._names = READERS[layout.kind], layout.roles
        self._checker = checker

    def read(self, block: Block) -> Iterator[pa.Table]:
        """Yields the good rows of a block. Raises UserError at a bad row, unless those are skipped."""
        columns, numbers, wrong = {role: [] for role in self._names}, [], []
        for number, line in _lines(block):
            try:
                record = self._read(line)
                values = {role: record.get(name) for role, name in self._names.items()}
                ids = [_id(values[role]) for role in ("user", "item")]
            except TypeError:
                wrong.append((number, bad_rows.NO_ID, line))
            except ValueError:
                wrong.append((number, bad_rows.NO_RECORD, line))
            else:
                numbers.append(number)
                for role, value in zip(columns, [*ids, _time(values.get("time"))]):
                    columns[role].append(value)
        arrays = {role: _array(column) for role, column in columns.items()}
        arrays |= {role: arrays[role].dictionary_encode().cast(ID) for role in ("user", "item")}
        table, others = self._checker.good(arrays)
        self._checker.bad.add([*wrong, *((numbers[place], kind, text) for place, kind, text in others)])
        yield table


def _lines(block: Block) -> Iterator[tuple[int, str]]:
    text = block.content.decode("utf-8", "replace")
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=block.first):
        if line.strip():
            yield number, line


def _id(value: Any) -> str | None:
    """Raises TypeError for what is neither a text nor a whole number."""
    if type(value) is str or value is None:
        return value
    if type(value) is not int:
        raise TypeError(value)
    return str(value)


def _time(value: Any) -> str | None:
    return str(value) if type(value) in (str, int, float) else None


def _array(texts: list[str | None]) -> pa.Array:
    """Lone surrogates, which JSON can name though no text may hold them, become U+FFFD."""
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([text if text is None else _SURROGATES.sub("\ufffd", text) for text in texts], pa.string())
