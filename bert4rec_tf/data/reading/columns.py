"""Decides which columns have the users, the items and the times: what is unmistakable, or an error that asks."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading.times import count_units
from bert4rec_tf.foundation.errors import UserError, unknown_name_error

USER_NAMES = (
    *("userid", "uid", "user", "username", "reviewerid", "customerid", "customer", "visitorid", "visitor", "accountid"),
    *("account", "memberid", "member", "clientid", "personid", "sessionid", "session"),
)
ITEM_NAMES = (
    *("itemid", "iid", "item", "movieid", "movie", "asin", "parentasin", "productid", "sku", "product", "articleid"),
    *("article", "bookid", "isbn", "book", "songid", "trackid", "song", "track", "artistid", "artist", "videoid"),
    *("video", "gameid", "game", "businessid", "gmapid", "contentid", "newsid"),
)
TIME_NAMES = (
    *("timestamp", "time", "unixreviewtime", "unixtime", "unixtimestamp", "ts", "datetime", "date", "eventtime"),
    *("createdat", "created", "ratedat", "boughtat", "purchasedat", "orderedat", "ordertime", "ratingtimestamp"),
    *("reviewdate", "eventdate", "orderdate", "purchasedate", "transactiondate", "invoicedate", "day"),
)
"""Common names of the columns, in lowercase letters and digits only, preferred names first: ids before what
may be a name."""

COMMON_NAMES = {"user": USER_NAMES, "item": ITEM_NAMES}
STEMS = {"uid": "user", "userid": "user", "username": "user", "iid": "item"}
"""Names of one thing, beside those that differ by a final `id`."""

EVENT_NAMES = ("event", "eventtype", "action", "actiontype", "behavior", "behaviour", "behaviortype", "interactiontype")
RATING_NAMES = ("rating", "ratings", "stars", "score", "overall")

TIME_WORDS = {
    *("time", "timestamp", "ts", "date", "datetime", "day", "days", "month", "year", "hour", "minute", "week"),
    *("weekday", "at", "when", "created"),
}
ORDER_NAME = re.compile(r"(order|sequence|seq)(number|no|nr|index)?|step")
"""A column whose name has one of these words, or is like this, may say the order."""

MIN_SHARE_OF_TIMES = 0.9
"""The share of a column's values that must read as times, so that it may be the column of times."""

SAMPLE_ROWS = 1_000
"""How many rows decide on the layout."""

FEW_EVENTS = 20
MAX_PARTS = 4
"""Year, month, day and time of day."""

SHOWN_VALUES = 3

DATE_LIKE = re.compile(r"\d{4}([-/])\d\d\1\d\d([ T]|$)")
DAYTIME_LIKE = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d+)?)?$|\d{3,4}$")
NUMBER_LIKE = re.compile(r"(0|[1-9]\d{0,18})(\.\d+)?$")

ROW_NUMBERS = re.compile(r"$|index$|__index_level_|Unnamed:")
"""Columns in which pandas stores row numbers."""

TAB, ANY_BLANKS, QUOTED_BLANKS = "\t", " ", ' "'
"""Separators: a tab, any number of blanks and tabs, and one blank between fields that may be quoted."""

UNQUOTED = ("::", ANY_BLANKS)
"""The separators between which quotes are plain characters."""

NO_TIME = "none"
TEXT, JSON, LITERALS, PARQUET = "text", "json", "literals", "parquet"

Sample = Mapping[str, Sequence[str]]
"""Column -> the texts of its first values."""


@dataclass(frozen=True)
class Layout:
    """How to read a file.

    Attributes:
        kind: TEXT (separated columns), JSON (an object per line), LITERALS (a Python dictionary per line), PARQUET.
        user, item: the names of the columns.
        times: the column of the times, or those that are joined; empty if the rows are in order.
        event: the column of the kinds of events, if there is one.
        separator: between the columns of a TEXT.
        names: of all columns.
        has_header: whether a TEXT has a header.
        header_ids: what its header has for users and items, if it may be repeated.
        skip: the number of lines before the first row of a TEXT.
        may_lack_times: whether there are no times and nobody said so.
        integer_types: columns of integers -> their type, such as "int64", which those of a TEXT have if all are.
        doubts: what the user should be warned of.
        remarks: what the report says.
    """

    kind: str
    user: str
    item: str
    times: tuple[str, ...] = ()
    event: str | None = None
    separator: str = ","
    names: tuple[str, ...] = ()
    has_header: bool = False
    header_ids: tuple[str, str] | None = None
    skip: int = 0
    may_lack_times: bool = False
    integer_types: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def used_columns(self) -> list[str]:
        """The columns to read, each once."""
        return list(dict.fromkeys([self.user, self.item, *self.times, *([self.event] if self.event else [])]))

    def describe(self) -> dict[str, dict[str, str]]:
        """Returns the columns as `Sequences.columns` has them: several columns of times with commas between them."""
        columns = {"user": {"name": self.user}, "item": {"name": self.item}}
        for column in columns.values():
            if column["name"] in self.integer_types:
                column["type"] = self.integer_types[column["name"]]
        return columns | ({"time": {"name": ",".join(self.times)}} if self.times else {})

    def __str__(self) -> str:
        order = f"time {','.join(self.times)!r}" if self.times else "the order of the file (no time)"
        return f"user {self.user!r}, item {self.item!r}, {order}"


