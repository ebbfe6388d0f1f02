"""SASRec: self-attention over the past (Kang & McAuley, ICDM 2018)."""

import math
from typing import Any, ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import PER_TARGET, SAMPLE, SASRecSettings
from bert4rec_tf.foundation.types import Batch, Shape, Tensor
from bert4rec_tf.models.feature_recommender import NEVER, FeatureRecommender
from bert4rec_tf.models.recommender import last_items_in_order
from bert4rec_tf.models.rows import FROM_LAST
from bert4rec_tf.nn import layouts
from bert4rec_tf.nn.attention import attend
from bert4rec_tf.nn.dropout import dropout_layer
from bert4rec_tf.nn.layers import (
    Layer,
    check_heads,
    check_rate,
    check_size,
    choose_mask,
    count_from_last,
    mask_places,
)

EPSILON = 1e-8
"""Epsilon of the layer norms, as in the authors' program."""

LENGTH_GROUPS = (1 / 2, 4 / 5)
"""Where a batch sorted by length is cut into groups (`layouts.split_rows`). More gain little and compile longer."""


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class SASRec(FeatureRecommender):
    """Blocks of causal attention and point-wise networks over item and position embeddings (section III of its paper).

    As in the authors' program, only the queries are normalised, the residual starts from them, attention has no
    output projection, and the item table is the output layer too.
    """

    settings_type: ClassVar = SASRecSettings
    examples: ClassVar[str] = "shifted"

    def make_variables(self) -> None:
        hidden_dim, dropout = self.settings.hidden_dim, self.settings.dropout
        self.max_history = self.settings.max_length
        self.scores_are_logits = self.loss_entry.scores_are_logits
        self.items = self.add_items("items", self.num_items + 1, hidden_dim, "glorot_uniform")
        self.positions = self.add_table("positions", self.max_history, hidden_dim, "glorot_uniform", row_kind=FROM_LAST)
        self.embedding_dropout = dropout_layer("embedding_dropout", dropout, self.dtype_policy)
        self.blocks = [
            CausalBlock(self.settings.num_heads, dropout, dtype=self.dtype_policy, name=f"block_{number}")
            for number in range(self.settings.num_layers)
        ]
        for block in self.blocks:
            block.build((None, None, hidden_dim))
        self.norm = keras.layers.LayerNormalization(epsilon=EPSILON, dtype=self.dtype_policy, name="norm")
        self.norm.build((None, None, hidden_dim))
        self.add_feature_vectors(hidden_dim, *["glorot_uniform"] * 2)
        self.add_evidence()

    @property
    def example_options(self) -> dict[str, int]:
        negatives = 1 if self.loss_entry.negatives == PER_TARGET else 0
        return {"max_length": self.settings.max_length, "num_negatives": negatives}

    def states(
        self,
        items: Tensor,
        training: bool = False,
        users: Tensor | None = None,
        table: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Returns the states [b, n, d] of `items [b, n]`, right-padded. The last item always has the last position.

        `users`: int32 [b], if the model reads users; None for unknown users. `table`: `item_table()`, if computed.
        `places`: int32 [b, m], the columns of real items whose states [b, m, d] are returned; None for all.
        """
        is_real = items > 0
        hidden = tf.gather(self.item_table() if table is None else table, items) * math.sqrt(self.settings.hidden_dim)
        if self.needs_users and users is not None:
            hidden += self.embed_users(users)[:, None]
        hidden += tf.gather(self.positions, count_from_last(is_real, self.max_history))
        mask = tf.cast(is_real, hidden.dtype)[:, :, None]
        hidden = self.embedding_dropout(hidden, training=training) * mask
        *first_blocks, last_block = self.blocks
        for block in first_blocks:
            hidden = tf.cast(block(hidden, training=training), mask.dtype) * mask
        mask = mask if places is None else tf.gather(mask, places, batch_dims=1)
        hidden = tf.cast(last_block(hidden, training=training, places=places), mask.dtype) * mask
        return tf.cast(self.norm(hidden), self.variable_dtype)

    def training_loss(self, batch: Batch, training: bool = True) -> Tensor:
        """Returns the mean loss over all positions (equation 6, or a softmax).

        Args:
            batch: `items` and `targets` [b, n]; `negatives [b, n, 1]` for a loss with negatives PER_TARGET;
                `draw [b, 2]` for one over a SAMPLE; `users [b]` if the model reads users.
        """
        table, weight = self.training_table(), tf.maximum(self.loss_weight(batch), 1.0)
        groups = layouts.split_rows(batch, LENGTH_GROUPS, self.settings.hidden_dim)
        if self.loss_entry.negatives == PER_TARGET:
            return tf.add_n([self._compute_loss_of_pairs(group, table, training) for group in groups]) / weight
        columns = [
            layouts.flatten_targets(group["targets"], self.states(group["items"], training, group.get("users"), table))
            for group in groups
        ]
        targets, states = (tf.concat(parts, axis=0) for parts in zip(*columns))
        weights = tf.cast(targets > 0, states.dtype) / weight
        is_sampled = self.loss_entry.negatives == SAMPLE  # such a loss never reads the row of padding
        bias = None if is_sampled and not len(self.unseen) else self._make_hiding_bias()
        return self.apply_loss_to_states(states, table, bias, targets, weights, batch)

    def _compute_loss_of_pairs(self, batch: Batch, table: Tensor, training: bool) -> Tensor:
        """Returns the sum of the loss over all positions, []."""
        states = self.states(batch["items"], training, batch.get("users"), table)
        weights = tf.cast(batch["targets"] > 0, states.dtype)
        positives = tf.einsum("bnd,bnd->bn", states, tf.gather(table, batch["targets"]))
        negatives = tf.einsum("bnd,bncd->bnc", states, tf.gather(table, batch["negatives"]))
        if len(self.unseen):
            negatives += tf.gather(self.make_unseen_penalty(self.num_items + 1), batch["negatives"])
        return tf.reduce_sum(weights * self.apply_loss(positives, negatives))

    def loss_weight(self, batch: Batch) -> Tensor:
        return tf.reduce_sum(tf.cast(batch["targets"] > 0, tf.float32))

    def _make_hiding_bias(self) -> Tensor:
        """Returns a bias [n + 1] that takes padding and unseen items out of a softmax."""
        penalty = tf.one_hot(0, self.num_items + 1, on_value=NEVER, off_value=0.0)
        return penalty + self.make_unseen_penalty(self.num_items + 1) if len(self.unseen) else penalty

    def network_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        items, lengths = last_items_in_order(batch, self.max_history)
        places = tf.maximum(lengths - 1, 0)[:, None]
        return self.states(items, training, batch.get("users"), places=places)[:, 0]

    def network_products(self) -> tuple[Tensor, Tensor | None]:
        return self.item_table(), None


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class CausalBlock(Layer):
    """One block: q = LN(x); y = q + Attention(q, x, x); z = LN(y); z + W2 relu(W1 z). Each step sees only the past.

    The inputs are [b, n, d]. Padding is where `padding_mask [b, n]` is False; without it where Keras' mask is, or zeros
    on the right. With `places`, int32 [b, m], only the steps at these columns are computed, [b, m, d]. Dropout acts in
    training, on the attention probabilities and after both layers of the point-wise network. `num_heads` divides d.
    """

    arguments = ("num_heads", "dropout")

    def __init__(self, num_heads: int, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.input_spec = keras.InputSpec(ndim=3)
        self.num_heads = check_size("num_heads", num_heads)
        self.dropout = check_rate("dropout", dropout)
        self.attention_dropout, self.inner_dropout, self.outer_dropout = (
            dropout_layer(f"{name}_dropout", dropout, self.dtype_policy) for name in ("attention", "inner", "outer")
        )
        self.query_norm, self.network_norm = (
            keras.layers.LayerNormalization(epsilon=EPSILON, dtype=self.dtype_policy, name=f"{name}_norm")
            for name in ("query", "network")
        )

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        check_heads(self.num_heads, width)
        self.query, self.key, self.value, self.inner, self.outer = (
            keras.layers.Dense(width, dtype=self.dtype_policy, name=name)
            for name in ("query", "key", "value", "inner", "outer")
        )
        for layer in (self.query, self.key, self.value, self.inner, self.outer, self.query_norm, self.network_norm):
            layer.build(input_shape)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        columns = tf.range(tf.shape(inputs)[1])
        is_future = columns > (columns[:, None] if places is None else places[:, None, :, None])
        queries = self.query_norm(inputs if places is None else tf.gather(inputs, places, batch_dims=1))
        padding_mask = choose_mask(inputs, padding_mask)
        hidden = self.network_norm(queries + self._attend(queries, inputs, padding_mask, is_future, training))
        inner = self.inner_dropout(tf.nn.relu(self.inner(hidden)), training=training)
        hidden += tf.cast(self.outer_dropout(self.outer(inner), training=training), hidden.dtype)
        return mask_places(hidden, inputs, places)

    def _attend(
        self, queries: Tensor, inputs: Tensor, padding_mask: Tensor | None, is_future: Tensor, training: bool | None
    ) -> Tensor:
        query, key, value = self.query(queries), self.key(inputs), self.value(inputs)
        # Padding without a mask is on the right, so a real item has only real ones before it.
        hidden = NEVER * tf.cast(is_future, tf.float32)
        if padding_mask is not None:
            hidden += NEVER * (1.0 - tf.cast(padding_mask, tf.float32))[:, None, None, :]
        return attend(query, key, value, self.num_heads, hidden, self.attention_dropout, training)[0]

    def compute_output_spec(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        places: Tensor | None = None,
    ) -> Any:
        shape = (inputs.shape[0], (inputs if places is None else places).shape[1], inputs.shape[2])
        return mask_places(keras.KerasTensor(shape, self.compute_dtype), inputs, places)
