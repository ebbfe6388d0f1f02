"""Ranks targets among all items, block by block, so that no table of [users, items] scores is ever in memory.

Every score comes from the product of a block, even those of targets, negatives and seen items. A product of the same
vectors in another shape may round differently, and then equal items would not tie.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy import sparse

from bert4rec_tf.config.transition_settings import CompleteSettings
from bert4rec_tf.data import transitions
from bert4rec_tf.data.sequences import PAD, Sequences, number_within_groups
from bert4rec_tf.evaluation.metrics import LIST_LENGTH
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.item_transitions import ItemTransitions, find_pairs

BLOCK = 2048
"""Items of a block. With 1,024 users its scores take 8 MB, and stay in a large cache until they are counted."""

STRIP = 256
"""Items of a block of evidence. Of 10,000 items its table takes 10 MB: the cache holds the popular ones."""

PART = 1 << 17
"""Scores of a part, which some users have in a block: half a megabyte, which stays in a small cache."""

EVIDENCE_USERS = 8192
"""Users of a batch, which reads all pairs of items once."""

DENSE_ITEMS = 11_000
"""Of so many items, all pairs may be in a dense table: of half a gigabyte at most."""

MOST_NOTED = 32
"""Items per user, on average, that may be noted before they are sorted."""

LOWEST = -np.inf

SINGLES = tf.TensorSpec([None], tf.int32)
BATCH = {"users": SINGLES, "items": tf.TensorSpec([None, None], tf.int32), "lengths": SINGLES}
"""What models get, as for `Recommender.score`."""


class Buffer:
    """Memory for one table after the other. New pages for each would take longer than what is computed in them."""

    def __init__(self) -> None:
        self._table = np.empty([0, 0], np.float32)

    def take(self, rows: int, columns: int, dtype: np.dtype | type = np.float32) -> np.ndarray:
        """Returns a table [rows, columns] with any content, which the next call may return too."""
        if len(self._table) < rows or self._table.shape[1] != columns or self._table.dtype != dtype:
            self._table = np.empty([rows, columns], dtype)
        return self._table[:rows]


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
        self._vectors = tf_function(vectors, input_signature=[BATCH])
        self._table = tf.convert_to_tensor(table)
        self._biases = _pad_biases(biases, self.num_blocks * BLOCK, num_items)
        self._buffer = Buffer()

    def prepare(self, batch: Batch) -> Any:
        """Returns what the blocks of a batch are computed from: the users' vectors."""
        return self._vectors(batch)

    def get_width(self, vectors: Any) -> int:
        return BLOCK

    def score_block(self, vectors: Any, number: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields the rows of each part of a block, and their scores: column j for row number * width + j of the table.

        They are [rows, width], LOWEST if there is no item. The caller may change them. The next part overwrites them.
        """
        columns = slice(number * BLOCK, (number + 1) * BLOCK)
        table = self._table[columns]
        table = tf.pad(table, [[0, BLOCK - len(table)], [0, 0]])
        products = np.asarray(tf.matmul(vectors, table, transpose_b=True))
        for rows in split_rows(*products.shape):
            part = products[rows]
            yield rows, self._add_biases(part, columns, self._buffer.take(*part.shape))

    def score_targets(self, vectors: Any, targets: np.ndarray) -> np.ndarray:
        """Returns the scores of the targets, [b]; a few may be rounded differently from those in the blocks."""
        products = tf.matmul(vectors, tf.gather(self._table, targets), transpose_b=True)
        return self._add_biases(np.asarray(tf.linalg.diag_part(products)), targets)

    def _add_biases(
        self, products: np.ndarray, columns: slice | np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray:
        scores = np.add(products, self._biases[0][columns], out=out)
        for bias in self._biases[1:]:
            scores += bias[columns]
        return scores


def _pad_biases(biases: list[Tensor], columns: int, num_items: int) -> list[np.ndarray]:
    """Returns at least one bias, each float32 [columns]. The first is LOWEST where there is no item."""
    items = np.arange(columns)
    is_item = (items > 0) & (items <= num_items)
    padded = [np.resize(np.asarray(bias), columns) for bias in biases] or [np.zeros(columns, np.float32)]
    return [np.where(is_item, padded[0], LOWEST).astype(np.float32), *padded[1:]]


class EvidenceScores(ProductScores):
    """Scores by the evidence of histories, to the bit those of `TransitionEvidence.score`.

    The table of all pairs is dense here. SciPy adds its rows, in the order of the history.

    Args:
        pairs: what `item_transitions.find_pairs` yields, of at most DENSE_ITEMS items.
        age_weights: as for `TransitionEvidence.assign`.
        biases: as for `ProductScores`, the first one for all items; they are added to the evidence.
    """

    def __init__(self, pairs: Iterable[tuple[Any, ...]], age_weights: np.ndarray, biases: list[np.ndarray]) -> None:
        num_items = len(biases[0]) - 1
        self.num_blocks = -(-(num_items + 1) // STRIP)
        self._age_weights = age_weights
        self._biases = _pad_biases(biases, self.num_blocks * STRIP, num_items)
        self._strips = np.zeros([self.num_blocks, num_items + 1, STRIP], np.float32)
        for items, neighbors, strengths in pairs:
            strips, columns = np.divmod(neighbors, STRIP)
            self._strips[strips, items, columns] = strengths

    @classmethod
    def from_model(cls, model: ItemTransitions, biases: list[np.ndarray]) -> "EvidenceScores":
        evidence = model.evidence
        splits, neighbors, strengths = map(np.asarray, (evidence.splits, evidence.neighbors, evidence.strengths))
        parts = enumerate(itertools.starmap(slice, itertools.pairwise(splits.tolist())))
        pairs = ((item, neighbors[part], strengths[part]) for item, part in parts)
        popularity = np.asarray(evidence.mix)[1] * np.asarray(evidence.log_shares)
        return cls(pairs, np.asarray(evidence.age_weights), [popularity, *biases])

    @classmethod
    def from_sequences(cls, sequences: Sequences, settings: CompleteSettings, max_history: int) -> "EvidenceScores":
        """Does what `from_model` does for a model that counts `sequences`, without the memory for its pairs."""
        popularity = np.float32(settings.popularity_weight) * transitions.compute_log_shares(sequences.count_items())
        return cls(find_pairs(sequences, settings), transitions.weigh_ages(max_history, settings), [popularity])

    def prepare(self, batch: Batch) -> Any:
        """Returns the weights of the items of histories, in their order, sparse [b, n + 1], and again by parts."""
        items, lengths = batch["items"], batch["lengths"]
        rows, places = np.nonzero(items)
        weights = self._age_weights[lengths[rows], lengths[rows] - 1 - places]
        terms = weights, items[rows, places], np.r_[0, np.cumsum(lengths)]
        table = sparse.csr_matrix(terms, (len(items), self._strips.shape[1]))
        return table, [(rows, table[rows]) for rows in split_rows(len(items), STRIP)]

    def get_width(self, histories: Any) -> int:
        return STRIP

    def score_block(self, histories: Any, number: int) -> Iterator[tuple[slice, np.ndarray]]:
        columns = slice(number * STRIP, (number + 1) * STRIP)
        for rows, weights in histories[1]:
            part = weights @ self._strips[number]
            yield rows, self._add_biases(part, columns, out=part)

    def score_targets(self, histories: Any, targets: np.ndarray) -> np.ndarray:
        table, _ = histories
        strips, columns = np.divmod(np.repeat(targets, np.diff(table.indptr)), STRIP)
        terms = table.data * self._strips[strips, table.indices, columns]
        sums = sparse.csr_matrix((terms, np.zeros(len(terms), np.int32), table.indptr), (len(targets), 1))
        return self._add_biases(sums @ np.ones(1, np.float32), targets)


class DenseScores:
    """Any other scores: a single block has all items.

    Args:
        score: (batch, None) -> float32 [b, n], like `Recommender.score`.
    """

    num_blocks = 1

    def __init__(self, score: Callable[[Batch, Tensor | None], Tensor]) -> None:
        self._score = tf_function(lambda batch: score(batch, None), input_signature=[BATCH])
        self._buffer = Buffer()

    def prepare(self, batch: Batch) -> np.ndarray:
        scores = np.asarray(self._score(batch))
        block = self._buffer.take(len(scores), -(-(scores.shape[1] + 1) // 8) * 8, scores.dtype)  # for `_count_true`
        block.fill(LOWEST)
        block[:, 1 : scores.shape[1] + 1] = scores
        return block

    def get_width(self, block: np.ndarray) -> int:
        return block.shape[1]

    def score_block(self, block: np.ndarray, number: int) -> Iterator[tuple[slice, np.ndarray]]:
        return ((rows, block[rows]) for rows in split_rows(*block.shape))

    def score_targets(self, block: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return block[np.arange(len(block)), targets]


class CandidateIndex(NamedTuple):
    """Where the scores of p candidates are, in the order of the blocks.

    Attributes:
        in_table: int32 [p], places in the flattened table of candidates [b, c].
        in_block: int32 [p], places in the flattened scores of a block [b, width].
        is_seen: bool [p], whether the user has seen the item.
        ends: int [blocks + 1]; block i has the entries from ends[i] to ends[i + 1] - 1.
    """

    in_table: np.ndarray
    in_block: np.ndarray
    is_seen: np.ndarray
    ends: np.ndarray

    @classmethod
    def from_candidates(cls, candidates: np.ndarray, num_seen: int, width: int, num_blocks: int) -> "CandidateIndex":
        """`candidates`: int32 [b, c], 0 for none, the last `num_seen` columns seen. `width`: of a block."""
        in_table = np.flatnonzero(candidates).astype(np.int32)
        numbers = (candidates.ravel()[in_table] // width).astype(np.min_scalar_type(num_blocks))
        # A stable sort of short integers is a radix sort, ten times as fast as one of items.
        in_table = in_table[np.argsort(numbers, kind="stable")]
        rows = in_table // candidates.shape[1]
        in_block = rows * width + candidates.ravel()[in_table] % width
        ends = np.r_[0, np.cumsum(np.bincount(numbers, minlength=num_blocks))]
        is_seen = in_table - rows * candidates.shape[1] >= candidates.shape[1] - num_seen
        return cls(in_table, in_block, is_seen, ends)


class BestItems:
    """The best items of some users in the blocks so far.

    Attributes:
        items: int32 [b, LIST_LENGTH], the best first, 0 for none. In a tie the earlier item wins.
        scores: [b, LIST_LENGTH], their scores; LOWEST for none.
    """

    def __init__(self, users: int, dtype: np.dtype) -> None:
        self.items = np.zeros([users, LIST_LENGTH], np.int32)
        self.scores = np.full([users, LIST_LENGTH], LOWEST, dtype)
        self._noted: list[tuple[np.ndarray, ...]] = []

    def note(self, part: np.ndarray, rows: slice, first_item: int) -> None:
        """Notes the items in a part [rows, width] that may be among the best of their users. `add_noted` adds them.

        `first_item`: the item of column 0. Items of a user must be noted in ascending order.
        """
        limits = self.scores[rows, -1]
        is_open = limits == LOWEST
        if is_open.any():  # with as many as needed above the limit
            place = -min(LIST_LENGTH, part.shape[1])
            limits = limits.copy()
            limits[is_open] = np.partition(part[is_open], place, axis=1)[:, place]
            np.nextafter(limits, limits.dtype.type(LOWEST), out=limits, where=is_open)
        places = np.flatnonzero(part > limits[:, None])
        users, columns = np.divmod(places, part.shape[1])
        self._noted.append((rows.start + users, first_item + columns, part.reshape(-1)[places]))

    def count_noted(self) -> int:
        """Returns how many items `add_noted` would add."""
        return sum(len(users) for users, _, _ in self._noted)

    def add_noted(self) -> None:
        """Adds what has been noted, by the scores."""
        users, items, scores = (np.concatenate(arrays) for arrays in zip(*self._noted))
        self._noted.clear()
        # A stable sort of short integers is a radix sort; the items of a user stay in their order.
        order = np.argsort(users.astype(np.min_scalar_type(len(self.items))), kind="stable")
        numbers = np.bincount(users, minlength=len(self.items))
        users = np.flatnonzero(numbers)
        numbers = numbers[users]
        new = [[0, 0], [0, numbers.max(initial=0)]]
        slots = np.repeat(np.arange(len(users)), numbers), LIST_LENGTH + number_within_groups(numbers)
        all_items, all_scores = np.pad(self.items[users], new), np.pad(self.scores[users], new)
        all_scores[:, LIST_LENGTH:] = LOWEST
        all_items[slots], all_scores[slots] = items[order], scores[order]
        best = np.argsort(-all_scores, axis=1, kind="stable")[:, :LIST_LENGTH]
        self.items[users] = np.take_along_axis(all_items, best, axis=1)
        self.scores[users] = np.take_along_axis(all_scores, best, axis=1)


def _count_true(table: np.ndarray) -> np.ndarray:
    """Returns how many values of each row are True. Eight rows of bytes are added at a time, none above 255."""
    words = table.view(np.uint64)
    sums = np.add.reduceat(words, np.arange(0, words.shape[1], 255), axis=1)
    return sums.view(np.uint8).sum(axis=1, dtype=np.int32)


def split_rows(num_rows: int, width: int) -> list[slice]:
    """Returns the rows of a table, so many at a time that they have about PART numbers."""
    height = max(PART // width, 1)
    return [slice(begin, begin + height) for begin in range(0, num_rows, height)]


class FullRanking:
    """Ranks targets among all items. Keep the object between batches, because it holds the compiled functions."""

    def __init__(self, blocks: ProductScores | DenseScores) -> None:
        self.blocks = blocks

    def rank(
        self, batch: Batch, candidates: np.ndarray, num_seen: int, lists_best: bool
    ) -> tuple[np.ndarray, np.ndarray, BestItems, bool]:
        """Ranks the targets of a batch.

        Args:
            batch: as for `Recommender.score`.
            candidates: int32 [b, c], 0 for none: the target, other items, and in the last columns the seen items.
            num_seen: how many columns the seen items take.
            lists_best: whether to search the best items.

        Returns:
            How many items have at least the target's score, int32 [b], the target and seen ones included (more than
            there are if the score is LOWEST); the scores of the candidates, float32 [b, c], 0 for none; the best unseen
            items, if `lists_best`; whether a score is NaN.
        """
        source = self.blocks.prepare(batch)
        width = self.blocks.get_width(source)
        places = CandidateIndex.from_candidates(candidates, num_seen, width, self.blocks.num_blocks)
        target_scores = self.blocks.score_targets(source, candidates[:, 0])
        for _ in range(2):  # again with the target's score as this pass rounds it
            at_least_target, has_nan = np.zeros(len(candidates), np.int32), False
            scores = np.zeros(candidates.shape, target_scores.dtype)
            best = BestItems(len(candidates), target_scores.dtype)
            for number, (begin, end) in enumerate(itertools.pairwise(places.ends.tolist())):
                in_block = places.in_block[begin:end]
                for rows, part in self.blocks.score_block(source, number):
                    first, last = np.searchsorted(in_block, np.multiply([rows.start, rows.stop], width)).tolist()
                    here, cells = slice(begin + first, begin + last), part.reshape(-1)
                    in_part = places.in_block[here] - rows.start * width
                    scores.reshape(-1)[places.in_table[here]] = cells[in_part]
                    has_nan |= bool(np.isnan(part.max()))
                    at_least_target[rows] += _count_true(part >= target_scores[rows, None])
                    if lists_best:
                        cells[in_part[places.is_seen[here]]] = LOWEST
                        best.note(part, rows, number * width)
                # After 1, 2, 4, 8 ... blocks about as many items are new; more if scores rise with an item's number.
                is_due = (number + 1).bit_count() == 1 or best.count_noted() > MOST_NOTED * len(candidates)
                if lists_best and (is_due or number + 1 == self.blocks.num_blocks):
                    best.add_noted()
            if np.array_equal(scores[:, 0], target_scores):
                break
            target_scores = scores[:, 0]
        return at_least_target, scores, best, has_nan


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
        self, batch: Batch, candidates: np.ndarray, num_seen: int, lists_best: bool
    ) -> tuple[np.ndarray, np.ndarray, BestItems, bool]:
        """Does what `FullRanking.rank` does, always with the best items."""
        scores = np.where(candidates == PAD, 0, self._scores[candidates])
        total = len(self._ascending) - np.searchsorted(self._ascending, scores[:, 0])
        seen = candidates[:, candidates.shape[1] - num_seen :]
        width = min(num_seen + LIST_LENGTH, len(self._best))
        rows, columns = np.nonzero((seen != PAD) & (self._places[seen] < width))
        is_seen = np.zeros([len(seen), width], bool)
        is_seen[rows, self._places[seen[rows, columns]]] = True
        places = np.argsort(is_seen, axis=1, kind="stable")[:, :LIST_LENGTH]
        best = BestItems(len(seen), scores.dtype)
        best.items = np.where(np.take_along_axis(is_seen, places, axis=1), PAD, self._best[places])
        best.scores = self._scores[best.items]
        return total.astype(np.int32), scores, best, False
