"""Lists of raw ids as the arrays that a SavedModel takes."""

from collections.abc import Sequence

import numpy as np

from bert4rec_tf.foundation.lines import encode_text


def pad_ids(rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns lists of raw ids as an array of bytes objects [rows, longest row], padded with empty ones."""
    array = np.full([len(rows), max(map(len, rows), default=0)], b"", object)
    for number, row in enumerate(rows):
        array[number, : len(row)] = [encode_text(raw_id) for raw_id in row]
    return array
