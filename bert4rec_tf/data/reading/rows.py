"""Separates good rows from bad ones. The first bad row is an error, or all bad rows are skipped and counted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert4rec_tf.config.data_names import Interactions, split_names
from bert4rec_tf.data.id_texts import normalize_ids
from bert4rec_tf.data.reading.columns import JSON, LITERALS, TEXT, UNQUOTED, Layout
from bert4rec_tf.data.reading.times import (
    BLANKS,
    DAY_IN_ANOTHER_ORDER,
    NUMBER,
    PATTERNS,
    Times,
    join_columns,
    normalize_texts,
)
from bert4rec_tf.foundation.errors import UserError

NO_USER, NO_ITEM = "the user's id is missing", "the item's id is missing"
MISSING_TIME, NO_DAY = "the time is missing", "the date does not exist, or is not from 1678 to 2261"
BAD_TIME = "the time is not a number below 2^63 or a date such as 2020-01-31"
OTHER_KIND = "the time is not of the same kind as the first: a number, a date, or a date with a zone"
OTHER_DATE = 'the date is not written as 2020-01-31; convert it, as in pandas: pd.to_datetime(days, format="%d.%m.%Y")'
MANY_LINES = "an id contains a line break"
NO_UTF8 = "an id is not UTF-8"
NO_INTEGER = "an id is not an integer"
NO_ID = "an id is neither a text nor a whole number"
ROUNDED = "an id is written as a rounded number; export the column as text"
ROUNDED_LIKE = r"^-?[0-9](?:[.,][0-9]+)?[eE]\+[0-9]{2,3}$"
BLANK_BEFORE_QUOTES = "an id has a blank before its quotes; write no blanks between the columns"
BLANK_BEFORE_QUOTES_LIKE = rf'^[{BLANKS}]+"'
ROUNDED_TIME = "the time was rounded by a spreadsheet; export the column as text"
ROUNDED_TIME_LIKE = r"^[0-9](?:[.,][0-9]{1,9})?E\+[0-9]{2}$"
BAD_WIDTH = "expected {} columns, found {}"
NO_RECORD = "not a record"
HEADER_AGAIN = "the header again"

MISSING = frozenset(
    ["", "nan", "NaN", "NAN", "null", "Null", "NULL", "none", "None", "NONE", "nil", "undefined", "NA", "N/A", "n/a",
     "<NA>", "#N/A", "#NA", "NaT", "(null)", r"\N", "-", "--", "?"]
)  # fmt: skip
"""What programs write for a missing value."""

_KINDS = (
    "",
    NO_USER,
    NO_ITEM,
    MANY_LINES,
    NO_UTF8,
    NO_INTEGER,
    ROUNDED,
    BLANK_BEFORE_QUOTES,
    MISSING_TIME,
    NO_DAY,
    BAD_TIME,
    OTHER_KIND,
    OTHER_DATE,
    ROUNDED_TIME,
)

BadRow = tuple[int, str, str]
"""The number of a bad row, what is wrong with it, and its text."""

MANY_BAD = 0.5
"""If more than this share of the rows is bad, a message does not advise to skip them."""

SHOWN = 60
"""How many characters of a bad row a message shows."""


@dataclass
class Findings:
    """What was met in the rows of a source.

    Attributes:
        skipped, firsts: kind of row -> how many were skipped, and where the first is.
        events: kind of event -> how many rows have it.
        other_forms: raw ids that were not in Unicode's form NFC.
        with_blanks: ids of a table that have blanks around them.
        unended: item that ends a file without a line end -> where.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, str] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    other_forms: set[str] = field(default_factory=set)
    with_blanks: set[str] = field(default_factory=set)
    unended: dict[str, str] = field(default_factory=dict)

    def count(self, kind: str, place: str, number: int = 1) -> None:
        self.skipped[kind] += number
        self.firsts.setdefault(kind, place)

    def add(self, findings: "Findings") -> None:
        """Adds what was met in later rows."""
        self.skipped += findings.skipped
        self.events += findings.events
        self.other_forms |= findings.other_forms
        self.with_blanks |= findings.with_blanks
        self.firsts = self.firsts | findings.firsts | self.firsts
        self.unended |= findings.unended


