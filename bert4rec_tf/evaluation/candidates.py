"""The items that a target is ranked among: drawn once for a data set, the same for every model. Only NumPy."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bert4rec_tf.data.sequences import PAD, Sequences
from bert4rec_tf.evaluation.metrics import POPULAR, UNIFORM
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.progress import warn

FORMAT = 2
BLOCK_ELEMENTS = 1 << 25
"""Users are worked through in blocks whose [users, items] table has at most so many elements."""

ROUNDS = 20
"""Draws by rejection before the users who still lack some are served in a slower way that never fails."""


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

    def draw(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        return sequences.items[rng.integers(sequences.num_actions, size=size)]

    return _draw(sequences, users, num_negatives, [seed, 0], draw, sequences.vocabulary.counts)


def draw_uniform(sequences: Sequences, users: np.ndarray, num_negatives: int, seed: int) -> np.ndarray:
    """Draws negatives as `draw_popular` does, every item with the same probability."""

    def draw(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        return rng.integers(1, sequences.num_items + 1, size, np.int32)

    return _draw(sequences, users, num_negatives, [seed, 1], draw, np.ones(sequences.num_items))


SAMPLERS = {POPULAR: draw_popular, UNIFORM: draw_uniform}


def frozen(
    folder: Path, sequences: Sequences, users: np.ndarray, num_negatives: int, seed: int
) -> dict[str, np.ndarray]:
    """Returns the candidates of every law, drawn once and kept in `folder`; a damaged file is drawn again.

    The users are a function of the sequences (those with three actions), so the file's name does not tell them.

    Args:
        folder: where they are kept.
        sequences, users, num_negatives, seed: as for `draw_popular`.

    Returns:
        Law -> int32 [k, c], c being `num_negatives`, or the number of items where that is less.
    """
    num_negatives = min(num_negatives, sequences.num_items)
    path = folder / f"candidates-{FORMAT}-{sequences.fingerprint[:16]}-{num_negatives}-{seed}.npz"
    with files.FolderLock(folder).lock():
        if path.exists():
            try:
                kept = npz.read(path, SAMPLERS)
                if all(found.shape == (len(users), num_negatives) for found in kept.values()):
                    return kept
                warn(f"{path}: was drawn for other users; drawn again")
            except npz.CorruptFileError as error:
                warn(f"{error}; drawn again")
        drawn = {law: draw(sequences, users, num_negatives, seed) for law, draw in SAMPLERS.items()}
        npz.write(path, drawn)
        return drawn


Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def _draw(
    sequences: Sequences, users: np.ndarray, num_negatives: int, seed: list[int], draw: Draw, weights: np.ndarray
) -> np.ndarray:
    """Draws block by block. `seed`: the user's and the law's, which give every block a stream of its own."""
    drawn = np.zeros((len(users), num_negatives), np.int32)
    block = max(1, min(BLOCK_ELEMENTS // (sequences.num_items + 1), len(users)))
    for number, start in enumerate(range(0, len(users), block)):
        part, rng = slice(start, start + block), np.random.default_rng([seed[0], number, seed[1]])
        taken = _met(sequences, users[part])
        _draw_block(taken, drawn[part], partial(draw, rng), partial(_race, weights, rng))
    return drawn


def _met(sequences: Sequences, users: np.ndarray) -> np.ndarray:
    """Returns bool [users, items + 1]: whether each user met each item; "yes" for 0, which is none."""
    lengths = sequences.lengths[users]
    begins = np.cumsum(lengths) - lengths
    places = np.arange(lengths.sum()) + np.repeat(sequences.splits[users] - begins, lengths)
    met = np.zeros((len(users), sequences.num_items + 1), bool)
    met[:, PAD] = True
    met[np.repeat(np.arange(len(users)), lengths), sequences.items[places]] = True
    return met


def _draw_block(
    taken: np.ndarray,
    drawn: np.ndarray,
    draw: Callable[[tuple[int, int]], np.ndarray],
    race: Callable[[np.ndarray, int], np.ndarray],
) -> None:
    """Fills `drawn`, many items for everybody at a time; one that is taken or came before is thrown away.

    Users for whom nearly everything is thrown away race in the end.
    """
    num_negatives = drawn.shape[1]
    wanted = np.minimum(num_negatives, (~taken).sum(axis=1))
    filled = np.zeros(len(drawn), np.int64)
    unfinished = np.flatnonzero(filled < wanted)
    for _ in range(ROUNDS):
        if not len(unfinished):
            return
        items = draw((len(unfinished), num_negatives + num_negatives // 4 + 1))
        fresh = ~taken[unfinished[:, None], items] & _first_in_row(items)
        places = filled[unfinished, None] + np.cumsum(fresh, axis=1) - 1
        row, column = np.nonzero(fresh & (places < wanted[unfinished, None]))
        owner, chosen = unfinished[row], items[row, column]
        drawn[owner, places[row, column]] = chosen
        taken[owner, chosen] = True
        filled += np.bincount(owner, minlength=len(filled))
        unfinished = unfinished[filled[unfinished] < wanted[unfinished]]
    for row in unfinished:
        drawn[row, filled[row] : wanted[row]] = race(~taken[row, 1:], wanted[row] - filled[row])


def _first_in_row(items: np.ndarray) -> np.ndarray:
    """Returns bool of the same shape [rows, width]: whether no number before it in its row is the same."""
    bits = int(items.shape[1]).bit_length()
    keys = np.sort((items.astype(np.int64) << bits) + np.arange(items.shape[1]), axis=1)
    again = np.zeros(items.shape, bool)
    np.equal(keys[:, 1:] >> bits, keys[:, :-1] >> bits, out=again[:, 1:])
    row, column = np.nonzero(again)
    first = np.ones(items.shape, bool)
    first[row, keys[row, column] & ((1 << bits) - 1)] = False
    return first


def _race(weights: np.ndarray, rng: np.random.Generator, free: np.ndarray, size: int) -> np.ndarray:
    """Draws `size` of the free items by the same law at once: exponential arrivals, each at the rate of its weight."""
    items = np.flatnonzero(free)
    arrivals = rng.exponential(size=len(items)) / weights[items]
    return items[np.argsort(arrivals)[:size]] + 1
