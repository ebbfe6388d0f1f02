"""The authors' processed files to `Sequences`. A line that cannot be read is named by file and number."""

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd

from bert4rec_tf.data.reading import archives
from bert4rec_tf.data.sequences import Sequences, bad_id
from bert4rec_tf.foundation.errors import UserError

INTEGERS = b"-0123456789 \t\r\n"
"""All bytes of a file of integers. pandas would read 1.0, 1e3 and True as integers too, some of them wrongly."""


def read_pairs(path: Path, member: str | None = None) -> Sequences:
    """Reads the layout of the authors' processed files: `user item` per line, integers, oldest first within a user.

    Args:
        path: the file, plain or packed (`.gz`).
        member: the file in it, where it is an archive.

    Raises:
        UserError: for a file that is missing, empty, cut short, or has a line which is not two integers.
    """
    return parse_pairs(read_bytes(path, member), path)


def parse_pairs(content: bytes, path: Path) -> Sequences:
    """The same, of what was read from `path`."""
    if content.translate(None, INTEGERS):
        raise _first_bad_line(path, content)
    try:
        table = pd.read_csv(io.BytesIO(content), sep=r"\s+", header=None, dtype=np.int64, skip_blank_lines=False)
    except (ValueError, OverflowError) as error:
        raise _first_bad_line(path, content) from error
    if table.shape[1] != 2:
        raise _first_bad_line(path, content)
    return from_columns(table[0], table[1], path)


def from_columns(users: pd.Series, items: pd.Series, path: Path) -> Sequences:
    """Groups two columns of raw ids, one row per action and oldest first within a user.

    Raises:
        UserError: where no user has two actions, all actions are of one item, or an id is empty or not of one line.
    """
    user_codes, user_ids = pd.factorize(users)
    item_codes, item_ids = pd.factorize(items)
    user_ids, item_ids = _as_text(user_ids), _as_text(item_ids)
    for what, ids in (("user", user_ids), ("item", item_ids)):
        bad = bad_id(ids)
        if bad is not None:
            raise UserError(f"{path}: an id of {what}s must be one line that is not empty. Found: {bad!r}")
    sequences = Sequences.from_codes(user_codes, item_codes, user_ids, item_ids)
    if sequences.num_users == 0:
        raise UserError(f"{path}: no user has two actions, so there is nothing to learn from")
    if sequences.num_items == 1:
        raise UserError(f"{path}: there is only one item, so there is nothing to recommend")
    return sequences


def read_bytes(path: Path, member: str | None = None) -> bytes:
    """Returns what is packed in a file. Raises UserError where it is missing, damaged or empty."""
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
