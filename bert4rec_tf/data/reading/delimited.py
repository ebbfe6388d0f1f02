"""Texts of separated columns. Arrow reads them block by block; a block that it does not like is read row by row."""

import csv
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv

from bert4rec_tf.data.reading import actions, bad_rows, times, whole_numbers
from bert4rec_tf.data.reading.actions import BLANKS
from bert4rec_tf.data.reading.bad_rows import BadRows
from bert4rec_tf.data.reading.blocks import LONGEST_LINE, Block
from bert4rec_tf.data.reading.layouts import BLANKS as ANY_BLANKS
from bert4rec_tf.data.reading.layouts import Layout

SAMPLE_ROWS = 100
PIECE = 2 << 20
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class Reader:
    """Reads the blocks of one file.

    Args:
        layout: of the file.
        bad: what to do at a bad row.
    """

    def __init__(self, layout: Layout, bad: BadRows) -> None:
        self.layout = layout
        self.bad = bad
        self._time_kind: str | None = None

    def read(self, block: Block) -> pa.Table:
        """Returns the actions of a block. Raises UserError at a bad row, unless those are passed over."""
        if self.layout.time is not None and self._time_kind is None:
            self._time_kind = self._guessed_time_kind(block)
        for time_type in times.TYPES[self._time_kind or times.NUMBER][: 2 if self.layout.time is not None else 1]:
            found = self._read_at_once(block, time_type)
            if found is not None:
                return found
        return self._read_by_row(block)

    def _guessed_time_kind(self, block: Block) -> str | None:
        for number, (_, row) in enumerate(self._rows(block)):
            if self._problem(row) is None and (kind := times.kind_of(row[self.layout.time].strip(BLANKS))):
                return kind
            if number == SAMPLE_ROWS:
                break
        return None

    def _read_at_once(self, block: Block, time_type: pa.DataType) -> pa.Table | None:
        layout, content = self.layout, block.content
        separator = layout.separator
        if separator == "::":
            if b"\t" in content:
                return None
            content, separator = content.replace(b"::", b"\t"), "\t"
        numbers = {"user": layout.user, "item": layout.item, "time": layout.time}
        kept = {name: str(number) for name, number in numbers.items() if number is not None}
        quotes = layout.quoted and b'"' in content
        skipped = 1 if layout.header and block.first == 1 else 0
        kinds = {"user": pa.string(), "item": pa.string(), "time": time_type}
        try:
            found = pyarrow.csv.read_csv(
                pa.BufferReader(content),
                pyarrow.csv.ReadOptions(
                    column_names=[str(number) for number in range(layout.width)],
                    skip_rows=skipped,
                    block_size=PIECE,
                ),
                pyarrow.csv.ParseOptions(
                    delimiter=separator,
                    quote_char='"' if layout.quoted else False,
                    newlines_in_values=quotes,
                ),
                pyarrow.csv.ConvertOptions(
                    include_columns=list(kept.values()),
                    column_types={number: kinds[name] for name, number in kept.items()},
                    strings_can_be_null=False,
                    null_values=[],
                ),
            )
        except pa.ArrowInvalid:
            return None
        if quotes and found.num_rows + skipped != block.num_lines:
            return None  # a quote may be open to the end, which Arrow does not tell
        found = found.rename_columns(list(kept))
        hexadecimal = b"x" in content or b"X" in content
        for name in ("user", "item"):
            good = None if hexadecimal else whole_numbers.coded(found[name])
            if good is None:
                good = actions.good_ids(found[name].dictionary_encode(), trim=True)
            if good is None:
                return None
            found = found.set_column(found.column_names.index(name), name, good)
        return found if layout.time is None or times.is_finite(found["time"]) else None

    def _read_by_row(self, block: Block) -> pa.Table:
        numbers, users, items, texts = [], [], [], []
        for number, row in self._rows(block):
            problem = self._problem(row)
            if problem:
                self.bad.add(problem, number, row if isinstance(row, str) else self.layout.separator.join(row))
                continue
            numbers.append(number)
            users.append(row[self.layout.user].strip(BLANKS))
            items.append(row[self.layout.item].strip(BLANKS))
            if self.layout.time is not None:
                texts.append(row[self.layout.time].strip(BLANKS))
        if self.layout.time is None:
            return actions.table(users, items, None)
        return with_times(numbers, users, items, texts, self._time_kind or times.NUMBER, self.bad)

    def _problem(self, row: list[str] | str) -> str | None:
        if isinstance(row, str):
            return bad_rows.UNCLOSED
        if len(row) != self.layout.width:
            return f"{bad_rows.COLUMNS.format(self.layout.width)}, found {len(row)}"
        for column, missing in ((self.layout.user, bad_rows.NO_USER), (self.layout.item, bad_rows.NO_ITEM)):
            raw = row[column].strip(BLANKS)
            problem = bad_rows.id_problem("" if raw in bad_rows.MISSING else raw, missing)
            if problem:
                return problem
        return None

    def _rows(self, block: Block) -> Iterator[tuple[int, list[str] | str]]:
        """Yields the number of the line and the fields of every row that is not blank, without the header.

        In place of its fields it is the line itself where a quote in it is never closed.
        """
        text = block.content.decode("utf-8", "surrogateescape")
        rows = self._quoted_rows(text) if self.layout.quoted else self._plain_rows(text)
        skipped = bool(self.layout.header) and block.first == 1
        for number, row in rows:
            if skipped:
                skipped = False
            elif row:
                yield block.first + number, row

    def _plain_rows(self, text: str) -> Iterator[tuple[int, list[str]]]:
        for number, line in enumerate(re.split(r"\r\n|\r|\n", text)):
            if self.layout.separator == ANY_BLANKS:
                yield number, [field for field in re.split(f"[{BLANKS}]+", line) if field]
            else:
                yield number, line.split(self.layout.separator) if line else []

    def _quoted_rows(self, text: str) -> Iterator[tuple[int, list[str] | str]]:
        limit = csv.field_size_limit(2 * LONGEST_LINE)
        try:
            yield from self._quoted_rows_of(_LINE.findall(text))
        finally:
            csv.field_size_limit(limit)

    def _quoted_rows_of(self, lines: list[str]) -> Iterator[tuple[int, list[str] | str]]:
        number, closing = 0, None
        while number < len(lines):
            last, (row, is_open) = number, self._begun(lines[number])
            if is_open:
                closing = closing or self._closing_lines(lines)
                last = closing[number + 1]
                row = lines[number].rstrip("\r\n") if last is None else self._begun(*lines[number : last + 1])[0]
            yield number, row
            number = (number if last is None else last) + 1

    def _begun(self, *lines: str, strict: bool = False) -> tuple[list[str], bool]:
        """Returns the first row of some lines, and whether a quote is open at their end."""
        if len(lines) == 1 and '"' not in lines[0]:
            line = lines[0].rstrip("\r\n")
            return line.split(self.layout.separator) if line else [], False
        reader = csv.reader([*lines, '"\n'], delimiter=self.layout.separator, strict=strict)
        return next(reader), reader.line_num > len(lines)

    def _closing_lines(self, lines: list[str]) -> list[int | None]:
        """Returns for every line the one that closes a quote which is open where it begins; None where no line does.

        Made from the end in one pass: to look from every line anew would take hours for a few megabytes of odd quotes.
        What follows such a closing quote must be a separator or the end of the line. Otherwise two rows with a stray
        quote each would hide those between them.
        """
        closing: list[int | None] = [None] * (len(lines) + 1)
        for number in reversed(range(len(lines))):
            closing[number] = closing[number + 1]
            if '"' in lines[number]:
                try:
                    _, is_open = self._begun(f'"{lines[number]}', strict=True)
                    closing[number] = closing[number + 1] if is_open else number
                except csv.Error:
                    closing[number] = None
        return closing


def with_times(
    numbers: list[int], users: list[str], items: list[str], texts: list[str], kind: str, bad: BadRows
) -> pa.Table:
    """Returns the actions whose times are of a kind; the rows of the others are bad."""
    found = times.converted(texts, kind)
    if found is None:
        no_times = times.not_of(texts, kind)
        good = [place for place, text in enumerate(texts) if text not in no_times]
        for place, text in enumerate(texts):
            if text in no_times:
                bad.add(bad_rows.NO_TIME, numbers[place], text)
        users, items, texts = ([column[place] for place in good] for column in (users, items, texts))
        found = times.converted(texts, kind)
    return actions.table(users, items, found)
