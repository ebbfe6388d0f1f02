"""Files that appear whole or not at all."""

import contextlib
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bert4rec_tf.errors import UserError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write to; it takes the place of `path` when the block ends without an error."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with whole_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Writes `content` with sorted keys, so that equal content gives equal bytes."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def open_binary(path: Path) -> BinaryIO:
    """Opens `path` for reading, unpacking it on the way where its name ends in `.gz`."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def make_folder(folder: Path) -> None:
    """Makes a folder with those above it. Raises UserError where that is not allowed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror})") from error
