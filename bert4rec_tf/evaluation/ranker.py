"""Ranks the held-out items. A rank is the number of items that beat the target; one per user and protocol."""

import contextlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import PAD, LeaveOneOut, Sequences, pad_rows
from bert4rec_tf.evaluation import full_ranking
from bert4rec_tf.evaluation.metrics import ANY, FULL, NEW, compute_list_metrics, compute_metrics
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.types import Batch, Tensor

BLOCK_ELEMENTS = 1 << 25
"""If all items must be scored at once, the [users, items] table of a batch has at most so many elements."""

BATCH_SIZE = 1024
"""Users of a batch; fewer if all items must be scored at once and are too many."""

MOST_CELLS = 1 << 22
"""Items of the histories of a larger batch, with padding."""

Metrics = dict[str, dict[str, float]]
"""Protocol -> metric -> value."""


@dataclass(frozen=True, eq=False)
class RankingTask:
    """What a model is evaluated on: histories, their held-out items, and the candidates.

    Attributes:
        histories: the items before the held-out one, for all users of the data set.
        users: [k] int64, the users to evaluate.
        targets: [k] int32, their held-out items.
        negatives: protocol -> integers [k, c], filled with 0 if there are fewer.
        all_items: whether to also rank the target among all items that are not in its history.
        excluded: the items that ranking among all items leaves out; None for those of the histories.
        with_seen: with `all_items`, whether to also rank the target among every item, the seen ones too (ANY).
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

    def sample(self, most: int) -> "RankingTask":
        """Returns the task of `most` users, the same ones each time; this task if it has no more."""
        if len(self.users) <= most:
            return self
        rows = sample_rows(len(self.users), most)
        negatives = {protocol: items[rows] for protocol, items in self.negatives.items()}
        return replace(self, users=self.users[rows], targets=self.targets[rows], negatives=negatives)

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that rank every target. `add_new_protocol` has one more, for some of them."""
        among_all = (FULL, ANY) if self.with_seen else (FULL,)
        return (*self.negatives, *among_all) if self.all_items else tuple(self.negatives)

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
        if protocol == ANY:
            return np.full(len(self.users), self.histories.num_items - 1)
        if protocol != FULL:
            return np.count_nonzero(self.negatives[protocol], axis=1)
        return self.histories.num_items - 1 - self._num_seen

    @cached_property
    def _num_seen(self) -> np.ndarray:
        parts = np.array_split(np.arange(len(self.users)), 64)
        return np.concatenate([np.count_nonzero(self.list_seen(rows), axis=1) for rows in parts])

    def list_candidates(self, rows: np.ndarray | slice) -> np.ndarray:
        """Returns the target (column 0) and the negatives of every protocol, int32 [rows, 1 + c]; 0 for none."""
        return np.concatenate([self.targets[rows, None], *(items[rows] for items in self.negatives.values())], axis=1)

    def columns_by_protocol(self) -> dict[str, np.ndarray]:
        """Returns protocol -> int64 [c], the columns of `list_candidates` that have its negatives."""
        ends = np.cumsum([1, *(items.shape[1] for items in self.negatives.values())])
        return {name: np.arange(*places) for name, places in zip(self.negatives, itertools.pairwise(ends))}

    def list_seen(self, rows: np.ndarray) -> np.ndarray:
        """Returns the items that full ranking leaves out: the `excluded` items of each user, without the target.

        They are int32 [rows, width], ascending, with 0 in place of the target and of repeated items.
        """
        users, excluded = self.users[rows], self.excluded or self.histories
        lengths = excluded.lengths[users]
        width = int(lengths.max(initial=0))
        items = np.sort(pad_rows(excluded.items, excluded.splits[users], lengths, width), axis=1)
        repeated = np.zeros(items.shape, bool)
        repeated[:, 1:] = items[:, 1:] == items[:, :-1]
        return np.where(repeated | (items == self.targets[rows, None]), PAD, items)


@dataclass(frozen=True, eq=False)
class RankingResult:
    """The result of ranking the targets of a task, by protocol.

    Attributes:
        task: the task, which has all items.
        ranks: int32 [k], 0 for the best.
        num_candidates: int32 [k], the number of items that each target was ranked among, without itself.
        list_counts: int64 [n + 1], in how many of the users' lists each item is.
    """

    task: RankingTask
    ranks: dict[str, np.ndarray]
    num_candidates: dict[str, np.ndarray]
    list_counts: dict[str, np.ndarray]

    def compute_metrics(self) -> Metrics:
        """Returns METRICS of the ranks, and LIST_METRICS of the lists, also for NEW (`add_new_protocol`)."""
        counts, num_users = self.task.histories.count_items()[1:], self.task.histories.num_users
        return {
            name: {**compute_metrics(ranks), **compute_list_metrics(self.list_counts[name][1:], counts, num_users)}
            for name, ranks in self.task.add_new_protocol(self.ranks).items()
        }


