"""Ranks the held-out items. A rank is the number of items that beat the target; one per user and protocol."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import PAD, LeaveOneOut, Sequences, take_rows
from bert4rec_tf.evaluation.metrics import FULL, LIST_LENGTH, list_metrics, metrics
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import graph
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.models.sharded_table import ShardedTable, sum_of_all

BLOCK_ELEMENTS = 1 << 25
"""In full ranking the [users, items] table of scores of a batch has at most so many elements."""

BATCH_SIZE = 512
"""Users of a batch, unless there are too many items."""

BLOCK_WIDTH = 128
"""The best items are searched for in blocks of so many columns."""

Metrics = dict[str, dict[str, float]]
"""Protocol -> metric -> value."""


@dataclass(frozen=True, eq=False)
class RankingTask:
    """What a model is evaluated on: histories, their held-out items, and the items to rank those among.

    Attributes:
        histories: the items before the held-out one, for all users of the data set.
        users: [k] int64, the users to evaluate.
        targets: [k] int32, their held-out items.
        negatives: protocol -> int32 [k, c], filled with 0 if there are fewer.
        all_items: whether to also rank the target among all items that are not in its history.

    Raises:
        ValueError: if there is no protocol.
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
        """Returns the task of `part`, "validation" or "test"."""
        return cls(split.histories(part), split.users, split.targets(part), negatives, all_items)

    @property
    def protocols(self) -> tuple[str, ...]:
        return (*self.negatives, FULL) if self.all_items else tuple(self.negatives)

    def num_candidates(self, protocol: str) -> np.ndarray:
        """Returns the number of items that each target is ranked among, without itself, int64 [k]."""
        if protocol != FULL:
            return np.count_nonzero(self.negatives[protocol], axis=1)
        seen = [np.count_nonzero(self.seen(rows), axis=1) for rows in np.array_split(np.arange(len(self.users)), 64)]
        return self.histories.num_items - 1 - np.concatenate(seen)

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """Returns the items that full ranking leaves out: the distinct items of each history, without the target.

        Returns:
            int32 [rows, width], ascending, with 0 in place of repeated items.
        """
        users = self.users[rows]
        lengths = self.histories.lengths[users]
        width = int(lengths.max(initial=0))
        items = np.sort(take_rows(self.histories.items, self.histories.splits[users], lengths, width), axis=1)
        repeated = np.zeros(items.shape, bool)
        repeated[:, 1:] = items[:, 1:] == items[:, :-1]
        return np.where(repeated | (items == self.targets[rows, None]), PAD, items)


@dataclass(frozen=True, eq=False)
class Ranked:
    """What ranking the targets of some users gave, by protocol.

    Attributes:
        ranks: int32 [k], 0 for the best.
        num_candidates: int32 [k], the number of items that each target was ranked among, without itself.
        listed: int64 [n + 1], in how many of the users' lists each item is.
    """

    ranks: dict[str, np.ndarray]
    num_candidates: dict[str, np.ndarray]
    listed: dict[str, np.ndarray]

    def metrics(self, counts: np.ndarray, num_users: int) -> Metrics:
        """Returns METRICS of the ranks, and LIST_METRICS of the lists.

        Args:
            counts: int [n], how often each item is in the histories.
            num_users: of the data.
        """
        listed = {name: list_metrics(found[1:], counts, num_users) for name, found in self.listed.items()}
        return {name: {**metrics(found), **listed[name]} for name, found in self.ranks.items()}


