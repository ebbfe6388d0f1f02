"""What a model is measured on: histories, held-out items and candidates, in batches. Only NumPy."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bert4rec_tf.data.sequences import PAD, LeaveOneOut, Sequences, pad_rows
from bert4rec_tf.evaluation.metrics import ANY, FULL, NEW
from bert4rec_tf.foundation.types import Batch

MAX_CELLS = 1 << 22
"""Items of the histories of a batch, with padding."""


@dataclass(frozen=True, eq=False)
class RankingTask:
    """What a model is evaluated on: histories, their held-out items, and the candidates.

    Attributes:
        histories: the items before the held-out one, for all users of the data set.
        users: [k] int64, the users to evaluate.
        targets: [k] int32, their held-out items.
        negatives: protocol -> integers [k, c], filled with 0 if there are fewer.
        all_items: whether to also rank the target among all items that are not in its history.
        excluded: the items that ranking among all items leaves out; None for those of the histories. It holds these.
        with_seen: with `all_items`, whether to also rank the target among the items of its history too (ANY).
    """

    histories: Sequences
    users: np.ndarray
    targets: np.ndarray
    negatives: Mapping[str, np.ndarray]
    all_items: bool = False
    excluded: Sequences | None = None
    with_seen: bool = False

    @classmethod
    def from_split(
        cls,
        split: LeaveOneOut,
        part: str,
        negatives: Mapping[str, np.ndarray],
        all_items: bool = False,
        with_seen: bool = False,
    ) -> "RankingTask":
        """Returns the task of `part`, "validation" or "test"."""
        histories, targets = split.histories(part), split.targets(part)
        return cls(histories, split.users, targets, negatives, all_items, with_seen=with_seen)

    def sample(self, max_users: int) -> "RankingTask":
        """Returns the task of `max_users` users, the same ones each time; this task if it has no more."""
        if len(self.users) <= max_users:
            return self
        rows = sample_rows(len(self.users), max_users)
        negatives = {protocol: items[rows] for protocol, items in self.negatives.items()}
        return replace(self, users=self.users[rows], targets=self.targets[rows], negatives=negatives)

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that rank every target. `add_new_protocol` has one more, for some of them."""
        full_protocols = (FULL, ANY) if self.with_seen else (FULL,)
        return (*self.negatives, *full_protocols) if self.all_items else tuple(self.negatives)

    @cached_property
    def is_repeat(self) -> np.ndarray:
        """Whether each target is in its user's history, bool [k]."""
        return self.histories.have_items(self.users, self.targets)

    def add_new_protocol(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns values of users by protocol, [k], and under NEW those of FULL for the targets that are no repeats.

        NEW is left out if it would be FULL, because no target is a repeat, or if all targets are.
        """
        has_both = self.all_items and self.is_repeat.any() and not self.is_repeat.all()
        return {**values, NEW: values[FULL][~self.is_repeat]} if has_both else dict(values)

    def count_candidates(self, protocol: str) -> np.ndarray:
        """Returns the number of items that each target is ranked among, without itself, int64 [k]."""
        if protocol not in (FULL, ANY):
            return np.count_nonzero(self.negatives[protocol], axis=1)
        list_left_out = self.list_seen if protocol == FULL else self.list_left_out_beyond_history
        num_left_out = np.zeros(len(self.users), np.int64)
        for rows in self.cut_by_length(len(self.users)):
            num_left_out[rows] = np.count_nonzero(list_left_out(rows), axis=1)
        return self.histories.num_items - 1 - num_left_out

    def list_candidates(self, rows: np.ndarray | slice) -> np.ndarray:
        """Returns the target (column 0) and the negatives of every protocol, int32 [rows, 1 + c]; 0 for none."""
        return np.concatenate([self.targets[rows, None], *(items[rows] for items in self.negatives.values())], axis=1)

    def list_seen(self, rows: np.ndarray) -> np.ndarray:
        """Returns the items that full ranking leaves out: the `excluded` items of each user, without the target.

        They are int32 [rows, width], ascending, with 0 in place of the target and of repeated items.
        """
        users, excluded = self.users[rows], self.excluded or self.histories
        lengths = excluded.lengths[users]
        width = int(lengths.max(initial=0))
        items = np.sort(pad_rows(excluded.items, excluded.splits[users], lengths, width), axis=1)
        is_repeat = np.zeros(items.shape, bool)
        is_repeat[:, 1:] = items[:, 1:] == items[:, :-1]
        return np.where(is_repeat | (items == self.targets[rows, None]), PAD, items)

    def list_left_out_beyond_history(self, rows: np.ndarray) -> np.ndarray:
        """Returns the items of `list_seen` that are not in the user's history, int32 [rows, any]; 0 for none.

        FULL leaves out all items of `list_seen`. ANY ranks those of the history too, and leaves out only these.
        """
        if self.excluded is None:
            return np.zeros([len(rows), 0], np.int32)
        items, histories = self.list_seen(rows), self.histories.select_users(self.users[rows])
        firsts = np.arange(len(rows)) * (self.histories.num_items + 1)  # a number for each pair of row and item
        known_pairs = np.repeat(firsts, histories.lengths) + histories.items
        return np.where(np.isin(firsts[:, None] + items, known_pairs), PAD, items)

    def cut_by_length(self, size: int, most_cells: int = MAX_CELLS, rows: np.ndarray | None = None) -> list[np.ndarray]:
        """Returns the rows of each batch: up to `size` users with histories of similar length.

        A batch has at most `most_cells` items in whole histories, with padding: as many may be seen items.

        `rows`: the rows to cut, in any order; None for all.
        """
        lengths = self.histories.lengths[self.users]
        rows = np.arange(len(self.users)) if rows is None else rows
        rows, parts, begin = rows[np.argsort(lengths[rows], kind="stable")], [], 0
        while begin < len(rows):
            part = rows[begin : begin + size]
            parts.append(part[: max(most_cells // max(int(lengths[part[-1]]), 1), 1)])
            begin += len(parts[-1])
        return parts


def sample_rows(number: int, max_rows: int) -> np.ndarray:
    """Returns `max_rows` of the numbers 0 to `number` - 1, ascending, the same each time; all if there are no more."""
    if number <= max_rows:
        return np.arange(number)
    return np.sort(np.random.default_rng(0).choice(number, max_rows, replace=False))


def make_batch(task: RankingTask, rows: np.ndarray, max_history: int | None) -> Batch:
    """Returns the last items of users' histories. `max_history`: how many at most; None for all."""
    width = int(task.histories.lengths[task.users[rows]].max())
    items, lengths = task.histories.take_last(task.users[rows], min(width, max_history or width))
    return {"users": task.users[rows].astype(np.int32), "items": items, "lengths": lengths}
