"""Generated data of the size and shape of the paper's data sets."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.sequences import Sequences


@dataclass(frozen=True)
class Shape:
    """The size of a data set and the settings it is trained with.

    Attributes:
        users, items: numbers of users and items.
        shortest, mean: the fewest and the mean actions per user.
        max_length: N.
        masking: how examples are made.
    """

    users: int
    items: int
    shortest: int
    mean: float
    max_length: int
    masking: MaskingSettings


SHAPES = {
    "beauty": Shape(
        40_226, 54_542, 5, 8.8, 50, MaskingSettings(mask_proportion=0.6, max_predictions=30, window_step=0.1)
    ),
    "ml-1m": Shape(
        6_040, 3_416, 16, 163.5, 200, MaskingSettings(mask_proportion=0.2, max_predictions=40, window_step=0.5)
    ),
}


MILLION = Shape(120_000, 1_000_000, 5, 9.0, 50, MaskingSettings())
"""A catalogue so large that the table of all users' scores would not fit into memory."""


def generate(users: int, items: int, shortest: int, mean: float, seed: int = 0) -> Sequences:
    """Returns histories of `shortest` items plus a geometric number, with popular and rare items."""
    rng = np.random.default_rng(seed)
    lengths = shortest + rng.geometric(1 / (mean - shortest + 1), users) - 1
    weights = (np.arange(items) + 10.0) ** -0.9
    numbers = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(lengths.sum()))
    all_items = rng.permutation(items)[: lengths.sum()]
    numbers[rng.permutation(len(numbers))[: len(all_items)]] = all_items
    codes, names = pd.factorize(np.minimum(numbers, items - 1))
    return Sequences.from_codes(
        np.repeat(np.arange(users), lengths),
        codes,
        np.arange(users).astype(str).astype(object),
        names.astype(str).astype(object),
    )


def load_shape(name: str) -> tuple[Shape, Sequences]:
    """Returns the shape `name`, and generated data of that shape."""
    shape = SHAPES[name]
    return shape, generate(shape.users, shape.items, shape.shortest, shape.mean)
