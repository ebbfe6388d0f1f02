"""Filters, orders and groups a table of interactions into `Sequences`."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from bert4rec_tf.data.reading.report import Report, describe_cut_rows, describe_findings, describe_repeats
from bert4rec_tf.data.reading.rows import Rows
from bert4rec_tf.data.reading.times import count_units
from bert4rec_tf.data.sequences import ActionTimes, Sequences
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import DataWarning, warn

WHOLE = "^(0|[1-9][0-9]*)$"
"""Ids that are ordered as numbers."""

ID = pa.dictionary(pa.int32(), pa.string())


def make_sequences(tables: list[pa.Table], reader: Rows, to_train: bool = True) -> tuple[Sequences, Report]:
    """Filters, orders and groups the parts of a table. Empties `tables`, to save memory.

    A user's actions are ordered by time, then by row (`order_actions`), and then filtered (`filter_actions`). Users are
    numbered in the order of their ids, and items by falling count, then by id; those of a published file by first
    appearance.

    Args:
        tables: columns `user` and `item` (dictionaries of texts) and, if there are times, `time` (int64 or float64).
        reader: what read them, with the options of the filter and what was met.
        to_train: whether too little to train on is an error.

    Raises UserError if a time is in the future, unless the options allow it, or too little is left.
    """
    interactions = reader.options
    title, is_own = interactions.title, not interactions.is_published
    user_codes, users = _encode_ids([table["user"] for table in tables])
    item_codes, items = _encode_ids([table["item"] for table in tables])
    times = None
    if tables and "time" in tables[0].column_names:
        times = join_times([table["time"].to_numpy() for table in tables], title)
    tables.clear()
    if is_own:
        user_codes, users = sort_ids(user_codes, users)
        item_codes, items = sort_ids(item_codes, items)
    sizes_before = {"users": len(users), "items": len(items), "actions": len(user_codes)}
    notes = describe_findings(reader)
    notes += describe_cut_rows(reader.findings, items.tolist(), np.bincount(item_codes)) if is_own else []
    unit, meaning, doubts, num_later = None, "", list[str](), None
    if times is not None and len(times):
        facts = count_units(times), len(times), times.max().item(), partial(np.asarray, times)
        unit, meaning, doubts = reader.times.describe(*facts, interactions)
        order, repeats = order_actions(user_codes, item_codes, times, is_own and interactions.duplicates == "drop")
        if len(repeats):
            first = repeats.min()
            notes += describe_repeats(len(repeats), (users[user_codes[first]], items[item_codes[first]]))
        user_codes, item_codes, times = user_codes[order], item_codes[order], times[order]
        del order, repeats
    if max(interactions.min_user_actions, interactions.min_item_actions) > 1:
        bounds = interactions.min_user_actions, interactions.min_item_actions
        keep = filter_actions(user_codes, item_codes, *bounds, interactions.k_core)
        user_codes, item_codes, times = user_codes[keep], item_codes[keep], None if times is None else times[keep]
        is_left = np.bincount(user_codes, minlength=len(users)) > 0
        user_codes, users = (np.cumsum(is_left, dtype=np.int32) - 1)[user_codes], users[is_left]
    if interactions.test_from is not None and times is not None:
        is_later = times >= reader.times.parse_moment(interactions.test_from, unit)
        num_later = np.bincount(user_codes[is_later], minlength=len(users))
    sequences = Sequences.from_codes(user_codes, item_codes, users, items)
    action_times = ActionTimes(times, meaning) if times is not None and is_own else None
    sequences = replace(sequences, num_later=num_later, times=action_times)
    return sequences, make_report(reader, meaning, sizes_before, sequences, doubts, notes, to_train)


def make_report(
    reader: Rows,
    meaning: str,
    sizes_before: dict[str, int],
    sequences: Sequences,
    doubts: list[str],
    notes: list[str],
    to_train: bool,
) -> Report:
    """Returns the report. `doubts`: about the times.

    Raises UserError if `to_train` and no user has two actions, or only one item is left.
    """
    interactions, layout = reader.options, reader.layout
    bounds = {name: getattr(interactions, name) for name in ("min_user_actions", "min_item_actions")}
    filters = [f"left are those with --{name}={bound}" for name, bound in bounds.items() if bound > 1]
    reasons = "".join(f"; {line}" for line in [*filters, *notes])
    if to_train and sequences.lengths.max(initial=0) < 2:
        raise UserError(
            f"{interactions.title}: no user has two actions left, so there is nothing to learn from{reasons}"
        )
    if to_train and sequences.num_items == 1:
        raise UserError(f"{interactions.title}: there is only one item left, so there is nothing to recommend{reasons}")
    sizes = {"users": sequences.num_users, "items": sequences.num_items, "actions": sequences.num_actions}
    facts = [*layout.doubts, *doubts], notes, list(layout.remarks)
    return Report(interactions.title, str(layout), meaning, sizes_before, sizes, [*bounds.values()], *facts)


def order_actions(
    users: np.ndarray, items: np.ndarray, times: np.ndarray, drops_repeats: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places of actions by user, time and place, int64, and of those left out, in the same order.

    Left out are those that repeat user, item and time of one before, if `drops_repeats`.
    """
    order = np.lexsort((times, users))
    if not drops_repeats:
        return order, order[:0]
    is_same, is_repeat = np.zeros(len(order), bool), np.zeros(len(order), bool)
    times, users = times[order], users[order]
    is_same[1:] = (times[1:] == times[:-1]) & (users[1:] == users[:-1])  # as the one before, but for the item
    del times, users
    if not is_same.any():
        return order, order[:0]
    rows = np.flatnonzero(is_same | np.append(is_same[1:], False))
    groups = pd.DataFrame({"group": np.cumsum(~is_same[rows]), "item": items[order[rows]]})
    is_repeat[rows] = groups.duplicated()
    return order[~is_repeat], order[is_repeat]


