"""Raw ids as callers write them, and lists of them as the arrays that a SavedModel takes."""

import unicodedata
from collections.abc import Sequence

import numpy as np

from bert4rec_tf.foundation.lines import encode_text


def normalize_id(text: str) -> str:
    """Returns an id in Unicode's form NFC, which ids in data are read in."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def pad_ids(rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns lists of raw ids as an array of bytes objects [rows, longest row], padded with empty ones."""
    array = np.full([len(rows), max(map(len, rows), default=0)], b"", object)
    for number, row in enumerate(rows):
        array[number, : len(row)] = [encode_text(raw_id) for raw_id in row]
    return array
