"""Filters, orders and groups a table of interactions into `Sequences`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading.columns import Layout
from bert4rec_tf.data.reading.rows import summarize_bad_rows
from bert4rec_tf.data.reading.times import NUMBER, Times, choose_unit, count_units, describe_times
from bert4rec_tf.data.sequences import ActionTimes, Sequences
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn

WHOLE = "^(0|[1-9][0-9]*)$"
"""Ids that are ordered as numbers."""

ID = pa.dictionary(pa.int32(), pa.string())

LARGEST_SHARE, LARGEST_MULTIPLE = 0.1, 5
"""More than this share of all actions, and than this multiple of the average user's, are too many for one user."""

MOST_EQUAL = 0.5


@dataclass(frozen=True)
class Report:
    """What a conversion read, kept and skipped.

    Attributes:
        path, columns: the files as the user named them, and the columns of users, items and times.
        read, kept: users, items and actions before and after the filter.
        bad: kind of bad row -> how many were skipped, and where the first is.
        doubt: as in `columns.Layout`.
        equal_times: the share of the steps from a user's action to the next in which the time stays the same.
        times: what the times mean; empty if there are none.
    """

    path: str
    columns: str
    read: dict[str, int]
    kept: dict[str, int]
    min_user_actions: int
    min_item_actions: int
    bad: dict[str, tuple[int, str]]
    equal_times: float
    times: str
    doubt: str

    def warn_of_doubts(self, sequences: Sequences) -> None:
        """Warns of a guess, a user who may be many, and an order that is the file's."""
        if self.doubt:
            warn(f"{self.path}: {self.doubt}")
        lengths = sequences.lengths
        most, total = lengths.max(initial=0), lengths.sum()
        if most > LARGEST_SHARE * total and most > LARGEST_MULTIPLE * lengths.mean():
            user = sequences.users[lengths.argmax()]
            warn(
                f"{self.path}: user {user!r} has {most / total:.0%} of all actions; this may stand for users who are "
                "not known"
            )
        if self.equal_times > MOST_EQUAL:
            warn(
                f"{self.path}: {self.equal_times:.0%} of the actions after a user's first have the time of the one "
                "before, so that the rows alone order them"
            )

    def warn_of_skipped(self) -> None:
        for line in summarize_bad_rows(self.bad):
            warn(f"{self.path}: {line}")

    def __str__(self) -> str:
        sizes_before, sizes_after = (
            ", ".join(f"{count:,} {name}" for name, count in counts.items()) for counts in (self.read, self.kept)
        )
        bounds = f"users with at least {self.min_user_actions}, items with at least {self.min_item_actions} actions"
        lines = [
            f"{self.path}: {self.columns}",
            *([f"times: {self.times}"] if self.times else []),
            *summarize_bad_rows(self.bad),
            f"read: {sizes_before}",
            f"kept: {sizes_after} ({bounds})",
        ]
        return "\n".join(lines)


