"""How a file of interactions is laid out: its kind, its separator, and which columns are the user, item and time."""

import ast
import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading.bad_rows import printable
from bert4rec_tf.foundation.errors import UserError, unknown_name

USERS = (
    *("user", "userid", "uid", "username", "reviewerid", "customer", "customerid", "visitorid", "visitor", "account"),
    *("accountid", "member", "memberid", "clientid", "personid", "sessionid", "session"),
)
ITEMS = (
    *("item", "itemid", "iid", "movie", "movieid", "asin", "parentasin", "product", "productid", "sku", "article"),
    *("articleid", "book", "bookid", "isbn", "song", "songid", "track", "trackid", "artist", "artistid", "video"),
    *("videoid", "game", "gameid", "businessid", "gmapid", "contentid", "newsid"),
)
TIMES = (
    *("timestamp", "time", "unixreviewtime", "unixtime", "unixtimestamp", "ts", "datetime", "date", "eventtime"),
    *("createdat", "ratedat", "reviewdate", "day"),
)
"""Names that columns have, in small letters and digits alone, the ones preferred first."""

NO_TIME = "none"
TEXT, JSON, LITERALS, PARQUET = "text", "json", "literals", "parquet"
BLANKS = " "
"""The separator that stands for any number of blanks and tabs."""

SAMPLE = 1 << 20
_PACKED = re.compile(rb"PK\x03\x04|\x1f\x8b|\xfd7zXZ\0|BZh[1-9]1AY&SY|\x28\xb5\x2f\xfd")
"""How archives and packed files begin: zip, gzip, xz, bzip2, zstandard."""


@dataclass(frozen=True)
class Layout:
    """How to read a file.

    Attributes:
        kind: TEXT (separated columns), JSON (an object per line), LITERALS (a Python dictionary per line), PARQUET.
        user, item, time: the names of the columns, or their numbers from 0 in a TEXT; `time` is None where the order
            of the file counts.
        separator: between the columns of a TEXT.
        header: the names in the first line of a TEXT; none where it is data already.
        width: the columns of a TEXT.
    """

    kind: str
    user: Any
    item: Any
    time: Any = None
    separator: str = ","
    header: tuple[str, ...] = ()
    width: int = 0

    @property
    def quoted(self) -> bool:
        """Whether fields may stand between quotes."""
        return self.kind == TEXT and self.separator in (",", ";")

    def __str__(self) -> str:
        def shown(column: Any) -> str:
            if self.kind != TEXT:
                return repr(column)
            return repr(self.header[column]) if self.header else f"column {column + 1}"

        order = "the order of the file (no time)" if self.time is None else f"time {shown(self.time)}"
        return f"user {shown(self.user)}, item {shown(self.item)}, {order}"


def find(asked: Interactions, start: bytes, name: str | None = None) -> Layout:
    """Returns the layout of a file.

    Args:
        asked: the file and what is said of its columns.
        start: its first bytes, unpacked.
        name: its own name, where it lies in an archive.

    Raises:
        UserError: where a column that was named is not there, or one that was not cannot be guessed.
    """
    path = asked.file
    if _PACKED.match(start):
        raise UserError(
            f"{path}: is packed; unpack it, or pack the text alone with gzip, under a name that ends in .gz"
        )
    if start.startswith(b"PAR1"):
        if path.suffix == ".gz":
            raise UserError(f"{path}: Parquet packs by itself and is not read from .gz; unpack it")
        from bert4rec_tf.data.reading import parquet

        return of_names(asked, PARQUET, parquet.names(path))
    text = start.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    lines = [line for line in re.split(r"\r\n|\r|\n", text) if line.strip()]
    if not lines:
        raise UserError(f"{path}: the file is empty")
    if re.match(r"\s*\[\s*(\{|$)", lines[0]):
        raise UserError(f"{path}, line 1: begins a JSON array; write its objects one per line, without brackets")
    if lines[0].lstrip().startswith("{"):
        return _of_records(asked, lines[0])
    separator = _separator(path, name or path.name, lines[0])
    return _of_text(asked, separator, [field.strip() for field in fields(lines[0], separator)])


def fields(line: str, separator: str) -> list[str]:
    """Splits one line of a text."""
    if separator == BLANKS:
        return line.split()
    if separator in (",", ";"):
        return next(csv.reader(io.StringIO(line, newline=""), delimiter=separator), [])
    return line.split(separator)


