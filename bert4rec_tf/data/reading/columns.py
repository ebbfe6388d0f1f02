"""Finds the columns of users, items and times."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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

COMMON_NAMES = {"user": USER_NAMES, "item": ITEM_NAMES, "time": TIME_NAMES}

MOST = 0.9
"""The share of a column's values that must read as times, so that it is taken for the column of times."""

VALUE_SEPARATOR = "|"
"""Separates the values of one cell."""

DATE_LIKE = re.compile(r"\d{4}-\d\d-\d\d([ T]|$)")
NUMBER_LIKE = re.compile(r"(0|[1-9]\d{0,18})(\.\d+)?$")
MOST_RATING = 10
"""A larger number is no rating."""

ROW_NUMBERS = re.compile(r"$|index$|__index_level_|Unnamed:")
"""Columns in which pandas stores row numbers."""

NO_TIME = "none"
TEXT, JSON, LITERALS, PARQUET = "text", "json", "literals", "parquet"


@dataclass(frozen=True)
class Layout:
    """How to read a file.

    Attributes:
        kind: TEXT (separated columns), JSON (an object per line), LITERALS (a Python dictionary per line), PARQUET.
        user, item, time: the names of the columns; `time` is None if the rows are in order.
        separator: between the columns of a TEXT.
        names: of all columns of a TEXT, from its first line; without a header, their numbers from 1.
        has_header: whether a TEXT has a header.
        skip: the number of lines before the first row of a TEXT.
        doubt: what the user should be told of a guess; empty if nothing.
    """

    kind: str
    user: str
    item: str
    time: str | None = None
    separator: str = ","
    names: tuple[str, ...] = ()
    has_header: bool = False
    skip: int = 0
    doubt: str = ""

    @property
    def roles(self) -> dict[str, str]:
        """`user`, `item` and, if there are times, `time` -> its column."""
        return {role: column for role in ("user", "item", "time") if (column := getattr(self, role)) is not None}

    def __str__(self) -> str:
        is_numbered = self.kind == TEXT and not self.has_header
        columns = {role: f"column {name}" if is_numbered else repr(name) for role, name in self.roles.items()}
        order = f"time {columns['time']}" if "time" in columns else "the order of the file (no time)"
        return f"user {columns['user']}, item {columns['item']}, {order}"


