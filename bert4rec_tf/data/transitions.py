"""Counts how often two items occur at each distance in histories. Only NumPy and SciPy.

Counts of different distances are separate, so that many weightings of the distances can use them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import sparse

from bert4rec_tf.config.transition_settings import CompleteSettings
from bert4rec_tf.data.sequences import PAD, Sequences, number_within_groups

BLOCK_ACTIONS = 1 << 17
"""To limit memory, first items are counted in blocks of about this many actions, or of one item."""

DENSE_SHARE, DENSE_CELLS = 64, 1 << 17
"""With at most DENSE_SHARE pairs of items per action, pairs are counted in tables of about DENSE_CELLS, which the cache
holds."""

PLACES = 1 << 13
"""Places whose neighbours are read at once."""

LARGEST_BITS = (1 << 31) - 1
"""The bits of positive float32 values are integers up to this one."""


@dataclass(frozen=True, eq=False)
class TransitionCounts:
    """The counts of the pairs whose first item is one of a block of items.

    A pair (b, a) has one number per direction and distance d: how often a occurs d positions after b, and how often d
    positions before it, in all histories.

    Attributes:
        first_item: the first items are `first_item` and those after it, one row each.
        pairs: the pairs that occur, [rows, n + 1]. The data have no meaning.
        distances: the numbers of each of these pairs, int32 [pairs, 2 x window]: after it at distance 1, before it at
            distance 1, after it at distance 2, and so on.
    """

    first_item: int
    pairs: sparse.csr_matrix
    distances: sparse.csr_matrix

    def combine(self, distance_weights: np.ndarray, backward: float) -> sparse.csr_matrix:
        """Returns the weighted sums of the counts, float64 [rows, n + 1].

        An item d positions after the first has the weight `distance_weights[d - 1]`; one d positions before it,
        `backward` times that. The terms of a pair are added in order of distance, so equal pairs have equal bits.
        """
        weights = np.zeros(self.distances.shape[1])
        weights[: 2 * len(distance_weights)] = np.outer(distance_weights, [1.0, backward]).ravel()
        return sparse.csr_matrix((self.distances @ weights, self.pairs.indices, self.pairs.indptr), self.pairs.shape)


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
    size, num_columns = sequences.num_items + 1, 2 * window
    for (start, end), (first, after) in zip(pairwise(bounds.tolist()), pairwise(first_items)):
        places = by_item[start:end]
        cells = (items[places] - np.int64(first)) * size
        keys = []  # a number for each pair and distance, in their order
        for column in range(num_columns):
            other_places = places + (-(column // 2 + 1) if column % 2 else column // 2 + 1)
            inside = (other_places >= begins[places]) & (other_places < ends[places])
            keys.append((cells[inside] + items[other_places[inside]]) * num_columns + column)
        all_keys = np.sort(np.concatenate(keys))
        is_first = _find_changes(all_keys)
        pair_keys, columns = np.divmod(all_keys[is_first], num_columns)
        begins_of_pairs = _find_changes(pair_keys)
        rows, others = np.divmod(pair_keys[begins_of_pairs], size)
        row_ends = np.r_[0, np.cumsum(np.bincount(rows, minlength=after - first))]
        pairs = sparse.csr_matrix((np.zeros(len(rows), bool), others, row_ends), (after - first, size))
        numbers = np.diff(is_first, append=len(all_keys)).astype(np.int32)
        table = numbers, columns, np.r_[begins_of_pairs, len(columns)]
        yield TransitionCounts(first, pairs, sparse.csr_matrix(table, (len(rows), num_columns)))


def _find_changes(ordered: np.ndarray) -> np.ndarray:
    """Returns the places of values that differ from the one before; the first does."""
    return np.flatnonzero(np.r_[ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]])


def count_weighted(
    sequences: Sequences,
    distance_weights: np.ndarray,
    backward: float,
    dense_share: float = DENSE_SHARE,
    dense_cells: int = DENSE_CELLS,
) -> Iterator[tuple[int, sparse.csr_matrix]]:
    """Yields the first item of each block, and what `TransitionCounts.combine` returns for it, to the bit.

    If items are few for the number of actions, each distance is counted in a dense table of the block's pairs.
    """
    size = sequences.num_items + 1
    if size**2 > dense_share * sequences.num_actions:
        for block in count_transitions(sequences, len(distance_weights)):
            yield block.first_item, block.combine(distance_weights, backward)
        return
    window, items = len(distance_weights), sequences.items.astype(np.min_scalar_type(size))
    spaced = np.zeros(len(items) + window * (sequences.num_users + 1), items.dtype)  # zeros between two histories
    places = np.arange(len(items), dtype=np.min_scalar_type(-len(spaced)))
    places += np.repeat(window * np.arange(1, sequences.num_users + 1, dtype=places.dtype), sequences.lengths)
    spaced[places] = items
    by_item = places[np.argsort(items, kind="stable")]
    bounds = np.concatenate([[0], np.cumsum(sequences.count_items())])
    steps = np.r_[-window:0, 1 : window + 1][:, None]
    buffer = np.empty(max(dense_cells, size))  # new pages for each sum would take longer than the sum
    first = 0
    while first < size:
        # Popular items come first: fewer at a time.
        after = np.searchsorted(bounds, bounds[first] + dense_cells, side="right") - 1
        after = min(max(after, first + 1), first + max(dense_cells // size, 1), size)
        places = by_item[bounds[first] : bounds[after]]
        begins = (spaced[places] - np.intp(first)) * size
        # A few places at a time: the neighbours of a place are together, so a cache has them after the first step.
        parts = np.array_split(places, len(places) // PLACES + 1)
        neighbors = np.concatenate([spaced.take(part + steps, mode="clip") for part in parts], axis=1)
        sums, cells = np.zeros((after - first) * size), np.empty_like(begins)
        terms = buffer[: len(sums)]
        for distance, weight in enumerate(distance_weights, 1):
            for row, share in ((window + distance - 1, 1.0), (window - distance, backward)):
                if share:
                    terms.fill(0)
                    np.add.at(terms, np.add(begins, neighbors[row], out=cells), 1.0)
                    sums += np.multiply(terms, weight * share, out=terms)
        sums = sums.reshape(after - first, size)
        sums[:, PAD] = 0
        yield first, sparse.csr_matrix(sums)
        first = after


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


def select_strongest_pairs(evidence: sparse.csr_matrix, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows, columns and values of the `most` largest values of each row, the largest first.

    Of equal values, the smaller columns come first. Zeros are left out.
    """
    # One number has the row, the bits of the value (31, in the values' order) and the column, so one sort is enough.
    column_bits = int(evidence.shape[1]).bit_length()
    height = 1 << (32 - column_bits)
    parts = []
    for begin in range(0, evidence.shape[0], height):
        part = evidence[begin : begin + height]
        rows = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))
        is_kept = part.data > 0
        keys = (rows << 31) + (LARGEST_BITS - part.data.view(np.int32))
        keys = np.sort((keys[is_kept] << column_bits) + part.indices[is_kept])
        rows = keys >> (column_bits + 31)
        is_kept = number_within_groups(np.bincount(rows)) < most
        keys, rows = keys[is_kept], rows[is_kept]
        values = (LARGEST_BITS - (keys >> column_bits & LARGEST_BITS)).astype(np.int32).view(np.float32)
        parts.append((begin + rows, (keys & ((1 << column_bits) - 1)).astype(evidence.indices.dtype), values))
    rows, columns, values = (np.concatenate(part) for part in zip(*parts))
    return rows, columns, values
