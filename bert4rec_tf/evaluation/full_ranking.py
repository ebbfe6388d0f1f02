"""Ranks targets among all items, block by block, so that no table of [users, items] scores is ever in memory.

Every score comes from the product of a block, even those of targets, negatives and seen items. A product of the same
vectors in another shape may round differently, and then equal items would not tie.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy import sparse

from bert4rec_tf.data.sequences import PAD
from bert4rec_tf.evaluation.metrics import LIST_LENGTH
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.item_transitions import ItemTransitions

BLOCK = 2048
"""Items of a block. With 1,024 users its scores take 8 MB, and stay in a large cache until they are counted."""

GROUP = 16
"""The best items are searched for in groups of so many columns."""

DENSE_ITEMS = 11_000
"""Of so many items, all pairs may be in a dense table: of half a gigabyte at most."""

LOWEST = -np.inf


class ProductScores:
    """Scores that are products of a user's vector and the items' rows.

    Args:
        vectors: batch -> float32 [b, d], the users' vectors.
        table: float32 [n + 1 or more, d], row i for item i.
        biases: float32, one entry for each row of the table; they are added one after the other.
        num_items: n.
    """

    def __init__(self, vectors: Callable[[Batch], Tensor], table: Tensor, biases: list[Tensor], num_items: int) -> None:
        self.num_blocks = -(-(num_items + 1) // BLOCK)
        self._vectors = vectors
        self._table = tf.convert_to_tensor(table)
        self._biases = _pad_biases(biases, self.num_blocks * BLOCK, num_items)

    def prepare(self, batch: Batch) -> Tensor:
        """Returns what the blocks of a batch are computed from: the users' vectors."""
        return self._vectors(batch)

    def get_width(self, vectors: Tensor) -> int:
        return BLOCK

    def score_block(self, vectors: Tensor, number: Tensor) -> Tensor:
        """Returns the scores of a block, float32 [b, width]: column j for row number * width + j; LOWEST if no item."""
        begin = number * BLOCK
        rows = self._table[begin : begin + BLOCK]
        rows = tf.pad(rows, [[0, BLOCK - tf.shape(rows)[0]], [0, 0]])
        return self._add_biases(tf.matmul(vectors, rows, transpose_b=True), lambda bias: bias[begin : begin + BLOCK])

    def score_targets(self, vectors: Tensor, targets: Tensor) -> Tensor:
        """Returns the scores of the targets, float32 [b]; a few may be rounded differently from those in the blocks."""
        products = tf.matmul(vectors, tf.gather(self._table, targets), transpose_b=True)
        return self._add_biases(tf.linalg.diag_part(products), lambda bias: tf.gather(bias, targets))

    def _add_biases(self, scores: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        for bias in self._biases:
            scores += part(bias)
        return scores


def _pad_biases(biases: list[Tensor], columns: int, num_items: int) -> list[Tensor]:
    """Returns at least one bias, each float32 [columns]. The first is LOWEST where there is no item."""
    items = np.arange(columns)
    is_item = (items > 0) & (items <= num_items)
    padded = [np.resize(np.asarray(bias), columns) for bias in biases] or [np.zeros(columns, np.float32)]
    return [tf.constant(np.where(is_item, padded[0], LOWEST), tf.float32), *map(tf.constant, padded[1:])]


class EvidenceScores(ProductScores):
    """Scores by the evidence of histories, to the bit those of `TransitionEvidence.score`.

    The table of all pairs is dense here. SciPy adds its rows, in the order of the history.

    Args:
        model: a model of at most DENSE_ITEMS items that has counted.
        biases: as for `ProductScores`; they are added to the score.
    """

    def __init__(self, model: ItemTransitions, biases: list[Tensor]) -> None:
        evidence, num_items = model.evidence, model.num_items
        self.num_blocks = -(-(num_items + 1) // BLOCK)
        self._vectors = model.user_vectors
        self._gain, popularity, _ = np.asarray(evidence.mix)
        biases = [popularity * np.asarray(evidence.log_shares), *biases]
        self._biases = _pad_biases(biases, self.num_blocks * BLOCK, num_items)
        parts = (evidence.splits, evidence.neighbors, evidence.strengths)
        splits, neighbors, strengths = (np.asarray(part) for part in parts)
        self._blocks = np.zeros([self.num_blocks, num_items + 1, BLOCK], np.float32)
        for item, (begin, end) in enumerate(itertools.pairwise(splits.tolist())):
            blocks, columns = np.divmod(neighbors[begin:end], BLOCK)
            self._blocks[blocks, item, columns] = strengths[begin:end]

    def score_block(self, vectors: Tensor, number: Tensor) -> Tensor:
        sums = tf.ensure_shape(tf.numpy_function(self._sum_block, [vectors, number], tf.float32), [None, BLOCK])
        begin = number * BLOCK
        return self._add_biases(self._gain * sums, lambda bias: bias[begin : begin + BLOCK])

    def score_targets(self, vectors: Tensor, targets: Tensor) -> Tensor:
        sums = tf.ensure_shape(tf.numpy_function(self._sum_targets, [vectors, targets], tf.float32), [None])
        return self._add_biases(self._gain * sums, lambda bias: tf.gather(bias, targets))

    def _sum_block(self, vectors: np.ndarray, number: int) -> np.ndarray:
        items, weights = np.split(vectors, 2, axis=1)
        is_item = items != PAD
        ends = np.r_[0, np.cumsum(np.count_nonzero(is_item, axis=1))]
        terms = weights[is_item], items[is_item].astype(np.int32), ends
        return sparse.csr_matrix(terms, (len(items), self._blocks.shape[1])) @ self._blocks[number]

    def _sum_targets(self, vectors: np.ndarray, targets: np.ndarray) -> np.ndarray:
        items, weights = np.split(vectors.T, 2)
        blocks, columns = np.divmod(targets, BLOCK)
        terms = weights * self._blocks[blocks, items.astype(np.int32), columns]
        return sum(terms, np.zeros(len(targets), np.float32))  # in the order of the history


class DenseScores:
    """Any other scores: a single block has all items.

    Args:
        score: (batch, None) -> float32 [b, n], like `Recommender.score`.
    """

    num_blocks = 1

    def __init__(self, score: Callable[[Batch, Tensor | None], Tensor]) -> None:
        self._score = score

    def prepare(self, batch: Batch) -> Tensor:
        scores = self._score(batch, None)
        return tf.pad(
            scores, [[0, 0], [1, -(1 + tf.shape(scores)[1]) % GROUP]], constant_values=tf.cast(LOWEST, scores.dtype)
        )

    def get_width(self, scores: Tensor) -> int:
        return scores.shape[1]

    def score_block(self, scores: Tensor, number: Tensor) -> Tensor:
        return scores

    def score_targets(self, scores: Tensor, targets: Tensor) -> Tensor:
        return tf.gather(scores, targets, batch_dims=1)


class CandidateIndex(NamedTuple):
    """Where the scores of p candidates are, in the order of the blocks.

    Attributes:
        in_table: int32 [p], places in the flattened table of candidates [b, c].
        in_block: int32 [p], places in the flattened scores of a block [b, width].
        is_seen: bool [p], whether the user has seen the item.
        ends: int32 [blocks + 1]; block i has the entries from ends[i] to ends[i + 1] - 1.
    """

    in_table: np.ndarray
    in_block: np.ndarray
    is_seen: np.ndarray
    ends: np.ndarray

    @classmethod
    def from_candidates(cls, candidates: np.ndarray, num_seen: int, width: int, num_blocks: int) -> "CandidateIndex":
        """`candidates`: int32 [b, c], 0 for none, the last `num_seen` columns seen. `width`: of a block."""
        in_table = np.flatnonzero(candidates > 0)
        numbers = (candidates.ravel()[in_table] // width).astype(np.min_scalar_type(num_blocks))
        # A stable sort of short integers is a radix sort, ten times as fast as one of items.
        in_table = in_table[np.argsort(numbers, kind="stable")]
        rows, columns = np.divmod(in_table, candidates.shape[1])
        in_block = rows * width + candidates.ravel()[in_table] % width
        ends = np.r_[0, np.cumsum(np.bincount(numbers, minlength=num_blocks))]
        is_seen = columns >= candidates.shape[1] - num_seen
        return cls(in_table.astype(np.int32), in_block.astype(np.int32), is_seen, ends.astype(np.int32))


class RankState(NamedTuple):
    """The counts and the best items after some of the blocks.

    Attributes:
        at_least_target: int32 [b], how many items have at least the target's score, the target included.
        has_nan: bool [], whether a score is NaN.
        maxima: [b, LIST_LENGTH], the best score of each of the groups with the best unseen items.
        groups: int32 [b, LIST_LENGTH], these groups; group g is the GROUP rows from g * GROUP.
        scores: [b, LIST_LENGTH, GROUP], all of their scores.
    """

    at_least_target: Tensor
    has_nan: Tensor
    maxima: Tensor
    groups: Tensor
    scores: Tensor

    @classmethod
    def start(cls, target_scores: Tensor) -> "RankState":
        """Returns the state before the first block. `target_scores`: [b]."""
        rows = tf.size(target_scores)
        scores = tf.fill([rows, LIST_LENGTH, GROUP], tf.cast(LOWEST, target_scores.dtype))
        at_least_target, groups = tf.zeros([rows], tf.int32), tf.zeros([rows, LIST_LENGTH], tf.int32)
        return cls(at_least_target, tf.constant(False), scores[:, :, 0], groups, scores)

    def add_block(self, block: Tensor, first_group: Tensor, target_scores: Tensor, seen: Tensor) -> "RankState":
        """Returns the state after a block's scores [b, w]. `target_scores`: [b]. `seen`: places in it, int32 [s]."""
        at_least_target = self.at_least_target + tf.reduce_sum(
            tf.cast(block >= target_scores[:, None], tf.int32), axis=1
        )
        hidden = tf.fill(tf.shape(seen), tf.cast(LOWEST, block.dtype))
        unseen = tf.tensor_scatter_nd_update(tf.reshape(block, [-1]), seen[:, None], hidden)
        grouped = tf.reshape(unseen, [tf.shape(block)[0], -1, GROUP])
        maxima = tf.reduce_max(grouped, axis=2)
        has_nan = self.has_nan | tf.reduce_any(tf.math.is_nan(maxima))
        # Among equal maxima the earlier group stays, so among equal scores the earlier item is listed.
        maxima, selected = tf.math.top_k(tf.concat([self.maxima, maxima], axis=1), LIST_LENGTH)
        old, new = tf.minimum(selected, LIST_LENGTH - 1), tf.maximum(selected - LIST_LENGTH, 0)
        is_new = selected >= LIST_LENGTH
        groups = tf.where(is_new, first_group + new, tf.gather(self.groups, old, batch_dims=1))
        scores = tf.where(
            is_new[:, :, None], tf.gather(grouped, new, batch_dims=1), tf.gather(self.scores, old, batch_dims=1)
        )
        return RankState(at_least_target, has_nan, maxima, groups, scores)

    def list_best(self) -> tuple[Tensor, Tensor]:
        """Returns the best unseen items, int32 [b, LIST_LENGTH], 0 for none, and their scores.

        In a tie the earlier item wins.
        """
        order = tf.argsort(self.groups, axis=1, stable=True)
        groups, scores = (tf.gather(part, order, batch_dims=1) for part in (self.groups, self.scores))
        values, columns = tf.math.top_k(tf.reshape(scores, [tf.shape(groups)[0], -1]), LIST_LENGTH)
        items = tf.gather(groups, columns // GROUP, batch_dims=1) * GROUP + columns % GROUP
        return tf.where(values > LOWEST, items, PAD), values


class FullRanking:
    """Ranks targets among all items. Keep the object between batches, because it holds the compiled functions."""

    def __init__(self, blocks: ProductScores | DenseScores, batch: dict[str, tf.TensorSpec]) -> None:
        self.blocks = blocks
        self._prepare = tf_function(blocks.prepare, input_signature=[batch])
        self._score_targets = tf_function(blocks.score_targets, reduce_retracing=True)
        self._scan = tf_function(self._scan_blocks, reduce_retracing=True)

    def rank(
        self, batch: Batch, candidates: np.ndarray, num_seen: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
        """Ranks the targets of a batch.

        Args:
            batch: as for `Recommender.score`.
            candidates: int32 [b, c], 0 for none: the target, other items, and in the last columns the seen items.
            num_seen: how many columns the seen items take.

        Returns:
            How many items have at least the target's score, int32 [b], the target and seen ones included (more than
            there are if the score is LOWEST); the scores of the candidates, float32 [b, c], 0 for none; the best unseen
            items, int32 [b, LIST_LENGTH], and their scores; whether a score is NaN.
        """
        source = self._prepare(batch)
        places = CandidateIndex.from_candidates(
            candidates, num_seen, self.blocks.get_width(source), self.blocks.num_blocks
        )
        target_scores = self._score_targets(source, candidates[:, 0]).numpy()
        # As an array, because a graph is traced again for every other tuple.
        shape = np.array(candidates.shape, np.int32)
        for _ in range(2):  # again with the target's score as this pass rounds it
            results = self._scan(source, target_scores, places, shape)
            at_least_target, has_nan, best, best_scores, scores = (result.numpy() for result in results)
            if np.array_equal(scores[:, 0], target_scores):
                break
            target_scores = scores[:, 0]
        return at_least_target, scores, best, best_scores, bool(has_nan)

    def _scan_blocks(
        self, source: Tensor, target_scores: Tensor, places: CandidateIndex, shape: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns `at_least_target`, `has_nan` and `list_best()` of `RankState`, and the scores of the candidates."""

        def step(number: Tensor, state: RankState, values: tf.TensorArray) -> tuple[Tensor, RankState, tf.TensorArray]:
            block = self.blocks.score_block(source, number)
            here = slice(places.ends[number], places.ends[number + 1])
            in_block = places.in_block[here]
            values = values.write(number, tf.gather(tf.reshape(block, [-1]), in_block))
            seen = tf.boolean_mask(in_block, places.is_seen[here])
            return number + 1, state.add_block(block, number * tf.shape(block)[1] // GROUP, target_scores, seen), values

        values = tf.TensorArray(target_scores.dtype, self.blocks.num_blocks, infer_shape=False, element_shape=[None])
        start = (tf.constant(0), RankState.start(target_scores), values)
        _, state, values = tf.while_loop(
            lambda number, *_: number < self.blocks.num_blocks, step, start, parallel_iterations=1
        )
        scores = tf.scatter_nd(places.in_table[:, None], values.concat(), tf.reduce_prod(shape)[None])
        return state.at_least_target, state.has_nan, *state.list_best(), tf.reshape(scores, shape)


class SharedRanking:
    """Ranks targets like `FullRanking` if an item has the same score for every user.

    `scores`: float32 [n + 1], entry 0 unused.
    """

    def __init__(self, scores: np.ndarray) -> None:
        self._scores = scores
        self._ascending = np.sort(scores[1:])
        self._best = np.argsort(-scores[1:], kind="stable").astype(np.int32) + 1
        self._places = np.empty_like(self._best, shape=len(scores))
        self._places[self._best] = np.arange(len(self._best))

    def rank(
        self, batch: Batch, candidates: np.ndarray, num_seen: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
        """Does what `FullRanking.rank` does."""
        scores = np.where(candidates == PAD, 0, self._scores[candidates])
        total = len(self._ascending) - np.searchsorted(self._ascending, scores[:, 0])
        seen = candidates[:, candidates.shape[1] - num_seen :]
        width = min(num_seen + LIST_LENGTH, len(self._best))
        rows, columns = np.nonzero((seen != PAD) & (self._places[seen] < width))
        is_seen = np.zeros([len(seen), width], bool)
        is_seen[rows, self._places[seen[rows, columns]]] = True
        places = np.argsort(is_seen, axis=1, kind="stable")[:, :LIST_LENGTH]
        best = np.where(np.take_along_axis(is_seen, places, axis=1), PAD, self._best[places])
        return total.astype(np.int32), scores, best, self._scores[best], False
