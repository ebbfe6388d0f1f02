"""Transition evidence: how strongly the items of a history point to each item, by counts that are not trained."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class TransitionEvidence(keras.layers.Layer):
    """Scores every item by the evidence of a history: gain x sum over the history of w_j E(h_j, a) + share x log p(a).

    E is sparse: a list of pairs (b, a) with their evidence, ordered by b. w weighs the items of a history by their age
    (`weigh`). p is the items' popularity. All weights are set by `assign`, and none is trained.

    The weights of the pairs are made by `build`, once it is known how many pairs there are.

    Args:
        num_items: n.

    Call arguments:
        items: int32 [b, w], histories oldest first, right-padded with 0.
        lengths: int32 [b], items of each history.

    Returns:
        float32 [b, n + 1], column i for item i; column 0 means nothing.

    Reference:
        Petrov et al., Do sequential recommendation benchmarks really require higher-order sequence modelling?, RecSys
        2026.
    """

    def __init__(self, num_items: int, **options: Any) -> None:
        super().__init__(trainable=False, **options)
        self.num_items = num_items

    def build(self, input_shape: Shape) -> None:
        """Makes the weights. `input_shape`: (number of pairs,)."""
        self.num_pairs, rows = input_shape[0], self.num_items + 1

        def add(name: str, size: int, dtype: str = "float32") -> keras.Variable:
            return self.add_weight((size,), "zeros", dtype, trainable=False, autocast=False, name=name)

        self.splits = add("splits", rows + 1, "int32")
        self.neighbors = add("neighbors", self.num_pairs, "int32")
        self.strengths = add("strengths", self.num_pairs)
        self.log_shares = add("log_shares", rows)
        self.kernel = add("kernel", 4)
        self.mix = add("mix", 2)

    def assign(
        self,
        splits: np.ndarray,
        neighbors: np.ndarray,
        strengths: np.ndarray,
        log_shares: np.ndarray,
        kernel: tuple[float, float, float, float],
    ) -> None:
        """Sets the evidence, and makes the weights first if `build` was not called.

        Args:
            splits: int [n + 2]; the pairs of first item b are those from `splits[b]` to `splits[b + 1]` - 1.
            neighbors, strengths: int [pairs] and float [pairs], the second items and their evidence.
            log_shares: float [n + 1], log p.
            kernel: power, decay, recent_items and recent_share of `weigh`.

        Raises:
            ValueError: if the weights were made for another number of pairs.
        """
        if not self.built:
            self.build((len(neighbors),))
            self.built = True
        values = (splits, neighbors, strengths, log_shares, kernel)
        weights = (self.splits, self.neighbors, self.strengths, self.log_shares, self.kernel)
        for weight, value in zip(weights, values):
            weight.assign(np.asarray(value, weight.dtype))

    def weigh(self, lengths: Tensor, width: Tensor) -> tf.Tensor:
        """Returns the weight of each place of a history, float32 [b, `width`]; 0 for padding. A row's sum is 1.

        The newest `recent_items` share `recent_share` in proportion to decay^age / (age + 1)^power, where the newest
        has age 0. The older items share the rest evenly; without older items, the newest share everything.
        """
        power, decay, recent_items, recent_share = tf.unstack(tf.convert_to_tensor(self.kernel))
        ages = tf.cast(lengths[:, None] - 1 - tf.range(width)[None, :], tf.float32)
        is_recent = (ages >= 0) & (ages < recent_items)
        every_age = tf.range(tf.cast(width, tf.float32))
        by_age = tf.where(every_age < recent_items, decay**every_age / (every_age + 1.0) ** power, 0.0)
        raw = tf.where(is_recent, tf.gather(by_age, tf.cast(tf.maximum(ages, 0.0), tf.int32)), 0.0)
        # One sum after the other, so that a sum does not depend on the padding.
        totals = tf.gather(tf.pad(tf.cumsum(by_age), [[1, 0]]), lengths)[:, None]
        num_older = tf.maximum(tf.cast(lengths, tf.float32) - recent_items, 0.0)[:, None]
        share = tf.where(num_older > 0, recent_share, 1.0)
        recent = tf.math.divide_no_nan(share * raw, totals)
        older = tf.math.divide_no_nan(1.0 - share, num_older)
        return tf.where(is_recent, recent, tf.where(ages >= recent_items, older, 0.0))

    def encode(self, items: Tensor, lengths: Tensor) -> tf.Tensor:
        """Returns what `score` needs to know of histories, float32 [b, 2 w]: item numbers, exact up to 2^24; weights.

        `items` and `lengths`: as for a call.
        """
        return tf.concat([tf.cast(items, tf.float32), self.weigh(lengths, tf.shape(items)[1])], axis=1)

    def score(self, encoded: Tensor, candidates: Tensor | None = None) -> tf.Tensor:
        """Returns the scores of histories that `encode` returned, float32 [b, c], or [b, n] without candidates.

        `candidates`: int32 [b, c], or None for all items, column j for item j + 1.
        """
        scores = self._score_rows(encoded)
        return scores[:, 1:] if candidates is None else tf.gather(scores, candidates, batch_dims=1)

    def _score_rows(self, encoded: Tensor) -> tf.Tensor:
        items, weights = tf.split(encoded, 2, axis=1)
        mix = tf.convert_to_tensor(self.mix)
        return mix[0] * self.sum_pairs(tf.cast(items, tf.int32), weights) + mix[1] * self.log_shares

    def sum_pairs(self, items: Tensor, weights: Tensor) -> tf.Tensor:
        """Returns the weighted sums of the evidence of each row's `items`, int32 [b, w]: float32 [b, n + 1].

        One row after the other, so a sum does not depend on what else is in the batch. `weights`: float32 [b, w].
        """
        splits, neighbors, strengths = (
            tf.convert_to_tensor(one) for one in (self.splits, self.neighbors, self.strengths)
        )

        def sum_row(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            numbers, shares = row
            begins = tf.gather(splits, numbers)
            ends = tf.cumsum(tf.gather(splits, numbers + 1) - begins)
            total = tf.reduce_max(tf.pad(ends, [[1, 0]]))
            # The place in the row of each of its pairs: how many places of the row have ended before.
            marks = tf.tensor_scatter_nd_add(tf.zeros([total + 1], tf.int32), ends[:, None], tf.ones_like(ends))
            owners = tf.cumsum(marks)[:-1]
            offsets = begins - tf.pad(ends, [[1, 0]])[:-1]
            places = tf.gather(offsets, owners) + tf.range(total)
            terms = tf.gather(strengths, places) * tf.gather(shares, owners)
            columns = tf.gather(neighbors, places)
            return tf.tensor_scatter_nd_add(tf.zeros([self.num_items + 1]), columns[:, None], terms)

        row_type = tf.TensorSpec([self.num_items + 1], tf.float32)
        return tf.map_fn(sum_row, (items, weights), fn_output_signature=row_type)

    def call(self, items: Tensor, lengths: Tensor) -> tf.Tensor:
        return self._score_rows(self.encode(items, lengths))

    def compute_output_shape(self, items_shape: Shape) -> tuple[int | None, int]:
        return items_shape[0], self.num_items + 1

    def load_own_variables(self, store: Any) -> None:
        """Makes the weights for as many pairs as a Keras file has, and loads them."""
        if not self.built and "1" in store.keys():  # noqa: SIM118
            self.build(tuple(store["1"].shape))  # `neighbors`
        super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_items": self.num_items}
