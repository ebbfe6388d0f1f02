"""The times of actions: numbers of any unit, or dates (ISO 8601), with or without a zone. One kind for a file."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

NUMBER, DATE, ZONED = "number", "date", "date with a zone"
TYPES = {
    NUMBER: (pa.int64(), pa.float64()),
    DATE: (pa.timestamp("ns"),),
    ZONED: (pa.timestamp("ns", "UTC"),),
}
"""The types that a column of times of a kind may have, the one to try first in front."""

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_ZONE = re.compile(r"[T ].*(?:Z|[+-]\d\d(?::?\d\d)?)$")
_LIKE = {
    NUMBER: re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|0[xX][0-9a-fA-F]+"),
    DATE: re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9:.]+)?"),
    ZONED: re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:.]+(?:Z|[+-][0-9:]+)"),
}
"""What is not like this is no time of the kind; what is, Arrow decides."""


def kind_of(text: str) -> str | None:
    """Returns the kind of a time, None where the text is none."""
    if converted([text], NUMBER) is not None:
        return NUMBER
    kind = ZONED if _DAY.match(text) and _ZONE.search(text) else DATE
    return kind if converted([text], kind) is not None else None


def converted(texts: Sequence[str], kind: str) -> pa.Array | None:
    """Returns the times of texts without blanks around them; None where one of them is none of this kind."""
    try:
        column = pa.array(texts, pa.string())
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return None
    for wanted in TYPES[kind]:
        try:
            found = column.cast(wanted)
        except pa.ArrowInvalid:
            continue
        return found if is_finite(found) else None
    return None


def not_of(texts: Sequence[str], kind: str) -> set[str]:
    """Returns those of some texts that are no times of this kind."""
    found = {text for text in set(texts) if not _LIKE[kind].fullmatch(text)}
    pending = [sorted(set(texts) - found)]  # tried as a whole, then by halves, for hardly any is bad
    while pending:
        part = pending.pop()
        if converted(part, kind) is not None:
            continue
        if len(part) == 1:
            found.add(part[0])
        else:
            pending += [part[: len(part) // 2], part[len(part) // 2 :]]
    return found


def is_finite(times: pa.Array | pa.ChunkedArray) -> bool:
    """Tells whether no time is missing, infinite or no number."""
    if times.null_count:
        return False
    return not pa.types.is_floating(times.type) or bool(pc.all(pc.is_finite(times), min_count=0).as_py())
