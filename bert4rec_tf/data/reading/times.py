"""Reads the times of actions: numbers of any unit, or ISO 8601 dates with or without a zone. One kind per source."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert4rec_tf.foundation.errors import UserError

NUMBER, DATE, ZONED = "number", "date", "date with a zone"
TYPES = {NUMBER: (pa.int64(), pa.float64()), DATE: (pa.timestamp("ns"),), ZONED: (pa.timestamp("ns", "UTC"),)}
"""Kind -> the types to try, in order."""

BLANKS = " \t"
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_LIKE = {
    NUMBER: r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$",
    DATE: rf"^{_DAY}(?:[ T][0-9:.]+)?$",
    ZONED: rf"^{_DAY}[ T][0-9:.]+(?:Z|[+-][0-9:]+)$",
}
"""What a text of each kind looks like. Arrow then checks the value: 2020-02-30 is not a date."""


class Times:
    """Reads the times of one source. The first time decides their kind."""

    def __init__(self) -> None:
        self.kind: str | None = None

    def read(self, column: pa.Array, source: str) -> tuple[pa.Array, np.ndarray | None]:
        """Returns times and which of them are bad.

        Args:
            column: texts, numbers, dates or timestamps.
            source: its file, for messages.

        Returns:
            int64 or float64 [rows], 0 at bad rows, and bool [rows]; None if all are good.

        Raises:
            UserError: for a column of another type.
        """
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if is_text(column.type):
            values = self._of_texts(column.cast(pa.string()))
        else:
            kind, values = _of_type(column, source)
            self.kind = self.kind or kind
            if kind != self.kind:
                values = pa.nulls(len(values), values.type)
        bad = values.is_null(nan_is_null=True)
        if pa.types.is_floating(values.type):
            bad = pc.or_(bad, pc.is_inf(values).fill_null(True))
        if not pc.any(bad, min_count=0).as_py():
            return values, None
        return pc.if_else(bad, pa.scalar(0, values.type), values), bad.to_numpy(zero_copy_only=False)

    def _of_texts(self, texts: pa.Array) -> pa.Array:
        if self.kind is None and len(texts):
            self.kind = _kind_of(texts[:1]) or _kind_of(texts)
        if self.kind is None:
            return pa.nulls(len(texts), pa.int64())
        values = _cast(texts, self.kind)
        return _cast_some(texts, self.kind) if values is None else values


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _cast(texts: pa.Array, kind: str) -> pa.Array | None:
    """Returns the times of texts; None if one of them is not of this kind."""
    for wanted in TYPES[kind]:
        try:
            values = texts.cast(wanted)
        except pa.ArrowInvalid:
            continue
        if kind != NUMBER:
            return values.cast(pa.int64())
        if pa.types.is_floating(wanted):
            return values if pc.all(pc.is_finite(values), min_count=0).as_py() else None
        return None if _has_x(texts) else values
    return None


def _has_x(texts: pa.Array) -> bool:
    """Returns whether a text may be hexadecimal, which Arrow takes as a whole number but not as a fraction."""
    letters = texts.buffers()[2]
    return letters is not None and bool((np.frombuffer(letters, np.uint8) | 32 == ord("x")).any())


def _cast_some(texts: pa.Array, kind: str) -> pa.Array:
    """Returns the times of texts; null for those that are not of this kind."""
    coded = pc.utf8_trim(texts, characters=BLANKS).dictionary_encode()
    names = coded.dictionary
    good = np.flatnonzero(_looks_like(names, kind))
    pending, failed = [good], set()  # tried as a whole, then by halves, because few are bad
    while pending:
        part = pending.pop()
        if _cast(names.take(pa.array(part)), kind) is None:
            if len(part) == 1:
                failed.add(int(part[0]))
            else:
                pending += [part[: len(part) // 2], part[len(part) // 2 :]]
    good = np.array([place for place in good.tolist() if place not in failed], np.int64)
    values = _cast(names.take(pa.array(good)), kind) or pa.nulls(0, pa.int64())
    places = np.full(len(names), -1)
    places[good] = np.arange(len(good))
    places = pa.array(places, mask=places < 0)
    return values.take(places.take(coded.indices))


def _looks_like(texts: pa.Array, kind: str) -> np.ndarray:
    return pc.match_substring_regex(texts, _LIKE[kind]).fill_null(False).to_numpy(zero_copy_only=False)


def _kind_of(texts: pa.Array) -> str | None:
    """Returns the kind of the first text that has one."""
    texts = pc.utf8_trim(texts, characters=BLANKS).unique()
    like = {kind: _looks_like(texts, kind) for kind in _LIKE}
    for place in np.flatnonzero(np.any(list(like.values()), axis=0)).tolist():
        for kind, found in like.items():
            if found[place] and _cast(texts.take(pa.array([place])), kind) is not None:
                return kind
    return None


def _of_type(column: pa.Array, source: str) -> tuple[str | None, pa.Array]:
    """Returns the kind of a column that is not text, and its times as numbers."""
    kind = column.type
    if pa.types.is_null(kind):
        return None, column.cast(pa.int64())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        zone = getattr(kind, "tz", None)
        if getattr(kind, "unit", None) != "ns":
            column = _near(column.cast(pa.timestamp("us", zone))).cast(pa.timestamp("ns", zone))
        return ZONED if zone else DATE, column.cast(pa.int64())
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return NUMBER, column.cast(pa.int64())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or kind == pa.uint64():
        return NUMBER, column.cast(pa.float64(), safe=False)
    raise UserError(f"{source}: times must be numbers, dates, timestamps or texts. Found: {kind}")


def _near(column: pa.Array) -> pa.Array:
    """Replaces dates that do not fit in 64 bits of nanoseconds by null, as for texts."""
    year = pc.year(column)
    return pc.if_else(pc.and_(pc.greater(year, 1677), pc.less(year, 2262)), column, pa.scalar(None, column.type))
