"""Counts how often one item comes near another in histories, and turns counts into evidence. Only NumPy and SciPy."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from bert4rec_tf.config.transition_settings import CompleteSettings
from bert4rec_tf.data.sequences import PAD, Sequences, make_splits, number_within_groups

BLOCK_ACTIONS = 1 << 13
"""To limit memory, first items are counted in blocks of about this many actions, or of one item."""

LARGEST_BITS = (1 << 31) - 1
"""The bits of positive float32 values are integers up to this one."""


@dataclass(frozen=True, eq=False)
class TransitionCounts:
    """The counts of some pairs at each distance, so that many weightings can use them.

    Attributes:
        pairs: the pairs that occur, [first items, n + 1]. The data have no meaning.
        counts: the counts of each of these pairs, int [pairs, 2 x window]: after it at distance 1, before it at
            distance 1, after it at distance 2, and so on.
    """

    pairs: sparse.csr_matrix
    counts: sparse.csr_matrix

    def combine(self, distance_weights: np.ndarray, backward: float) -> sparse.csr_matrix:
        """Returns the weighted counts C, float64 [first items, n + 1]. Some may be 0.

        C(b, a) adds `distance_weights[d - 1]` each time that a is d places after b in a history, and `backward` times
        that each time that it is d places before. The terms of a pair are added in order of distance, so equal pairs
        have equal bits, in whatever order the histories are.
        """
        weights = np.zeros(self.counts.shape[1])
        weights[: 2 * len(distance_weights)] = np.outer(distance_weights, [1.0, backward]).ravel()
        return sparse.csr_matrix((self.counts @ weights, self.pairs.indices, self.pairs.indptr), self.pairs.shape)


def count_transitions(
    sequences: Sequences, window: int, block_actions: int = BLOCK_ACTIONS
) -> Iterator[tuple[int, TransitionCounts]]:
    """Yields the first item of each block, and its counts at distances 1 to `window`."""
    size, width = sequences.num_items + 1, 2 * window
    slots = np.zeros(sequences.num_actions + window * (sequences.num_users + 1), np.int32)  # PAD between histories
    places = np.repeat(window * np.arange(1, sequences.num_users + 1), sequences.lengths)
    places += np.arange(sequences.num_actions)
    slots[places] = sequences.items
    item_places = places[np.argsort(sequences.items, kind="stable")]
    bounds = make_splits(sequences.count_items())
    steps = np.outer(np.arange(1, window + 1), [1, -1]).ravel()
    column_bits, item_bits = width.bit_length(), size.bit_length()
    first = 0
    while first < size:
        end = max(int(np.searchsorted(bounds, bounds[first] + block_actions, side="right")) - 1, first + 1)
        block_places = item_places[bounds[first] : bounds[end]]
        # One number has the row, the item near it, and their distance. Short numbers are sorted in half the time.
        dtype = np.min_scalar_type((end - first) << (item_bits + column_bits)).type
        rows = (slots[block_places] - first).astype(dtype) << dtype(item_bits + column_bits)
        parts = []
        for column, step in enumerate(steps):
            items = slots[block_places + step]
            is_item = items != PAD
            parts.append(rows[is_item] | (items[is_item].astype(dtype) << dtype(column_bits)) | dtype(column))
        keys, numbers = np.unique(np.concatenate(parts), return_counts=True)
        columns, keys = (keys & dtype((1 << column_bits) - 1)).astype(np.int32), keys >> dtype(column_bits)
        is_first = np.r_[True, keys[1:] != keys[:-1]][: len(keys)]  # they are sorted; np.unique would sort again
        begins = np.flatnonzero(is_first)
        counts = sparse.csr_matrix((numbers, columns, np.r_[begins, len(keys)]), (len(begins), width))
        keys = keys[begins]
        ends = np.searchsorted(keys, np.arange(end - first + 1).astype(dtype) << dtype(item_bits))
        followers = (keys & dtype((1 << item_bits) - 1)).astype(np.int32)
        pairs = sparse.csr_matrix((np.zeros(len(keys), bool), followers, ends), (end - first, size))
        yield first, TransitionCounts(pairs, counts)
        first = end


def weigh_distances(window: int, power: float, decay: float) -> np.ndarray:
    """Returns the weight of each distance d = 1 .. `window`, float64: decay^(d - 1) / d^power."""
    distances = np.arange(1.0, window + 1)
    return decay ** (distances - 1) / distances**power


def weigh_ages(max_history: int, settings: CompleteSettings) -> np.ndarray:
    """Returns how much each item of a history counts, float32 [max_history + 1, max_history].

    Row l is for histories of l items, the newest first, then zeros. Its sum is 1. The newest `recent_items` share
    `recent_share` in proportion to decay^age / (age + 1)^power, where the newest has age 0. The older items share the
    rest evenly; without older items, the newest share everything.
    """
    ages = np.arange(max_history)
    kernel = settings.history_decay ** ages.astype(float) / (ages + 1.0) ** settings.history_power
    weights = np.zeros((max_history + 1, max_history), np.float32)
    for length in range(1, max_history + 1):
        num_recent = min(length, settings.recent_items)
        share = settings.recent_share if length > num_recent else 1.0
        weights[length, :num_recent] = share * kernel[:num_recent] / kernel[:num_recent].sum()
        weights[length, num_recent:length] = (1 - share) / max(length - num_recent, 1)
    return weights


def weigh_evidence(counts: sparse.csr_matrix, smoothing: float, num_items: int) -> sparse.csr_matrix:
    """Returns log(1 + C n / tau) of every pair's count C, float32. `smoothing`: tau."""
    evidence = counts.data * num_items / smoothing
    evidence = np.log1p(evidence, out=evidence).astype(np.float32)
    return sparse.csr_matrix((evidence, counts.indices, counts.indptr), counts.shape)