def rank_targets(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Returns how many candidates beat the target in column 0, int64 [k]. In a tie, the target is beaten.

    `scores`: float [k, 1 + c]. `candidates`: int32 [k, 1 + c], 0 for none. Raises UserError if a score is NaN.
    """
    return compare_with_target(scores, candidates)[:, 1:].sum(axis=1)


def compare_with_target(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Returns which candidates score at least as high as the target, bool [k, 1 + c]. Otherwise as `rank_targets`."""
    refuse_nan(np.isnan(scores[candidates > 0]).any())
    return (scores >= scores[:, :1]) & (candidates > 0)


class Ranker:
    """Ranks targets with a model. Keep the object between evaluations, because it holds the compiled functions.

    Args:
        score: (batch, candidates) -> scores, like `Recommender.score`.
        max_history: how many of the last items the model reads; None for all.
        batch_size: users per batch; fewer if all items must be scored at once and are many.
        products: if scores are products, or the same for all users, what computes them for all items; `score` is then
            only called for candidates.
        block_elements: most scores of a batch if all items must be scored at once.
    """

    def __init__(
        self,
        score: Callable[[Batch, Tensor | None], Tensor],
        max_history: int | None = None,
        batch_size: int = BATCH_SIZE,
        products: full_ranking.ProductScores | full_ranking.SharedRanking | None = None,
        block_elements: int = BLOCK_ELEMENTS,
    ) -> None:
        self.max_history = max_history
        self.batch_size = batch_size
        self._block_elements = block_elements
        self._score = tf_function(score, input_signature=[full_ranking.BATCH, tf.TensorSpec([None, None], tf.int32)])
        self._scores_all_at_once = products is None
        if isinstance(products, full_ranking.SharedRanking):
            self._full_ranking: full_ranking.FullRanking | full_ranking.SharedRanking = products
        else:
            self._full_ranking = full_ranking.FullRanking(products or full_ranking.DenseScores(score))

    def rank(
        self,
        task: RankingTask,
        title: str | None = None,
        share: tuple[int, int] = (0, 1),
        list_counts: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """Ranks each target under every protocol, in one pass over the model.

        Args:
            title: the title of the progress; None to show none.
            share: (i, n) ranks every n-th batch from batch i on, and leaves the other ranks 0. So the ranks of all n
                shares add up to those of one call, to the bit.
            list_counts: protocol -> int64 [n + 1]. If the task has all items, adds here in how many lists each item is
                (`rank_and_list`).

        Returns protocol -> int32 [k], 0 for the best. Raises UserError if a score is NaN.
        """
        ranks = {protocol: np.zeros(len(task.users), np.int32) for protocol in task.protocols}
        size = self.batch_size
        if task.all_items and self._scores_all_at_once:
            size = min(size, max(1, self._block_elements // task.histories.num_items))
        parts = cut_by_length(task, size)
        progress = Progress(
            title or "", len(parts), examples_per_step=len(task.users) // max(len(parts), 1), silent=title is None
        )
        with contextlib.closing(progress):
            for rows in parts[share[0] :: share[1]]:
                batch = make_batch(task, rows, self.max_history)
                if task.all_items:
                    batch_ranks = self._rank_among_all(task, rows, batch, list_counts or {})
                else:
                    candidates = task.list_candidates(rows)
                    scores = self._score(batch, candidates).numpy()
                    batch_ranks = _rank_candidates(task, compare_with_target(scores, candidates))
                for protocol, values in batch_ranks.items():
                    ranks[protocol][rows] = values
                progress.advance()
        return ranks

    def rank_and_list(self, task: RankingTask, title: str | None = None) -> RankingResult:
        """Returns the ranks, the numbers of candidates, and in how many lists each item is. The task has all items.

        A list is the best LIST_LENGTH of a target's candidates, itself included.
        """
        candidates = {name: task.count_candidates(name).astype(np.int32) for name in task.protocols}
        list_counts = {
            name: np.zeros(task.histories.num_items + 1, np.int64) for name in task.add_new_protocol(candidates)
        }
        return RankingResult(task, self.rank(task, title, list_counts=list_counts), candidates, list_counts)

    def measure(self, task: RankingTask) -> Metrics:
        """Returns every metric of every protocol (`RankingResult.compute_metrics`)."""
        return self.rank_and_list(task).compute_metrics()

    def score_candidates(self, task: RankingTask) -> tuple[np.ndarray, np.ndarray]:
        """Returns the scores of the target (column 0) and of every negative, float32 [k, 1 + c], and these items.

        The items are int32 [k, 1 + c], 0 for none.
        """
        candidates = task.list_candidates(slice(None))
        scores = np.empty(candidates.shape, np.float32)
        for rows in cut_by_length(task, self.batch_size):
            scores[rows] = self._score(make_batch(task, rows, self.max_history), candidates[rows]).numpy()
        return scores, candidates

    def _rank_among_all(
        self, task: RankingTask, rows: np.ndarray, batch: Batch, list_counts: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        candidates, seen = task.list_candidates(rows), task.list_seen(rows)
        everything = np.concatenate([candidates, seen], axis=1)
        total, scores, best, has_nan = self._full_ranking.rank(batch, everything, seen.shape[1], bool(list_counts))
        refuse_nan(has_nan)
        target_and_seen = np.r_[0, candidates.shape[1] : everything.shape[1]]
        seen_above = rank_targets(scores[:, target_and_seen], everything[:, target_and_seen])
        for protocol, counts in list_counts.items():
            if protocol == FULL:
                items = best.items
            elif protocol == NEW:
                items = best.items[~task.is_repeat[rows]]
            elif protocol == ANY:
                seen_scores = scores[:, candidates.shape[1] :]
                items = _merge_best(best, seen, seen_scores)
            else:
                columns = np.append(task.columns_by_protocol()[protocol], 0)
                items = _pick_best(scores[:, columns], candidates[:, columns])
            counts += np.bincount(items.ravel(), minlength=len(counts))
        # If the target has the lowest score of all, `total` also counts the columns that are no items.
        total = np.minimum(total, task.histories.num_items)
        sampled = _rank_candidates(task, compare_with_target(scores[:, : candidates.shape[1]], candidates))
        ranks = {**sampled, FULL: total - seen_above - 1}  # 1: the target itself
        return {**ranks, ANY: total - 1} if task.with_seen else ranks


def sample_rows(number: int, most: int) -> np.ndarray:
    """Returns `most` of the numbers 0 to `number` - 1, ascending, the same ones each time; all if there are no more."""
    if number <= most:
        return np.arange(number)
    return np.sort(np.random.default_rng(0).choice(number, most, replace=False))


def cut_by_length(
    task: RankingTask, size: int, most_cells: int = MOST_CELLS, least: int = BATCH_SIZE
) -> list[np.ndarray]:
    """Returns the rows of each batch: up to `size` users with histories of similar length.

    A batch of more than `least` users has at most `most_cells` items in whole histories, with padding: as many may be
    seen items.
    """
    lengths = task.histories.lengths[task.users]
    by_length, parts, begin = np.argsort(lengths, kind="stable"), [], 0
    while begin < len(by_length):
        rows = by_length[begin : begin + size]
        parts.append(rows[: max(most_cells // max(int(lengths[rows[-1]]), 1), least)])
        begin += len(parts[-1])
    return parts


def make_batch(task: RankingTask, rows: np.ndarray, max_history: int | None) -> Batch:
    """Returns the last items of users' histories. `max_history`: how many at most; None for all."""
    longest = int(task.histories.lengths[task.users[rows]].max())
    items, lengths = task.histories.take_last(task.users[rows], min(longest, max_history or longest))
    return {"users": task.users[rows].astype(np.int32), "items": items, "lengths": lengths}


def _rank_candidates(task: RankingTask, reached: np.ndarray) -> dict[str, np.ndarray]:
    """Returns protocol -> ranks, int64 [b]. `reached`: bool [b, 1 + c], of `list_candidates`."""
    return {protocol: reached[:, places].sum(axis=1) for protocol, places in task.columns_by_protocol().items()}


def _pick_best(scores: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Returns the best items, int32 [b, LIST_LENGTH], by scores [b, c]. `items`: int32 [b, c], 0 for none.

    In a tie the earlier column wins, so a target in the last one loses, as in its rank.
    """
    best = full_ranking.BestItems(len(scores), scores.dtype)
    best.note(np.where(items > 0, scores, full_ranking.LOWEST), slice(0, len(scores)), 0)
    best.add_noted()
    return np.where(best.scores > full_ranking.LOWEST, np.take_along_axis(items, best.items, axis=1), PAD)


def _merge_best(unseen: full_ranking.BestItems, seen: np.ndarray, seen_scores: np.ndarray) -> np.ndarray:
    """Returns the best of the best unseen items and of the seen ones, int32 [b, LIST_LENGTH], 0 for none.

    In a tie the earlier item wins, as among the unseen ones.
    """
    items = np.concatenate([unseen.items, seen], axis=1)
    scores = np.concatenate([unseen.scores, seen_scores], axis=1)
    order = np.argsort(items, axis=1)
    return _pick_best(*(np.take_along_axis(part, order, axis=1) for part in (scores, items)))


def refuse_nan(has_nan: bool) -> None:
    if has_nan:
        raise UserError("`scores` must be numbers. Received: NaN; the training has diverged")
