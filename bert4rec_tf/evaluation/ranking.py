"""Ranks: evaluation ends in one integer per user and protocol, how many items beat the target."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import PAD, LeaveOneOut, Sequences, take_rows
from bert4rec_tf.evaluation.metrics import FULL
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.types import Batch, Tensor

BLOCK_ELEMENTS = 1 << 25
"""Users are scored in batches whose [users, items] table has at most so many elements."""


@dataclass(frozen=True, eq=False)
class RankingTask:
    """What a model is measured on: histories, the held-out item of each, and what to rank it among.

    Attributes:
        histories: what comes before the held-out items, one row per user of the data set.
        users: [k] int64, the users measured.
        targets: [k] int32.
        negatives: protocol -> int32 [k, c], 0 where there are fewer.
        all_items: whether to rank the target among all items too, without those of its history.

    Raises:
        ValueError: for no protocol at all.
    """

    histories: Sequences
    users: np.ndarray
    targets: np.ndarray
    negatives: Mapping[str, np.ndarray]
    all_items: bool = False

    def __post_init__(self) -> None:
        if not self.negatives:
            raise ValueError("`negatives` must hold at least one protocol. Received: {}")

    @classmethod
    def of(
        cls, split: LeaveOneOut, part: str, negatives: Mapping[str, np.ndarray], all_items: bool = False
    ) -> "RankingTask":
        """Makes the task of `part`, "validation" or "test"."""
        return cls(split.histories(part), split.users, split.targets(part), negatives, all_items)

    @property
    def protocols(self) -> tuple[str, ...]:
        return (*self.negatives, FULL) if self.all_items else tuple(self.negatives)

    def num_candidates(self, protocol: str) -> np.ndarray:
        """Returns how many items each user's target is ranked among, itself not counted, int64 [k]."""
        if protocol != FULL:
            return np.count_nonzero(self.negatives[protocol], axis=1)
        seen = [np.count_nonzero(self.seen(rows), axis=1) for rows in np.array_split(np.arange(len(self.users)), 64)]
        return self.histories.num_items - 1 - np.concatenate(seen)

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """Returns the items that full ranking hides: each history's, once each, without the target.

        Returns:
            int32 [rows, width], with 0 between them.
        """
        users = self.users[rows]
        lengths = self.histories.lengths[users]
        width = int(lengths.max(initial=0))
        items = np.sort(take_rows(self.histories.items, self.histories.splits[users], lengths, width), axis=1)
        again = np.zeros(items.shape, bool)
        again[:, 1:] = items[:, 1:] == items[:, :-1]
        return np.where(again | (items == self.targets[rows, None]), PAD, items)


def rank_targets(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Returns how many candidates beat the target in column 0, ties against it: int64 [k].

    Args:
        scores: float [k, 1 + c].
        candidates: int32 [k, 1 + c], 0 where there is no candidate.

    Raises:
        UserError: where a score is NaN.
    """
    _refuse_nan(np.isnan(scores[candidates > 0]).any())
    return ((scores[:, 1:] >= scores[:, :1]) & (candidates[:, 1:] > 0)).sum(axis=1)


class Ranker:
    """Ranks targets with a model; keeps its compiled scoring between measurements.

    Args:
        score: (batch, candidates) -> scores, as `Recommender.score`.
        max_history: how many of the last items the model reads; None for all.
        batch_size: users at once, fewer where the catalogue is large.
    """

    def __init__(
        self, score: Callable[[Batch, Tensor | None], Tensor], max_history: int | None = None, batch_size: int = 512
    ) -> None:
        self.max_history = max_history
        self.batch_size = batch_size
        self._score = score
        rows, singles = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
        batch = {"users": singles, "items": rows, "lengths": singles}
        self._score_candidates = tf.function(score, input_signature=[batch, rows])
        self._beaten_by = tf.function(self._beaten_by_items, input_signature=[batch, singles, rows, rows])

    def ranks(self, task: RankingTask, title: str | None = None) -> dict[str, np.ndarray]:
        """Ranks each target by every protocol of a task, in one pass over the model.

        Args:
            task: what to rank.
            title: of the progress that is shown; None for a measurement in the midst of other work.

        Returns:
            Protocol -> int32 [k], 0 for the best.

        Raises:
            UserError: where a score is NaN.
        """
        ranks = {protocol: np.empty(len(task.users), np.int32) for protocol in task.protocols}
        rank = self._rank_among_all if task.all_items else self._rank_among_candidates
        size = self._users_at_once(task)
        progress = Progress(title or "", -(-len(task.users) // size), examples_per_step=size, silent=title is None)
        for rows, batch in self._batches(task, size):
            for protocol, found in rank(task, rows, batch).items():
                ranks[protocol][rows] = found
            progress.advance()
        progress.close()
        return ranks

    def _users_at_once(self, task: RankingTask) -> int:
        most = max(1, BLOCK_ELEMENTS // task.histories.num_items) if task.all_items else self.batch_size
        return min(self.batch_size, most)

    def _batches(self, task: RankingTask, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Users of similar lengths together."""
        lengths = task.histories.lengths[task.users]
        by_length = np.argsort(lengths, kind="stable")
        for start in range(0, len(by_length), size):
            rows = by_length[start : start + size]
            width = int(min(lengths[rows].max(), self.max_history or lengths[rows].max()))
            items, kept = task.histories.last(task.users[rows], width)
            yield rows, {"users": task.users[rows].astype(np.int32), "items": items, "lengths": kept}

    def _rank_among_candidates(self, task: RankingTask, rows: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        candidates = np.concatenate(
            [task.targets[rows, None], *(negatives[rows] for negatives in task.negatives.values())], axis=1
        )
        scores = self._score_candidates(batch, candidates).numpy()
        ranks, begin = {}, 1
        for protocol, negatives in task.negatives.items():
            columns = np.r_[0, begin : begin + negatives.shape[1]]
            ranks[protocol] = rank_targets(scores[:, columns], candidates[:, columns])
            begin += negatives.shape[1]
        return ranks

    def _rank_among_all(self, task: RankingTask, rows: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        negatives = np.concatenate([negatives[rows] for negatives in task.negatives.values()], axis=1)
        total, sampled, hidden, has_nan = self._beaten_by(batch, task.targets[rows], negatives, task.seen(rows))
        _refuse_nan(bool(has_nan))
        widths = [negatives.shape[1] for negatives in task.negatives.values()]
        parts = np.split(sampled.numpy(), np.cumsum(widths)[:-1], axis=1)
        ranks = {protocol: part.sum(axis=1) for protocol, part in zip(task.negatives, parts)}
        return {**ranks, FULL: total.numpy() - hidden.numpy() - 1}

    def _beaten_by_items(
        self, batch: Batch, targets: Tensor, negatives: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns how many items reach the target's score (itself too), which negatives, and how many of the seen."""
        scores = self._score(batch, None)
        reaches = scores >= tf.gather(scores, targets[:, None] - 1, batch_dims=1)

        def of(items: Tensor) -> Tensor:
            return (items > 0) & tf.gather(reaches, tf.maximum(items - 1, 0), batch_dims=1)

        def count(which: Tensor) -> Tensor:
            return tf.math.count_nonzero(which, axis=1, dtype=tf.int32)

        return count(reaches), of(negatives), count(of(seen)), tf.reduce_any(tf.math.is_nan(scores))


def _refuse_nan(has_nan: bool) -> None:
    if has_nan:
        raise UserError("`scores` must be numbers. Received: NaN; the training has diverged")
