"""The titles of items."""

import csv
import io
from pathlib import Path

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

COLUMNS = ("id", "title")


def read_titles(path: Path) -> dict[str, str]:
    """Reads titles: raw id -> title; of an id that stands there twice, the last one.

    Args:
        path: CSV in UTF-8, unpacked on the way where its name ends in `.gz`, whose first line names the columns. Those
            besides `id` and `title` are passed over, and so are empty lines.

    Raises:
        UserError: where it cannot be read, has no such columns, or a line has more or fewer fields than the first.
    """
    titles = {}
    try:
        with io.TextIOWrapper(files.open_binary(path), "utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            names = next(lines, [])
            if not set(COLUMNS) <= set(names):
                raise UserError(f"{path}: its first line must name the columns, `id` and `title` among them")
            of_id, of_title = map(names.index, COLUMNS)
            for fields in filter(None, lines):
                if len(fields) != len(names):
                    raise UserError(
                        f"{path}:{lines.line_num}: must have as many fields as the first line, {len(names)}; one that "
                        f"holds a comma stands in double quotes. Received: {len(fields)}"
                    )
                titles[fields[of_id]] = fields[of_title]
    except csv.Error as error:
        raise UserError(f"{path}:{lines.line_num}: is no CSV ({error})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be in UTF-8 ({error.reason})") from error
    except files.UNREADABLE as error:
        raise files.unreadable(path, error) from error
    return titles
