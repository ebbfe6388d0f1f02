"""Rows that cannot be read: the first one is an error, or all are skipped and counted."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bert4rec_tf.foundation.errors import UserError

NO_USER, NO_ITEM = "the user's id is missing", "the item's id is missing"
NO_TIME = "the time is not a number or an ISO 8601 date, or not of the same kind as the first"
MANY_LINES = "an id contains a line break"
NO_UTF8 = "an id is not UTF-8"
NO_ID = "an id is neither a text nor a whole number"
COLUMNS = "expected {} columns, found {}"
NO_RECORD = "not a record"

BadRow = tuple[int, str, str]
"""The number of a bad row, what is wrong with it, and its text."""


@dataclass
class BadRows:
    """Counts bad rows by kind, or raises an error at the first.

    Attributes:
        source: the file, for the message.
        skip: whether to skip and count them.
        unit: what is counted from 1: `line`, or `row` if the format has no lines.
        among: the file's name if it is one of several, to show before the number.
        found: kind -> how many there were, and where the first is.
    """

    source: str
    skip: bool = False
    unit: str = "line"
    among: str | None = None
    found: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, rows: Iterable[BadRow]) -> None:
        """Counts bad rows. Raises UserError for the first of them unless they are skipped."""
        for number, kind, text in sorted(rows):
            place = f"{self.unit} {number:,}"
            if not self.skip:
                place = f"{self.source}, {self.unit} {number}"
                raise UserError(f"{place}: {kind}: {printable(text)!r} (--bad_rows=skip skips such rows)")
            count, first = self.found.get(kind, (0, f"{self.among}, {place}" if self.among else place))
            self.found[kind] = count + 1, first


def summary(found: dict[str, tuple[int, str]]) -> list[str]:
    """Returns a line for each kind of bad row: how many were skipped, and where the first is."""
    return [f"skipped {count:,} bad rows: {kind} (the first: {first})" for kind, (count, first) in found.items()]


def printable(text: str) -> str:
    """Returns the beginning of a text, with U+FFFD for lone surrogates."""
    return text[:60].encode("utf-8", "surrogatepass").decode("utf-8", "replace")
