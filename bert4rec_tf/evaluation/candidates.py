"""The negatives that a target is ranked among: drawn once per data set, the same for every model. Only NumPy."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bert4rec_tf.data.sequences import PAD, Sequences, draw_items
from bert4rec_tf.evaluation.metrics import POPULAR, UNIFORM
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.warning import FileWarning, warn

FORMAT = 2
MAX_BLOCK_CELLS = 1 << 25
"""Users are processed in blocks whose [users, items] table has at most so many elements."""

ROUNDS = 20
"""Rounds of rejection sampling. Users who still lack negatives after them get a slower draw that cannot fail."""


def draw_negatives(
    sequences: Sequences,
    users: np.ndarray,
    num_negatives: int,
    seed: int,
    block_elements: int = MAX_BLOCK_CELLS,
    *,
    popular: bool,
) -> np.ndarray:
    """Draws negatives without replacement, among the items that each user has not seen.

    As in the original, items are drawn one after the other, each with probability proportional to its count in the data
    among the items neither seen nor drawn yet; unless `popular`, each with the same probability. A user with fewer
    unseen items gets all of them. Each block of users has its own random stream.

    Args:
        sequences: full histories, held-out items included.
        users: [k] int64, the users to draw for.

    Returns:
        int32 [k, num_negatives], filled with 0 on the right if there are fewer; the same for the same seed.
    """
    weights = sequences.vocabulary.counts if popular else np.ones(sequences.num_items)
    negatives = np.zeros((len(users), num_negatives), np.int32)
    block = max(1, block_elements // (sequences.num_items + 1))
    for number, start in enumerate(range(0, len(users), block)):
        rng = np.random.default_rng([seed, number, int(not popular)])
        part, draw = slice(start, start + block), functools.partial(draw_items, sequences, popular, rng=rng)
        _draw_block(_mark_seen(sequences, users[part]), negatives[part], rng, draw, weights)
    return negatives


draw_popular = functools.partial(draw_negatives, popular=True)
draw_uniform = functools.partial(draw_negatives, popular=False)
SAMPLERS = {POPULAR: draw_popular, UNIFORM: draw_uniform}


def load_or_draw(
    folder: Path, sequences: Sequences, users: np.ndarray, num_negatives: int, seed: int
) -> dict[str, np.ndarray]:
    """Returns the negatives of every sampler, drawn once and stored in `folder`. If the file is damaged, draws again.

    The users follow from the sequences (`LeaveOneOut.users`), so they are not part of the file's name. The other
    arguments are those of `draw_negatives`.

    Returns:
        Sampler -> int32 [k, c], where c is `num_negatives` or the number of items, whichever is smaller.
    """
    num_negatives = min(num_negatives, sequences.num_items)
    path = folder / f"candidates-{FORMAT}-{sequences.fingerprint[:16]}-{num_negatives}-{seed}.npz"
    with files.FolderLock(folder).lock():
        if path.exists():
            try:
                arrays = npz.read(path, SAMPLERS)
                if all(part.shape == (len(users), num_negatives) for part in arrays.values()):
                    return arrays
                warn(f"{path}: was drawn for other users; drawn again", FileWarning)
            except npz.CorruptFileError as error:
                warn(f"{error}; drawn again", FileWarning)
        negatives = {name: draw(sequences, users, num_negatives, seed) for name, draw in SAMPLERS.items()}
        npz.write(path, negatives)
        return negatives


def _mark_seen(sequences: Sequences, users: np.ndarray) -> np.ndarray:
    """Returns bool [users, items + 1]: whether each user has seen each item; True for PAD."""
    histories = sequences.select_users(users)
    is_seen = np.zeros((len(users), sequences.num_items + 1), bool)
    is_seen[:, PAD] = True
    is_seen[np.repeat(np.arange(len(users)), histories.lengths), histories.items] = True
    return is_seen


def _draw_block(
    is_taken: np.ndarray,
    negatives: np.ndarray,
    rng: np.random.Generator,
    draw: Callable[[tuple[int, int]], np.ndarray],
    weights: np.ndarray,
) -> None:
    """Fills `negatives` by rejection sampling, for all users of the block at once.

    `weights`: [n], proportional to the probabilities of `draw`. Users who still lack negatives after ROUNDS rounds get
    them at once, from the same distribution: each free item has an exponential arrival time with its weight as the
    rate, and the first arrivals are taken.
    """
    num_negatives, width = negatives.shape[1], is_taken.shape[1]
    num_required = np.minimum(num_negatives, [width - np.count_nonzero(row) for row in is_taken])  # not by `axis`: slow
    taken_cells = is_taken.reshape(-1)
    num_drawn = np.zeros(len(negatives), np.int64)
    users = np.flatnonzero(num_drawn < num_required)
    for _ in range(ROUNDS):
        if not len(users):
            return
        items = draw((len(users), num_negatives + num_negatives // 4 + 1))
        cells = users[:, None] * width + items
        is_free = ~taken_cells[cells] & _mark_first(items)
        places = num_drawn[users, None] + np.cumsum(is_free, axis=1) - 1
        is_new = is_free & (places < num_required[users, None])
        num_new = np.count_nonzero(is_new, axis=1)
        negatives[np.repeat(users, num_new), places[is_new]] = items[is_new]
        taken_cells[cells[is_new]] = True
        num_drawn[users] += num_new
        users = users[num_drawn[users] < num_required[users]]
    for user in users:
        items = np.flatnonzero(~is_taken[user, 1:])
        with np.errstate(divide="ignore"):  # an item without actions arrives after all others
            arrivals = rng.exponential(size=len(items)) / weights[items]
        negatives[user, num_drawn[user] : num_required[user]] = (
            items[np.argsort(arrivals)[: num_required[user] - num_drawn[user]]] + 1
        )


def _mark_first(items: np.ndarray) -> np.ndarray:
    """Returns bool [rows, width]: whether an item occurs for the first time in its row."""
    bits = int(items.shape[1]).bit_length()
    dtype = np.min_scalar_type(-(int(items.max()) + 1 << bits))  # mostly int32, which is sorted in half the time
    keys = np.sort((items.astype(dtype) << bits) + np.arange(items.shape[1], dtype=dtype), axis=1)
    is_repeat = np.zeros(items.shape, bool)
    np.equal(keys[:, 1:] >> bits, keys[:, :-1] >> bits, out=is_repeat[:, 1:])
    row, column = np.nonzero(is_repeat)
    first = np.ones(items.shape, bool)
    first[row, keys[row, column] & ((1 << bits) - 1)] = False
    return first
