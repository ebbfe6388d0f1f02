"""Counts which items stand near each other in histories. Only NumPy."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from bert4rec_tf.data.sequences import Sequences

BLOCK_ACTIONS = 1 << 17
"""Items are counted in blocks of about so many actions, or of one item, which bounds the memory."""


def pair_strengths(
    sequences: Sequences, window: int, decay: float, backward: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields how strongly items follow each other.

    In a history h with places a < b, the item h_b follows h_a with decay^(b - a - 1) if b - a <= window, and h_a
    follows h_b with `backward` times that. The strength of a pair is the sum over all histories. A pair's terms are
    added in the order of their distances, so pairs with the same terms have the same bits.

    Yields:
        For blocks of first items: pairs as first x (n + 1) + second, int64 ascending, and their strengths, float64.
    """
    size, items = sequences.num_items + 1, sequences.items
    lengths = sequences.lengths
    begins, ends = (np.repeat(sequences.splits[edge], lengths) for edge in (slice(None, -1), slice(1, None)))
    by_item = np.argsort(items, kind="stable")
    counts = sequences.counts()
    edges = np.flatnonzero(np.diff(np.cumsum(counts) // BLOCK_ACTIONS, prepend=-1, append=-1))
    bounds = np.concatenate([[0], np.cumsum(counts)])[edges]
    for start, end in pairwise(bounds):
        actions = by_item[start:end]
        pairs, terms = [], []
        for distance in range(1, window + 1):
            strength = decay ** (distance - 1)
            for step, term in ((distance, strength), (-distance, backward * strength)):
                others = actions + step
                inside = (others >= begins[actions]) & (others < ends[actions])
                if term:
                    pairs.append(items[actions[inside]].astype(np.int64) * size + items[others[inside]])
                    terms.append(np.full(len(pairs[-1]), term))
        found, places = np.unique(np.concatenate(pairs), return_inverse=True)
        yield found, np.bincount(places, np.concatenate(terms), len(found))
