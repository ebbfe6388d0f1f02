"""Training examples as rows of a few flat tables, and the batches of a training, without end, from any step on.

A batch depends only on the seed and the step, so training can resume at any step. It is made in two halves. `Feed.read`
numbers the examples of steps, and draws what is drawn on the host. `Feed.lay_out` gathers their rows, inside the
training step, from tables that lie on its device.
"""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Batch, Tensor

DRAWS_SEED_OFFSET = 1 << 34
"""Added to the run's seed, which is below 2^32, so that masks and negatives have different seeds."""

Tables = Mapping[str, Tensor]


class Examples(abc.ABC):
    """Numbered training examples of one kind, `num_examples` per epoch."""

    num_examples: int
    _tables: Mapping[str, np.ndarray]

    @property
    def tables(self) -> Mapping[str, np.ndarray]:
        """What `lay_out` gathers from."""
        return self._tables

    def order_epoch(self, seed: int, epoch: int) -> np.ndarray:
        """Returns the numbers of all examples in the order of an epoch, int64."""
        return np.random.default_rng([seed, 0, epoch]).permutation(self.num_examples)

    def draw(self, examples: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns what is drawn on the host for a batch of examples; by default nothing."""
        return {}

    @abc.abstractmethod
    def lay_out(self, tables: Tables, columns: dict[str, Tensor]) -> Batch:
        """Returns the batch of one step.

        `columns`: `examples`, int [b], their numbers; `seed`, int64 [2], of the run and the step; those of `draw`.
        """


@dataclass(frozen=True, eq=False)
class Feed:
    """The batches of a training.

    Attributes:
        examples: what they are made of.
        batch_size: examples of a batch. A batch may span two epochs.
        seed: decides the order, the masks and the negatives.
        has_sample: whether batches have `draw`, int64 [b, 2], for a loss over a SAMPLE: in every row the same seed,
            which depends on the run's seed and the step. A replica gets only some rows, and all must draw the same.

    Raises UserError if there are no examples.
    """

    examples: Examples
    batch_size: int
    seed: int
    has_sample: bool = False
    _orders: dict[int, np.ndarray] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.examples.num_examples:
            raise UserError("No user has two items, so there is nothing to train on")

    @property
    def tables(self) -> Mapping[str, np.ndarray]:
        return self.examples.tables

    @property
    def steps_per_epoch(self) -> int:
        """Steps until every example was in a batch."""
        return -(-self.examples.num_examples // self.batch_size)

    def read(self, first_step: int, count: int) -> dict[str, np.ndarray]:
        """Returns the columns of `count` steps, each [count, ...], from the step after `first_step` others on."""
        steps = [self._read_step(step) for step in range(first_step, first_step + count)]
        return {name: np.stack([columns[name] for columns in steps]) for name in steps[0]}

    def _read_step(self, step: int) -> dict[str, np.ndarray]:
        size = self.examples.num_examples
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs = places // size
        numbers = np.empty(self.batch_size, np.int64)
        for epoch in range(epochs[0], epochs[-1] + 1):
            numbers[epochs == epoch] = self._order_epoch(epoch)[places[epochs == epoch] % size]
        samples = self.examples.draw(numbers, np.random.default_rng([self.seed, 1, step]))
        index_type = choose_index_type(size)
        return {"examples": numbers.astype(index_type), "seed": np.array([self.seed, step]), **samples}

    def _order_epoch(self, epoch: int) -> np.ndarray:
        """Returns the order of an epoch, and keeps that of the newest alone: steps never go back to an epoch."""
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self.examples.order_epoch(self.seed, epoch)
        return self._orders[epoch]

    def lay_out(self, tables: Tables, columns: Mapping[str, Tensor]) -> Batch:
        """Returns the batch of one step, whose columns are those of `read` without the first axis."""
        batch = self.examples.lay_out(tables, dict(columns))
        if not self.has_sample:
            return batch
        draw = columns["seed"] + tf.constant([DRAWS_SEED_OFFSET, 0], tf.int64)
        return {**batch, "draw": tf.tile(draw[None, :], [self.batch_size, 1])}


def choose_index_type(size: int) -> Any:
    """Returns the type of a place in an array of this size."""
    return np.int32 if size < 2**31 else np.int64


def gather_ragged(values: Tensor, begins: Tensor, lengths: Tensor, width: Tensor | int) -> tf.Tensor:
    """Returns rows of a flat table, int32 [b, width], right-padded with 0.

    Row i has the `lengths[i]` values from `begins[i]` on, at most `width`. `values`: integers [values].
    """
    columns = tf.range(width)
    is_real = columns[None, :] < tf.cast(lengths, tf.int32)[:, None]
    places = begins[:, None] + tf.cast(columns, begins.dtype)[None, :]
    rows = tf.gather(values, tf.where(is_real, places, tf.zeros_like(places)))
    return tf.where(is_real, tf.cast(rows, tf.int32), 0)


def gather_windows(tables: Tables, examples: Tensor, width: int) -> dict[str, tf.Tensor]:
    """Returns `users [b]`, `lengths [b]` and `items [b, width]` of the examples, from `cloze.Windows.make_tables`."""
    users, begins, lengths = (tf.gather(tables[name], examples) for name in ("users", "begins", "lengths"))
    return {"users": users, "lengths": lengths, "items": gather_ragged(tables["items"], begins, lengths, width)}
