"""Filters, orders and groups a table of interactions into `Sequences`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec_tf.data.reading.checks import ID
from bert4rec_tf.data.sequences import Sequences

PIECE = 1 << 18
"""Actions to work on at once: more would not stay in the processor's cache."""


def table_of(tables: list[pa.Table]) -> pa.Table:
    """Joins the parts of a table. Times become float64 if those of any part are."""
    kinds = {part.schema.field("time").type for part in tables if "time" in part.column_names}
    if len(kinds) > 1:
        tables = [part.set_column(2, "time", part["time"].cast(pa.float64(), safe=False)) for part in tables]
    return pa.concat_tables(tables) if tables else pa.schema({"user": ID, "item": ID}.items()).empty_table()


def codes_of(ids: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Returns int32 [rows] codes by first appearance, and the raw ids that they stand for."""
    chunks = pa.chunked_array([chunk for chunk in ids.chunks if len(chunk)], ID).unify_dictionaries().chunks
    if not chunks:
        return np.zeros(0, np.int32), np.zeros(0, object)
    names = np.array(chunks[-1].dictionary.to_pylist(), object)
    return np.concatenate([chunk.indices.to_numpy() for chunk in chunks]), names


def to_sequences(table: pa.Table, min_user_actions: int, min_item_actions: int) -> tuple[Sequences, dict[str, Any]]:
    """Filters, orders and groups a table.

    One pass keeps the users and items with enough actions in the table; then users with too few left are dropped.
    A user's actions are ordered by time, and those of one time by row.

    Args:
        table: columns `user` and `item` (type ID) and, if there are times, `time` (int64 or float64).
        min_user_actions: the fewest actions of a user.
        min_item_actions: the fewest actions of an item.

    Returns:
        The sequences, and `read` and `kept`: how many users, items and actions there were before and after the
        filter.
    """
    times = table["time"].to_numpy() if "time" in table.column_names else None
    user_codes, users = codes_of(table["user"])
    item_codes, items = codes_of(table["item"])
    del table  # frees memory for the rest
    read = {"users": len(users), "items": len(items), "actions": len(user_codes)}
    chosen = filtered(user_codes, item_codes, min_user_actions, min_item_actions)
    if chosen is not None:
        user_codes, item_codes = user_codes[chosen], item_codes[chosen]
        times = None if times is None else times[chosen]
        user_codes, users = _renumbered(user_codes, users)
        item_codes, items = _renumbered(item_codes, items)
    kept = {"users": len(users), "items": len(items), "actions": len(user_codes)}
    order = order_of(user_codes, times)
    if order is not None:
        user_codes, item_codes = user_codes[order], item_codes[order]
        del order, times
    return Sequences.from_codes(user_codes, item_codes, users, items), {"read": read, "kept": kept}


def filtered(users: np.ndarray, items: np.ndarray, min_user_actions: int, min_item_actions: int) -> np.ndarray | None:
    """Returns which actions to keep, bool [actions]; None for all of them."""
    if max(min_user_actions, min_item_actions) <= 1 or not len(users):
        return None
    of_users, of_items = _counts(users), _counts(items)
    if of_users.min() >= min_user_actions and of_items.min() >= min_item_actions:
        return None
    chosen = (of_users >= min_user_actions)[users] & (of_items >= min_item_actions)[items]
    left = np.bincount(users[chosen], minlength=len(of_users))
    return chosen & (left >= min_user_actions)[users]


def _counts(codes: np.ndarray) -> np.ndarray:
    """`np.bincount` in pieces, because it copies its input to 64 bits."""
    counts = np.zeros(int(codes.max()) + 1, np.int64)
    for begin in range(0, len(codes), PIECE):
        counts += np.bincount(codes[begin : begin + PIECE], minlength=len(counts))
    return counts


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
