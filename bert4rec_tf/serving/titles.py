"""Reads and writes the titles of items, and reads their tags."""

import csv
import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert4rec_tf.data.reading.columns import BETWEEN, ITEMS, guess
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

IDS = ("id", *ITEMS)
TITLES = ("title", "name", "itemtitle", "itemname", "movietitle", "productname", "gamename", "trackname")
TAGS = ("genres", "genre", "tags", "tag", "categories", "category")
"""Usual names of the columns, as in `data.reading.columns`."""

DOUBLE_COLON = "::"
_UNIT_SEPARATOR = "\x1f"
"""Replaces `::`, because the csv module takes one character."""


def read_titles(path: Path) -> dict[str, str]:
    """Returns raw id -> title, as `read_titles_and_tags`."""
    return read_titles_and_tags(path)[0]


def read_titles_and_tags(path: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Returns raw id -> title, and raw id -> tags. If an id occurs twice, its last line counts.

    Args:
        path: a table in UTF-8, `.gz` or not, separated by commas, semicolons or tabs, with a header. The columns of ids
            and titles are found by their names (`IDS`, `TITLES`), and so is a column of tags (`TAGS`), which are
            separated by `|`. Or MovieLens' `movies.dat`: id, title and genres, separated by `::`, without a header, in
            UTF-8 or Latin-1. Empty lines are skipped.

    Raises:
        UserError: if the file cannot be read, lacks these columns, or a line has more or fewer fields than the first.
    """
    lines = rows = _lines(path)
    titles, tags = {}, {}
    try:
        first = next(lines, [])
        names = [guess(first, known) for known in (IDS, TITLES, TAGS)]
        of_id, of_title, of_tags = (None if name is None else first.index(name) for name in names)
        if of_id is None or of_title is None:
            if lines.dialect.delimiter != _UNIT_SEPARATOR:
                raise UserError(
                    f"{path}: the first line must be a header with the columns `id` (or `item`, `movieId`, `asin` ...) "
                    "and `title` (or `name`)"
                )
            rows = itertools.chain([first], lines)  # as MovieLens has it, without a header
            of_id, of_title, of_tags = 0, 1, 2 if len(first) > 2 else None
        for fields in filter(None, rows):
            if len(fields) != len(first):
                raise UserError(
                    f"{path}:{lines.line_num}: must have as many fields as the first line, {len(first)}; put a "
                    f"field that contains a comma in double quotes. Received: {len(fields)}"
                )
            titles[fields[of_id]] = fields[of_title]
            if of_tags is not None:
                tags[fields[of_id]] = [tag.strip() for tag in fields[of_tags].split(BETWEEN) if tag.strip()]
    except csv.Error as error:
        raise UserError(f"{path}:{lines.line_num}: is not CSV ({error})") from error
    return titles, tags


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


def csv_of(titles: Mapping[str, str]) -> str:
    """Returns titles as the content of a file that `read_titles` reads."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("id", "title"), *titles.items()])
    return text.getvalue()