@dataclass
class Rows:
    """Separates the good rows of one source from the bad ones.

    Attributes:
        file_name: for messages.
        skip_option, keep_option: for messages, what skips bad rows, and what keeps words for missing values.
        times, layout: what reads the times, and where the columns are.
        options: whether to skip and count bad rows (else the first is an error), and which events to keep.
        findings: what is met.
        integers: whether ids must be integers.
        is_one_of_many: whether the file's name is shown before the number of a skipped row.
    """

    file_name: str
    times: Times
    layout: Layout
    options: Interactions
    findings: Findings = field(default_factory=Findings)
    integers: bool = False
    skip_option: str = "--bad_rows=skip"
    keep_option: str = "--keep_missing_words"
    is_one_of_many: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the source is plain text, in which blanks around ids are removed."""
        return self.layout.kind == TEXT

    @property
    def unit(self) -> str:
        """What is counted from 1."""
        return "line" if self.layout.kind in (JSON, LITERALS) else "row"

    def locate(self, number: int) -> str:
        place = f"{self.unit} {number:,}"
        return f"{Path(self.file_name).name}, {place}" if self.is_one_of_many else place

    def select_good(
        self, columns: Mapping[str, pa.Array], numbers: Sequence[int] | np.ndarray, unread_rows: Sequence[BadRow] = ()
    ) -> pa.Table:
        """Returns the good rows of a batch: `user` and `item` (dictionaries of texts) and `time` (int64 or float64).

        Counts the bad rows if they are skipped. Otherwise raises UserError for the first of them.

        Args:
            columns: column of the layout -> its values, of which those of users, items and events are texts.
            numbers: the rows' numbers in the source.
            unread_rows: the rows of this batch that have no such columns.
        """
        layout, num_rows = self.layout, len(numbers)
        texts = {"user": columns[layout.user], "item": columns[layout.item]}
        if layout.times:
            texts["time"] = join_columns({name: columns[name] for name in layout.times})
        is_used = self._select_used(columns, numbers)
        if not is_used.all():
            texts = {role: column.filter(pa.array(is_used)) for role, column in texts.items()}
            numbers = np.asarray(numbers)[is_used]
        good_columns, kinds = {}, np.zeros(len(numbers), np.uint8)
        for role, missing_kind in (("user", NO_USER), ("item", NO_ITEM)):
            good_columns[role], kinds_of_role = self._check_ids(texts[role], missing_kind)
            kinds = np.where(kinds == 0, kinds_of_role, kinds)
        if "time" in texts:
            rows = np.flatnonzero(kinds == 0)
            times, is_bad = self.times.read(texts["time"].take(pa.array(rows)), self.file_name)
            if is_bad.any():
                kinds[rows[is_bad]] = self._explain_times(texts["time"].take(pa.array(rows[is_bad])))
            if self.is_plain and not self.options.is_published:
                is_rounded = _find_rounded(texts["time"].take(pa.array(rows))) & ~is_bad
                kinds[rows[is_rounded]] = _KINDS.index(ROUNDED_TIME)
                is_bad |= is_rounded
            good_columns["time"] = times.filter(pa.array(~is_bad))
        bad_rows = list(unread_rows)
        if kinds.any():
            is_good, indices = pa.array(kinds == 0), np.flatnonzero(kinds)
            for role in ("user", "item"):  # encoded again, so that the dictionary has only ids that occur
                good_columns[role] = good_columns[role].filter(is_good).dictionary_decode().dictionary_encode()
            values = (column.take(pa.array(indices)).cast(pa.string()).to_pylist() for column in texts.values())
            lines = (", ".join(value or "" for value in row) for row in zip(*values))
            bad_rows += [(int(numbers[row]), _KINDS[kinds[row]], text) for row, text in zip(indices.tolist(), lines)]
        self._refuse_or_count(bad_rows, num_rows + len(unread_rows))
        return pa.table(good_columns)

    def _select_used(self, columns: Mapping[str, pa.Array], numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns which rows have an event to keep and are not the header again, bool [rows]. Counts both."""
        layout, kept_events, is_used = self.layout, self.options.events, np.ones(len(numbers), bool)
        if layout.event is not None:
            events = columns[layout.event].fill_null("")
            events = pc.utf8_trim(events, characters=BLANKS) if self.is_plain else events
            pairs = pc.value_counts(events).to_pylist()
            self.findings.events += Counter({pair["values"]: pair["counts"] for pair in pairs})
            if kept_events is not None:
                is_used &= pc.is_in(events, pa.array(split_names(kept_events))).to_numpy(zero_copy_only=False)
        if layout.header_ids is not None:
            users, items = (
                pc.utf8_trim(columns[name], characters=f"{BLANKS}\ufeff") for name in (layout.user, layout.item)
            )
            is_header = pc.equal(users, layout.header_ids[0])
            if pc.any(is_header).as_py():
                is_header = pc.and_(is_header, pc.equal(items, layout.header_ids[1]))
                places = np.flatnonzero(is_header.fill_null(False))
                if len(places):
                    self.findings.count(HEADER_AGAIN, self.locate(int(numbers[places[0]])), len(places))
                is_used[places] = False
        return is_used

    def _check_ids(self, texts: pa.Array, missing_kind: str) -> tuple[pa.DictionaryArray, np.ndarray]:
        """Returns the ids, cleaned, and each row's index in _KINDS, uint8 [rows]."""
        ids = texts.dictionary_encode()
        names = pc.ascii_trim(ids.dictionary, characters=BLANKS) if self.is_plain else ids.dictionary
        is_own = not self.options.is_published
        may_be_quoted = is_own and self.is_plain and self.layout.separator not in UNQUOTED
        has_quoted = (
            may_be_quoted and pc.any(pc.match_substring_regex(ids.dictionary, BLANK_BEFORE_QUOTES_LIKE)).as_py()
        )
        if is_own and (normal_names := normalize_ids(names)) is not names:
            self.findings.other_forms.update(names.filter(pc.not_equal(names, normal_names)).to_pylist())
            names = normal_names
        if not names.equals(ids.dictionary):
            ids = pa.DictionaryArray.from_arrays(ids.indices, names).dictionary_decode().dictionary_encode()
        names = ids.dictionary
        trimmed_names = pc.ascii_trim(names, characters=BLANKS) if is_own and not self.is_plain else names
        if not names.equals(trimmed_names):
            is_padded = pc.and_(pc.not_equal(names, trimmed_names), pc.not_equal(trimmed_names, ""))
            self.findings.with_blanks.update(names.filter(is_padded).to_pylist())
        keeps_words = self.options.keep_missing_words or not is_own
        tests = {
            NO_UTF8: pc.match_substring(names, "\ufffd"),
            MANY_LINES: pc.match_substring_regex(names, "[\r\n]"),
            missing_kind: pc.is_in(trimmed_names, pa.array([""] if keeps_words else list(MISSING))),
        }
        if self.integers:
            tests = {NO_INTEGER: pc.invert(pc.match_substring_regex(names, "^-?[0-9]+$"))} | tests
        if is_own:
            tests |= {ROUNDED: pc.match_substring_regex(names, ROUNDED_LIKE)}
        kinds = np.full(len(names) + 1, _KINDS.index(missing_kind), np.uint8)  # the last is that of a null
        kinds[:-1] = 0
        for kind, is_bad in tests.items():
            kinds[:-1][is_bad.to_numpy(zero_copy_only=False)] = _KINDS.index(kind)
        kinds = kinds[ids.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]
        if has_quoted:
            is_quoted = pc.match_substring_regex(texts, BLANK_BEFORE_QUOTES_LIKE).fill_null(False)
            kinds[is_quoted.to_numpy(zero_copy_only=False)] = _KINDS.index(BLANK_BEFORE_QUOTES)
        return ids, kinds

    def _explain_times(self, times: pa.Array) -> np.ndarray:
        """Returns what is wrong with times that cannot be read, as indices in _KINDS, uint8 [rows]."""
        texts = normalize_texts(times.cast(pa.string()).fill_null(""))
        kinds = np.full(len(texts), _KINDS.index(BAD_TIME), np.uint8)
        tests = [(OTHER_DATE, pc.match_substring_regex(texts, DAY_IN_ANOTHER_ORDER))]
        for kind, pattern in PATTERNS.items():
            defect = OTHER_KIND if self.times.kind not in (None, kind) else BAD_TIME if kind == NUMBER else NO_DAY
            tests.append((defect, pc.match_substring_regex(texts, pattern)))
        for defect, has_defect in [*tests, (MISSING_TIME, pc.is_in(texts, pa.array(list(MISSING))))]:
            kinds[has_defect.to_numpy(zero_copy_only=False)] = _KINDS.index(defect)
        return kinds

    def _refuse_or_count(self, rows: Sequence[BadRow], num_rows: int) -> None:
        """Counts bad rows, of `num_rows`, if they are skipped. Otherwise raises UserError for the first of them."""
        for number, kind, text in sorted(rows):
            if self.options.bad_rows == "skip":
                self.findings.count(kind, self.locate(number))
                continue
            advice = f"{self.skip_option} skips such rows"
            if len(rows) > max(1, MANY_BAD * num_rows):
                advice = f"as {len(rows):,} of {num_rows:,} rows are"
            if kind in (NO_USER, NO_ITEM) and any(word.strip() in MISSING for word in text.split(", ") if word.strip()):
                advice += f"; {self.keep_option} keeps such words"
            advice = "" if self.integers else f" ({advice})"
            raise UserError(f"{self.file_name}, {self.unit} {number}: {kind}: {shorten(text)!r}{advice}")


def _find_rounded(times: pa.Array) -> np.ndarray:
    """Returns which texts of times a spreadsheet has rounded, bool [rows]."""
    if not pc.any(pc.match_substring(times, "E+"), min_count=0).as_py():  # much faster than the pattern
        return np.zeros(len(times), bool)
    return pc.match_substring_regex(times, ROUNDED_TIME_LIKE).fill_null(False).to_numpy(zero_copy_only=False)


def shorten(text: str) -> str:
    """Returns the beginning of a text, with U+FFFD for lone surrogates."""
    return text[:SHOWN].encode("utf-8", "surrogatepass").decode("utf-8", "replace")