def compute_log_shares(counts: np.ndarray) -> np.ndarray:
    """Returns log p of each item, float32 [n + 1], p = (count + 1) / (sum of counts + n); entry 0 is 0.

    `counts`: how often each item occurs, int64 [n + 1].
    """
    shares = np.log(counts + 1.0) - np.log(counts.sum() + len(counts) - 1.0)
    return np.r_[0.0, shares[1:]].astype(np.float32)


def order_items(log_shares: np.ndarray) -> np.ndarray:
    """Returns the items with the largest log p first (`compute_log_shares`), equal ones in an order drawn once.

    Their numbers are no order for counting: they follow the counts of all actions, so held-out ones would decide.
    """
    return np.lexsort((np.random.default_rng(0).permutation(len(log_shares)), -log_shares))


def select_strongest_pairs(
    evidence: sparse.csr_matrix, limit: int, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows, columns and values of the `limit` largest values of each row, the largest first.

    Zeros are left out. `order`: all columns; of equal values, those of its first columns come first.
    """
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    # One number has the row, the bits of the value (31, in the values' order) and the rank, so one sort is enough.
    column_bits = int(evidence.shape[1]).bit_length()
    height = 1 << (32 - column_bits)
    parts = []
    for begin in range(0, evidence.shape[0], height):
        part = evidence[begin : begin + height]
        rows = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))
        is_kept = part.data > 0
        keys = (rows << 31) + (LARGEST_BITS - part.data.view(np.int32))
        keys = np.sort((keys[is_kept] << column_bits) + ranks[part.indices[is_kept]])
        rows = keys >> (column_bits + 31)
        is_kept = number_within_groups(np.bincount(rows)) < limit
        keys, rows = keys[is_kept], rows[is_kept]
        values = (LARGEST_BITS - (keys >> column_bits & LARGEST_BITS)).astype(np.int32).view(np.float32)
        parts.append((begin + rows, order[keys & ((1 << column_bits) - 1)].astype(evidence.indices.dtype), values))
    rows, columns, values = (np.concatenate(part) for part in zip(*parts))
    return rows, columns, values