def _separator(path: Path, name: str, line: str) -> str:
    suffix = Path(name.removesuffix(".gz")).suffix.lower()
    known = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}.get(suffix, ("\t", "::", ",", ";", BLANKS))
    found = next((separator for separator in known if separator in line.strip()), None)
    if found is None:
        raise UserError(f"{path}, line 1: expected at least two columns, found {printable(line)!r}")
    return found


def _of_records(asked: Interactions, line: str) -> Layout:
    try:
        record, kind = json.loads(line), JSON
    except (ValueError, RecursionError):
        try:
            record, kind = ast.literal_eval(line.strip()), LITERALS
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise UserError(f"{asked.file}, line 1: neither a whole JSON object nor a Python dictionary") from None
    return of_names(asked, kind, list(record))


def _of_text(asked: Interactions, separator: str, first: list[str]) -> Layout:
    given = [name for name in (asked.user_column, asked.item_column, asked.time_column) if name not in (None, NO_TIME)]
    by_name = any(not name.isdigit() for name in given)
    if by_name or (_guess(first, USERS) and _guess(first, ITEMS)):
        user, item, time = _columns(asked, first)
        positions = [first.index(name) for name in (user, item)]
        where = None if time is None else first.index(time)
        return Layout(TEXT, *positions, where, separator, tuple(first), len(first))
    numbers = [str(number) for number in range(1, len(first) + 1)]
    user = _number(asked, "user_column", numbers, asked.user_column or "1")
    item = _number(asked, "item_column", numbers, asked.item_column or "2")
    time = asked.time_column or {2: NO_TIME, 4: "4"}.get(len(first))
    if time is None:
        raise UserError(
            f"{asked.file}: has {len(first)} columns and no header that is understood; name the users', items' and "
            "times' (--user_column=1 --item_column=2 --time_column=3, or --time_column=none)"
        )
    where = None if time == NO_TIME else _number(asked, "time_column", numbers, time)
    _refuse_twice(asked, [user, item, where])
    return Layout(TEXT, user, item, where, separator, (), len(first))


def _number(asked: Interactions, option: str, numbers: list[str], number: str) -> int:
    if number not in numbers:
        raise UserError(f"`{option}` must be from 1 to {len(numbers)} in {asked.file}. Received: {option}={number}")
    return int(number) - 1


def of_names(asked: Interactions, kind: str, names: Sequence[str]) -> Layout:
    """Returns the layout of a file whose columns have names."""
    return Layout(kind, *_columns(asked, [str(name) for name in names]))


def _columns(asked: Interactions, names: Sequence[str]) -> tuple[str, str, str | None]:
    user = _named(asked, "user_column", names, USERS)
    item = _named(asked, "item_column", names, ITEMS)
    time = None
    if asked.time_column not in (None, NO_TIME) or (asked.time_column is None and _guess(names, TIMES)):
        time = _named(asked, "time_column", names, TIMES)
    _refuse_twice(asked, [user, item, time])
    return user, item, time


def _named(asked: Interactions, option: str, names: Sequence[str], known: Sequence[str]) -> str:
    name = getattr(asked, option)
    if name is None:
        name = _guess(names, known)
        if name is None:
            raise UserError(f"{asked.file}: which column is it? Name --{option}, one of: {', '.join(names)[:300]}")
    elif name.isdigit() and name not in names and 1 <= int(name) <= len(names):
        name = names[int(name) - 1]
    if name not in names:
        raise unknown_name(f"column of {asked.file}", name, names)
    if list(names).count(name) > 1:
        raise UserError(f"{asked.file}: has {list(names).count(name)} columns {name!r}; rename one")
    return name


def _guess(names: Sequence[str], known: Sequence[str]) -> str | None:
    """Returns the column whose name is known, or None. `user_id:token` is how RecBole names its columns."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower().split(":")[0]): name for name in reversed(names)}
    return next((plain[name] for name in known if name in plain), None)


def _refuse_twice(asked: Interactions, columns: Sequence[Any]) -> None:
    if len({column for column in columns if column is not None}) < sum(column is not None for column in columns):
        raise UserError(
            f"`user_column`, `item_column` and `time_column` must differ in {asked.file}. Received: {columns}"
        )
