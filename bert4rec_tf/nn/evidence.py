"""Transition evidence: how strongly the items of a history point to each item, by counts that are not trained."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Shape, Tensor

DENSE_ITEMS = 11_000
"""Of so many items, all pairs may be in a table: of half a gigabyte at most."""

MAX_PAIRS_AT_ONCE, PAIRS_PER_ROW = 1 << 20, 1 << 14
"""How many pairs are added at once at most, and in a batch of fixed shape for each of its histories."""

NOT_COUNTED = "The transitions of the items are not counted yet; call `model.adapt(sequences)` first"

ALIGNMENT = 64
"""TensorFlow's memory begins at multiples of so many bytes."""

PAIRS, ROWS, PRODUCT = "pairs", "rows", "product"


def choose_sum(num_items: int) -> str:
    """Returns the quickest way to sum the evidence of thousands of histories on this machine.

    PAIRS adds the neighbours of each item. ROWS adds the rows of a table of all pairs, to the same bits. PRODUCT
    multiplies the weights of all items with that table: the most work, and the quickest on an accelerator.
    """
    if num_items > DENSE_ITEMS:
        return PAIRS
    return PRODUCT if tf.config.list_logical_devices("GPU") else ROWS


def sum_table_rows(table: Tensor, items: Tensor, weights: Tensor) -> tf.Tensor:
    """Returns the weighted sums of rows of a table, float32 [n, n], by ROWS or PRODUCT: float32 [b, n].

    `items`, `weights`: int32 [b, w] and float32 [b, w]. Items of 0 do not count.
    """
    shape = [tf.shape(items)[0], tf.shape(table)[0]]
    if table.shape[0] is not None and choose_sum(table.shape[0] - 1) == PRODUCT:
        rows = tf.broadcast_to(tf.range(shape[0])[:, None], tf.shape(items))
        return tf.matmul(tf.scatter_nd(tf.stack([rows, items], axis=2), weights, shape), table)
    places = tf.where(items != 0)
    columns = tf.cast(tf.gather_nd(items, places), tf.int64)
    histories = tf.raw_ops.SparseTensorToCSRSparseMatrix(
        indices=tf.stack([places[:, 0], columns], axis=1),
        values=tf.gather_nd(weights, places),
        dense_shape=tf.cast(shape, tf.int64),
    )
    return tf.raw_ops.SparseMatrixMatMul(a=histories, b=table)


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class TransitionEvidence(keras.layers.Layer):
    """Scores every item by the evidence of a history: gain x sum over the history of w_j E(h_j, a) + share x log p(a).

    E is sparse: a list of pairs (b, a) with their evidence, ordered by b. w weighs the items of a history by their age
    (`weigh`). p is the items' popularity. `assign` sets all but `mix`: the gain, the share, and the scale by which the
    sum of this and a network's scores is multiplied (`EvidenceRecommender.score_vectors`). Nothing is trained.

    The weights of the pairs are made by `build`, once it is known how many pairs there are.

    Args:
        num_items: n.
        max_history: the most items of a history.

    Reference:
        Petrov et al., Do sequential recommendation benchmarks really require higher-order sequence modelling?, RecSys
        2026.
    """

    built: bool

    neighbors_place: ClassVar[int] = 1
    """The place of `neighbors` among its weights."""

    def __init__(self, num_items: int, max_history: int, **options: Any) -> None:
        super().__init__(trainable=False, **options)
        self.num_items, self.max_history = num_items, max_history
        self.first_mix = (0.0, 0.0, 1.0)
        self._table: tf.Tensor | None = None

    def build(self, input_shape: Shape) -> None:
        """Makes the weights. `input_shape`: (number of pairs,)."""
        self.num_pairs, rows = input_shape[0], self.num_items + 1

        def add(name: str, *shape: int, dtype: str = "float32") -> keras.Variable:
            return self.add_weight(shape, "zeros", dtype, trainable=False, autocast=False, name=name)

        self.splits = add("splits", rows + 1, dtype="int32")
        self.neighbors = add("neighbors", self.num_pairs, dtype="int32")
        self.strengths = add("strengths", self.num_pairs)
        self.log_shares = add("log_shares", rows)
        self.age_weights = add("age_weights", self.max_history + 1, self.max_history)
        self.mix = add("mix", 3)
        self.mix.assign(self.first_mix)

    def assign(
        self,
        splits: np.ndarray,
        neighbors: np.ndarray,
        strengths: np.ndarray,
        log_shares: np.ndarray,
        age_weights: np.ndarray,
    ) -> None:
        """Sets the evidence, and makes the weights first if `build` was not called.

        Args:
            splits: int [n + 2]; the pairs of first item b are those from `splits[b]` to `splits[b + 1]` - 1.
            neighbors, strengths: int [pairs] and float [pairs], the second items and their evidence.
            log_shares: float [n + 1], log p.
            age_weights: float [max_history + 1, max_history], row l: the weights of the items of a history of l items,
                the newest first; 0 from l on.

        Raises:
            UserError: if the weights were made for another number of pairs.
        """
        if not self.built:
            self.build((len(neighbors),))
        if len(neighbors) != self.num_pairs:
            raise UserError(
                f"`sequences` must have {self.num_pairs} pairs of items, as those counted before; count others "
                f"in a new model, such as `model.grow([])`. Received: {len(neighbors)} pairs"
            )
        values = (splits, neighbors, strengths, log_shares, age_weights)
        weights = (self.splits, self.neighbors, self.strengths, self.log_shares, self.age_weights)
        for weight, value in zip(weights, values):
            weight.assign(np.asarray(value, weight.dtype))

    def weigh(self, lengths: Tensor, width: Tensor) -> tf.Tensor:
        """Returns the weight of each place of a history, float32 [b, `width`]; 0 for padding.

        They are read from a table, so they do not depend on the width, to the bit.
        """
        ages = lengths[:, None] - 1 - tf.range(width)[None, :]
        rows = tf.gather(tf.convert_to_tensor(self.age_weights), lengths)
        return tf.where(ages >= 0, tf.gather(rows, tf.maximum(ages, 0), batch_dims=1), 0.0)

    def encode(self, items: Tensor, lengths: Tensor) -> tf.Tensor:
        """Returns what `score` needs to know of histories, float32 [b, 2 w]: item numbers, exact up to 2^24; weights.

        `items`: int32 [b, w], histories oldest first, right-padded with 0. `lengths`: int32 [b], items of each history.
        Raises UserError if the evidence was not counted.
        """
        if not self.built:
            raise UserError(NOT_COUNTED)
        return tf.concat([tf.cast(items, tf.float32), self.weigh(lengths, tf.shape(items)[1])], axis=1)

    def has_pairs(self, histories: Tensor) -> tf.Tensor:
        """Returns whether any item has evidence after the histories that `encode` returned, bool [b]."""
        items, weights = tf.split(histories, 2, axis=1)
        splits, numbers = tf.convert_to_tensor(self.splits), tf.cast(items, tf.int32)
        return tf.reduce_any((tf.gather(splits, numbers + 1) > tf.gather(splits, numbers)) & (weights > 0), axis=1)

    def score(self, histories: Tensor, candidates: Tensor | None = None) -> tf.Tensor:
        """Returns the scores of histories that `encode` returned, float32 [b, c], or [b, n] without candidates.

        `candidates`: int32 [b, c], or None for all items, column j for item j + 1.
        """
        items, weights = tf.split(histories, 2, axis=1)
        mix = tf.convert_to_tensor(self.mix)
        scores = mix[0] * self.sum_pairs(tf.cast(items, tf.int32), weights) + mix[1] * self.log_shares
        return scores[:, 1:] if candidates is None else tf.gather(scores, candidates, batch_dims=1)

    def sum_pairs(self, items: Tensor, weights: Tensor) -> tf.Tensor:
        """Returns the weighted sums of the evidence of each row's `items`, int32 [b, w]: float32 [b, n + 1].

        `weights`: float32 [b, w]. The terms of a row are added in the order of its items. So a sum does not depend on
        what else is in the batch, except in a matrix product (`choose_sum`).
        """
        if self._table is None:
            return self._add_pairs(items, weights)
        table = tf.convert_to_tensor(self._table)
        if table.shape.is_fully_defined():
            return sum_table_rows(table, items, weights)
        sum_rows, add_pairs = (lambda: sum_table_rows(table, items, weights)), (lambda: self._add_pairs(items, weights))
        has_both = (tf.size(table) > 0) & tf.reduce_any(items != 0)  # TensorFlow's product needs both
        sums = tf.cond(has_both, sum_rows, add_pairs)
        sums.set_shape([None, self.num_items + 1])
        return sums

    def _add_pairs(self, items: Tensor, weights: Tensor) -> tf.Tensor:
        """Does what `sum_pairs` says, by PAIRS."""
        splits, neighbors, strengths = (
            tf.convert_to_tensor(weight) for weight in (self.splits, self.neighbors, self.strengths)
        )
        rows = tf.shape(items)[0]
        numbers, shares = tf.reshape(items, [-1]), tf.reshape(weights, [-1])
        begins = tf.gather(splits, numbers)
        # The pairs of the batch have numbers. Those of a place are from the end of the place before to its own end.
        sizes = tf.cast(tf.gather(splits, numbers + 1) - begins, tf.int64)
        ends = tf.cumsum(sizes)
        offsets = tf.cast(begins, tf.int64) - (ends - sizes)
        first_cells = tf.reshape((tf.range(rows) * (self.num_items + 1))[:, None] + tf.zeros_like(items), [-1])
        total = tf.reduce_max(tf.pad(ends, [[1, 0]]))
        # XLA needs fixed shapes: then the last chunk has numbers without a pair.
        is_fixed = items.shape.is_fully_defined()
        max_pairs = min(PAIRS_PER_ROW * items.shape[0], MAX_PAIRS_AT_ONCE) if is_fixed else MAX_PAIRS_AT_ONCE

        def add_chunk(begin: tf.Tensor, sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            num_pairs = tf.cast(tf.minimum(tf.constant(max_pairs, tf.int64), total - begin), tf.int32)
            steps = tf.range(max_pairs if is_fixed else num_pairs)
            # The place of each pair: how many places have ended before.
            num_ended = tf.cast(tf.clip_by_value(ends - begin, 0, tf.size(steps, tf.int64)), tf.int32)
            marks = tf.zeros([tf.size(steps) + 1], tf.int32)
            places = tf.cumsum(tf.tensor_scatter_nd_add(marks, num_ended[:, None], tf.ones_like(numbers)))[:-1]
            places = tf.minimum(places, tf.size(numbers) - 1) if is_fixed else places
            pairs = steps + tf.gather(tf.cast(offsets + begin, tf.int32), places)
            factors = tf.gather(shares, places)
            if is_fixed:
                pairs, factors = (tf.where(steps < num_pairs, part, tf.zeros_like(part)) for part in (pairs, factors))
            terms, columns = tf.gather(strengths, pairs) * factors, tf.gather(neighbors, pairs)
            cells = tf.cond(rows > 1, lambda: columns + tf.gather(first_cells, places), lambda: columns)
            return begin + tf.size(steps, tf.int64), tf.tensor_scatter_nd_add(sums, cells[:, None], terms)

        start = tf.constant(0, tf.int64), tf.zeros([rows * (self.num_items + 1)])
        _, sums = tf.while_loop(lambda begin, _: begin < total, add_chunk, start, parallel_iterations=1)
        return tf.reshape(sums, [rows, self.num_items + 1])

    def make_table(self) -> tf.Tensor | None:
        """Returns the evidence of all pairs, float32 [n + 1, n + 1]; None if `choose_sum` prefers the pairs.

        With it, the sums of thousands of histories take a fraction of the time (`read_table`).
        """
        if not self.built or choose_sum(self.num_items) == PAIRS:
            return None
        splits, neighbors, strengths = (np.asarray(part) for part in (self.splits, self.neighbors, self.strengths))
        size = self.num_items + 1
        memory = np.zeros(size**2 * 4 + ALIGNMENT, np.uint8)  # TensorFlow would copy a table that is not aligned
        table = memory[-memory.ctypes.data % ALIGNMENT :][: size**2 * 4].view(np.float32).reshape(size, size)
        for item, part in enumerate(itertools.starmap(slice, itertools.pairwise(splits.tolist()))):
            table[item, neighbors[part]] = strengths[part]
        return tf.identity(tf.experimental.dlpack.from_dlpack(table.__dlpack__()))  # on the device

    @contextlib.contextmanager
    def read_table(self, table: tf.Tensor | None) -> Iterator[None]:
        """Inside the block, sums read a table from `make_table` in place of the pairs, unless it is None.

        `table` may be a variable of unknown shape. While it is empty, sums read the pairs.
        """
        self._table = table
        try:
            yield
        finally:
            self._table = None

    def load_own_variables(self, store: Any) -> None:
        """Makes the weights for as many pairs as a Keras file has, and loads them."""
        if not self.built and str(self.neighbors_place) in store.keys():  # noqa: SIM118
            self.build(tuple(store[str(self.neighbors_place)].shape))  # `neighbors`
        super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_items": self.num_items, "max_history": self.max_history}
