"""Ids that are whole numbers, told apart by a table in place of a hash of their texts."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_PER_ROW = 8
"""The table is no longer than so many times the column."""


def coded(column: pa.ChunkedArray) -> pa.DictionaryArray | None:
    """Returns a column of texts with a dictionary, in the order of first appearance, in about half of Arrow's time.

    None where a text is no whole number as Python writes it (`007` and `7` are two ids), or they lie too far apart. No
    text may be hexadecimal: `0xf4240`, which Arrow takes for a number, is as long as `1000000`.
    """
    try:
        numbers = column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    if not len(numbers):
        return None
    least, most = int(numbers.min()), int(numbers.max())
    if most - least >= MOST_PER_ROW * len(numbers):
        return None
    numbers = numbers - least
    table = np.full(most - least + 1, len(numbers), np.int32)
    table[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1, dtype=np.int32)  # the first appearance is written last
    found = np.flatnonzero(table < len(numbers))
    found = found[np.argsort(table[found])]
    table[found] = np.arange(len(found), dtype=np.int32)
    codes, names = table[numbers], pa.array(found + least).cast(pa.string())
    letters = np.bincount(codes) @ pc.binary_length(names).to_numpy()
    if letters != pc.sum(pc.binary_length(column)).as_py():
        return None
    return pa.DictionaryArray.from_arrays(pa.array(codes), names)
