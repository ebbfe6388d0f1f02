"""What happens at a row that cannot be read: the file is refused at it, or it is passed over and counted."""

from dataclasses import dataclass, field
from pathlib import Path

from bert4rec_tf.foundation.errors import UserError

MISSING = frozenset(("", "nan", "NaN", "NAN", "null", "NULL", "None"))
"""Texts that stand for no id in formats that cannot tell a text from its absence."""

NO_USER, NO_ITEM = "the user's id is missing", "the item's id is missing"
NO_TIME = "the time is no number or ISO 8601 date, or of another kind than the first"
MANY_LINES = "an id has an end of line in it"
NO_UTF8 = "an id is not UTF-8"
NO_ID = "an id is neither a text nor a whole number"
COLUMNS = "expected {} columns"
NO_RECORD = "not a record"
UNCLOSED = "a quote is never closed"


@dataclass
class BadRows:
    """Counts bad rows by their kind, or refuses the file at the first.

    Attributes:
        path: the file, for the message.
        skip: pass over them.
        unit: what is counted from 1: `line`, or `row` where a format has no lines.
        found: kind -> how many, and the number of the first.
    """

    path: Path
    skip: bool = False
    unit: str = "line"
    found: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, kind: str, number: int, shown: object) -> None:
        """Takes note of the bad row `number`. Raises UserError unless such rows are passed over."""
        if not self.skip:
            text = shown if isinstance(shown, str) else repr(shown)
            raise UserError(
                f"{self.path}, {self.unit} {number}: {kind}: {printable(text)!r} (--bad_rows=skip passes over such "
                "rows)"
            )
        count, first = self.found.get(kind, (0, number))
        self.found[kind] = count + 1, min(first, number)


def told(found: dict[str, tuple[int, int]], unit: str) -> list[str]:
    """Returns such lines, of how many bad rows of each kind there were and the number of the first."""
    return [
        f"passed over {count:,} bad rows: {kind} (the first: {unit} {first:,})"
        for kind, (count, first) in sorted(found.items(), key=lambda kind: kind[1][1])
    ]


def printable(text: str) -> str:
    """Returns the beginning of a text, with what is no character replaced."""
    return "".join("\ufffd" if _is_no_character(letter) else letter for letter in text[:60])


def _is_no_character(letter: str) -> bool:
    """A lone surrogate is a byte that is not UTF-8, or what a JSON file may name though there is no such character."""
    return "\ud800" <= letter <= "\udfff"


def id_problem(raw: str, missing: str) -> str | None:
    """Returns what is wrong with an id, None where it is good.

    Args:
        raw: the id; bytes that are not UTF-8 as lone surrogates.
        missing: what to say of one that is not there.
    """
    if not raw:
        return missing
    if "\n" in raw or "\r" in raw:
        return MANY_LINES
    if not raw.isascii() and any(map(_is_no_character, raw)):
        return NO_UTF8
    return None