def rank_targets(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Returns how many candidates beat the target in column 0, int64 [k]. A tie counts as beaten.

    Args:
        scores: float [k, 1 + c].
        candidates: int32 [k, 1 + c], 0 where there is no candidate.

    Raises:
        UserError: if a score is NaN.
    """
    return reaching(scores, candidates)[:, 1:].sum(axis=1)


def reaching(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Returns which candidates reach the score of the target in column 0, bool [k, 1 + c]. As `rank_targets`."""
    _refuse_nan(np.isnan(scores[candidates > 0]).any())
    return (scores >= scores[:, :1]) & (candidates > 0)


def users_at_once(num_items: int, batch_size: int = BATCH_SIZE) -> int:
    """Returns how many users are ranked among all items in one batch."""
    return min(batch_size, max(1, BLOCK_ELEMENTS // num_items))


class Ranker:
    """Ranks targets with a model. Keep the object between evaluations, because it holds the compiled functions.

    Args:
        score: (batch, candidates) -> scores, like `Recommender.score`.
        max_history: how many of the last items the model reads; None for all.
        batch_size: users per batch; fewer if the catalogue is large.
    """

    def __init__(
        self,
        score: Callable[[Batch, Tensor | None], Tensor],
        max_history: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        self.max_history = max_history
        self.batch_size = batch_size
        rows, singles = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
        batch = {"users": singles, "items": rows, "lengths": singles}
        self._score_candidates = graph(score, input_signature=[batch, rows])
        self._score_all = graph(lambda one: score(one, None), input_signature=[batch])
        self._beaten_by = graph(_beaten_by_items, reduce_retracing=True)
        self._best_among = graph(_best_among, reduce_retracing=True)
        self._best_unseen = graph(_best_unseen, reduce_retracing=True)

    def ranks(
        self, task: RankingTask, title: str | None = None, share: tuple[int, int] = (0, 1)
    ) -> dict[str, np.ndarray]:
        """Ranks each target under every protocol, in one pass over the model.

        Args:
            task: what to rank.
            title: of the progress; None to show none.
            share: (i, n) ranks every n-th batch from batch i on, and leaves the other ranks 0. So the sum over all
                shares is what one call gives, to the bit.

        Returns:
            Protocol -> int32 [k], 0 for the best.

        Raises:
            UserError: if a score is NaN.
        """
        return self._ranks(task, title, {}, share)

    def ranked(self, task: RankingTask, title: str | None = None) -> Ranked:
        """Returns `ranks`, the numbers of candidates and what is listed.

        A list is the best LIST_LENGTH of what the target is ranked among, itself included.

        Args:
            task: what to rank, among all items too.
            title: as for `ranks`.

        Raises:
            UserError: if a score is NaN.
        """
        listed = {protocol: np.zeros(task.histories.num_items + 1, np.int64) for protocol in task.protocols}
        ranks = self._ranks(task, title, listed)
        return Ranked(ranks, {name: task.num_candidates(name).astype(np.int32) for name in task.protocols}, listed)

    def measure(self, task: RankingTask) -> Metrics:
        """Returns every metric of every protocol (`Ranked.metrics`)."""
        return self.ranked(task).metrics(task.histories.counts()[1:], task.histories.num_users)

    def _ranks(
        self, task: RankingTask, title: str | None, listed: dict[str, np.ndarray], share: tuple[int, int] = (0, 1)
    ) -> dict[str, np.ndarray]:
        """Returns the ranks, and counts in `listed` how many lists each item is in: protocol -> int64 [n + 1]."""
        ranks = {protocol: np.zeros(len(task.users), np.int32) for protocol in task.protocols}
        size = self._users_at_once(task)
        progress = Progress(title or "", -(-len(task.users) // size), examples_per_step=size, silent=title is None)
        for rows, batch in itertools.islice(self._batches(task, size), share[0], None, share[1]):
            if task.all_items:
                found = self._rank_among_all(task, rows, batch, listed)
            else:
                found = self._rank_among_candidates(task, rows, batch)
            for protocol, values in found.items():
                ranks[protocol][rows] = values
            progress.advance()
        progress.close()
        return ranks

    def candidate_scores(self, task: RankingTask) -> tuple[np.ndarray, np.ndarray]:
        """Returns the scores of the target (column 0) and of every negative, and the items in these columns.

        Returns:
            float32 and int32 [k, 1 + c]; the item 0 stands where there is none.
        """
        candidates = np.concatenate([task.targets[:, None], *task.negatives.values()], axis=1)
        scores = np.empty(candidates.shape, np.float32)
        for rows, batch in self._batches(task, self.batch_size):
            scores[rows] = self._score_candidates(batch, candidates[rows]).numpy()
        return scores, candidates

    def _users_at_once(self, task: RankingTask) -> int:
        return users_at_once(task.histories.num_items, self.batch_size) if task.all_items else self.batch_size

    def _batches(self, task: RankingTask, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Yields batches of users with histories of similar length."""
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
        reaching, ranks, begin = self._reaching(batch, candidates), {}, 1
        for protocol, negatives in task.negatives.items():
            ranks[protocol] = reaching[:, begin : begin + negatives.shape[1]].sum(axis=1)
            begin += negatives.shape[1]
        return ranks

    def _reaching(self, batch: Batch, candidates: np.ndarray) -> np.ndarray:
        """Returns which candidates [b, c] beat the target in column 0."""
        return reaching(self._score_candidates(batch, candidates).numpy(), candidates)

    def _rank_among_all(
        self, task: RankingTask, rows: np.ndarray, batch: Batch, listed: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        negatives = np.concatenate([negatives[rows] for negatives in task.negatives.values()], axis=1)
        scores, targets, seen = self._score_all(batch), task.targets[rows], task.seen(rows)
        total, sampled, hidden, has_nan = self._beaten_by(scores, targets, negatives, seen)
        _refuse_nan(bool(has_nan))
        for protocol, counts in listed.items():
            if protocol == FULL:
                best = self._best_unseen(scores, seen)
            else:
                best = self._best_among(scores, np.c_[task.negatives[protocol][rows], targets])
            counts += np.bincount(best.numpy().ravel(), minlength=len(counts))
        widths = [negatives.shape[1] for negatives in task.negatives.values()]
        parts = np.split(sampled.numpy(), np.cumsum(widths)[:-1], axis=1)
        ranks = {protocol: part.sum(axis=1) for protocol, part in zip(task.negatives, parts)}
        return {**ranks, FULL: total.numpy() - hidden.numpy() - 1}


class ShardedRanker(Ranker):
    """Ranks targets among candidates with a model whose item table is sharded. All workers rank the same task.

    Each encodes its part of the users and scores the candidates that it holds. So a rank is a sum of counts.

    Args:
        model: the model.
        table: its `sharded`.
        strategy: of the workers, with one device each.
    """

    def __init__(self, model: Recommender, table: ShardedTable, strategy: tf.distribute.Strategy) -> None:
        super().__init__(model.score, model.max_history)

        def on_replica(batch: Batch, candidates: Tensor) -> tuple[Tensor, Tensor]:
            scores = table.own_scores(_user_vectors(model, table, batch), candidates)
            (targets,) = sum_of_all([scores[:, :1]])
            is_own = table.is_own(candidates)
            beats = (scores >= targets) & is_own & (candidates > 0)
            is_nan = tf.math.count_nonzero(tf.math.is_nan(scores) & (candidates > 0), dtype=tf.int32)
            return tuple(sum_of_all([tf.cast(beats, tf.int32), is_nan]))

        rows, singles = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
        batch = {"users": singles, "items": rows, "lengths": singles}
        self._beaten = graph(lambda *given: strategy.run(on_replica, args=given), input_signature=[batch, rows])

    def _reaching(self, batch: Batch, candidates: np.ndarray) -> np.ndarray:
        beats, is_nan = self._beaten(batch, candidates)
        _refuse_nan(bool(is_nan))
        return beats.numpy()


def _user_vectors(model: Recommender, table: ShardedTable, batch: Batch) -> tf.Tensor:
    """Returns the vectors of all users of a batch, of whom every worker encodes some."""
    context, count = tf.distribute.get_replica_context(), tf.shape(batch["items"])[0]
    looked_up = table.look_up(model.rows_read(batch))
    number = context.replica_id_in_sync_group
    begin = number * count // context.num_replicas_in_sync
    end = (number + 1) * count // context.num_replicas_in_sync
    part = {name: values[begin:end] for name, values in batch.items()}
    vectors = model.user_vectors({**part, **looked_up})
    return sum_of_all([tf.pad(vectors, [[begin, count - end], [0, 0]])])[0]


def _beaten_by_items(
    scores: Tensor, targets: Tensor, negatives: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns how many items reach the target's score (the target included), which negatives do, how many seen items
    do, and whether a score is NaN. `scores`: [b, n], column i - 1 for item i."""
    reaches = scores >= tf.gather(scores, targets[:, None] - 1, batch_dims=1)

    def of(items: Tensor) -> Tensor:
        return (items > 0) & tf.gather(reaches, tf.maximum(items - 1, 0), batch_dims=1)

    def count(which: Tensor) -> Tensor:
        return tf.math.count_nonzero(which, axis=1, dtype=tf.int32)

    return count(reaches), of(negatives), count(of(seen)), tf.reduce_any(tf.math.is_nan(scores))


def _best_among(scores: Tensor, items: Tensor) -> Tensor:
    """Returns the best of some items, int32 [b, c] with 0 for none: int32 [b, LIST_LENGTH or c].

    Among equal scores the earlier column wins, so a target in the last one loses, as in its rank.
    """
    chosen = tf.where(items > 0, tf.gather(scores, tf.maximum(items - 1, 0), batch_dims=1), -np.inf)
    values, columns = tf.math.top_k(chosen, tf.minimum(LIST_LENGTH, tf.shape(items)[1]))
    return tf.where(values > -np.inf, tf.gather(items, columns, batch_dims=1), PAD)


def _best_unseen(scores: Tensor, seen: Tensor) -> Tensor:
    """Returns the best items but those seen, int32 [b, any] with 0 for none: int32 [b, LIST_LENGTH or more].

    The best lie in the blocks of columns with the best maxima, so only these few are sorted, which takes a third of the
    time. Among equal scores the earlier item wins, for the earlier block does.
    """
    places = tf.where(seen > 0)
    hidden = tf.stack([tf.cast(places[:, 0], tf.int32), tf.gather_nd(seen, places) - 1], axis=1)
    lowest = tf.cast(-np.inf, scores.dtype)
    padded = tf.pad(scores, [[0, 0], [0, -tf.shape(scores)[1] % BLOCK_WIDTH]], constant_values=lowest)
    padded = tf.tensor_scatter_nd_update(padded, hidden, tf.fill([tf.shape(hidden)[0]], lowest))
    blocks = tf.reshape(padded, [tf.shape(padded)[0], -1, BLOCK_WIDTH])
    _, chosen = tf.math.top_k(tf.reduce_max(blocks, axis=2), tf.minimum(LIST_LENGTH, tf.shape(blocks)[1]))
    chosen = tf.sort(chosen, axis=1)
    among = tf.reshape(tf.gather(blocks, chosen, batch_dims=1), [tf.shape(padded)[0], -1])
    values, columns = tf.math.top_k(among, LIST_LENGTH)
    items = tf.gather(chosen, columns // BLOCK_WIDTH, batch_dims=1) * BLOCK_WIDTH + columns % BLOCK_WIDTH + 1
    return tf.where(values > -np.inf, items, PAD)


def _refuse_nan(has_nan: bool) -> None:
    if has_nan:
        raise UserError("`scores` must be numbers. Received: NaN; the training has diverged")