@dataclass(frozen=True)
class Columns:
    """The columns of a source as the user named them.

    Attributes:
        user, item, time: their names or numbers from 1; None to guess them.
        source, option: for messages, the file and the option that names a column; `{}` is user, item or time.
    """

    source: str
    user: str | None = None
    item: str | None = None
    time: str | None = None
    option: str = "--{}_column"

    @property
    def requested_names(self) -> list[str]:
        return [name for name in (self.user, self.item, self.time) if name not in (None, NO_TIME)]

    def layout_from_names(self, kind: str, names: Sequence[str]) -> Layout:
        """Returns the layout of a source whose columns have names. Raises UserError if one is not found."""
        user, item, time = self._resolve_column("user", names), self._resolve_column("item", names), None
        if self.time not in (None, NO_TIME) or (self.time is None and guess_column(names, TIME_NAMES)):
            time = self._resolve_column("time", names)
        if len({user, item, time}) < 3:
            columns = user, item, time
            raise UserError(f"{self.source}: the columns of users, items and times must differ. Received: {columns}")
        others = [name for name in names if name not in (user, item) and not ROW_NUMBERS.match(name)]
        doubt = ""
        if time is None and self.time is None and others:
            option = self.option.format("time").removesuffix("=")
            doubt = (
                "no column has a known name for times, so the rows count as in order. Name one with "
                f"{option}=, of: {', '.join(others)[:300]}; or give {option}={NO_TIME}"
            )
        return Layout(kind, user, item, time, doubt=doubt)

    def layout_from_header(self, separator: str, header: Sequence[str]) -> Layout:
        return replace(self.layout_from_names(TEXT, header), separator=separator, names=tuple(header), has_header=True)

    def layout_from_rows(self, separator: str, rows: Sequence[Sequence[str]], header: Sequence[str]) -> Layout:
        """Returns the layout of a text without names: `user item`; `user item rating time`, in any order; or as named.

        `rows`: some rows, all equally long. `header`: the numbers in the first line; empty if it is a row.
        """
        width = len(rows[0])
        time = self.time or (NO_TIME if width == 2 else self._find_times(list(zip(*rows))) if width == 4 else None)
        if time is None:
            raise UserError(
                f"{self.source}: has {width} columns and no header with known names; name the columns of users, "
                "items and times (--user_column=1 --item_column=2 --time_column=3, or --time_column=none)"
            )
        names = [str(number) for number in range(1, width + 1)]
        free = [name for name in names if name not in (time, self.user, self.item)]
        user = self.user or free.pop(0)
        numbered = replace(self, user=user, item=self.item or free.pop(0), time=time)
        layout = replace(numbered.layout_from_names(TEXT, names), separator=separator, names=tuple(names))
        if header:
            columns: dict[str, Any] = {role: header[int(name) - 1] for role, name in layout.roles.items()}
            layout = replace(layout, **columns, names=tuple(header), has_header=True)
        if self.time is None and time not in (NO_TIME, "4"):
            return replace(layout, doubt=f"its columns have no names; their values say: {layout}")
        return layout

    def _find_times(self, columns: Sequence[Sequence[str]]) -> str:
        """Returns the number of the column of four that has the times. Raises UserError unless there is one."""
        free = [str(number) for number in range(1, 5) if str(number) not in (self.user, self.item)]
        values = {name: columns[int(name) - 1] for name in free}
        dates = [name for name in free if share_of_dates(values[name]) > MOST]
        times = [name for name in free if share_of_times(values[name]) > MOST]
        others = [name for name in free if name in "34" and not look_like_ratings(values[name])]
        candidates = dates or times or others
        if len(candidates) == 1:
            return candidates[0]
        readings = " or ".join(f"--time_column={name}" for name in candidates or ("3", "4"))
        raise UserError(
            f"{self.source}: has 4 columns and no header, and the values do not say which has the times; "
            f"give {readings}, or --time_column={NO_TIME}"
        )

    def _resolve_column(self, role: str, names: Sequence[str]) -> str:
        requested = getattr(self, role)
        name = guess_column(names, COMMON_NAMES[role]) if requested is None else requested
        if name is None:
            roles = list(COMMON_NAMES.items())[: len(names)]  # with two columns there is no time
            missing = [key for key, common in roles if not (getattr(self, key) or guess_column(names, common))]
            raise UserError(
                f"{self.source}: no column has a known name for the {role}s. Give "
                f"{', '.join(map(self.option.format, missing))}; the columns are: {', '.join(names)[:300]}"
            )
        if name not in names and name.isascii() and name.isdigit() and 1 <= int(name) <= len(names):
            name = names[int(name) - 1]
        if name not in names:
            raise unknown_name_error(f"column of {self.source}", name, names)
        if list(names).count(name) > 1:
            raise UserError(f"{self.source}: has {list(names).count(name)} columns {name!r}; rename one")
        return name


def share_of_dates(values: Sequence[str]) -> float:
    return sum(bool(DATE_LIKE.match(value.strip())) for value in values) / len(values)


def share_of_times(values: Sequence[str]) -> float:
    """Returns the share of values that are plausible Unix times."""
    numbers = np.array([value for value in map(str.strip, values) if NUMBER_LIKE.match(value)], np.float64)
    return sum(int(count) for count in count_units(numbers).values()) / len(values)


def look_like_ratings(values: Sequence[str]) -> bool:
    """Returns whether there is no number above MOST_RATING."""
    return not any(float(value) > MOST_RATING for value in map(str.strip, values) if NUMBER_LIKE.match(value))


def guess_column(names: Sequence[str], common_names: Sequence[str], preferred: str | None = None) -> str | None:
    """Returns the column `preferred` if there is one, else one with a known name, or None.

    RecBole names its columns like `user_id:token`.
    """
    if preferred in names:
        return preferred
    columns = {re.sub(r"[^a-z0-9]", "", name.lower().split(":")[0]): name for name in reversed(names)}
    return next((columns[name] for name in common_names if name in columns), None)
