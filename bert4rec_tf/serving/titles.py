"""Reads the titles of items."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

COLUMNS = ("id", "title")


def read_titles(path: Path) -> dict[str, str]:
    """Returns raw id -> title. If an id occurs twice, its last title counts.

    Args:
        path: CSV in UTF-8, `.gz` or not, with a header. Columns other than `id` and `title` are ignored, and empty
            lines are skipped.

    Raises:
        UserError: if the file cannot be read, lacks these columns, or a line has more or fewer fields than the header.
    """
    titles = {}
    try:
        with io.TextIOWrapper(files.open_binary(path), "utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            names = next(lines, [])
            if not set(COLUMNS) <= set(names):
                raise UserError(f"{path}: the first line must be a header with the columns `id` and `title`")
            of_id, of_title = map(names.index, COLUMNS)
            for fields in filter(None, lines):
                if len(fields) != len(names):
                    raise UserError(
                        f"{path}:{lines.line_num}: must have as many fields as the first line, {len(names)}; put a "
                        f"field that contains a comma in double quotes. Received: {len(fields)}"
                    )
                titles[fields[of_id]] = fields[of_title]
    except csv.Error as error:
        raise UserError(f"{path}:{lines.line_num}: is not CSV ({error})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be in UTF-8 ({error.reason})") from error
    except files.UNREADABLE as error:
        raise files.unreadable(path, error) from error
    return titles


def csv_of(titles: Mapping[str, str]) -> str:
    """Returns titles as a file that `read_titles` reads."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *titles.items()])
    return text.getvalue()
