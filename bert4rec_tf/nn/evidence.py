"""Transition evidence: how strongly the items of a history point to each item, by counts that are not trained."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class TransitionEvidence(keras.layers.Layer):
    """Scores every item by the evidence of a history: gain x sum over the history of w_j E(h_j, a) + share x log p(a).

    E is sparse: a list of pairs (b, a) with their evidence, ordered by b. w weighs the items of a history by their age
    (`weigh`). p is the items' popularity. `assign` sets all but `mix`: the gain, the share, and the scale by which the
    sum of this and a network's scores is multiplied (`FeatureRecommender.score_vectors`). Nothing is trained.

    The weights of the pairs are made by `build`, once it is known how many pairs there are.

    Args:
        num_items: n.
        max_history: the most items of a history.

    Reference:
        Petrov et al., Do sequential recommendation benchmarks really require higher-order sequence modelling?, RecSys
        2026.
    """

    def __init__(self, num_items: int, max_history: int, **options: Any) -> None:
        super().__init__(trainable=False, **options)
        self.num_items, self.max_history = num_items, max_history

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
        self.mix.assign([0.0, 0.0, 1.0])

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
            ValueError: if the weights were made for another number of pairs.
        """
        if not self.built:
            self.build((len(neighbors),))
            self.built = True
        if len(neighbors) != self.num_pairs:
            raise ValueError(f"`neighbors` must have {self.num_pairs} pairs, as before. Received: {len(neighbors)}")
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
            raise UserError("The transitions of the items are not counted yet; call `model.adapt(sequences)` first")
        return tf.concat([tf.cast(items, tf.float32), self.weigh(lengths, tf.shape(items)[1])], axis=1)

    def score(self, encoded: Tensor, candidates: Tensor | None = None) -> tf.Tensor:
        """Returns the scores of histories that `encode` returned, float32 [b, c], or [b, n] without candidates.

        `candidates`: int32 [b, c], or None for all items, column j for item j + 1.
        """
        items, weights = tf.split(encoded, 2, axis=1)
        mix = tf.convert_to_tensor(self.mix)
        scores = mix[0] * self.sum_pairs(tf.cast(items, tf.int32), weights) + mix[1] * self.log_shares
        return scores[:, 1:] if candidates is None else tf.gather(scores, candidates, batch_dims=1)

    def sum_pairs(self, items: Tensor, weights: Tensor) -> tf.Tensor:
        """Returns the weighted sums of the evidence of each row's `items`, int32 [b, w]: float32 [b, n + 1].

        One row after the other, so a sum does not depend on what else is in the batch. `weights`: float32 [b, w].
        """
        splits, neighbors, strengths = (
            tf.convert_to_tensor(weight) for weight in (self.splits, self.neighbors, self.strengths)
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

    def load_own_variables(self, store: Any) -> None:
        """Makes the weights for as many pairs as a Keras file has, and loads them."""
        if not self.built and "1" in store.keys():  # noqa: SIM118
            self.build(tuple(store["1"].shape))  # `neighbors`
        super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_items": self.num_items, "max_history": self.max_history}
