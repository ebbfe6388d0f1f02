"""Reads text in separated columns with Arrow, block by block."""

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv

from bert4rec_tf.data.reading import rows
from bert4rec_tf.data.reading.blocks import line_ends, num_lines, row_ends
from bert4rec_tf.data.reading.columns import Layout
from bert4rec_tf.data.reading.rows import BadRow, Rows
from bert4rec_tf.data.reading.times import NUMBER

ANY_BLANKS = " "
"""The separator that stands for any number of blanks and tabs."""

UNIT_SEPARATOR = b"\x1f"
"""Replaces `::`, because Arrow takes one character; a field that contains it counts as two."""

PIECE = 2 << 20
_TEXT = pa.string()
_BLANK_LINES = re.compile(rb"(?:[ \t]*(?:\r\n|\r|\n))*")
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)?")
_CONTENT = re.compile(rb"[^\r\n]")


class Reader:
    """Reads the blocks of one file.

    Args:
        layout: of the file.
        rows: tells the good rows from the bad ones.
    """

    def __init__(self, layout: Layout, rows: Rows) -> None:
        self._layout = layout
        self._rows = rows
        self._at_start = self._whole = True

    def read(self, content: bytes, first: int) -> Iterator[pa.Table]:
        """Yields the good rows of a block that begins with line `first`. Raises UserError at a bad row not skipped."""
        content = self._normal(content)
        if self._at_start:
            before = content[: self._header_end(content)]
            content, first = content[len(before) :], first + num_lines(before) - 1
        if not _CONTENT.search(content):
            return
        wrong: list[BadRow] = []
        columns = self._at_once(content) or self._parsed(content, wrong=wrong)
        table, others = self._rows.good(columns)
        if wrong or others:
            lines = first + self._lines(content)
            parsed = np.delete(lines, [place for place, _, _ in wrong])
            self._rows.refuse(rows.numbered(wrong, lines) + rows.numbered(others, parsed))
        yield table

    def _at_once(self, content: bytes) -> dict[str, pa.Array] | None:
        """Returns the columns; None if Arrow cannot read a row. Whole times are not made texts first, to save time."""
        self._whole &= not (b"x" in content or b"X" in content)  # Arrow would read hexadecimal numbers
        for time in (pa.int64(), _TEXT)[0 if self._whole and self._rows.times.kind == NUMBER else 1 :]:
            try:
                return self._parsed(content, time)
            except pa.ArrowInvalid:
                self._whole = False
        return None

    def _normal(self, content: bytes) -> bytes:
        """Returns the content with one character between columns."""
        if self._layout.separator != ANY_BLANKS:
            return content
        blank = np.frombuffer(content, np.uint8) <= ord(" ")
        if not (blank[0] or (blank[1:] & blank[:-1]).any() or b"\t" in content or content.endswith(b" ")):
            return content
        content = content.replace(b"\t", b" ")
        while b"  " in content:
            content = content.replace(b"  ", b" ")
        for end in (b"\n", b"\r"):
            content = content.replace(b" " + end, end).replace(end + b" ", end)
        return content.strip(b" ")

    def _header_end(self, content: bytes) -> int:
        """Returns where blank lines and the header end."""
        end = _BLANK_LINES.match(content).end()  # type: ignore[union-attr]
        self._at_start = end == len(content)
        return _LINE.match(content, end).end() if self._layout.header else end  # type: ignore[union-attr]

    def _parsed(
        self, content: bytes, time: pa.DataType = _TEXT, wrong: list[BadRow] | None = None
    ) -> dict[str, pa.Array]:
        """Returns the columns of `roles`: ids as texts.

        Args:
            content: rows without a header.
            time: the type of the times.
            wrong: receives the rows with another number of columns, and their positions among all rows. Arrow counts
                rows only with a single thread.

        Raises:
            pyarrow.ArrowInvalid: without `wrong`, for such a row; and for a text that is not UTF-8.
        """

        def keep(row: pyarrow.csv.InvalidRow) -> str:
            kind = rows.COLUMNS.format(row.expected_columns, row.actual_columns)
            wrong.append((row.number - 1, kind, row.text))  # type: ignore[union-attr]
            return "skip"

        separator, counted = self._layout.separator, wrong is not None
        if counted:  # Arrow reports bad rows as strings, so all must be UTF-8
            content = content.decode("utf-8", "replace").encode()
        if separator == "::":
            content, separator = content.replace(b"::", UNIT_SEPARATOR), UNIT_SEPARATOR.decode()
        names = [str(number) for number in range(self._layout.width)]
        wanted = [names[number] for number in self._layout.roles.values()]
        table = pyarrow.csv.read_csv(
            pa.BufferReader(content),
            pyarrow.csv.ReadOptions(
                column_names=names,
                block_size=len(content) if counted else PIECE,
                use_threads=not counted,
            ),
            pyarrow.csv.ParseOptions(
                delimiter=separator,
                quote_char='"' if self._layout.quoted else False,
                newlines_in_values=self._layout.quoted and b'"' in content,
                invalid_row_handler=keep if counted else None,
            ),
            pyarrow.csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict(zip(wanted, (_TEXT, _TEXT, time))),
                strings_can_be_null=False,
                null_values=[""],
            ),
        )
        return {role: column.combine_chunks() for role, column in zip(self._layout.roles, table.columns)}

    def _lines(self, content: bytes) -> np.ndarray:
        """Returns the line, from 0, in which each row begins."""
        ends = line_ends(content)
        begins = np.append(0, ends + 1)
        is_row = begins < len(content)
        if self._layout.quoted:
            is_row[1:] &= row_ends(content, self._layout.separator)[0]
        lines = np.flatnonzero(is_row)
        return lines[~np.isin(np.frombuffer(content, np.uint8)[begins[lines]], (ord("\r"), ord("\n")))]
