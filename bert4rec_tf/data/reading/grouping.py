"""Filters, orders and groups a table of interactions into `Sequences`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading.rows import summarize_bad_rows
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.errors import UserError

ID = pa.dictionary(pa.int32(), pa.string())


def make_sequences(
    tables: list[pa.Table],
    asked: Interactions,
    bad: Mapping[str, tuple[int, str]],
    least: int = 2,
    read: Times | None = None,
) -> tuple[Sequences, dict[str, Any]]:
    """Filters, orders and groups the parts of a table. Empties `tables`, to save memory.

    One pass keeps the users and items with enough actions in the table; then users with too few left are dropped. With
    `asked.k_core` this is repeated until nothing changes (`bound_user_actions`). A user's actions are ordered by time,
    then by row.

    Args:
        tables: columns `user` and `item` (dictionaries of texts) and, if there are times, `time` (int64 or float64).
        asked: the filter, and the source's name for messages.
        bad: the rows that were skipped (`Rows.found`), for messages.
        least: users with fewer actions are left out. Below 2, it does not matter whether anything can be learnt.
        read: what read the times; needed for `asked.test_from`.

    Returns the sequences, and `read` and `kept`: the numbers of users, items and actions before and after the filter.
    Raises UserError if nothing can be learnt from what is left.
    """
    user_codes, users = _encode_ids([table["user"] for table in tables])
    item_codes, items = _encode_ids([table["item"] for table in tables])
    times = None
    if tables and "time" in tables[0].column_names:
        times = np.concatenate([table["time"].to_numpy() for table in tables])
    tables.clear()
    before = {"users": len(users), "items": len(items), "actions": len(user_codes)}
    if max(asked.min_user_actions, asked.min_item_actions) > 1:
        bounds = bound_user_actions(asked, least), asked.min_item_actions
        chosen = filter_actions(user_codes, item_codes, *bounds, asked.k_core)
        user_codes, users = _drop_unused_names(user_codes[chosen], users)
        item_codes, items = _drop_unused_names(item_codes[chosen], items)
        times = None if times is None else times[chosen]
    kept = {"users": len(users), "items": len(items), "actions": len(user_codes)}
    if least >= 2 and not len(user_codes):
        check_trainable(0, 0, asked, bad)
    later = None
    if asked.test_from is not None:
        latest = None if times is None or not len(times) else times.max()
        is_later = np.asarray(times) >= parse_test_from(asked.test_from, latest, read)
        later = np.bincount(user_codes[is_later], minlength=len(users))
    if times is not None:
        order = np.argsort(times, kind="stable")
        user_codes, item_codes = user_codes[order], item_codes[order]
        del order, times
    sequences = Sequences.from_codes(user_codes, item_codes, users, items, least)
    if later is not None:
        sequences = replace(sequences, num_later=later[np.bincount(user_codes, minlength=len(users)) >= least])
    if least >= 2:
        check_trainable(sequences.num_users, sequences.num_items, asked, bad)
    return sequences, {"read": before, "kept": kept}


def bound_user_actions(asked: Interactions, least: int = 2) -> int:
    """Returns how many actions the filter asks of a user: in a k-core at least `least`, which keep it in the data."""
    return max(asked.min_user_actions, least) if asked.k_core else asked.min_user_actions


def check_trainable(num_users: int, num_items: int, asked: Interactions, bad: Mapping[str, tuple[int, str]]) -> None:
    """Raises UserError if nothing can be learnt from so many users and items."""
    why = "".join(f"; {line}" for line in summarize_bad_rows(bad))
    if num_users == 0:
        raise UserError(f"{asked.title}: no user has two actions left, so there is nothing to learn from{why}")
    if num_items == 1:
        raise UserError(f"{asked.title}: there is only one item left, so there is nothing to recommend{why}")


def parse_test_from(since: str, latest: float | None, read: Times | None) -> int | float:
    """Returns `since` as a number like the times. `latest`: the last of these. Raises UserError without times."""
    if latest is None or read is None:
        raise UserError(f"`test_from` needs a column of times. Received: test_from={since}")
    return read.parse_moment(since, latest)


def _encode_ids(parts: list[pa.ChunkedArray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns int32 [rows] codes by first appearance, and the raw ids that they stand for."""
    chunks = pa.chunked_array([chunk for part in parts for chunk in part.chunks], ID).unify_dictionaries().chunks
    if not chunks:
        return np.zeros(0, np.int32), np.zeros(0, object)
    names = np.array(chunks[-1].dictionary.to_pylist(), object)
    return np.concatenate([chunk.indices.to_numpy() for chunk in chunks]), names


def filter_actions(
    users: np.ndarray, items: np.ndarray, min_user_actions: int, min_item_actions: int, k_core: bool
) -> np.ndarray:
    """Returns which actions to keep, bool [actions].

    `k_core`: whether to go on until every user and every item that is left has enough actions.
    """

    def has_enough(codes: np.ndarray, least: int) -> np.ndarray:
        return (np.bincount(codes[chosen], minlength=codes.max(initial=0) + 1) >= least)[codes]

    chosen = np.ones(len(users), bool)
    while True:
        before = chosen
        chosen = before & has_enough(users, min_user_actions) & has_enough(items, min_item_actions)
        if not k_core:
            return chosen & has_enough(users, min_user_actions)
        if np.array_equal(before, chosen):
            return chosen


def _drop_unused_names(codes: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns codes and names without the names that no action has any more."""
    used = np.bincount(codes, minlength=len(names)) > 0
    return (np.cumsum(used, dtype=np.int32) - 1)[codes], names[used]