def make_sequences(
    tables: list[pa.Table],
    interactions: Interactions,
    layout: Layout,
    skipped: dict[str, tuple[int, str]],
    time_reader: Times,
    min_actions: int = 2,
) -> tuple[Sequences, Report]:
    """Filters, orders and groups the parts of a table. Empties `tables`, to save memory.

    One pass keeps the users and items with enough actions in the table; then users with too few left are dropped. With
    `k_core` this is repeated until nothing changes (`bound_user_actions`). A user's actions are ordered by time, then
    by row. Users are numbered in the order of their ids, and items by falling count, then by id; those of a published
    file by first appearance.

    Args:
        tables: columns `user` and `item` (dictionaries of texts) and, if there are times, `time` (int64 or float64).
        interactions: the filter, and the name of the source for messages.
        layout, skipped: for the report, where the columns come from, and the rows that were skipped (`Rows.skipped`).
        time_reader: what read the times.
        min_actions: users with fewer actions are left out. Below 2, the rest may be too little to train on.

    Raises UserError if too little is left to train on.
    """
    user_codes, users = _encode_ids([table["user"] for table in tables])
    item_codes, items = _encode_ids([table["item"] for table in tables])
    times = None
    if tables and "time" in tables[0].column_names:
        times = join_times([table["time"].to_numpy() for table in tables], interactions.title)
    tables.clear()
    if not interactions.is_published:
        user_codes, users = sort_ids(user_codes, users)
        item_codes, items = sort_ids(item_codes, items)
    before = {"users": len(users), "items": len(items), "actions": len(user_codes)}
    bounds = bound_user_actions(interactions, min_actions), interactions.min_item_actions
    if max(interactions.min_user_actions, interactions.min_item_actions) > 1:
        keep = filter_actions(user_codes, item_codes, *bounds, interactions.k_core)
        user_codes, users = _drop_unused_names(user_codes[keep], users)
        item_codes, items = _drop_unused_names(item_codes[keep], items)
        times = None if times is None else times[keep]
    after = {"users": len(users), "items": len(items), "actions": len(user_codes)}
    if min_actions >= 2 and not len(user_codes):
        check_trainable(0, 0, interactions, skipped)
    unit, meaning, num_later, equal_times = None, "", None, 0.0
    if times is not None:
        if time_reader.kind == NUMBER:
            unit = choose_unit(count_units(times), len(times), interactions.title)
        meaning = describe_times(time_reader.kind, unit)
    if interactions.test_from is not None:
        first_later = parse_test_from(interactions.test_from, unit, None if times is None else time_reader)
        num_later = np.bincount(user_codes[np.asarray(times) >= first_later], minlength=len(users))
    if times is not None:
        order = np.lexsort((times, user_codes))
        user_codes, item_codes, times = user_codes[order], item_codes[order], times[order]
        is_same_user = user_codes[1:] == user_codes[:-1]
        num_equal = np.count_nonzero(is_same_user & (times[1:] == times[:-1]))
        equal_times = int(num_equal) / max(int(np.count_nonzero(is_same_user)), 1)
        del order
    sequences = Sequences.from_codes(user_codes, item_codes, users, items, min_actions)
    is_kept = np.bincount(user_codes, minlength=len(users)) >= min_actions
    if num_later is not None:
        sequences = replace(sequences, num_later=num_later[is_kept])
    if times is not None and not interactions.is_published:
        sequences = replace(sequences, times=ActionTimes(times[is_kept[user_codes]], meaning))
    if min_actions >= 2:
        check_trainable(sequences.num_users, sequences.num_items, interactions, skipped)
    facts = *bounds, skipped, equal_times, meaning, layout.doubt
    return sequences, Report(interactions.title, str(layout), before, after, *facts)


def bound_user_actions(interactions: Interactions, min_actions: int = 2) -> int:
    """Returns how many actions the filter requires of a user: in a k-core, at least `min_actions`."""
    return max(interactions.min_user_actions, min_actions) if interactions.k_core else interactions.min_user_actions


def check_trainable(
    num_users: int, num_items: int, interactions: Interactions, skipped_rows: Mapping[str, tuple[int, str]]
) -> None:
    """Raises UserError if no user or only one item is left."""
    reasons = "".join(f"; {line}" for line in summarize_bad_rows(skipped_rows))
    if num_users == 0:
        raise UserError(
            f"{interactions.title}: no user has two actions left, so there is nothing to learn from{reasons}"
        )
    if num_items == 1:
        raise UserError(f"{interactions.title}: there is only one item left, so there is nothing to recommend{reasons}")


def parse_test_from(since: str, unit: str | None, time_reader: Times | None) -> int | float:
    """Returns `since` as a number like the times (`Times.parse_moment`). Raises UserError without times."""
    if time_reader is None:
        raise UserError(f"`test_from` needs a column of times. Received: test_from={since}")
    return time_reader.parse_moment(since, unit)


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
    whole = [part for part in parts if part.dtype != times.dtype and len(part)]
    if any(np.abs(part.astype(np.float64)).max() > 2**53 for part in whole):
        warn(f"{title}: times that differ may become equal, because float64 cannot hold both fractions and these times")
    return times


def filter_actions(
    users: np.ndarray, items: np.ndarray, min_user_actions: int, min_item_actions: int, k_core: bool
) -> np.ndarray:
    """Returns which actions to keep, bool [actions].

    `k_core`: whether to repeat until all users and items that are left have enough actions.
    """

    def has_enough(codes: np.ndarray, least: int) -> np.ndarray:
        return (np.bincount(codes[keep], minlength=codes.max(initial=0) + 1) >= least)[codes]

    keep = np.ones(len(users), bool)
    while True:
        before = keep
        keep = before & has_enough(users, min_user_actions) & has_enough(items, min_item_actions)
        if not k_core:
            return keep & has_enough(users, min_user_actions)
        if np.array_equal(before, keep):
            return keep


def _drop_unused_names(codes: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns codes and names without the names that no action uses."""
    used = np.bincount(codes, minlength=len(names)) > 0
    return (np.cumsum(used, dtype=np.int32) - 1)[codes], names[used]
