"""Reads the times of actions: numbers of any unit, or ISO 8601 dates with or without a zone. One kind per source."""

import contextlib
import re
import time as clock
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.sequences import UNIT_NAMES, find_unit
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import DataWarning, warn

NUMBER, DATE, ZONED = "number", "date", "date with a zone"
TYPES = {NUMBER: (pa.int64(), pa.float64()), DATE: (pa.timestamp("ns"),), ZONED: (pa.timestamp("ns", "UTC"),)}
"""Kind -> the types to try, in order."""

BLANKS = " \t"
BEYOND = 2.0**63
"""Numbers from here on are not taken as times: as float64, they could lose their order."""

PRECISION = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}
"""Up to these numbers, each type holds all whole numbers."""

LONGEST_FLOAT = 19
"""Characters of a fraction; longer ones may have more digits than float64."""

_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
PATTERNS = {
    NUMBER: r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$",
    DATE: rf"^{_DAY}(?:[ T][0-9:.]+)?$",
    ZONED: rf"^{_DAY}[ T][0-9:.]+(?: ?(?:Z|UTC|GMT)| ?[+-][0-9:]+)$",
}
"""What a text of each kind looks like. Arrow then checks the value: 2020-02-30 is not a date."""

HOUR_NAME = re.compile(r"(?<![a-zA-Z])(?i:hour|hours|hr|hrs|hh)(?![a-zA-Z])|(?<=[a-z])(Hours?|Hrs?)(?![a-z])")
"""In a name: `hour`, `order_hour`, `HOUR`, `orderHour`; not in `through` or `Threshold`."""

DAY_IN_ANOTHER_ORDER = r"^(?:[0-9]{4}[./]|[0-9]{1,2}[./ -])?(?:[0-9]{1,2}|[A-Za-z]{3,9})[./ -][0-9]{1,4}\b"
"""What other dates look like: 31.01.2020, 1/31/2020 or Jan 31. Many leave open which part is the month."""