def _encode_ids(parts: list[pa.ChunkedArray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns int32 [rows] codes by first appearance, and their raw ids."""
    chunks = pa.chunked_array([chunk for part in parts for chunk in part.chunks], ID).unify_dictionaries().chunks
    if not chunks:
        return np.zeros(0, np.int32), np.zeros(0, object)
    names = np.array(chunks[-1].dictionary.to_pylist(), object)
    return np.concatenate([chunk.indices.to_numpy() for chunk in chunks]), names


def sort_ids(codes: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns codes and names in the order of the names: whole numbers by size, then texts."""
    texts = pa.array(names, pa.string())
    is_text = pc.invert(pc.match_substring_regex(texts, WHOLE))
    keys = pa.table({"is_text": is_text, "length": pc.if_else(is_text, 0, pc.utf8_length(texts)), "text": texts})
    order = pc.sort_indices(keys, [(key, "ascending") for key in keys.column_names]).to_numpy()
    ranks = np.empty(len(names), np.int32)
    ranks[order] = np.arange(len(names), dtype=np.int32)
    return ranks[codes], names[order]


def join_times(parts: list[np.ndarray], title: str) -> np.ndarray:
    """Returns the times of all parts, int64 or float64. Warns if float64, in a mixture, cannot hold all."""
    times = np.concatenate(parts)
    integer_parts = [part for part in parts if part.dtype != times.dtype and len(part)]
    if any(np.abs(part.astype(np.float64)).max() > 2**53 for part in integer_parts):
        warn(
            f"{title}: times that differ may become equal, because float64 cannot hold both fractions and these times",
            DataWarning,
        )
    return times


def filter_actions(
    users: np.ndarray, items: np.ndarray, min_user_actions: int, min_item_actions: int, k_core: bool
) -> np.ndarray:
    """Returns which actions to keep, bool [actions].

    One pass keeps the users and items with enough actions; then users with too few left are dropped. With `k_core` this
    is repeated until nothing changes.
    """

    def has_enough(codes: np.ndarray, minimum: int) -> np.ndarray:
        return (np.bincount(codes[keep], minlength=codes.max(initial=0) + 1) >= minimum)[codes]

    keep = np.ones(len(users), bool)
    while True:
        old_keep = keep
        keep = old_keep & has_enough(users, min_user_actions) & has_enough(items, min_item_actions)
        if not k_core:
            return keep & has_enough(users, min_user_actions)
        if np.array_equal(old_keep, keep):
            return keep
