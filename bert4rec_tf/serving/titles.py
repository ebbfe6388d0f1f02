"""Reads the titles of items."""

import csv
import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert4rec_tf.data.reading.columns import ITEMS, guess
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

COLUMNS = ("id", "title")
IDS = ("id", *ITEMS)
TITLES = ("title", "name", "itemtitle", "itemname", "movietitle", "productname", "gamename", "trackname")
"""Usual names of the columns, as in `data.reading.columns`."""

DOUBLE_COLON = "::"
_UNIT_SEPARATOR = "\x1f"
"""Replaces `::`, because the csv module takes one character."""


def read_titles(path: Path) -> dict[str, str]:
    """Returns raw id -> title. If an id occurs twice, its last title counts.

    Args:
        path: CSV in UTF-8, `.gz` or not, between commas, semicolons or tabs, with a header. The columns of ids and
            titles are found by their names (`IDS`, `TITLES`). Or MovieLens' `movies.dat`: `::` between the id, the
            title and the rest, no header, in UTF-8 or Latin-1. Empty lines are skipped.

    Raises:
        UserError: if the file cannot be read, lacks these columns, or a line has more or fewer fields than the first.
    """
    lines = _lines(path)
    titles = {}
    try:
        first = next(lines, [])
        of_id, of_title, has_header = _places(path, first, lines.dialect.delimiter == _UNIT_SEPARATOR)
        for fields in filter(None, lines if has_header else itertools.chain([first], lines)):
            if len(fields) != len(first):
                raise UserError(
                    f"{path}:{lines.line_num}: must have as many fields as the first line, {len(first)}; put a "
                    f"field that contains a comma in double quotes. Received: {len(fields)}"
                )
            titles[fields[of_id]] = fields[of_title]
    except csv.Error as error:
        raise UserError(f"{path}:{lines.line_num}: is not CSV ({error})") from error
    return titles


def _lines(path: Path) -> Any:
    """Returns a csv reader of a file."""
    try:
        with files.open_binary(path) as file:
            content = file.read()
    except files.UNREADABLE as error:
        raise files.unreadable(path, error) from error
    start = content.split(b"\n", 1)[0].decode("utf-8", "replace")
    separator = next((one for one in (DOUBLE_COLON, "\t", ",", ";") if one in start), ",")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if separator != DOUBLE_COLON:
            raise UserError(f"{path}: must be in UTF-8 ({error.reason})") from error
        text = content.decode("latin-1")  # as MovieLens has it
    if separator == DOUBLE_COLON:
        text, separator = text.replace(DOUBLE_COLON, _UNIT_SEPARATOR), _UNIT_SEPARATOR
    quoting = csv.QUOTE_MINIMAL if separator in ",;" else csv.QUOTE_NONE
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting, strict=True)


def _places(path: Path, first: list[str], may_lack_header: bool) -> tuple[int, int, bool]:
    """Returns the columns of ids and titles, from 0, and whether the first line is a header."""
    found = guess(first, IDS), guess(first, TITLES)
    if found[0] is not None and found[1] is not None:
        return first.index(found[0]), first.index(found[1]), True
    if may_lack_header:
        return 0, 1, False
    raise UserError(
        f"{path}: the first line must be a header with the columns `id` (or `item`, `movieId`, `asin` ...) and `title` "
        "(or `name`)"
    )


def csv_of(titles: Mapping[str, str]) -> str:
    """Returns titles as a file that `read_titles` reads."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *titles.items()])
    return text.getvalue()