DAYS_IN_ORDER = "YYYYMMDD"
"""Days as whole numbers, in the order of time."""

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
PER_SECOND = {unit: 10**9 // factor for unit, factor in _NANOSECONDS.items()}
DAY_SECONDS = 86_400
EARLIEST, LATEST = 315_532_800, 4_102_444_800
"""Numbers are taken as Unix times from 1980 until 2100, in seconds. Fractions of seconds have other ranges."""

GRACE_SECONDS, LATEST_DATE = 2 * DAY_SECONDS, 253_402_300_800
"""Zones and clocks may differ by so much. The year 10,000, which Python's dates do not reach."""


def find_day_length(meaning: str) -> int:
    """Returns how many units of times with this meaning (`Times.describe`) a day has; 1 for no known unit."""
    if "date" in meaning:
        return DAY_SECONDS * PER_SECOND["ns"]
    unit = find_unit(meaning)
    return DAY_SECONDS * PER_SECOND[unit] if unit else 1


def count_units(times: np.ndarray) -> dict[str, int]:
    """Returns how many times are plausible in each unit since 1970. A number is plausible in one unit at most."""
    return {
        unit: int(np.count_nonzero((times >= EARLIEST * per_second) & (times < LATEST * per_second)))
        for unit, per_second in PER_SECOND.items()
    }


def _choose_unit(counts: Mapping[str, int], num_times: int, title: str) -> str | None:
    """Returns the unit in which the median of numeric times, so most of them, are plausible; None if there is none.

    Raises UserError if most are plausible, but in several units. `counts`: of `count_units`.
    """
    units = [unit for unit, count in counts.items() if count]
    if 2 * sum(counts.values()) <= num_times:
        return None
    if len(units) > 1:
        unit_counts = " and ".join(f"{counts[unit]:,} {UNIT_NAMES[unit]}" for unit in units)
        raise UserError(f"{title}: the times must have one unit. Received: {unit_counts} since 1970")
    return units[0]


def _describe_odd_times(number: int, num_times: int, unit: str | None) -> list[str]:
    """Returns a line on times that are not plausible. `unit`: of numbers; None for dates."""
    unit_text = f", in {UNIT_NAMES[unit]}," if unit else ""
    is_odd = 0 < number < num_times / 2
    return [f"{number:,} of the {num_times:,} times{unit_text} are not from 1980 to 2099"] if is_odd else []


def join_columns(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Returns the times that one column has, or as texts those that several have together.

    Two columns are a date and a time of day (22:10, 22:10:05 or 2210; 22 if the column's name has the word hour); three
    are year, month and day; four are these and a time of day. What is no time is left to `Times.read`, and a missing
    part is null.
    """
    if len(columns) == 1:
        return next(iter(columns.values()))
    texts = [pc.utf8_trim(_write(column, name), characters=BLANKS) for name, column in columns.items()]
    texts = [pc.if_else(pc.equal(text, ""), None, text) for text in texts]
    if len(texts) > 2:
        digits = [pc.utf8_lpad(text, width, "0") for text, width in zip(texts, (4, 2, 2))]
        texts = [pc.binary_join_element_wise(*digits, "-"), *texts[3:]]
    if len(texts) == 1:
        return texts[0]
    day, daytime = texts
    if HOUR_NAME.search(list(columns)[-1]):
        daytime = pc.replace_substring_regex(daytime, "^([0-9]{1,2})$", r"\1:00")
    daytime = pc.replace_substring_regex(daytime, "^([0-9]:)", r"0\1")
    for width, pattern, parts in ((4, "^[0-9]{1,4}$", r"\1:\2"), (6, "^[0-9]{5,6}$", r"\1:\2:\3")):
        digits = pc.utf8_lpad(daytime, width, "0")
        clock = pc.replace_substring_regex(digits, f"^{'([0-9]{2})' * (width // 2)}$", parts)
        daytime = pc.if_else(pc.match_substring_regex(daytime, pattern), clock, daytime)
    return pc.binary_join_element_wise(day, daytime, " ")


def _write(column: pa.Array, name: str) -> pa.Array:
    """Returns a part of a time as text: of a timestamp the day, of a fraction the whole number."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.date32(), safe=False)
    if pa.types.is_nested(column.type):
        raise UserError(f"column {name}: a part of a time must be a number, a date or a text. Found: {column.type}")
    return pc.replace_substring_regex(column.cast(pa.string()), r"\.0$", "")


def _refuse_future(latest_time: int | float, unit: str | None, title: str) -> None:
    """Raises UserError if the latest time is in the future. `unit`: of numbers; None for dates."""
    seconds = latest_time / PER_SECOND[unit or "ns"]
    if seconds <= clock.time() + GRACE_SECONDS:
        return
    day = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}" if seconds < LATEST_DATE else "after the year 9999"
    hint = ""
    if unit is not None:
        hint = f" {latest_time:.0f}, if it counts {UNIT_NAMES[unit]} since 1970."
        if re.fullmatch(r"(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])([01]\d|2[0-3])", f"{latest_time:.0f}"):
            hint += " It may be a date and an hour: write it as 2019-12-31 23:00."
    raise UserError(
        f"{title}: the latest time is in the future: {day}.{hint} If the times are right, add --future_times"
    )


def find_day_form(times: np.ndarray) -> str | None:
    """Returns how all times are written as whole numbers: DAYS_IN_ORDER, "DDMMYYYY" or "MMDDYYYY"; None for no days."""
    if not np.issubdtype(times.dtype, np.integer):
        return None
    first, second, years = times // 1_000_000, times // 10_000 % 100, times % 10_000
    parts = {
        DAYS_IN_ORDER: (times // 10_000, times // 100 % 100, times % 100),
        "DDMMYYYY": (years, second, first),
        "MMDDYYYY": (years, first, second),
    }
    for form, (years, months, days) in parts.items():
        if np.all((days >= 1) & (days <= 31) & (months >= 1) & (months <= 12) & (years >= 1900) & (years <= 2100)):
            return form
    return None


def _refuse_mixed_up_days(times: np.ndarray, title: str) -> None:
    """Raises UserError if all times are whole numbers such as 31012024, whose order is not that of the days."""
    form = find_day_form(times)
    if form not in (None, DAYS_IN_ORDER):
        raise UserError(
            f"{title}: the times must be numbers in the order of time, or dates such as 2024-01-31 or 20240131. "
            f"Received: {times[0]}, which seems to be {form}"
        )


class Times:
    """Reads the times of one source. The first time decides their kind, unless it is given.

    `zones`: those of the columns, if the times have any; UTC for texts, each of which has an offset of its own.
    """

    def __init__(self, kind: str | None = None) -> None:
        self.kind = kind
        self.zones = set[str]()
        self._has_warned = False

    def read(self, column: pa.Array, source: str) -> tuple[pa.Array, np.ndarray]:
        """Returns times as numbers, int64 or float64 [rows], and which are bad, bool [rows].

        A bad row has the time 0. The column has texts, numbers, dates or timestamps; for another type, raises
        UserError. `source`: its file, for messages.
        """
        if pa.types.is_string(column.type):
            values = self._read_texts(column)
            self.zones |= {"UTC"} if self.kind == ZONED else set()
        else:
            kind, values = _convert_typed(column, source)
            self.kind = self.kind or kind
            if kind != self.kind:
                values = pa.nulls(len(values), values.type)
            elif kind == ZONED:
                self.zones.add(column.type.tz)
        is_good = values.is_valid()
        if pa.types.is_floating(values.type):
            is_good = pc.less(pc.abs(values), BEYOND).fill_null(False)
        values = pc.if_else(is_good, values, pa.scalar(0, values.type))
        if not self._has_warned and self.kind == NUMBER and _loses_order(column, values):
            self._has_warned = True
            kinds = " or ".join(dict.fromkeys([str(column.type)] * (column.type in PRECISION) + ["float64"]))
            warn(f"{source}: times that differ may become equal, because {kinds} cannot hold them all", DataWarning)
        if pa.types.is_floating(values.type) and pc.all(pc.equal(values, pc.floor(values)), min_count=0).as_py():
            values = values.cast(pa.int64())  # so that other batches keep their 64 bits
        return values, ~is_good.to_numpy(zero_copy_only=False)

    def _read_texts(self, texts: pa.Array) -> pa.Array:
        if self.kind is None and len(texts):
            self.kind = _find_kind(texts[:1]) or _find_kind(texts)
        if self.kind is None:
            return pa.nulls(len(texts), pa.int64())
        values = _cast(texts, self.kind)
        return _cast_some(texts, self.kind) if values is None else values

    def describe(
        self,
        counts: Mapping[str, int],
        num_times: int,
        latest_time: int | float,
        sample: Callable[[], np.ndarray],
        options: Interactions,
    ) -> tuple[str | None, str, list[str]]:
        """Returns the unit of times that are numbers, None if it is not known; what the times mean; and doubts.

        Args:
            counts: what `count_units` returns for all times.
            num_times, latest_time: their number, and the last one.
            sample: returns all of them or some.
            options: whether times may be in the future, and the title for messages.

        Raises UserError for times of several units, in the future, or out of order because they begin with the day.
        """
        unit = _choose_unit(counts, num_times, options.title) if self.kind == NUMBER else None
        if self.kind == NUMBER and unit is None:
            if not options.is_published:
                _refuse_mixed_up_days(sample(), options.title)
            return None, "numbers of no known unit", []
        if not (options.is_published or options.future_times):
            _refuse_future(latest_time, unit, options.title)
        doubts = _describe_odd_times(num_times - counts[unit or "ns"], num_times, unit)
        if unit is None:
            return None, "dates with a zone" if self.kind == ZONED else "dates", doubts
        return unit, f"{UNIT_NAMES[unit]} since 1970", doubts

    def parse_moment(self, text: str, unit: str | None) -> int | float:
        """Returns the time that a user names as `test_from`, as a number like the times that were read.

        Args:
            text: a date, or a number if the times are numbers. A date without a zone is in that of the times, if they
                have one.
            unit: of the times, if they are numbers (`describe`).

        Raises UserError if the text is no time of this kind, a date among numbers without a known unit, a number that
        is not plausible in this unit, or a date without a zone among times of several zones.
        """
        texts = pa.array([text], pa.string())
        kind = _find_kind(texts)
        times = None if kind is None else _cast(normalize_texts(texts), kind)
        if kind is None or times is None or (kind == NUMBER and self.kind != NUMBER):
            form = "a number or a date (2020-01-31)" if self.kind == NUMBER else "a date (2020-01-31)"
            raise UserError(f"`test_from` must be {form}, like the times of the data. Received: test_from={text}")
        value = self._localize(times[0].as_py(), text) if kind == DATE and self.zones else times[0].as_py()
        if kind == NUMBER and unit is not None and not count_units(np.array([value]))[unit]:
            raise UserError(
                f"`test_from` must be {UNIT_NAMES[unit]} since 1970, like the times of the data, from 1980 to 2099, or "
                f"a date (2020-01-31). Received: test_from={text}"
            )
        if kind == NUMBER or self.kind != NUMBER or unit == "ns":
            return value
        if unit is None:
            raise UserError(
                "`test_from` must be a number like the times of the data, which are not s, ms, us or ns since 1970. "
                f"Received: test_from={text}"
            )
        return value / _NANOSECONDS[unit]

    def _localize(self, day: int, text: str) -> int:
        """Returns when a date without a zone is, in the zone of the times. Raises UserError if they have several.

        `day`: in nanoseconds. `text`: what the user named, for messages.
        """
        days, moments = pa.array([day], pa.timestamp("ns")), set[int]()
        with contextlib.suppress(pa.ArrowInvalid):  # if Arrow does not know a zone
            for zone in self.zones:
                times = pc.assume_timezone(days, zone, ambiguous="earliest", nonexistent="latest")
                moments.add(times.cast(pa.int64())[0].as_py())
            if len(moments) == 1:
                return moments.pop()
        raise UserError(
            "`test_from` must have a zone, as in 2020-01-31T00:00+00:00, for times in "
            f"{' and '.join(sorted(self.zones))}. Received: test_from={text}"
        )


def _loses_order(column: pa.Array, values: pa.Array) -> bool:
    """Returns whether some of a column's times may have become equal, or may have been before, in floats."""
    limit, peak = PRECISION.get(column.type, 2**53), pc.max(pc.abs(values)).as_py() or 0
    if pa.types.is_string(column.type) and pa.types.is_floating(values.type):
        return peak > limit or (pc.max(pc.utf8_length(column)).as_py() or 0) > LONGEST_FLOAT
    if pa.types.is_string(column.type) and peak > limit:  # JSON's reader writes a fraction as 1.6e+18
        is_rounded = pc.match_substring_regex(column, r"[0-9][eE]|\.[0-9]*[1-9]").fill_null(False)
        return (pc.max(pc.abs(pc.filter(values, is_rounded))).as_py() or 0) > limit
    if column.type in PRECISION:
        return peak > limit
    if pa.types.is_decimal(column.type) and pa.types.is_floating(values.type):
        return pc.count_distinct(column).as_py() > pc.count_distinct(values).as_py()
    return False


def normalize_texts(texts: pa.Array) -> pa.Array:
    """Returns times without blanks around them, 2020/01/31 as 2020-01-31, and the hour 4:36 as 04:36."""
    texts = pc.utf8_trim(texts, characters=BLANKS)
    texts = pc.replace_substring_regex(texts, "^([0-9]{4})/([0-9]{2})/([0-9]{2})", r"\1-\2-\3")
    return pc.replace_substring_regex(texts, f"^({_DAY}[ T])([0-9]:)", r"\10\2")


def _cast(texts: pa.Array, kind: str) -> pa.Array | None:
    """Returns the times of texts; None if one of them is not of this kind."""
    if kind == ZONED:
        texts = pc.replace_substring_regex(texts, " ?(?:UTC|GMT)$", "Z")
        texts = pc.replace_substring_regex(texts, r" ([+-][0-9:]+|Z)$", r"\1")
    for target in TYPES[kind]:
        try:
            values = texts.cast(target)
        except pa.ArrowInvalid:
            continue
        if kind != NUMBER:
            return values.cast(pa.int64())
        if pa.types.is_floating(target):
            return _cast_whole(texts, values) if pc.all(pc.less(pc.abs(values), BEYOND), min_count=0).as_py() else None
        # Arrow takes a hexadecimal text as a whole number, but not as a fraction.
        return None if pc.any(pc.or_(pc.starts_with(texts, "0x"), pc.starts_with(texts, "0X"))).as_py() else values
    return None


def _cast_whole(texts: pa.Array, values: pa.Array) -> pa.Array:
    """Returns texts as int64 if all are whole numbers, or too large for float64 to have fractions; else `values`.

    `values`: the texts as float64.
    """
    if not pc.all(pc.equal(values, pc.floor(values)), min_count=0).as_py():
        return values
    texts = pc.replace_substring_regex(texts, r"\.[0-9]*$", "")
    fits = pc.match_substring_regex(texts, "^-?(?:[0-9]{1,18}|[1-8][0-9]{18})$")
    return pc.coalesce(pc.if_else(fits, texts, None).cast(pa.int64()), values.cast(pa.int64()))


def _cast_some(texts: pa.Array, kind: str) -> pa.Array:
    """Returns the times of texts; null for those that are not of this kind."""
    texts = normalize_texts(texts)
    texts = pc.if_else(pc.match_substring_regex(texts, PATTERNS[kind]), texts, None).dictionary_encode()
    return _cast_halves(texts.dictionary, kind).take(texts.indices)


def _cast_halves(texts: pa.Array, kind: str) -> pa.Array:
    """Returns the times of texts; null for those that look like times and are none, such as 2020-02-30."""
    values = _cast(texts, kind)
    if values is not None:
        return values
    if len(texts) == 1:
        return pa.nulls(1, pa.int64())
    middle = len(texts) // 2
    halves = [_cast_halves(half, kind) for half in (texts[:middle], texts[middle:])]
    target = pa.float64() if any(pa.types.is_floating(half.type) for half in halves) else pa.int64()
    return pa.concat_arrays([half.cast(target, safe=False) for half in halves])


def _find_kind(texts: pa.Array) -> str | None:
    """Returns the kind of the first text that has one."""
    for text in normalize_texts(texts).drop_null().unique():
        for kind, pattern in PATTERNS.items():
            if re.match(pattern, text.as_py()) and _cast(pa.array([text]), kind) is not None:
                return kind
    return None


def _convert_typed(column: pa.Array, source: str) -> tuple[str | None, pa.Array]:
    """Returns the kind of a column that is not text, and its times as numbers; null for those beyond 64 bits."""
    kind = column.type
    if pa.types.is_null(kind):
        return None, column.cast(pa.int64())
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(kind) else "ms"))
    if pa.types.is_timestamp(column.type):
        values, factor = column.cast(pa.int64()), _NANOSECONDS[column.type.unit]
        limit = (2**63 - 1) // factor
        fits = pc.and_(pc.less_equal(values, limit), pc.greater_equal(values, -limit))
        return ZONED if column.type.tz else DATE, pc.multiply(pc.if_else(fits, values, None), factor)
    if pa.types.is_integer(kind):
        fits = pc.less(column, pa.scalar(2**63, kind)) if kind == pa.uint64() else True
        return NUMBER, pc.if_else(fits, column, None).cast(pa.int64())
    if pa.types.is_decimal(kind):
        with contextlib.suppress(pa.ArrowInvalid):  # if there are fractions
            return NUMBER, column.cast(pa.int64())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return NUMBER, column.cast(pa.float64(), safe=False)
    advice = " (in pandas: frame[column].dt.to_timestamp())" if "period" in str(kind) else ""
    raise UserError(f"{source}: times must be numbers, dates, timestamps or texts. Found: {kind}{advice}")
