"""Counts how often two items occur at each distance in histories. Only NumPy and SciPy.

Counts of different distances are separate, so that many weightings of the distances can use them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import sparse

from bert4rec_tf.config.transition_settings import CompleteSettings
from bert4rec_tf.data.sequences import Sequences

BLOCK_ACTIONS = 1 << 20
"""To limit memory, first items are counted in blocks of about this many actions, or of one item."""


@dataclass(frozen=True, eq=False)
class TransitionCounts:
    """The counts of the pairs whose first item is one of a block of items.

    A pair (b, a) has one number per direction and distance d: how often a occurs d positions after b, and how often d
    positions before it, in all histories.

    Attributes:
        first_item: the first items are `first_item` and those after it, one row each.
        pairs: the pairs that occur, [rows, n + 1], with the place of each pair in its `data` as its value.
        forward, backward: for each distance from 1 on, the places of the pairs and their counts, int64 and float64.
    """

    first_item: int
    pairs: sparse.csr_matrix
    forward: list[tuple[np.ndarray, np.ndarray]]
    backward: list[tuple[np.ndarray, np.ndarray]]

    def combine(self, distance_weights: np.ndarray, backward: float) -> sparse.csr_matrix:
        """Returns the weighted sums of the counts, float64 [rows, n + 1].

        An item d positions after the first has the weight `distance_weights[d - 1]`; one d positions before it,
        `backward` times that. The terms of a pair are added in order of distance, so equal pairs have equal bits.
        """
        sums = np.zeros(self.pairs.nnz)
        for weight, (places, counts), (places_before, counts_before) in zip(
            distance_weights, self.forward, self.backward
        ):
            sums[places] += counts * weight
            if backward:
                sums[places_before] += counts_before * weight * backward
        return sparse.csr_matrix((sums, self.pairs.indices, self.pairs.indptr), self.pairs.shape)


def count_transitions(
    sequences: Sequences, window: int, block_actions: int = BLOCK_ACTIONS
) -> Iterator[TransitionCounts]:
    """Yields the counts for distances 1 to `window`, one block of first items after the other.

    `block_actions`: about how many actions the items of a block have.
    """
    items, counts = sequences.items, sequences.count_items()
    begins, ends = (np.repeat(edges, sequences.lengths) for edges in (sequences.splits[:-1], sequences.splits[1:]))
    by_item = np.argsort(items, kind="stable")
    last_items = np.flatnonzero(np.diff(np.cumsum(counts) // block_actions, append=-1))
    bounds = np.concatenate([[0], np.cumsum(counts)[last_items]])
    first_items = [0, *(last_items + 1).tolist()]
    for (start, end), (first, after) in zip(pairwise(bounds.tolist()), pairwise(first_items)):
        places = by_item[start:end]
        shape = (after - first, sequences.num_items + 1)

        def count(
            step: int, places: np.ndarray = places, first: int = first, shape: tuple = shape
        ) -> sparse.csr_matrix:
            other_places = places + step
            inside = (other_places >= begins[places]) & (other_places < ends[places])
            pairs = items[places[inside]] - first, items[other_places[inside]]
            return sparse.csr_matrix((np.ones(len(pairs[0])), pairs), shape)

        yield _index_pairs(
            first, [count(step) for step in range(1, window + 1)], [count(-step) for step in range(1, window + 1)]
        )


def _index_pairs(
    first_item: int, forward: list[sparse.csr_matrix], backward: list[sparse.csr_matrix]
) -> TransitionCounts:
    pairs = sum(forward[1:] + backward, forward[0]).tocsr()
    pairs.sort_indices()
    pairs.data = np.arange(1.0, pairs.nnz + 1)  # from 1, because a product drops zeros

    def locate_pairs(counts: sparse.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        counts.sort_indices()
        ones = sparse.csr_matrix((np.ones(counts.nnz), counts.indices, counts.indptr), counts.shape)
        return ones.multiply(pairs).tocsr().data.astype(np.int64) - 1, counts.data

    return TransitionCounts(
        first_item, pairs, [locate_pairs(counts) for counts in forward], [locate_pairs(counts) for counts in backward]
    )


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
    evidence = np.log1p(counts.data * num_items / smoothing).astype(np.float32)
    return sparse.csr_matrix((evidence, counts.indices, counts.indptr), counts.shape)


def compute_log_shares(counts: np.ndarray) -> np.ndarray:
    """Returns log p of each item, float32 [n + 1], p = (count + 1) / (sum of counts + n); entry 0 is 0.

    `counts`: how often each item occurs, int64 [n + 1].
    """
    shares = np.log(counts + 1.0) - np.log(counts.sum() + len(counts) - 1.0)
    return np.r_[0.0, shares[1:]].astype(np.float32)


def select_strongest_pairs(evidence: sparse.csr_matrix, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows, columns and values of the `most` largest values of each row, the largest first.

    Of equal values, the smaller columns come first. Zeros are left out.
    """
    rows = np.repeat(np.arange(evidence.shape[0]), np.diff(evidence.indptr))
    order = np.lexsort((evidence.indices, -evidence.data, rows))
    places = np.arange(len(order)) - np.repeat(evidence.indptr[:-1], np.diff(evidence.indptr))
    is_kept = (places < most) & (evidence.data[order] > 0)
    order = order[is_kept]
    return rows[order], evidence.indices[order], evidence.data[order]