@dataclass(frozen=True)
class Columns:
    """The columns of a source as the user named them.

    Attributes:
        options: the names of the columns; None to find them by common names.
        source, flag: for messages, the file and the option that names a column; `{}` is user, item or time.
        hint: for messages on missing columns, where they may be.
    """

    source: str
    options: Interactions
    flag: str = "--{}_column"
    hint: str = ""

    def layout_from_sample(self, kind: str, names: Sequence[str], sample: Sample) -> Layout:
        """Returns the layout of a source whose columns have names. Raises UserError if it must ask for one."""
        user, item = (self._resolve_role(role, names, sample) for role in ("user", "item"))
        event = None if self.options.event_column is None else self._resolve(self.options.event_column, names)
        other_columns = {name: values for name, values in sample.items() if name not in (user, item, event)}
        times = self._resolve_times(other_columns, names, sample)
        if len({user, item, *times}) < 2 + len(times):
            raise UserError(
                f"{self.source}: the columns of users, items and times must differ. Received: "
                f"{', '.join([user, item, *times])}"
            )
        if self.options.test_from is not None and not times:
            raise UserError(f"`test_from` needs a column of times. Received: test_from={self.options.test_from}")
        other_names = [name for name in other_columns if name not in times and not ROW_NUMBERS.match(name)]
        doubts, remarks, is_own = [], [], not self.options.is_published
        if is_own and event is None:
            events = [name for name in other_names if _normalize(name) in EVENT_NAMES]
            event = next((name for name in events if 0 < len(set(sample[name])) <= FEW_EVENTS), None)
        may_lack_times = not times and self.options.time_column is None
        if may_lack_times and (candidates := [name for name in other_names if name != event]):
            doubts.append(
                "no column has a known name for times, so the rows count as in order. Name one with "
                f"{self._flag('time')}, of: {', '.join(candidates)[:300]}; or give {self._flag('time', NO_TIME)}"
            )
        if is_own and (ratings := [name for name in other_names if _normalize(name) in RATING_NAMES]):
            remarks.append(f"ratings ({ratings[0]}) are not used: every row is an action")
        facts: dict[str, Any] = {"names": tuple(names), "doubts": tuple(doubts), "remarks": tuple(remarks)}
        return Layout(kind, user, item, times, event, may_lack_times=may_lack_times, **facts)

    def _flag(self, role: str, value: str = "") -> str:
        return f"{self.flag.format(role).removesuffix('=')}={value}"

    def _resolve_role(self, role: str, names: Sequence[str], sample: Sample) -> str:
        """Returns the column of the users or the items. Raises UserError if none or several have a known name."""
        column = getattr(self.options, f"{role}_column")
        if column is not None:
            return self._resolve(column, names)
        candidates = find_known_columns(names, COMMON_NAMES[role])
        if len(candidates) == 1:
            candidates += find_rivals(candidates[0], sample, COMMON_NAMES[role])
        if len(candidates) == 1:
            return self._resolve(candidates[0], names)
        if candidates:
            raise UserError(
                f"{self.source}: several columns may have the {role}s: {_show_values(candidates, sample)}. Add "
                f"{' or '.join(self._flag(role, name) for name in candidates)}"
            )
        roles = COMMON_NAMES | ({"time": TIME_NAMES} if len(names) > 2 else {})
        roles = {key: common for key, common in roles.items() if getattr(self.options, f"{key}_column") is None}
        missing = [key for key, common in roles.items() if not find_known_columns(names, common)]
        raise UserError(
            f"{self.source}: no column has a known name for the {role}s. Give "
            f"{', '.join(map(self.flag.format, missing))}; the columns are: {', '.join(names)[:300]}; the first "
            f"values: {_show_values(names[:9], sample)[:600]}{self.hint}"
        )

    def _resolve_times(self, other_columns: Sample, names: Sequence[str], sample: Sample) -> tuple[str, ...]:
        column = self.options.time_column
        if column == NO_TIME:
            return ()
        if column is not None:
            parts = [column] if column in names else [name.strip() for name in column.split(",")]
            if len(parts) > MAX_PARTS:
                raise UserError(f"`time_column` must name at most {MAX_PARTS} columns. Received: {column}")
            return tuple(self._resolve(name, names) for name in parts)
        columns = {name: values for name, values in other_columns.items() if may_be_time(name, values)}
        unix = [name for name in columns if _normalize(name).startswith("unix")]
        if len(unix) == 1 or (len(columns) == 1 and _normalize(next(iter(columns))) in TIME_NAMES):
            return (self._resolve((unix or list(columns))[0], names),)
        if not columns:
            return ()
        joins = [",".join(group) for group in _find_joins(columns)]
        choices = [self._flag("time", name) for name in [*joins, *columns, NO_TIME]]
        doubt = "several columns speak of time" if len(columns) > 1 else "a column may have the times"
        raise UserError(
            f"{self.source}: {doubt}: {_show_values(columns, sample)}. Say which orders the rows: "
            f"{', '.join(choices[:-1])} or {choices[-1]} (the rows are in order)"
        )

    def _resolve(self, column: str, names: Sequence[str]) -> str:
        """Returns the column of this name. Raises UserError if there is none, or more than one."""
        if column.isdigit() and column not in names:
            raise UserError(
                f"{self.source}: columns go by their names, of: {', '.join(names)[:300]}. Received: {column}. A "
                "text without a header takes --columns=user,item,time"
            )
        if column not in names:
            raise UserError(f"{unknown_name_error(f'column of {self.source}', column, names)}{self.hint}")
        if (number := list(names).count(column)) > 1:
            raise UserError(f"{self.source}: has {number} columns {column!r}; rename one")
        return column


