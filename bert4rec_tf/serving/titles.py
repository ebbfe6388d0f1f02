"""Reads and writes the titles of items, and reads their tags."""

import csv
import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_list_like

from bert4rec_tf.config.model_settings import ITEM_FEATURES
from bert4rec_tf.data.id_texts import to_text
from bert4rec_tf.data.reading.columns import guess_column
from bert4rec_tf.data.reading.feature_files import ID_NAMES
from bert4rec_tf.data.reading.small_tables import VALUE_SEPARATOR, read_columns
from bert4rec_tf.data.reading.tables import describe_index
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import Url

IDS = ID_NAMES[ITEM_FEATURES]
TITLES = ("title", "name", "itemtitle", "itemname", "movietitle", "productname", "gamename", "trackname")
TAGS = ("genres", "genre", "tags", "tag", "categories", "category")
"""Usual names of the columns, as in `data.reading.columns`."""


def read_titles(source: Any, id_name: str | None = None) -> dict[str, str]:
    """Returns raw id -> title, as `read_titles_and_tags`."""
    return read_titles_and_tags(source, id_name)[0]


def read_titles_and_tags(source: Any, id_name: str | None = None) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Returns raw id -> title, and raw id -> tags. If an id occurs twice, its last row counts.

    Args:
        source: a file or a table (`small_tables.read_columns`); or titles by their ids. The columns of ids and titles
            are found by their names (`IDS`, `TITLES`), and so is a column of tags (`TAGS`), which are separated by `|`.
            Rows without an id or a title are skipped. HTML's entities in titles (`&amp;`) of files and tables become
            their characters.
        id_name: the column of ids, if the source has it.

    Raises UserError if it cannot be read, lacks these columns, or a row has more or fewer fields than the first.
    """
    if isinstance(source, (Mapping, pd.Series)):
        return {to_text("titles", item): str(title) for item, title in source.items() if not pd.isna(title)}, {}
    is_file = isinstance(source, (str, Path, Url))
    title = str(source) if is_file else "`titles` must be a file, a dictionary or a table; a table"
    id_column, columns = read_columns(source, title, IDS, id_name)
    title_column, tag_column = (guess_column(list(columns), names) for names in (TITLES, TAGS))
    if id_column is None or title_column is None:
        if is_file:
            raise UserError(
                f"{source}: the first line must be a header with the columns `id` (or `item`, `movieId`, `asin` ...) "
                "and `title` (or `name`)"
            )
        received = ", ".join(columns)[:300] + describe_index(source)
        raise UserError(f"`titles` must have columns named `id` and `title`, or be a dictionary. Received: {received}")
    pairs = zip(columns[id_column], columns[title_column])
    titles = {raw_id: html.unescape(str(title)) for raw_id, title in pairs if None not in (raw_id, title)}
    tags = dict(zip(columns[id_column], columns[tag_column])) if tag_column is not None else {}
    return titles, {item: _split_tags(cell) for item, cell in tags.items()}


def _split_tags(cell: Any) -> list[str]:
    parts = cell.split(VALUE_SEPARATOR) if isinstance(cell, str) else cell if is_list_like(cell) else [cell]
    return [tag for part in parts if part is not None and (tag := str(part).strip())]


def format_titles(titles: Mapping[str, str]) -> str:
    """Returns titles as the content of a file from which `read_titles` reads the same.

    What UTF-8 cannot hold becomes `?`.
    """
    content = io.StringIO()
    rows = ((item, _escape_entities(title)) for item, title in titles.items())
    csv.writer(content, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("id", "title"), *rows])
    return content.getvalue().encode(errors="replace").decode()


def _escape_entities(title: str) -> str:
    return title if html.unescape(title) == title else title.replace("&", "&amp;")
