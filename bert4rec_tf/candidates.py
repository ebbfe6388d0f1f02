"""The items that a target is ranked among: drawn once for a data set, the same for every model. Only NumPy."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bert4rec_tf import arrays, files
from bert4rec_tf.metrics import POPULAR, UNIFORM
from bert4rec_tf.progress import warn
from bert4rec_tf.sequences import PAD, Sequences

FORMAT = 1
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

    def draw(rng: np.random.Generator, size: int) -> np.ndarray:
        return sequences.items[rng.integers(sequences.num_actions, size=size)]

    return _draw(sequences, users, num_negatives, [seed, 0], draw, sequences.vocabulary.counts)


def draw_uniform(sequences: Sequences, users: np.ndarray, num_negatives: int, seed: int) -> np.ndarray:
    """Draws negatives as `draw_popular` does, every item with the same probability."""

    def draw(rng: np.random.Generator, size: int) -> np.ndarray:
        return rng.integers(1, sequences.num_items + 1, size, np.int32)

    return _draw(sequences, users, num_negatives, [seed, 1], draw, np.ones(sequences.num_items))


LAWS = {POPULAR: draw_popular, UNIFORM: draw_uniform}


def frozen(
    folder: Path, sequences: Sequences, users: np.ndarray, num_negatives: int, seed: int
) -> dict[str, np.ndarray]:
    """Returns the candidates of every law, drawn once and kept in `folder`; a damaged file is drawn again.

    The users are a function of the sequences (those with three actions), so the file's name does not tell them.

    Args:
        folder: where they are kept.
        sequences, users, num_negatives, seed: as for `draw_popular`.

    Returns:
        Law -> int32 [k, num_negatives].
    """
    path = folder / f"candidates-{FORMAT}-{sequences.fingerprint[:16]}-{num_negatives}-{seed}.npz"
    with files.FolderLock(folder).held():
        if path.exists():
            try:
                kept = arrays.read(path, LAWS)
                if all(found.shape == (len(users), num_negatives) for found in kept.values()):
                    return kept
                warn(f"{path}: was drawn for other users; drawn again")
            except arrays.Damaged as error:
                warn(f"{error}; drawn again")
        drawn = {law: draw(sequences, users, num_negatives, seed) for law, draw in LAWS.items()}
        arrays.write(path, drawn)
        return drawn


Draw = Callable[[np.random.Generator, int], np.ndarray]


def _draw(
    sequences: Sequences, users: np.ndarray, num_negatives: int, seed: list[int], draw: Draw, weights: np.ndarray
) -> np.ndarray:
    """Draws block by block. `seed`: the user's and the law's, which give every block a stream of its own."""
    drawn = np.zeros((len(users), num_negatives), np.int32)
    block = max(1, min(BLOCK_ELEMENTS // (sequences.num_items + 1), len(users)))
    for number, start in enumerate(range(0, len(users), block)):
        part, rng = slice(start, start + block), np.random.default_rng([seed[0], number, seed[1]])
        _draw_block(sequences, users[part], drawn[part], partial(draw, rng), partial(_race, weights, rng))
    return drawn


def _draw_block(
    sequences: Sequences,
    users: np.ndarray,
    drawn: np.ndarray,
    draw: Callable[[int], np.ndarray],
    race: Callable[[np.ndarray, int], np.ndarray],
) -> None:
    """Fills `drawn`, one item for everybody at a time; an item that is taken already is thrown away."""
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
        items = draw(len(unfinished))
        fresh = ~taken[unfinished, items]
        rows, items = unfinished[fresh], items[fresh]
        drawn[rows, filled[rows]] = items
        taken[rows, items] = True
        filled[rows] += 1
        unfinished = unfinished[filled[unfinished] < wanted[unfinished]]
    for row in unfinished:
        drawn[row, filled[row] : wanted[row]] = race(~taken[row, 1:], wanted[row] - filled[row])


def _race(weights: np.ndarray, rng: np.random.Generator, free: np.ndarray, size: int) -> np.ndarray:
    """Draws `size` of the free items by the same law at once: exponential arrivals, each at the rate of its weight."""
    items = np.flatnonzero(free)
    arrivals = rng.exponential(size=len(items)) / weights[items]
    return items[np.argsort(arrivals)[:size]] + 1
