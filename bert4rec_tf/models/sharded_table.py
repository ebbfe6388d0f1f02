"""An item table whose rows lie on several machines: worker `row % W` holds a row. Only what a step reads travels."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.nn.optimizers import adagrad_rows

NUMBERS, ROWS = "row_numbers", "rows"
"""Entries of a batch with looked-up rows: int32 [u], and [vectors [u, d], biases [u]]."""

BLOCK = 1 << 18
"""Rows that are drawn, written or read at once, of all workers together. A multiple of 4 (`_initial_block`)."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, in place of the whole one.

    Attributes:
        numbers: int32 [u], which rows these are, ascending.
        values: float [u, ...].
    """

    numbers: Tensor
    values: Tensor

    @property
    def dtype(self) -> tf.DType:
        return self.values.dtype


def gather(table: Tensor | Rows, rows: Tensor) -> tf.Tensor:
    """Returns rows of a table, or of those that were looked up: int32 [...] -> float [..., d]."""
    if not isinstance(table, Rows):
        return tf.gather(table, rows)
    places = tf.searchsorted(table.numbers, tf.reshape(tf.cast(rows, tf.int32), [-1]))
    return tf.gather(table.values, tf.reshape(places, tf.shape(rows)))


class ShardedTable:
    """One worker's rows of the item table, with their biases and the state of rowwise Adagrad.

    All methods on tensors are called on every worker at the same time, in a replica of the strategy.

    Args:
        num_rows: of the whole table.
        width: d.
        stddev, seed: of the truncated normal initial vectors. They are those of Keras' initializer for the whole table,
            to the bit, but no machine ever holds more than a block of them.
        index, count: the number of this worker, and of all.

    Attributes:
        variables: vectors [r, d], biases [r], and for each the sums of squares [r].
    """

    def __init__(self, num_rows: int, width: int, stddev: float, seed: int, index: int, count: int) -> None:
        self.num_rows, self.width, self.index, self.count = num_rows, width, index, count
        held = len(range(index, num_rows, count))
        self.values = [tf.Variable(tf.zeros([held, width])), tf.Variable(tf.zeros([held]))]
        self.sums = [tf.Variable(tf.zeros([held])), tf.Variable(tf.zeros([held]))]
        for begin in range(0, num_rows, BLOCK):
            size = min(BLOCK, num_rows - begin)
            block = _initial_block(begin, size, width, seed)[(index - begin) % count :: count] * stddev
            first = len(range(index, begin, count))
            self.values[0].scatter_update(tf.IndexedSlices(block, tf.range(first, first + block.shape[0])))

    @property
    def variables(self) -> list[tf.Variable]:
        return [*self.values, *self.sums]

    def look_up(self, rows: Tensor) -> dict[str, Tensor | list[Tensor]]:
        """Returns the distinct rows among int32 [any], padding included, for a batch: NUMBERS and ROWS.

        Every worker asks for the same rows and adds up its own and zeros, so the sum is exact.
        """
        numbers = tf.sort(tf.unique(tf.concat([[0], rows], axis=0))[0])
        places = tf.where(self.is_own(numbers), numbers // self.count, 0)
        return {NUMBERS: numbers, ROWS: sum_of_all([self._own_or_zero(one, numbers, places) for one in self.values])}

    def _own_or_zero(self, variable: tf.Variable, numbers: Tensor, places: Tensor) -> tf.Tensor:
        found = tf.gather(variable, places)
        is_own = tf.reshape(self.is_own(numbers), [-1] + [1] * (found.shape.rank - 1))
        return tf.where(is_own, found, tf.zeros_like(found))

    def is_own(self, rows: Tensor) -> tf.Tensor:
        """Whether this worker holds a row, for int32 [...]."""
        return rows % self.count == self.index

    def own_scores(self, vectors: Tensor, candidates: Tensor) -> tf.Tensor:
        """Returns the scores of candidates, int32 [b, c], for vectors [b, d]; 0 for those of other workers."""
        is_own = self.is_own(candidates)
        places = tf.where(is_own, candidates // self.count, 0)
        table, bias = self.values
        scores = tf.einsum("bd,bcd->bc", vectors, tf.gather(table, places)) + tf.gather(bias, places)
        return tf.where(is_own, scores, 0.0)

    def update(self, numbers: Tensor, gradients: list[Tensor], rate: Tensor) -> None:
        """Changes this worker's rows among `numbers` by the summed gradients of ROWS."""
        chosen = tf.where(self.is_own(numbers))[:, 0]
        places = tf.gather(numbers, chosen) // self.count
        for variable, sums, gradient in zip(self.values, self.sums, gradients, strict=True):
            adagrad_rows(variable, sums, tf.IndexedSlices(tf.gather(gradient, chosen), places), rate)

    def blocks(self, variable: tf.Variable) -> Iterator[np.ndarray]:
        """Yields the values of one of the variables, some rows at a time."""
        held = variable.shape[0]
        for begin in range(0, held, BLOCK):
            yield tf.gather(variable, tf.range(begin, min(begin + BLOCK, held))).numpy()


def sum_of_all(values: list[Tensor]) -> list[Tensor]:
    """Returns the sum over all workers of each tensor. Call it in a replica."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def _initial_block(begin: int, size: int, width: int, seed: int) -> tf.Tensor:
    """Returns rows [size, d] from `begin` on of what `stateless_truncated_normal` draws for a whole table.

    On a CPU it draws groups of four numbers, and sets the counter forward by 256 from one group to the next.
    """
    with tf.device("CPU"):
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=[seed, 0])
        counter += tf.constant([begin * width // 4 * 256, 0], tf.uint64)
        return tf.raw_ops.StatelessTruncatedNormalV2(shape=[size, width], key=key, counter=counter, alg=1)
