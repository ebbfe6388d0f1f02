"""Reads and writes the titles of items, and reads their tags."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert4rec_tf.data.reading import tables, text, unpacking
from bert4rec_tf.data.reading.columns import ITEM_NAMES, VALUE_SEPARATOR, guess_column
from bert4rec_tf.foundation.errors import UserError

IDS = ("id", *ITEM_NAMES)
TITLES = ("title", "name", "itemtitle", "itemname", "movietitle", "productname", "gamename", "trackname")
TAGS = ("genres", "genre", "tags", "tag", "categories", "category")
"""Usual names of the columns, as in `data.reading.columns`."""

DOUBLE_COLON = "::"


def read_titles(path: Path, id_name: str | None = None) -> dict[str, str]:
    """Returns raw id -> title, as `read_titles_and_tags`."""
    return read_titles_and_tags(path, id_name)[0]


def read_titles_table(table: Any, id_name: str | None) -> dict[str, str]:
    """Returns raw id -> title of a table (`tables.load_frame`), whose columns are found as those of a file.

    Rows without an id or a title are skipped. Raises UserError if it is no table, or lacks a column.
    """
    frame = tables.load_frame(table, "`titles` must be a file, a dictionary or a table; a table")
    names = tables.list_names(frame)
    id_column, title_column = guess_column(names, IDS, id_name), guess_column(names, TITLES)
    if id_column is None or title_column is None:
        raise UserError(
            f"`titles` must have columns named `id` and `title`, or be a dictionary. Received: {', '.join(names)[:300]}"
        )
    columns = tables.select_columns(frame, [id_column, title_column])
    ids = tables.convert_ids(tables.decode_texts(columns.column(0).combine_chunks()), "`titles`").to_pylist()
    return {raw: str(title) for raw, title in zip(ids, columns.column(1).to_pylist()) if None not in (raw, title)}


def read_titles_and_tags(path: Path, id_name: str | None = None) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Returns raw id -> title, and raw id -> tags. If an id occurs twice, its last row counts.

    Args:
        path: a table in UTF-8, `.gz` or not, separated by commas, semicolons or tabs, with a header. The columns of ids
            and titles are found by their names (`IDS`, `TITLES`), and so is a column of tags (`TAGS`), which are
            separated by `|`. Or MovieLens' `movies.dat`: id, title and genres, separated by `::`, without a header, in
            UTF-8 or Latin-1. Empty lines are skipped.
        id_name: the column of ids, if the file has it.

    Raises UserError if the file cannot be read, lacks these columns, or a row has more or fewer fields than the first.
    """
    content, separator = _read_content(path)
    columns = text.read_table(content, separator, str(path))
    first = [column[0] for column in columns]
    names = [guess_column(first, IDS, id_name), *(guess_column(first, usual) for usual in (TITLES, TAGS))]
    ids, titles, tags = (None if name is None else columns[first.index(name)][1:] for name in names)
    if ids is None or titles is None:
        if separator != DOUBLE_COLON or len(columns) < 2:
            raise UserError(
                f"{path}: the first line must be a header with the columns `id` (or `item`, `movieId`, `asin` ...) "
                "and `title` (or `name`)"
            )
        ids, titles, tags = columns[0], columns[1], columns[2] if len(columns) > 2 else None
    tags_of_items = {
        item: [tag.strip() for tag in text_of_tags.split(VALUE_SEPARATOR) if tag.strip()]
        for item, text_of_tags in zip(ids, tags or ())
    }
    return dict(zip(ids, titles)), tags_of_items


def _read_content(path: Path) -> tuple[bytes, str]:
    """Returns the content of a file in UTF-8, and what separates its columns."""
    with unpacking.open_unpacked(path) as file:
        content = file.read()
    start = content.split(b"\n", 1)[0].decode("utf-8", "replace")
    separator = next((candidate for candidate in (DOUBLE_COLON, "\t", ",", ";") if candidate in start), ",")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        if separator != DOUBLE_COLON:
            raise UserError(f"{path}: must be in UTF-8 ({error.reason})") from error
        content = content.decode("latin-1").encode()  # as MovieLens has it
    return content, separator


def format_titles(titles: Mapping[str, str]) -> str:
    """Returns titles as the content of a file that `read_titles` reads. What UTF-8 cannot hold becomes `?`."""
    content = io.StringIO()
    csv.writer(content, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("id", "title"), *titles.items()])
    return content.getvalue().encode(errors="replace").decode()
