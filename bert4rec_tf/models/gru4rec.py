"""GRU4Rec: a recurrent network over the history (Hidasi et al., ICLR 2016); and GRU4Rec+ (CIKM 2018)."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import GRU4RecPlusSettings, GRU4RecSettings
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import ITEMS, Recommender, last_items_in_order
from bert4rec_tf.nn import layouts, losses
from bert4rec_tf.nn.dropout import dropout_layer

ACTIVATIONS = {
    "linear": tf.identity,
    "tanh": tf.tanh,
    "elu-0.5": functools.partial(keras.activations.elu, alpha=0.5),  # r, and 0.5 (e^r - 1) below 0
}
"""Name -> function applied to the scores in the loss. All are increasing, so ranks do not depend on them."""

LENGTH_CUTS = (1 / 2, 7 / 8)
"""Where a batch sorted by length is cut into parts. After the last step of a part, only the longer rows continue."""

CHUNK = 128
"""Targets per chunk of the loss. Larger chunks are no faster, and leave more of the last chunk empty."""


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class GRU4Rec(Recommender):
    """Item embeddings, GRU and output embeddings, trained with TOP1 against the other targets of the batch.

    Training does not use session-parallel batches. It back-propagates through up to `max_length` steps, as the authors
    advise for long histories; a longer history becomes several examples. The negatives of a step are the other users'
    targets at the same step. The reset gate acts before the recurrent product, as in the authors' program.
    """

    settings_type: ClassVar = GRU4RecSettings
    examples: ClassVar[str] = "shifted"
    max_history: int

    def make_variables(self) -> None:
        rows, hidden_dim, dropout = self.num_items + 1, self.settings.hidden_dim, self.settings.dropout
        self.max_history = self.settings.max_length
        self.items = self.add_table("items", rows, hidden_dim, "glorot_uniform", row_kind=ITEMS)
        self.output_rows = self.add_table("output_rows", rows, hidden_dim, "glorot_uniform", row_kind=ITEMS)
        self.bias = self.add_bias("bias", rows)
        self.input_dropout = dropout_layer("input_dropout", dropout, self.dtype_policy)
        self.output_dropout = dropout_layer("output_dropout", dropout, self.dtype_policy)
        # Glorot's bound of each gate's own matrix; Keras' would treat the three gates as one wide matrix.
        bound = math.sqrt(6 / (hidden_dim + hidden_dim))
        self.gru = keras.layers.GRU(
            hidden_dim,
            return_sequences=True,
            reset_after=False,
            kernel_initializer=keras.initializers.RandomUniform(-bound, bound),
            recurrent_initializer=keras.initializers.RandomUniform(-bound, bound),
            name="gru",
        )
        self.gru.build((None, None, hidden_dim))

    @property
    def example_options(self) -> dict[str, float | bool]:
        names = {"max_length": "max_length", "num_shared": "extra_negatives", "alpha": "alpha"}
        return {option: getattr(self.settings, name) for option, name in names.items()} | {"whole": True}

    def states(self, items: Tensor, training: bool = False) -> Tensor:
        """Returns the state after each item of `items [b, n]`, right-padded: [b, n, d]."""
        return self.output_dropout(self._run_gru(items, None, training), training=training)

    def _run_gru(self, items: Tensor, state: Tensor | None, training: bool) -> Tensor:
        """Returns the GRU's outputs [b, n, d] for `items [b, n]`, starting from `state [b, d]` (None: zeros)."""
        hidden = self.input_dropout(tf.gather(self.items, items), training=training)
        if items.shape[1] == 0:  # Outside a graph, Keras' loop wants a step.
            return hidden
        if state is not None and state.shape[0] is None:  # and inside one, if it does not know the number of rows
            has_steps, run = tf.shape(items)[1] > 0, functools.partial(self.gru, hidden, initial_state=state)
            return tf.cond(has_steps, run, lambda: tf.cast(hidden, self.gru.compute_dtype))
        return self.gru(hidden, initial_state=state)

    def training_loss(self, batch: Batch, training: bool = True) -> Tensor:
        """Returns the mean loss over all steps. `batch`: `items` and `targets` [b, n], and `shared [b, s]` if the
        settings have extra negatives."""
        rows = tf.shape(batch["items"])[0]
        parts = [self._collect_targets(states, targets, rows) for states, targets in self._run_spans(batch, training)]
        columns = [tf.concat(chunks, axis=0) for chunks in zip(*parts)]
        shared_items = tf.reshape(batch["shared"], [-1]) if self.settings.extra_negatives else tf.zeros([0], tf.int32)
        shared_rows = (tf.gather(self.output_rows, shared_items), tf.gather(self.bias, shared_items))
        total = self._sum_losses(columns, shared_rows)
        return tf.math.divide_no_nan(total, self.loss_weight(batch))

    def _run_spans(self, batch: Batch, training: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Cuts the steps into a few spans. Yields the states [b, n, d] and targets [b, n] of the rows that reach each.

        Most histories are far shorter than the longest, so this saves work on padding. The layout FIXED has one span.
        """
        items, targets = batch["items"], batch["targets"]
        if layouts.is_fixed():
            yield self.states(items, training), targets
            return
        lengths = layouts.count_used(items)
        order = tf.argsort(lengths, stable=True)
        items, targets, lengths = (tf.gather(column, order) for column in (items, targets, lengths))
        rows = tf.size(lengths)
        state = tf.zeros([rows, self.settings.hidden_dim], self.gru.compute_dtype)
        begin_row, begin = 0, 0
        for share in (*LENGTH_CUTS, 1):
            end_row = tf.cast(share * tf.cast(rows, tf.float32), tf.int32)
            end = tf.maximum(begin, tf.reduce_max(tf.concat([lengths[begin_row:end_row], [1]], axis=0)))
            # One slice per axis: TensorFlow then knows the same about the rows of items and state.
            states = self._run_gru(items[begin_row:][:, begin:end], state, training)
            yield self.output_dropout(states, training=training), targets[begin_row:][:, begin:end]
            state = tf.concat([state[:, None], states], axis=1)[end_row - begin_row :, -1]
            begin_row, begin = end_row, end

    def _collect_targets(self, states: Tensor, targets: Tensor, width: Tensor) -> list[Tensor]:
        """Returns targets [t], states [t, d], scores of the targets [t], scores of all targets of the same step
        [t, width], and which of these are of other rows, bool [t, width]. `states`: [b, n, d] with b <= width."""
        states, targets = tf.transpose(states, [1, 0, 2]), tf.transpose(targets)
        outputs, biases = tf.gather(self.output_rows, targets), tf.gather(self.bias, targets)
        scores = tf.matmul(states, outputs, transpose_b=True) + biases[:, None, :]
        is_negative = (targets > 0)[:, None, :] & ~tf.eye(tf.shape(targets)[1], dtype=tf.bool)
        targets, states, positives, scores, is_negative = layouts.flatten_targets(
            targets, states, tf.linalg.diag_part(scores), scores, is_negative
        )
        padding = [[0, 0], [0, width - tf.shape(scores)[1]]]
        return [targets, states, positives, tf.pad(scores, padding), tf.pad(is_negative, padding)]

    @functools.cached_property
    def _sum_losses(self) -> Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]:
        return losses.sum_in_chunks(self._compute_loss_of_targets, CHUNK)

    def _compute_loss_of_targets(
        self,
        targets: Tensor,
        states: Tensor,
        positives: Tensor,
        scores: Tensor,
        is_negative: Tensor,
        shared_vectors: Tensor,
        shared_biases: Tensor,
    ) -> Tensor:
        """Returns the sum of the loss over the targets that are not padding.

        Args:
            targets, states, positives: [t], [t, d] and [t]: the targets, the states before them, and their scores.
            scores, is_negative: [t, b]: the scores of the batch's targets at the same step, and which are negatives.
            shared_vectors, shared_biases: [s, d] and [s]: output embeddings and biases of the negatives that all share.
        """
        activate = ACTIVATIONS[self.settings.final_activation]
        shared_scores = tf.matmul(states, shared_vectors, transpose_b=True) + shared_biases
        scores = activate(tf.concat([scores, shared_scores], axis=1))
        is_negative = tf.concat([is_negative, tf.ones_like(shared_scores, tf.bool)], axis=1)
        loss = self.apply_loss(activate(positives), scores, is_negative)
        return tf.reduce_sum(tf.cast(targets > 0, states.dtype) * loss)

    def loss_weight(self, batch: Batch) -> Tensor:
        return tf.reduce_sum(tf.cast(batch["targets"] > 0, tf.float32))

    def user_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        items, lengths = last_items_in_order(batch, self.max_history)
        states = self.states(items, training)
        last_states = tf.gather(states, tf.maximum(lengths - 1, 0), batch_dims=1)
        return tf.where(lengths[:, None] > 0, last_states, tf.zeros_like(last_states))

    def score_products(self) -> tuple[Tensor, Tensor | None]:
        return self.output_rows, self.bias


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class GRU4RecPlus(GRU4Rec):
    """GRU4Rec with BPR-max, elu-0.5 on the scores, and extra negatives, drawn by count^0.75, that a batch shares.

    (Hidasi & Karatzoglou, CIKM 2018.) With 128 rows per batch, 16 extra negatives per row make the authors' 2,048.
    """

    settings_type: ClassVar = GRU4RecPlusSettings
