"""Separates good rows from bad ones. The first bad row is an error, or all bad rows are skipped and counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert4rec_tf.data.reading.times import BLANKS, Times
from bert4rec_tf.foundation.errors import UserError

NO_USER, NO_ITEM = "the user's id is missing", "the item's id is missing"
NO_TIME = "the time is not a number below 2^63 or a date such as 2020-01-31, or not of the same kind as the first"
MANY_LINES = "an id contains a line break"
NO_UTF8 = "an id is not UTF-8"
NO_INTEGER = "an id is not an integer"
NO_ID = "an id is neither a text nor a whole number"
COLUMNS = "expected {} columns, found {}"
NO_RECORD = "not a record"

MISSING = frozenset(
    ["", "nan", "NaN", "NAN", "null", "Null", "NULL", "none", "None", "NONE", "nil", "undefined", "NA", "N/A", "n/a",
     "<NA>", "#N/A", "#NA", "NaT", r"\N", "-", "--", "?"]
)  # fmt: skip
"""What programs write for a missing value."""

_KINDS = ("", NO_USER, NO_ITEM, MANY_LINES, NO_UTF8, NO_INTEGER, NO_TIME)

BadRow = tuple[int, str, str]
"""The number of a bad row, what is wrong with it, and its text."""

MANY_BAD = 0.5
"""If more than this share of the rows is bad, a message does not advise to skip them."""

SHOWN = 60
"""How many characters of a bad row a message shows."""


@dataclass
class Rows:
    """Separates the good rows of one source from the bad ones.

    Attributes:
        source: the name of the file, for messages.
        skip: whether to skip and count bad rows; else the first is an error.
        plain: whether the source is plain text, in which blanks around ids are removed.
        keep_words: whether words in MISSING are ids.
        integers: whether ids must be integers.
        unit: what is counted from 1: `row`, or `line` if each row is one.
        option: for messages, the option that skips bad rows.
        among: the file's name if it is one of several, to show before the number.
        skipped: kind of bad row -> how many were skipped, and where the first is.
    """

    source: str
    times: Times
    skip: bool = False
    plain: bool = False
    integers: bool = False
    unit: str = "row"
    among: str | None = None
    skipped: dict[str, tuple[int, str]] = field(default_factory=dict)
    option: str = "--bad_rows=skip"
    keep_words: bool = False

    def select_good(
        self, columns: Mapping[str, pa.Array], numbers: Sequence[int] | np.ndarray, unreadable: Sequence[BadRow] = ()
    ) -> pa.Table:
        """Returns the good rows of a batch: `user` and `item` (dictionaries of texts) and `time` (int64 or float64).

        Counts the bad rows if they are skipped. Otherwise raises UserError for the first of them.

        Args:
            columns: `user` and `item` as texts, and `time` if there are times.
            numbers: the rows' numbers in the source.
            unreadable: the rows of this batch that have no such columns.
        """
        good_columns, kinds = {}, np.zeros(len(columns["user"]), np.uint8)
        for role, missing in (("user", NO_USER), ("item", NO_ITEM)):
            good_columns[role], kinds_of_role = self._check_ids(columns[role], missing)
            kinds = np.where(kinds == 0, kinds_of_role, kinds)
        if "time" in columns:
            rows = np.flatnonzero(kinds == 0)
            times, is_bad = self.times.read(columns["time"].take(pa.array(rows)), self.source)
            kinds[rows[is_bad]] = _KINDS.index(NO_TIME)
            good_columns["time"] = times.filter(pa.array(~is_bad))
        bad = list(unreadable)
        if kinds.any():
            good, bad_rows = pa.array(kinds == 0), np.flatnonzero(kinds)
            for role in ("user", "item"):  # encoded again, so that the dictionary has only ids that occur
                good_columns[role] = good_columns[role].filter(good).dictionary_decode().dictionary_encode()
            values = (column.take(pa.array(bad_rows)).cast(pa.string()).to_pylist() for column in columns.values())
            texts = (", ".join(value or "" for value in row) for row in zip(*values))
            bad += [(numbers[row], _KINDS[kinds[row]], text) for row, text in zip(bad_rows.tolist(), texts)]
        self._refuse_or_count(bad, len(kinds) + len(unreadable))
        return pa.table(good_columns)

    def _check_ids(self, texts: pa.Array, missing: str) -> tuple[pa.DictionaryArray, np.ndarray]:
        """Returns the ids, cleaned, and each row's index in _KINDS, uint8 [rows]."""
        ids = texts.dictionary_encode()
        if self.plain:
            names = pc.utf8_trim(ids.dictionary, characters=BLANKS)
            if not names.equals(ids.dictionary):
                ids = pa.DictionaryArray.from_arrays(ids.indices, names).dictionary_decode().dictionary_encode()
        names = ids.dictionary
        tests = {
            NO_UTF8: pc.match_substring(names, "\ufffd"),
            MANY_LINES: pc.match_substring_regex(names, "[\r\n]"),
            missing: pc.is_in(names, pa.array([""] if self.keep_words else list(MISSING))),
        }
        if self.integers:
            tests = {NO_INTEGER: pc.invert(pc.match_substring_regex(names, "^-?[0-9]+$"))} | tests
        kinds = np.full(len(names) + 1, _KINDS.index(missing), np.uint8)  # the last is that of a null
        kinds[:-1] = 0
        for kind, is_bad in tests.items():
            kinds[:-1][is_bad.to_numpy(zero_copy_only=False)] = _KINDS.index(kind)
        return ids, kinds[ids.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]

    def _refuse_or_count(self, rows: Sequence[BadRow], num_rows: int) -> None:
        """Counts bad rows, of `num_rows`, if they are skipped. Otherwise raises UserError for the first of them."""
        for number, kind, text in sorted(rows):
            if not self.skip:
                place = f"{self.source}, {self.unit} {number}"
                is_word = kind in (NO_USER, NO_ITEM) and any(
                    word.strip() in MISSING for word in text.split(", ") if word
                )
                keep = f"; {self.option.partition('bad_rows')[0]}keep_missing_words keeps such words" if is_word else ""
                advice = f"{self.option} skips such rows{keep}"
                if len(rows) > max(1, MANY_BAD * num_rows):
                    advice = f"as {len(rows):,} of {num_rows:,} rows are{keep}"
                advice = "" if self.integers else f" ({advice})"
                raise UserError(f"{place}: {kind}: {shorten(text)!r}{advice}")
            place = f"{self.unit} {number:,}"
            count, first = self.skipped.get(kind, (0, f"{self.among}, {place}" if self.among else place))
            self.skipped[kind] = count + 1, first


def summarize_bad_rows(skipped: Mapping[str, tuple[int, str]]) -> list[str]:
    """Returns a line for each kind of bad row: how many were skipped, and where the first is."""
    return [f"skipped {count:,} bad rows: {kind} (the first: {first})" for kind, (count, first) in skipped.items()]


def shorten(text: str) -> str:
    """Returns the beginning of a text, with U+FFFD for lone surrogates."""
    return text[:SHOWN].encode("utf-8", "surrogatepass").decode("utf-8", "replace")
