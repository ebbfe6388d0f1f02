"""An item table shared by W machines: worker r % W holds row r. Only the rows that a step reads cross the network."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.nn.optimizers import adagrad_rows

NUMBERS, ROWS = "row_numbers", "rows"
"""Entries of a batch with looked-up rows: the rows' numbers, int32 [u], and the list [vectors [u, d], biases [u]]."""

BLOCK = 1 << 18
"""Rows that are drawn, written or read at once. A multiple of 4 (`_initial_block`)."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a table: their ascending numbers, int32 [u], and their values, float [u, ...]."""

    numbers: Tensor
    values: Tensor

    @property
    def dtype(self) -> tf.DType:
        return self.values.dtype


def gather(table: Tensor | Rows, rows: Tensor) -> tf.Tensor:
    """Returns `rows`, int32 [...], of a whole table or of looked-up rows: float [..., d]."""
    if not isinstance(table, Rows):
        return tf.gather(table, rows)
    places = tf.searchsorted(table.numbers, tf.reshape(tf.cast(rows, tf.int32), [-1]))
    return tf.gather(table.values, tf.reshape(places, tf.shape(rows)))


class ShardedTable:
    """One worker's rows of the item table, with their biases if it has any, and the state of rowwise Adagrad.

    All methods on tensors are called on every worker at the same time, in a replica of the strategy.

    Args:
        num_rows: rows of the whole table.
        width: d.
        stddev: standard deviation of truncated normal initial vectors; None for Glorot's uniform ones. They equal those
            that Keras' initializer gives the whole table, to the bit, but no machine holds more than a block of them.
        seed: seed of the initial vectors.
        index, count: this worker's number, from 0, and the number of workers.
        has_bias: whether items have biases.

    Attributes:
        values: this worker's vectors [r, d], and its biases [r] if there are any.
        sums: rowwise Adagrad's sums of squares, [r], for each of `values`.
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
        """Looks up `rows`, int32 [any], and row 0. Returns a batch's entries NUMBERS and ROWS, each row once.

        Every worker asks for the same rows. Each adds its own rows, and zeros for the others, so the sums are exact.
        """
        numbers = tf.sort(tf.unique(tf.concat([[0], rows], axis=0))[0])
        is_own, places = self.own_rows(numbers)
        found = [tf.gather(one, places) for one in self.values]
        found = [tf.where(is_own if one.shape.rank == 1 else is_own[:, None], one, tf.zeros_like(one)) for one in found]
        return {NUMBERS: numbers, ROWS: sum_of_all(found)}

    def own_rows(self, rows: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns whether this worker holds each of `rows`, int32 [...], and its place here; 0 for others' rows."""
        is_own = rows % self.count == self.index
        return is_own, tf.where(is_own, rows // self.count, 0)

    def own_scores(self, vectors: Tensor, candidates: Tensor) -> tf.Tensor:
        """Returns the scores of candidates, int32 [b, c], for vectors [b, d]; 0 for other workers' candidates."""
        is_own, places = self.own_rows(candidates)
        table, *biases = self.values
        scores = tf.einsum("bd,bcd->bc", vectors, tf.gather(table, places))
        for bias in biases:
            scores += tf.gather(bias, places)
        return tf.where(is_own, scores, 0.0)

    def update(self, numbers: Tensor, gradients: list[Tensor], rate: Tensor) -> None:
        """Updates this worker's rows among `numbers`. `gradients`: of ROWS, summed over all workers."""
        chosen = tf.where(self.own_rows(numbers)[0])[:, 0]
        places = tf.gather(numbers, chosen) // self.count
        for variable, sums, gradient in zip(self.values, self.sums, gradients, strict=True):
            adagrad_rows(variable, sums, tf.IndexedSlices(tf.gather(gradient, chosen), places), rate)

    def blocks(self, variable: tf.Variable) -> Iterator[np.ndarray]:
        """Yields the values of a variable, at most BLOCK rows at a time."""
        held = variable.shape[0]
        for begin in range(0, held, BLOCK):
            yield tf.gather(variable, tf.range(begin, min(begin + BLOCK, held))).numpy()


def sum_of_all(values: list[Tensor]) -> list[Tensor]:
    """Returns the sum over all workers of each tensor. Call it in a replica."""
    values = [tf.identity(value) for value in values]  # puts the replica's arguments on its device
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def _initial_block(begin: int, size: int, width: int, seed: int, is_uniform: bool) -> tf.Tensor:
    """Returns rows `begin` to `begin + size` of the draws that Keras' initializer makes for the whole table.

    They are float32 [size, width], not yet scaled. On a CPU, numbers are drawn in groups of four. From one group to the
    next, truncated normal draws advance the counter by 256, uniform ones by 1.
    """
    raw = tf.raw_ops
    draw, stride = (raw.StatelessRandomUniformV2, 1) if is_uniform else (raw.StatelessTruncatedNormalV2, 256)
    with tf.device("CPU"):
        key, counter = raw.StatelessRandomGetKeyCounter(seed=[seed, 0])
        counter += tf.constant([begin * width // 4 * stride, 0], tf.uint64)
        return draw(shape=[size, width], key=key, counter=counter, alg=1)
