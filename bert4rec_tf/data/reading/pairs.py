"""Converts the authors' processed files to `Sequences`. Errors name the file and the line."""

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd

from bert4rec_tf.data.reading import archives
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.errors import UserError

INTEGERS = b"-0123456789 \t\r\n"
"""All bytes of a file of integers. pandas would read 1.0, 1e3 and True as integers too, some of them wrongly."""


def read_pairs(path: Path, member: str | None = None) -> Sequences:
    """Reads the layout of the authors' processed files: `user item` per line, integers, oldest first within a user.

    Args:
        path: the file, plain or packed (`.gz`).
        member: the file in it, if it is an archive.

    Raises:
        UserError: if the file is missing, empty or cut short, has a line that is not two integers, no user with two
            actions, or only one item.
    """
    return parse_pairs(read_bytes(path, member), path)


def parse_pairs(content: bytes, path: Path) -> Sequences:
    """The same for content that was read from `path`."""
    if content.translate(None, INTEGERS):
        raise _first_bad_line(path, content)
    try:
        table = pd.read_csv(io.BytesIO(content), sep=r"\s+", header=None, dtype=np.int64, skip_blank_lines=False)
    except (ValueError, OverflowError) as error:
        raise _first_bad_line(path, content) from error
    if table.shape[1] != 2:
        raise _first_bad_line(path, content)
    user_codes, users = pd.factorize(table[0])
    item_codes, items = pd.factorize(table[1])
    sequences = Sequences.from_codes(user_codes, item_codes, _as_text(users), _as_text(items))
    if sequences.num_users == 0:
        raise UserError(f"{path}: no user has two actions, so there is nothing to learn from")
    if sequences.num_items == 1:
        raise UserError(f"{path}: there is only one item, so there is nothing to recommend")
    return sequences


def read_bytes(path: Path, member: str | None = None) -> bytes:
    """Returns a file's unpacked content. Raises UserError if it is missing, damaged or empty."""
    with archives.opened(path, member) as file:
        content = file.read()
    if not content.strip():
        raise UserError(f"{path}: the file is empty")
    return content


def _first_bad_line(path: Path, content: bytes) -> UserError:
    for number, line in enumerate(content.splitlines(), start=1):
        fields = re.findall(rb"[^ \t]+", line)
        shown = line.decode("utf-8", "replace")[:60]
        if len(fields) != 2:
            return UserError(f"{path}, line {number}: expected `user item`, found {len(fields)} columns: {shown!r}")
        if not all(re.fullmatch(rb"-?[0-9]+", field) for field in fields):
            return UserError(f"{path}, line {number}: expected two integers, found {shown!r}")
        if not all(map(_fits_64_bits, fields)):
            return UserError(f"{path}, line {number}: expected two integers of 64 bits, found {shown!r}")
    return UserError(f"{path}: cannot be read as lines of `user item`")


def _fits_64_bits(integer: bytes) -> bool:
    digits = integer.lstrip(b"-").lstrip(b"0")
    return len(digits) <= 19 and int(digits or b"0") < 2**63 + integer.startswith(b"-")


def _as_text(ids: np.ndarray) -> np.ndarray:
    return np.asarray(ids).astype(str).astype(object)
