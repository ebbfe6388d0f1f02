"""The order of examples on disk: a permutation that a seed decides. Only NumPy."""

from functools import cached_property

import numpy as np

MOST_IN_MEMORY = 1 << 27
"""A permutation of more numbers is computed where it is needed. As an array, one of this size takes 1 GB."""

ROUNDS = 6
"""Rounds of the Feistel network. Four pseudo-random ones give a pseudo-random permutation (Luby & Rackoff, 1988)."""


def order_of(count: int, seed: int) -> "Drawn | Computed":
    """Returns a permutation of 0 to `count` - 1.

    Its `at` returns the numbers at some places, and its `places_of` the places of some numbers, both as int64 arrays.
    """
    return Drawn(count, seed) if count <= MOST_IN_MEMORY else Computed(count, seed)


class Drawn:
    """An order that is drawn as a whole."""

    def __init__(self, count: int, seed: int) -> None:
        self._numbers = np.random.default_rng([seed, 0]).permutation(count)

    @cached_property
    def _places(self) -> np.ndarray:
        places = np.empty_like(self._numbers)
        places[self._numbers] = np.arange(len(places))
        return places

    def at(self, places: np.ndarray) -> np.ndarray:
        return self._numbers[places]

    def places_of(self, numbers: np.ndarray) -> np.ndarray:
        return self._places[numbers]


class Computed:
    """An order that needs no memory: a Feistel network that permutes the numbers below a power of four.

    A round swaps the halves of a number and combines one half with a function of the other, by exclusive or. So it can
    be undone, whatever the function. A result of `count` or more goes in again (cycle-walking), on average fewer than
    four times.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._half = np.uint64(max((count - 1).bit_length() + 1, 2) // 2)
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.default_rng([seed, 0]).integers(1 << 63, size=ROUNDS, dtype=np.uint64)

    def at(self, places: np.ndarray) -> np.ndarray:
        return self._walk(places, backward=False)

    def places_of(self, numbers: np.ndarray) -> np.ndarray:
        return self._walk(numbers, backward=True)

    def _walk(self, numbers: np.ndarray, backward: bool) -> np.ndarray:
        found = self._pass(numbers.astype(np.uint64), backward)
        while len(outside := np.flatnonzero(found >= self._count)):
            found[outside] = self._pass(found[outside], backward)
        return found.astype(np.int64)

    def _pass(self, numbers: np.ndarray, backward: bool) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys[::-1] if backward else self._keys:
            if backward:
                left, right = right ^ self._scatter(left, key), left
            else:
                left, right = right, left ^ self._scatter(right, key)
        return left << self._half | right

    def _scatter(self, half: np.ndarray, key: np.uint64) -> np.ndarray:
        """Returns a function of a half and a round's key: two steps of multiplying and folding, as in SplitMix64."""
        for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            half = (half + key) * np.uint64(factor)
            half ^= half >> np.uint64(31)
        return half & self._mask
