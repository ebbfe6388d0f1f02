"""An item table whose rows lie on several machines: worker `row % W` holds a row. Only what a step reads travels."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.nn.optimizers import adagrad_rows

NUMBERS, ROWS = "row_numbers", "rows"
"""Entries of a batch with looked-up rows: int32 [u], and [vectors [u, d], biases [u]]."""

BLOCK = 1 << 18
"""Rows that are drawn, written or read at once. A multiple of 4 (`_initial_block`)."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, in place of the whole one: ascending numbers, int32 [u], and values, float [u, ...]."""

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
    """One worker's rows of the item table, with their biases if it has any, and the state of rowwise Adagrad.

    All methods on tensors are called on every worker at the same time, in a replica of the strategy.

    Args:
        num_rows: of the whole table.
        width: d.
        stddev: of the truncated normal initial vectors; None for Glorot's uniform ones. They are those of Keras'
            initializer for the whole table, to the bit, but no machine ever holds more than a block of them.
        seed: of the initial vectors.
        index, count: the number of this worker, and of all.
        has_bias: whether items have biases.

    Attributes:
        values: vectors [r, d], and biases [r] if there are any.
        sums: the sums of squares of each of them, [r].
    """

    def __init__(
        self, num_rows: int, width: int, stddev: float | None, seed: int, index: int, count: int, has_bias: bool = True
    ) -> None:
        self.num_rows, self.width, self.index, self.count = num_rows, width, index, count
        held = len(range(index, num_rows, count))
        self.values = [tf.Variable(tf.zeros(shape)) for shape in ([held, width], [held])[: 1 + has_bias]]
        self.sums = [tf.Variable(tf.zeros([held])) for _ in self.values]
        limit = math.sqrt(6 / (num_rows + width))
        scale, lowest = (2 * limit, -limit) if stddev is None else (stddev, 0.0)
        for begin in range(0, num_rows, BLOCK):
            size = min(BLOCK, num_rows - begin)
            drawn = _initial_block(begin, size, width, seed, stddev is None)
            block = drawn[(index - begin) % count :: count] * scale + lowest
            first = len(range(index, begin, count))
            self.values[0].scatter_update(tf.IndexedSlices(block, tf.range(first, first + block.shape[0])))

    def look_up(self, rows: Tensor) -> dict[str, Tensor | list[Tensor]]:
        """Returns the distinct rows among int32 [any], padding included, for a batch: NUMBERS and ROWS.

        Every worker asks for the same rows and adds up its own and zeros, so the sum is exact.
        """
        numbers = tf.sort(tf.unique(tf.concat([[0], rows], axis=0))[0])
        is_own, places = self.own_rows(numbers)
        found = [tf.gather(one, places) for one in self.values]
        found = [tf.where(is_own if one.shape.rank == 1 else is_own[:, None], one, tf.zeros_like(one)) for one in found]
        return {NUMBERS: numbers, ROWS: sum_of_all(found)}

    def own_rows(self, rows: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns whether this worker holds each row, int32 [...], and where; 0 for those of other workers."""
        is_own = rows % self.count == self.index
        return is_own, tf.where(is_own, rows // self.count, 0)

    def own_scores(self, vectors: Tensor, candidates: Tensor) -> tf.Tensor:
        """Returns the scores of candidates, int32 [b, c], for vectors [b, d]; 0 for those of other workers."""
        is_own, places = self.own_rows(candidates)
        table, *biases = self.values
        scores = tf.einsum("bd,bcd->bc", vectors, tf.gather(table, places))
        for bias in biases:
            scores += tf.gather(bias, places)
        return tf.where(is_own, scores, 0.0)

    def update(self, numbers: Tensor, gradients: list[Tensor], rate: Tensor) -> None:
        """Changes this worker's rows among `numbers` by the summed gradients of ROWS."""
        chosen = tf.where(self.own_rows(numbers)[0])[:, 0]
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
    values = [tf.identity(value) for value in values]  # which puts arguments of the replica on its device
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def _initial_block(begin: int, size: int, width: int, seed: int, is_uniform: bool) -> tf.Tensor:
    """Returns rows [size, d] from `begin` on of what Keras' truncated normal or uniform draws give a whole table.

    On a CPU both draw groups of four numbers. From one group to the next, the truncated normal draws set the counter
    forward by 256, the uniform ones by 1.
    """
    raw = tf.raw_ops
    draw, stride = (raw.StatelessRandomUniformV2, 1) if is_uniform else (raw.StatelessTruncatedNormalV2, 256)
    with tf.device("CPU"):
        key, counter = raw.StatelessRandomGetKeyCounter(seed=[seed, 0])
        counter += tf.constant([begin * width // 4 * stride, 0], tf.uint64)
        return draw(shape=[size, width], key=key, counter=counter, alg=1)
