"""Checks the columns of a source: a table of the good rows, and what is wrong with the others."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert4rec_tf.data.reading import bad_rows
from bert4rec_tf.data.reading.bad_rows import BadRow, BadRows
from bert4rec_tf.data.reading.times import BLANKS, Times

ID = pa.dictionary(pa.int32(), pa.string())
MISSING = ("", "nan", "NaN", "NAN", "null", "NULL", "None")
"""Texts that mean a missing id in formats without nulls."""

_KINDS = ("", bad_rows.NO_USER, bad_rows.NO_ITEM, bad_rows.MANY_LINES, bad_rows.NO_UTF8, bad_rows.NO_TIME)
_TIME = len(_KINDS) - 1


class Checker:
    """Makes the table of one source, batch by batch.

    Args:
        bad: what to do at a bad row.
        times: the kind of the times so far.
        plain: whether the source is plain text: then blanks around ids are removed, and MISSING are no ids.
    """

    def __init__(self, bad: BadRows, times: Times, plain: bool = False) -> None:
        self.bad = bad
        self._times = times
        self._plain = plain

    def good(self, columns: Mapping[str, pa.Array]) -> tuple[pa.Table, list[BadRow]]:
        """Returns the good rows of a batch, and the others with their positions in it.

        Args:
            columns: `user` and `item`, and `time` if there are times; ids of type ID.

        Returns:
            A table of `user` and `item` (type ID, codes by first appearance) and `time` (int64 or float64).
        """
        found, kinds = {}, np.zeros(len(columns["user"]), np.uint8)
        for missing, role in enumerate(("user", "item"), start=1):
            found[role], wrong = self._ids(columns[role], missing)
            if wrong is not None:
                kinds = np.where(kinds == 0, wrong, kinds)
        if "time" in columns:
            good = np.flatnonzero(kinds == 0)
            times = columns["time"] if len(good) == len(kinds) else columns["time"].take(pa.array(good))
            found["time"], wrong = self._times.read(times, self.bad.source)
            if wrong is not None:
                kinds[good[wrong]] = _TIME
                found["time"] = found["time"].filter(pa.array(~wrong))
        if not kinds.any():
            return pa.table(found), []
        kept = pa.array(kinds == 0)
        for role in ("user", "item"):
            found[role] = found[role].filter(kept).dictionary_decode().dictionary_encode()
        places = np.flatnonzero(kinds).tolist()
        texts = zip(*(column.take(pa.array(places)).to_pylist() for column in columns.values()))
        rows = [(place, _KINDS[kinds[place]], shown(row)) for place, row in zip(places, texts)]
        return pa.table(found), rows

    def _ids(self, ids: pa.DictionaryArray, missing: int) -> tuple[pa.DictionaryArray, np.ndarray | None]:
        """Returns the cleaned ids, and each row's index in _KINDS; None if all are good."""
        if self._plain:
            names = pc.utf8_trim(ids.dictionary, characters=BLANKS)
            if not names.equals(ids.dictionary):
                ids = pa.DictionaryArray.from_arrays(ids.indices, names).dictionary_decode().dictionary_encode()
        names = ids.dictionary
        wrong = np.zeros(len(names) + 1, np.uint8)
        for kind, found in (
            (_KINDS.index(bad_rows.NO_UTF8), pc.match_substring(names, "\ufffd")),
            (_KINDS.index(bad_rows.MANY_LINES), pc.match_substring_regex(names, "[\r\n]")),
            (missing, pc.is_in(names, pa.array(MISSING if self._plain else [""]))),
        ):
            wrong[:-1][found.to_numpy(zero_copy_only=False)] = kind
        if not wrong.any() and not ids.null_count:
            return ids, None
        wrong[-1] = missing
        return ids, wrong[ids.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]


def shown(row: Sequence[Any]) -> str:
    return ", ".join("" if value is None else str(value) for value in row)
