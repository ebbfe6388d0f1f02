"""Initial item vectors from the histories: items that co-occur start with vectors near each other.

They are a truncated SVD of the items' positive pointwise mutual information (Levy & Goldberg, NeurIPS 2014, for words).
This takes seconds. From random vectors, training takes many epochs to get there.
"""

import numpy as np
from scipy import sparse

from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.data.transitions import count_transitions, weigh_distances

WINDOW, DECAY = 10, 0.7
"""Items up to WINDOW places apart count as near; each further place counts DECAY times as much."""

SMOOTHING = 0.75
"""The power that smooths the items' probabilities, so that rare items do not get the largest values."""

OVERSAMPLING, POWER_ITERATIONS = 16, 4
"""Extra columns, and power iterations, of the randomised SVD (Halko et al., 2011)."""


def make_cooccurrence_vectors(sequences: Sequences, width: int) -> np.ndarray:
    """Returns a vector for each item, float32 [n + 1, width]; zeros for padding and for items without a neighbour.

    If n + 1 is below `width`, the last columns are zeros.
    """
    matrix, size = _compute_mutual_information(sequences), sequences.num_items + 1
    columns = min(width + OVERSAMPLING, size)
    basis = np.random.default_rng(0).normal(size=(size, columns)).astype(np.float32)
    for _ in range(1 + POWER_ITERATIONS):
        basis = np.linalg.qr(matrix @ basis)[0]
    inner = basis.T @ (matrix @ basis)
    values, vectors = np.linalg.eigh(inner.astype(np.float64))
    order = np.argsort(-np.abs(values), kind="stable")[:width]
    result = np.zeros((size, width), np.float32)
    rows = np.flatnonzero(np.diff(matrix.indptr))  # rounding must not give the other rows a direction
    result[rows, : len(order)] = (basis[rows] @ vectors[:, order]) * np.sqrt(np.abs(values[order]))
    return result


def _compute_mutual_information(sequences: Sequences) -> sparse.csr_matrix:
    """Returns the positive pointwise mutual information of every pair of items, symmetric, float32 [n + 1, n + 1]."""
    size, weights = sequences.num_items + 1, weigh_distances(WINDOW, 0.0, DECAY)
    blocks = [counts.combine(weights, backward=1.0) for _, counts in count_transitions(sequences, WINDOW)]
    counts = sparse.vstack(blocks).tocoo()
    first, second, strengths = counts.row.astype(np.int64), counts.col.astype(np.int64), counts.data
    sums = np.bincount(first, strengths, size)
    smooth_sums = sums**SMOOTHING
    with np.errstate(divide="ignore"):
        share = (np.log(sums / sums.sum()) + np.log(smooth_sums / smooth_sums.sum())) / 2
    information = np.log(strengths / strengths.sum()) - share[first] - share[second]
    is_positive = information > 0
    places = first[is_positive], second[is_positive]
    return sparse.csr_matrix((information[is_positive].astype(np.float32), places), (size, size))
