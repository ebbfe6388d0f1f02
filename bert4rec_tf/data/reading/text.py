"""Reads text in separated columns with Arrow, block by block."""

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv

from bert4rec_tf.data.reading import bad_rows
from bert4rec_tf.data.reading.bad_rows import BadRow
from bert4rec_tf.data.reading.blocks import Block, line_ends, row_ends
from bert4rec_tf.data.reading.checks import ID, Checker
from bert4rec_tf.data.reading.columns import Layout

ANY_BLANKS = " "
"""The separator that stands for any number of blanks and tabs."""

UNIT_SEPARATOR = "\x1f"
"""Replaces `::`, because Arrow takes one character; a field that contains it counts as two."""

PIECE = 2 << 20
_BLANK_LINES = re.compile(rb"\A(?:[ \t]*(?:\r\n|\r|\n))*")
_LINE = re.compile(rb"\A[^\r\n]*(?:\r\n|\r|\n)?")


class Reader:
    """Reads the blocks of one file.

    Args:
        layout: of the file.
        checker: makes the table.
    """

    def __init__(self, layout: Layout, checker: Checker) -> None:
        self._layout = layout
        self._checker = checker
        self._at_start = True

    def read(self, block: Block) -> Iterator[pa.Table]:
        """Yields the good rows of a block. Raises UserError at a bad row, unless those are skipped."""
        content, first = self._normal(block.content), block.first
        if self._at_start:
            content, skipped = self._after_header(content)
            first += skipped
        if not content.strip(b"\r\n"):
            return
        wrong: list[BadRow] = []
        try:
            table = self._parsed(content)
        except pa.ArrowInvalid:  # Arrow reports bad rows as strings, so all must be UTF-8
            table = self._parsed(content.decode("utf-8", "replace").encode(), wrong)
        places = np.delete(np.arange(table.num_rows + len(wrong)), [place for place, _, _ in wrong])
        before = 0
        for batch in table.to_batches():
            found, others = self._checker.good(dict(zip(self._layout.roles, batch.columns)))
            wrong += [(int(places[before + place]), kind, text) for place, kind, text in others]
            before += batch.num_rows
            yield found
        if wrong:
            lines = first + self._lines(content)
            self._checker.bad.add((int(lines[place]), kind, text) for place, kind, text in wrong)

    def _normal(self, content: bytes) -> bytes:
        """Returns the content with one character between columns."""
        if self._layout.separator == "::":
            return content.replace(b"::", UNIT_SEPARATOR.encode())
        if self._layout.separator != ANY_BLANKS:
            return content
        content = content.replace(b"\t", b" ")
        while b"  " in content:
            content = content.replace(b"  ", b" ")
        for end in (b"\n", b"\r"):
            content = content.replace(b" " + end, end).replace(end + b" ", end)
        return content.strip(b" ")

    def _after_header(self, content: bytes) -> tuple[bytes, int]:
        """Returns what follows blank lines and the header, and how many lines these are."""
        rest = _BLANK_LINES.sub(b"", content, count=1)
        if rest:
            self._at_start = False
            if self._layout.header:
                rest = _LINE.sub(b"", rest, count=1)
        return rest, len(line_ends(content[: len(content) - len(rest)]))

    def _parsed(self, content: bytes, wrong: list[BadRow] | None = None) -> pa.Table:
        """Returns the columns of `roles`: ids as ID, times as texts.

        Args:
            content: rows without a header.
            wrong: receives the rows with another number of columns, and their positions among all rows. Arrow counts
                rows only with a single thread.

        Raises:
            pyarrow.ArrowInvalid: without `wrong`, for such a row; and for an id that is not UTF-8.
        """

        found: list[BadRow] = [] if wrong is None else wrong

        def keep(row: pyarrow.csv.InvalidRow) -> str:
            found.append((row.number - 1, bad_rows.COLUMNS.format(row.expected_columns, row.actual_columns), row.text))
            return "skip"

        layout, counted = self._layout, wrong is not None
        separator = UNIT_SEPARATOR if layout.separator == "::" else layout.separator
        names = {role: str(number) for role, number in layout.roles.items()}
        return pyarrow.csv.read_csv(
            pa.BufferReader(content),
            pyarrow.csv.ReadOptions(
                column_names=[str(number) for number in range(layout.width)],
                block_size=len(content) if counted else PIECE,
                use_threads=not counted,
            ),
            pyarrow.csv.ParseOptions(
                delimiter=separator,
                quote_char='"' if layout.quoted else False,
                newlines_in_values=layout.quoted and b'"' in content,
                invalid_row_handler=keep if counted else None,
            ),
            pyarrow.csv.ConvertOptions(
                include_columns=list(names.values()),
                column_types={name: pa.string() if role == "time" else ID for role, name in names.items()},
                strings_can_be_null=False,
                null_values=[],
            ),
        )

    def _lines(self, content: bytes) -> np.ndarray:
        """Returns the line, from 0, in which each row begins."""
        ends = line_ends(content)
        begins, lines = np.append(0, ends + 1), np.arange(len(ends) + 1)
        if self._layout.quoted:
            begin = np.append(True, row_ends(content, self._layout.separator)[0])
            begins, lines = begins[begin], lines[begin]
        filled = begins < len(content)
        begins, lines = begins[filled], lines[filled]
        lines = lines[~np.isin(np.frombuffer(content, np.uint8)[begins], (ord("\r"), ord("\n")))]
        return lines