def _show_values(names: Iterable[str], sample: Sample) -> str:
    """Returns columns with their first values."""
    firsts = {name: [" ".join(value.split())[:40] for value in sample[name][:SHOWN_VALUES]] for name in names}
    return "; ".join(f"{name} ({', '.join(values)})" for name, values in firsts.items())


def may_be_time(name: str, values: Sequence[str]) -> bool:
    """Returns whether a column's name speaks of time or of an order, or its values read as times."""
    words = re.findall(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]*", name.split(":")[0])
    words, normal_name = [word.lower() for word in words], _normalize(name)
    if normal_name in TIME_NAMES or TIME_WORDS & set(words) or ORDER_NAME.fullmatch(normal_name):
        return True
    values = [value for value in values if value]
    return words[-1:] != ["id"] and (_are_dates(values) or _are_unix_times(values))


def _find_joins(columns: Sample) -> list[list[str]]:
    """Returns the columns that together may say a time: year, month and day, or a date and a time of day."""
    names = {_normalize(name): name for name in columns}
    joins = [[names[part] for part in ("year", "month", "day")]] if {"year", "month", "day"} <= set(names) else []
    for date in columns:
        if _are_dates(columns[date]):
            joins += [[date, name] for name, values in columns.items() if all(map(DAYTIME_LIKE.match, values))]
    return joins


def _are_dates(values: Sequence[str]) -> bool:
    return sum(bool(DATE_LIKE.match(value.strip())) for value in values) > MIN_SHARE_OF_TIMES * len(values)


def _are_unix_times(values: Sequence[str]) -> bool:
    numbers = np.array([value for value in map(str.strip, values) if NUMBER_LIKE.match(value)], np.float64)
    return sum(count_units(numbers).values()) > MIN_SHARE_OF_TIMES * len(values)


def _normalize(name: str) -> str:
    """Returns a name in lowercase letters and digits only. RecBole names its columns like `user_id:token`."""
    return re.sub(r"[^a-z0-9]", "", name.lower().split(":")[0])


def find_known_columns(names: Sequence[str], common_names: Sequence[str]) -> list[str]:
    """Returns the columns with known names: those of one name for each thing, its id rather than its name.

    Names that differ by case or signs alone are one name. A session is a user only if there is no other.
    """
    columns: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        columns.setdefault(_normalize(name), []).append(name)
    columns_by_stem: dict[str, list[str]] = {}
    for name in common_names:
        if name in columns:
            columns_by_stem.setdefault(_find_stem(name), columns[name])
    if len(columns_by_stem) > 1:
        columns_by_stem.pop("session", None)
    return list(itertools.chain(*columns_by_stem.values()))


def _find_stem(name: str) -> str:
    """Returns what a normalized name is a name of: "user" of userid, uid and username."""
    return STEMS.get(name, name.removesuffix("id"))


def find_rivals(id_column: str, sample: Sample, common_names: Sequence[str]) -> list[str]:
    """Returns the other columns of the same thing as a known one that are no names for its ids: some id has two values.

    So `user_id` has no rival in a column `user` of their names, but in one of other ids.
    """
    stem, columns = _find_stem(_normalize(id_column)), [name for name in sample if name != id_column]
    rivals = [name for name in columns if _normalize(name) in common_names and _find_stem(_normalize(name)) == stem]
    pairs = {
        name: {(key, value) for key, value in zip(sample[id_column], sample[name]) if key and value} for name in rivals
    }
    return [name for name, values in pairs.items() if len(values) > len({key for key, _ in values})]


def guess_column(names: Sequence[str], common_names: Sequence[str], preferred_name: str | None = None) -> str | None:
    """Returns the column `preferred_name` if there is one, else the first with a known name, or None."""
    if preferred_name in names:
        return preferred_name
    return next(iter(find_known_columns(names, common_names)), None)
