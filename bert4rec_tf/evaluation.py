"""Candidates, ranks and metrics: evaluation ends in one integer per user, and every metric is a line over those."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bert4rec_tf.errors import UserError
from bert4rec_tf.sequences import PAD, LeaveOneOut, Sequences

CUTOFFS = {"hr": (1, 5, 10), "ndcg": (5, 10)}
METRICS = ("hr@1", "hr@5", "hr@10", "ndcg@5", "ndcg@10", "mrr")

BLOCK_ELEMENTS = 1 << 25
"""Users are worked through in blocks whose [users, items] table has at most so many elements."""


def draw_popular(sequences: Sequences, users: np.ndarray, num_negatives: int, seed: int) -> np.ndarray:
    """Draws negatives by popularity, without replacement, among the items that each user never met.

    The law of the original's evaluation: one after the other, each item with a probability proportional to its count
    in the data, among those neither met nor drawn yet. Where fewer than `num_negatives` items are left, all of them.

    Args:
        sequences: full histories, held-out items included.
        users: [k] int64, for whom.
        num_negatives: how many for each.
        seed: decides the draws.

    Returns:
        int32 [k, num_negatives], filled with 0 on the right where there are fewer.
    """
    drawn = np.zeros((len(users), num_negatives), np.int32)
    block = max(1, min(BLOCK_ELEMENTS // (sequences.num_items + 1), len(users)))
    for number, start in enumerate(range(0, len(users), block)):
        part = slice(start, start + block)
        _draw_block(sequences, users[part], drawn[part], np.random.default_rng([seed, number]))
    return drawn


def _draw_block(sequences: Sequences, users: np.ndarray, drawn: np.ndarray, rng: np.random.Generator) -> None:
    """Fills `drawn`. A draw from all actions is a draw by popularity; one that is taken already is thrown away."""
    taken = np.zeros((len(users), sequences.num_items + 1), bool)
    taken[:, PAD] = True
    rows = np.repeat(np.arange(len(users)), sequences.lengths[users])
    taken[rows, np.concatenate([sequences[user] for user in users])] = True
    wanted = np.minimum(drawn.shape[1], (~taken).sum(axis=1))
    filled = np.zeros(len(users), np.int64)
    unfinished = np.flatnonzero(filled < wanted)
    for _ in range(20 * drawn.shape[1]):
        if not len(unfinished):
            return
        items = sequences.items[rng.integers(sequences.num_actions, size=len(unfinished))]
        fresh = ~taken[unfinished, items]
        rows, items = unfinished[fresh], items[fresh]
        drawn[rows, filled[rows]] = items
        taken[rows, items] = True
        filled[rows] += 1
        unfinished = unfinished[filled[unfinished] < wanted[unfinished]]
    for row in unfinished:
        rest = slice(filled[row], wanted[row])
        drawn[row, rest] = _race(sequences.vocabulary.counts, ~taken[row, 1:], wanted[row] - filled[row], rng)


def _race(counts: np.ndarray, free: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws `size` of the free items by the same law at once: exponential arrivals, each at the rate of its count."""
    items = np.flatnonzero(free)
    arrivals = rng.exponential(size=len(items)) / counts[items]
    return items[np.argsort(arrivals)[:size]] + 1


@dataclass(frozen=True, eq=False)
class RankingTask:
    """What a model is measured on: histories, the held-out item of each, and the candidates beside it.

    Attributes:
        histories: what comes before the held-out items, one row per user of the data set.
        users: [k] int64, the users measured.
        targets: [k] int32.
        negatives: [k, c] int32, 0 where there are fewer.
    """

    histories: Sequences
    users: np.ndarray
    targets: np.ndarray
    negatives: np.ndarray

    @classmethod
    def of(cls, split: LeaveOneOut, part: str, negatives: np.ndarray) -> "RankingTask":
        """Makes the task of `part`, "validation" or "test"."""
        return cls(split.histories(part), split.users, split.targets(part), negatives)

    @property
    def candidates(self) -> np.ndarray:
        """[k, 1 + c] int32: the target, then the negatives."""
        return np.concatenate([self.targets[:, None], self.negatives], axis=1)

    @property
    def num_candidates(self) -> np.ndarray:
        """[k] int64: how many candidates beside the target each user has."""
        return np.count_nonzero(self.negatives, axis=1)


def rank_targets(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Returns how many candidates beat the target in column 0, ties against it: int64 [k].

    Args:
        scores: float [k, 1 + c].
        candidates: int32 [k, 1 + c], 0 where there is no candidate.

    Raises:
        UserError: where a score is NaN.
    """
    if np.isnan(scores[candidates > 0]).any():
        raise UserError("`scores` must be numbers. Received: NaN; the training has diverged")
    return ((scores[:, 1:] >= scores[:, :1]) & (candidates[:, 1:] > 0)).sum(axis=1)


class Ranker:
    """Ranks targets with a model; keeps its compiled scoring between measurements.

    Args:
        score: (batch, candidates) -> scores, as `Recommender.score`.
        max_history: how many of the last items the model reads; None for all.
        batch_size: users at once.
    """

    def __init__(self, score: Callable, max_history: int | None = None, batch_size: int = 512) -> None:
        self.max_history = max_history
        self.batch_size = batch_size
        rows = tf.TensorSpec([None, None], tf.int32)
        singles = tf.TensorSpec([None], tf.int32)
        self._score = tf.function(
            lambda users, items, lengths, candidates: score(
                {"users": users, "items": items, "lengths": lengths}, candidates
            ),
            input_signature=[singles, rows, singles, rows],
        )

    def ranks(self, task: RankingTask) -> np.ndarray:
        """Returns the rank of each target, int32 [k], 0 for the best. Raises UserError where a score is NaN."""
        ranks = np.empty(len(task.users), np.int32)
        lengths = task.histories.lengths[task.users]
        by_length = np.argsort(lengths, kind="stable")
        candidates = task.candidates
        for start in range(0, len(by_length), self.batch_size):
            rows = by_length[start : start + self.batch_size]
            longest = lengths[rows].max()
            width = int(longest if self.max_history is None else min(longest, self.max_history))
            items, kept = task.histories.last(task.users[rows], width)
            scores = self._score(task.users[rows].astype(np.int32), items, kept, candidates[rows])
            ranks[rows] = rank_targets(scores.numpy(), candidates[rows])
        return ranks


def metrics(ranks: np.ndarray) -> dict[str, float]:
    """Returns the mean over users of HR@1, 5, 10, NDCG@5, 10 and MRR (section 4.2). NDCG@1 equals HR@1.

    Args:
        ranks: int [users], 0 for the best.
    """
    gains, places = 1 / np.log2(ranks + 2.0), 1 / (ranks + 1.0)
    return {
        **{f"hr@{k}": float((ranks < k).mean()) for k in CUTOFFS["hr"]},
        **{f"ndcg@{k}": float(np.where(ranks < k, gains, 0).mean()) for k in CUTOFFS["ndcg"]},
        "mrr": float(places.mean()),
    }


def random_metrics(num_candidates: np.ndarray) -> dict[str, float]:
    """Returns the expected metrics of random scores.

    Args:
        num_candidates: int [users], how many candidates each user has beside the target.
    """
    sizes, users = np.unique(num_candidates, return_counts=True)
    rows = [metrics(np.arange(size + 1)) for size in sizes]
    return {name: float(np.average([row[name] for row in rows], weights=users)) for name in METRICS}
