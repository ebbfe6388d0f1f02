"""Filters, orders and groups a table of interactions into `Sequences`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading.rows import summary
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.errors import UserError

ID = pa.dictionary(pa.int32(), pa.string())
PIECE = 1 << 18
"""Actions to work on at once: more would not stay in the processor's cache."""


def to_sequences(
    tables: list[pa.Table],
    asked: Interactions,
    bad: Mapping[str, tuple[int, str]],
    least: int = 2,
    read: Times | None = None,
) -> tuple[Sequences, dict[str, Any]]:
    """Filters, orders and groups the parts of a table. Empties `tables`, to save memory.

    One pass keeps the users and items with enough actions in the table; then users with too few left are dropped. With
    `asked.k_core` this is repeated until nothing changes.
    A user's actions are ordered by time, and those of one time by row.

    Args:
        tables: columns `user` and `item` (dictionaries of texts) and, if there are times, `time` (int64 or float64).
        asked: the filter and the source's name.
        bad: the rows that were skipped.
        least: users with fewer actions are left out; below 2, nothing has to be learnt from what is left.
        read: the reader of the times, which `asked.test_from` goes by.

    Returns:
        The sequences, and `read` and `kept`: how many users, items and actions there were before and after the
        filter.

    Raises:
        UserError: if nothing can be learnt from what is left.
    """
    user_codes, users = _codes([table["user"] for table in tables])
    item_codes, items = _codes([table["item"] for table in tables])
    times = None
    if tables and "time" in tables[0].column_names:
        times = np.concatenate([table["time"].to_numpy() for table in tables])
    tables.clear()
    before = {"users": len(users), "items": len(items), "actions": len(user_codes)}
    chosen = filtered(user_codes, item_codes, asked.min_user_actions, asked.min_item_actions, asked.k_core)
    if chosen is not None:
        user_codes, item_codes = user_codes[chosen], item_codes[chosen]
        times = None if times is None else times[chosen]
        user_codes, users = _renumbered(user_codes, users)
        item_codes, items = _renumbered(item_codes, items)
    kept = {"users": len(users), "items": len(items), "actions": len(user_codes)}
    later = None if asked.test_from is None else _later(asked.test_from, user_codes, len(users), times, read)
    order = order_of(user_codes, times)
    del times
    if order is not None:
        user_codes, item_codes = user_codes[order], item_codes[order]
        del order
    sequences = Sequences.from_codes(user_codes, item_codes, users, items, least)
    if later is not None:
        sequences = replace(sequences, num_later=later[np.bincount(user_codes, minlength=len(users)) >= least])
    if least >= 2:
        check_left(sequences.num_users, sequences.num_items, asked, bad)
    return sequences, {"read": before, "kept": kept}


def check_left(num_users: int, num_items: int, asked: Interactions, bad: Mapping[str, tuple[int, str]]) -> None:
    """Raises UserError if nothing can be learnt from so many users and items."""
    why = "".join(f"; {line}" for line in summary(bad))
    if num_users == 0:
        raise UserError(f"{asked.title}: no user has two actions left, so there is nothing to learn from{why}")
    if num_items == 1:
        raise UserError(f"{asked.title}: there is only one item left, so there is nothing to recommend{why}")


def _later(since: str, users: np.ndarray, num_users: int, times: np.ndarray | None, read: Times | None) -> np.ndarray:
    """Returns how many of each user's actions happened from the time `since` on, int64 [users]."""
    latest = None if times is None or not len(times) else times.max()
    return np.bincount(users[np.asarray(times) >= first_later(since, latest, read)], minlength=num_users)


def first_later(since: str, latest: float | None, read: Times | None) -> int | float:
    """Returns the time `since` as a number like the times. `latest`: the last of them; None without times."""
    if latest is None or read is None:
        raise UserError(f"`test_from` needs a column of times. Received: test_from={since}")
    return read.moment(since, latest, "test_from")


def _codes(parts: list[pa.ChunkedArray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns int32 [rows] codes by first appearance, and the raw ids that they stand for."""
    chunks = pa.chunked_array([chunk for part in parts for chunk in part.chunks], ID).unify_dictionaries().chunks
    if not chunks:
        return np.zeros(0, np.int32), np.zeros(0, object)
    names = np.array(chunks[-1].dictionary.to_pylist(), object)
    return np.concatenate([chunk.indices.to_numpy() for chunk in chunks]), names


def filtered(
    users: np.ndarray, items: np.ndarray, min_user_actions: int, min_item_actions: int, k_core: bool = False
) -> np.ndarray | None:
    """Returns which actions to keep, bool [actions]; None for all of them.

    `k_core`: whether to go on until every user and every item that is left has enough actions.
    """
    if max(min_user_actions, min_item_actions) <= 1 or not len(users):
        return None
    of_users, of_items = np.bincount(users), np.bincount(items)
    if of_users.min() >= min_user_actions and of_items.min() >= min_item_actions:
        return None
    chosen = (of_users >= min_user_actions)[users] & (of_items >= min_item_actions)[items]
    left = np.bincount(users[chosen], minlength=len(of_users))
    chosen &= (left >= min_user_actions)[users]
    while k_core:
        of_users, of_items = (np.bincount(codes[chosen], minlength=codes.max() + 1) for codes in (users, items))
        further = chosen & (of_users >= min_user_actions)[users] & (of_items >= min_item_actions)[items]
        if np.array_equal(further, chosen):
            break
        chosen = further
    return chosen


def order_of(users: np.ndarray, times: np.ndarray | None) -> np.ndarray | None:
    """Returns the order by user, time and row; None if the actions are already in order."""
    grouped = _ascends(users)
    if grouped and (times is None or _ascends(times)):
        return None
    by_user = None if grouped else _places_in_order(users.astype(np.int64))
    if times is None:
        return by_user
    if by_user is not None:
        users, times = users[by_user], times[by_user]
    order = np.empty(len(users), np.int64)
    for begin, end in _pieces_of_whole_users(users):
        order[begin:end] = _order_of_grouped(users[begin:end], times[begin:end])
        order[begin:end] += begin
    return order if by_user is None else by_user[order]


def _pieces_of_whole_users(users: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields ranges of whole users that fit into the cache, where sorting takes half the time."""
    begin = 0
    while begin < len(users):
        end = int(np.searchsorted(users, users[min(begin + PIECE, len(users)) - 1], side="right"))
        yield begin, end
        begin = end


def _order_of_grouped(users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Returns the order by time within users, sorting user, time and position as one number if it fits 63 bits."""
    if times.dtype.kind == "i":
        least, most = int(times.min()), int(times.max())
        bits = (most - least).bit_length()
        if int(users[-1] - users[0]).bit_length() + bits + len(users).bit_length() < 64:
            keys = (users - users[0]).astype(np.int64) << bits
            keys |= times - least
            return _places_in_order(keys)
    return np.lexsort((times, users))


def _places_in_order(keys: np.ndarray) -> np.ndarray:
    """A faster stable `np.argsort` of non-negative numbers with enough spare bits for a position. Overwrites them."""
    bits = len(keys).bit_length()
    keys <<= bits
    keys |= np.arange(len(keys))
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


def _ascends(values: np.ndarray) -> bool:
    return bool((values[1:] >= values[:-1]).all())


def _renumbered(codes: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drops the names that no action has any more."""
    used = np.bincount(codes, minlength=len(names)) > 0
    return (codes, names) if used.all() else ((np.cumsum(used, dtype=np.int32) - 1)[codes], names[used])
