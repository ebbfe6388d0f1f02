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


def is_finite(times: pa.Array | pa.ChunkedArray) -> bool:
    """Tells whether no time is missing, infinite or no number."""
    if times.null_count:
        return False
    return not pa.types.is_floating(times.type) or bool(pc.all(pc.is_finite(times), min_count=0).as_py())
