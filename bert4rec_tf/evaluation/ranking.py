"""Ranks the held-out items. A rank is the number of items that beat the target; one per user and protocol."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import PAD, LeaveOneOut, Sequences, take_rows
from bert4rec_tf.evaluation.full_ranking import FullRanking, Products, Whole
from bert4rec_tf.evaluation.metrics import ANY, FULL, LIST_LENGTH, NEW, list_metrics, metrics
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import graph
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.types import Batch, Tensor

BLOCK_ELEMENTS = 1 << 25
"""If all items must be scored at once, the [users, items] table of a batch has at most so many elements."""

BATCH_SIZE = 1024
"""Users of a batch; fewer if all items must be scored at once and are too many."""

Metrics = dict[str, dict[str, float]]
"""Protocol -> metric -> value."""


@dataclass(frozen=True, eq=False)
class RankingTask:
    """What a model is evaluated on: histories, their held-out items, and the candidates.

    Attributes:
        histories: the items before the held-out one, for all users of the data set.
        users: [k] int64, the users to evaluate.
        targets: [k] int32, their held-out items.
        negatives: protocol -> int32 [k, c], filled with 0 if there are fewer.
        all_items: whether to also rank the target among all items that are not in its history.
        known: the items that ranking among all items leaves out; None for those of the histories.
        with_seen: with `all_items`, whether to also rank the target among every item, the seen ones too (ANY).
    """

    histories: Sequences
    users: np.ndarray
    targets: np.ndarray
    negatives: Mapping[str, np.ndarray]
    all_items: bool = False
    known: Sequences | None = None
    with_seen: bool = False

    @classmethod
    def of(
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
        negatives = {protocol: one[rows] for protocol, one in self.negatives.items()}
        return replace(self, users=self.users[rows], targets=self.targets[rows], negatives=negatives)

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that rank every target. `add_new` has one more, for some of them."""
        among_all = (FULL, ANY) if self.with_seen else (FULL,)
        return (*self.negatives, *among_all) if self.all_items else tuple(self.negatives)

    @cached_property
    def is_repeat(self) -> np.ndarray:
        """Whether each target is in its user's history, bool [k]."""
        return self.histories.contain(self.users, self.targets)

    def add_new(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns values of users by protocol, [k], and under NEW those of FULL for the targets that are no repeats.

        NEW is left out if it would be FULL, because no target is a repeat, or if all targets are.
        """
        has_both = self.all_items and self.is_repeat.any() and not self.is_repeat.all()
        return {**values, NEW: values[FULL][~self.is_repeat]} if has_both else dict(values)

    def num_candidates(self, protocol: str) -> np.ndarray:
        """Returns the number of items that each target is ranked among, without itself, int64 [k]."""
        if protocol == ANY:
            return np.full(len(self.users), self.histories.num_items - 1)
        if protocol != FULL:
            return np.count_nonzero(self.negatives[protocol], axis=1)
        seen = [np.count_nonzero(self.seen(rows), axis=1) for rows in np.array_split(np.arange(len(self.users)), 64)]
        return self.histories.num_items - 1 - np.concatenate(seen)

    def candidates(self, rows: np.ndarray | slice) -> np.ndarray:
        """Returns the target (column 0) and the negatives of every protocol, int32 [rows, 1 + c]; 0 for none."""
        return np.concatenate([self.targets[rows, None], *(one[rows] for one in self.negatives.values())], axis=1)

    def columns(self) -> dict[str, np.ndarray]:
        """Returns protocol -> int64 [c], the columns of `candidates` that have its negatives."""
        ends = np.cumsum([1, *(one.shape[1] for one in self.negatives.values())])
        return {name: np.arange(*places) for name, places in zip(self.negatives, itertools.pairwise(ends))}

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """Returns the items that full ranking leaves out: the known items of each user, without the target.

        They are int32 [rows, width], ascending, with 0 in place of the target and of repeated items.
        """
        users, known = self.users[rows], self.known or self.histories
        lengths = known.lengths[users]
        width = int(lengths.max(initial=0))
        items = np.sort(take_rows(known.items, known.splits[users], lengths, width), axis=1)
        repeated = np.zeros(items.shape, bool)
        repeated[:, 1:] = items[:, 1:] == items[:, :-1]
        return np.where(repeated | (items == self.targets[rows, None]), PAD, items)


@dataclass(frozen=True, eq=False)
class Ranked:
    """The result of ranking the targets of a task, by protocol.

    Attributes:
        task: the task, which has all items.
        ranks: int32 [k], 0 for the best.
        num_candidates: int32 [k], the number of items that each target was ranked among, without itself.
        listed: int64 [n + 1], in how many of the users' lists each item is.
    """

    task: RankingTask
    ranks: dict[str, np.ndarray]
    num_candidates: dict[str, np.ndarray]
    listed: dict[str, np.ndarray]

    def metrics(self) -> Metrics:
        """Returns METRICS of the ranks, and LIST_METRICS of the lists, also for NEW (`RankingTask.add_new`)."""
        counts, num_users = self.task.histories.counts()[1:], self.task.histories.num_users
        return {
            name: {**metrics(found), **list_metrics(self.listed[name][1:], counts, num_users)}
            for name, found in self.task.add_new(self.ranks).items()
        }


def rank_targets(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Returns how many candidates beat the target in column 0, int64 [k]. In a tie, the target is beaten.

    `scores`: float [k, 1 + c]. `candidates`: int32 [k, 1 + c], 0 for none. Raises UserError if a score is NaN.
    """
    return reaching(scores, candidates)[:, 1:].sum(axis=1)


def reaching(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Returns which candidates reach the target's score, bool [k, 1 + c]. Arguments and errors as in `rank_targets`."""
    refuse_nan(np.isnan(scores[candidates > 0]).any())
    return (scores >= scores[:, :1]) & (candidates > 0)


class Ranker:
    """Ranks targets with a model. Keep the object between evaluations, because it holds the compiled functions.

    Args:
        score: (batch, candidates) -> scores, like `Recommender.score`.
        max_history: how many of the last items the model reads; None for all.
        batch_size: users per batch; fewer if all items must be scored at once and are many.
        products: if scores are products, what computes them for all items, block by block; `score` is then only
            called for candidates.
    """

    def __init__(
        self,
        score: Callable[[Batch, Tensor | None], Tensor],
        max_history: int | None = None,
        batch_size: int = BATCH_SIZE,
        products: Products | None = None,
    ) -> None:
        self.max_history = max_history
        self.batch_size = batch_size
        rows, singles = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
        batch = {"users": singles, "items": rows, "lengths": singles}
        self._score_candidates = graph(score, input_signature=[batch, rows])
        self._scores_all_at_once = products is None
        self._full_ranking = FullRanking(products or Whole(score), batch)
        self._best_among = graph(_best_among, reduce_retracing=True)

    def ranks(
        self,
        task: RankingTask,
        title: str | None = None,
        share: tuple[int, int] = (0, 1),
        listed: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """Ranks each target under every protocol, in one pass over the model.

        Args:
            title: the title of the progress; None to show none.
            share: (i, n) ranks every n-th batch from batch i on, and leaves the other ranks 0. So the ranks of all n
                shares add up to those of one call, to the bit.
            listed: protocol -> int64 [n + 1]. If the task has all items, adds here in how many lists each item is
                (`ranked`).

        Returns protocol -> int32 [k], 0 for the best. Raises UserError if a score is NaN.
        """
        ranks = {protocol: np.zeros(len(task.users), np.int32) for protocol in task.protocols}
        size = self.batch_size
        if task.all_items and self._scores_all_at_once:
            size = min(size, max(1, BLOCK_ELEMENTS // task.histories.num_items))
        progress = Progress(title or "", -(-len(task.users) // size), examples_per_step=size, silent=title is None)
        with contextlib.closing(progress):
            for rows, batch in itertools.islice(
                batches_by_length(task, self.max_history, size), share[0], None, share[1]
            ):
                if task.all_items:
                    found = self._rank_among_all(task, rows, batch, listed or {})
                else:
                    candidates = task.candidates(rows)
                    scores = self._score_candidates(batch, candidates).numpy()
                    found = _sampled_ranks(task, reaching(scores, candidates))
                for protocol, values in found.items():
                    ranks[protocol][rows] = values
                progress.advance()
        return ranks

    def ranked(self, task: RankingTask, title: str | None = None) -> Ranked:
        """Returns the ranks, the numbers of candidates, and in how many lists each item is. The task has all items.

        A list is the best LIST_LENGTH of a target's candidates, itself included.
        """
        candidates = {name: task.num_candidates(name).astype(np.int32) for name in task.protocols}
        listed = {name: np.zeros(task.histories.num_items + 1, np.int64) for name in task.add_new(candidates)}
        return Ranked(task, self.ranks(task, title, listed=listed), candidates, listed)

    def measure(self, task: RankingTask) -> Metrics:
        """Returns every metric of every protocol (`Ranked.metrics`)."""
        return self.ranked(task).metrics()

    def candidate_scores(self, task: RankingTask) -> tuple[np.ndarray, np.ndarray]:
        """Returns the scores of the target (column 0) and of every negative, float32 [k, 1 + c], and these items.

        The items are int32 [k, 1 + c], 0 for none.
        """
        candidates = task.candidates(slice(None))
        scores = np.empty(candidates.shape, np.float32)
        for rows, batch in batches_by_length(task, self.max_history, self.batch_size):
            scores[rows] = self._score_candidates(batch, candidates[rows]).numpy()
        return scores, candidates

    def _rank_among_all(
        self, task: RankingTask, rows: np.ndarray, batch: Batch, listed: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        candidates, seen = task.candidates(rows), task.seen(rows)
        everything = np.concatenate([candidates, seen], axis=1)
        total, scores, best, best_scores, has_nan = self._full_ranking.rank(batch, everything, seen.shape[1])
        refuse_nan(has_nan)
        target_and_seen = np.r_[0, candidates.shape[1] : everything.shape[1]]
        seen_above = rank_targets(scores[:, target_and_seen], everything[:, target_and_seen])
        for protocol, counts in listed.items():
            if protocol == FULL:
                items = best
            elif protocol == NEW:
                items = best[~task.is_repeat[rows]]
            elif protocol == ANY:
                seen_scores = scores[:, candidates.shape[1] :]
                items = self._best_of_both(best, best_scores, seen, seen_scores)
            else:
                columns = np.append(task.columns()[protocol], 0)
                items = self._best_among(scores[:, columns], candidates[:, columns]).numpy()
            counts += np.bincount(items.ravel(), minlength=len(counts))
        # A target with the lowest score of all is also reached by the places that are no items.
        total = np.minimum(total, task.histories.num_items)
        sampled = _sampled_ranks(task, reaching(scores[:, : candidates.shape[1]], candidates))
        found = {**sampled, FULL: total - seen_above - 1}  # 1: the target itself
        return {**found, ANY: total - 1} if task.with_seen else found

    def _best_of_both(
        self, unseen: np.ndarray, unseen_scores: np.ndarray, seen: np.ndarray, seen_scores: np.ndarray
    ) -> np.ndarray:
        """Returns the best of the best unseen items and of the seen ones, int32 [b, LIST_LENGTH], 0 for none.

        In a tie the earlier item wins, as among the unseen ones.
        """
        items = np.concatenate([unseen, seen], axis=1)
        scores = np.concatenate([unseen_scores, seen_scores], axis=1)
        order = np.argsort(items, axis=1)
        ordered = (np.take_along_axis(part, order, axis=1) for part in (scores, items))
        return self._best_among(*ordered).numpy()


def sample_rows(number: int, most: int) -> np.ndarray:
    """Returns `most` of the numbers 0 to `number` - 1, ascending, the same ones each time; all if there are no more."""
    if number <= most:
        return np.arange(number)
    return np.sort(np.random.default_rng(0).choice(number, most, replace=False))


def batches_by_length(task: RankingTask, max_history: int | None, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yields the rows and the batches of up to `size` users with histories of similar length.

    `max_history`: how many of the last items a batch has; None for all.
    """
    lengths = task.histories.lengths[task.users]
    by_length = np.argsort(lengths, kind="stable")
    for start in range(0, len(by_length), size):
        rows = by_length[start : start + size]
        width = int(min(lengths[rows].max(), max_history or lengths[rows].max()))
        items, kept = task.histories.last(task.users[rows], width)
        yield rows, {"users": task.users[rows].astype(np.int32), "items": items, "lengths": kept}


def _sampled_ranks(task: RankingTask, reached: np.ndarray) -> dict[str, np.ndarray]:
    """Returns protocol -> ranks, int64 [b]. `reached`: bool [b, 1 + c], `reaching` of `RankingTask.candidates`."""
    return {protocol: reached[:, places].sum(axis=1) for protocol, places in task.columns().items()}


def _best_among(scores: Tensor, items: Tensor) -> Tensor:
    """Returns the best items, int32 [b, LIST_LENGTH or c], by scores [b, c]. `items`: int32 [b, c], 0 for none.

    In a tie the earlier column wins, so a target in the last one loses, as in its rank.
    """
    chosen = tf.where(items > 0, scores, tf.cast(-np.inf, scores.dtype))
    values, columns = tf.math.top_k(chosen, tf.minimum(LIST_LENGTH, tf.shape(items)[1]))
    return tf.where(values > -np.inf, tf.gather(items, columns, batch_dims=1), PAD)


def refuse_nan(has_nan: bool) -> None:
    if has_nan:
        raise UserError("`scores` must be numbers. Received: NaN; the training has diverged")
