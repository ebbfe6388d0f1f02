"""Counts which items stand near each other in histories. Only NumPy.

Two places a < b of a history h with b - a <= window count twice: h_b follows h_a, and h_a follows h_b backwards. The
step says how: 2 (b - a - 1) forwards, and one more backwards, so there are 2 x window steps. Pairs are counted per
step, in whole numbers.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bert4rec_tf.config.model_settings import ItemCooccurrenceSettings
from bert4rec_tf.data.sequences import Sequences

BLOCK_ACTIONS = 1 << 17
"""To bound the memory, first items are counted in blocks of about so many actions, or of one item."""


class Neighbors(NamedTuple):
    """The strongest neighbours of some items: `others[i]` is neighbour number `places[i]`, from 0, of `items[i]`."""

    items: np.ndarray
    places: np.ndarray
    others: np.ndarray
    strengths: np.ndarray


def pair_counts(sequences: Sequences, window: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields keys and counts for each block of first items, int64 [pairs] each.

    A key is (first x (n + 1) + second) x 2 window + step; they ascend. Its count is how often the pair has this step.
    """
    size, items = sequences.num_items + 1, sequences.items
    lengths = sequences.lengths
    begins, ends = (np.repeat(sequences.splits[edge], lengths) for edge in (slice(None, -1), slice(1, None)))
    by_item = np.argsort(items, kind="stable")
    up_to_item = np.cumsum(sequences.counts())
    bounds = np.concatenate([[0], up_to_item[np.flatnonzero(np.diff(up_to_item // BLOCK_ACTIONS, append=-1))]])
    for start, end in pairwise(bounds):
        actions = by_item[start:end]
        keys = []
        for step in range(2 * window):
            others = actions + (step // 2 + 1) * (-1 if step % 2 else 1)
            inside = (others >= begins[actions]) & (others < ends[actions])
            pairs = items[actions[inside]].astype(np.int64) * size + items[others[inside]]
            keys.append(pairs * (2 * window) + step)
        yield np.unique(np.concatenate(keys), return_counts=True)


def strengths_of(
    keys: np.ndarray, counts: np.ndarray, window: int, decay: float, backward: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs, first x (n + 1) + second, int64 ascending, and their strengths, float64 above 0.

    Each time at distance k adds decay^(k - 1), and backwards `backward` times that. A pair's terms are added in the
    order of the steps, so pairs with the same terms have the same bits. `keys` and `counts`: of `pair_counts`.
    """
    pairs, steps = np.divmod(keys, 2 * window)
    terms = counts * decay ** (steps // 2) * np.where(steps % 2, backward, 1.0)
    pairs, terms = pairs[terms > 0], terms[terms > 0]
    is_first = np.diff(pairs, prepend=-1) > 0
    return pairs[is_first], np.bincount(np.cumsum(is_first) - 1, terms, np.count_nonzero(is_first))


def strongest(
    keys: np.ndarray, counts: np.ndarray, item_counts: np.ndarray, settings: ItemCooccurrenceSettings, most: int
) -> Neighbors:
    """Returns the `most` strongest neighbours of each first item, the strongest first; in a tie the smaller number.

    Args:
        keys, counts: of `pair_counts`.
        item_counts: how often each item occurs, int64 [n + 1].
    """
    pairs, totals = strengths_of(keys, counts, settings.window, settings.decay, settings.backward)
    order = np.lexsort((-totals, pairs // len(item_counts)))
    first, second = np.divmod(pairs[order], len(item_counts))
    places = np.arange(len(order)) - np.searchsorted(first, first)
    kept = places < most
    scales = 1.0 / np.maximum(item_counts[first[kept]], 1) ** settings.count_power
    return Neighbors(first[kept], places[kept], second[kept], totals[order][kept] * scales)
