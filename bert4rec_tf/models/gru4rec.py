"""GRU4Rec: a recurrent network over the history (Hidasi et al., ICLR 2016)."""

import math
from typing import Any, ClassVar

import keras
import tensorflow as tf

from bert4rec_tf import losses
from bert4rec_tf.dropout import dropout_layer
from bert4rec_tf.models.recommender import ITEMS, Recommender, last_items_in_order, scores_of
from bert4rec_tf.types import Batch, Tensor

ACTIVATIONS = {
    "linear": lambda scores: scores,
    "tanh": tf.tanh,
    "elu-0.5": lambda scores: tf.where(scores > 0, scores, 0.5 * tf.math.expm1(tf.minimum(scores, 0.0))),
}
"""What the loss sees of the scores. All rise, so ranks do not depend on them."""

PIECE_SCORES = 1 << 20
"""About how many scores the loss works on at a time, so that they stay in the cache."""


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class GRU4Rec(Recommender):
    """Item embedding, GRU, and a table of output rows; TOP1 on the other targets of the batch.

    Trained with back-propagation through up to `max_length` steps, as the authors advise for long histories, and not on
    session-parallel batches: the negatives of a step are the other users' targets at the same step. Longer histories
    are several examples. The reset gate acts before the recurrent product, as in the authors' program.

    Args:
        num_items: n.
        max_length: how many items an example has, and how many of the last ones are read to recommend.
        hidden_dim: width of the GRU, and of its input.
        dropout: of the GRU's input and of its output.
        loss: "top1", "top1_max" or "bpr_max".
        final_activation: a name in ACTIVATIONS.
        regularization: weight of the negatives' squared scores in "bpr_max".
        extra_negatives: beside those of the batch, shared by its rows; so many for each row.
        alpha: the extra ones are drawn in proportion to count^alpha.
    """

    examples: ClassVar[str] = "shifted"

    def __init__(
        self,
        num_items: int,
        max_length: int = 50,
        hidden_dim: int = 100,
        dropout: float = 0.0,
        loss: str = "top1",
        final_activation: str = "tanh",
        regularization: float = 0.0,
        extra_negatives: int = 0,
        alpha: float = 0.75,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.settings = {
            "max_length": max_length,
            "hidden_dim": hidden_dim,
            "dropout": dropout,
            "loss": loss,
            "final_activation": final_activation,
            "regularization": regularization,
            "extra_negatives": extra_negatives,
            "alpha": alpha,
        }
        self.num_items = num_items
        self.max_history = max_length
        self.items = self.add_table("items", num_items + 1, hidden_dim, "glorot_uniform", of=ITEMS)
        self.output_rows = self.add_table("output_rows", num_items + 1, hidden_dim, "glorot_uniform", of=ITEMS)
        self.bias = self.add_bias("bias", num_items + 1)
        self.input_dropout = dropout_layer("input_dropout", dropout, self.dtype_policy)
        self.output_dropout = dropout_layer("output_dropout", dropout, self.dtype_policy)
        # Glorot's bound of each gate's own matrix; Keras' initializer would take the three gates for one wide matrix.
        bound = math.sqrt(6 / (hidden_dim + hidden_dim))
        kernels = keras.initializers.RandomUniform(-bound, bound)
        self.gru = keras.layers.GRU(
            hidden_dim,
            return_sequences=True,
            reset_after=False,
            kernel_initializer=kernels,
            recurrent_initializer=kernels,
            name="gru",
        )
        self.gru.build((None, None, hidden_dim))
        self.built = True

    @property
    def example_options(self) -> dict[str, float | bool]:
        names = {"max_length": "max_length", "num_shared": "extra_negatives", "alpha": "alpha"}
        return {option: self.settings[name] for option, name in names.items()} | {"whole": True}

    def states(self, items: Tensor, training: bool = False) -> Tensor:
        """Returns [b, n, d]: the state after each item of `items [b, n]`. Padding is on the right and read last."""
        hidden = self.input_dropout(tf.gather(self.items, items), training=training)
        return self.output_dropout(self.gru(hidden), training=training)

    def training_loss(self, batch: Batch) -> Tensor:
        """The mean of the loss over all steps. `batch`: `items` and `targets` [b, n] and, with extra negatives,
        `shared [b, s]`."""
        states = tf.transpose(self.states(batch["items"], training=True), [1, 0, 2])
        targets = tf.transpose(batch["targets"])
        shared = tf.reshape(batch["shared"], [-1]) if self.settings["extra_negatives"] else tf.zeros([0], tf.int32)
        rows, negatives = tf.shape(targets)[1], tf.size(shared)
        of_steps = (targets, states, tf.gather(self.output_rows, targets), tf.gather(self.bias, targets))
        of_all = (tf.gather(self.output_rows, shared), tf.gather(self.bias, shared))
        total = losses.sum_in_pieces(self._loss_of_steps, of_steps, of_all, PIECE_SCORES // (rows * (rows + negatives)))
        return tf.math.divide_no_nan(total, self.loss_weight(batch))

    def _loss_of_steps(
        self, targets: Tensor, states: Tensor, outputs: Tensor, biases: Tensor, shared: Tensor, shared_biases: Tensor
    ) -> Tensor:
        """Returns the sum of the loss over some steps: targets [n, b], states and output rows of the targets [n, b, d]
        with biases [n, b], and rows [s, d] with biases [s] of the negatives that all of them share."""
        activate = ACTIVATIONS[self.settings["final_activation"]]
        valid, rows = targets > 0, tf.shape(targets)[1]
        scores = activate(tf.matmul(states, outputs, transpose_b=True) + biases[:, None, :])
        # What is padding is left out before the loss, which costs more than the products.
        positives = tf.boolean_mask(tf.linalg.diag_part(scores), valid)
        others = tf.broadcast_to(valid[:, None, :] & ~tf.eye(rows, dtype=tf.bool), tf.shape(scores))
        scores, others = tf.boolean_mask(scores, valid), tf.boolean_mask(others, valid)
        of_shared = tf.matmul(tf.boolean_mask(states, valid), shared, transpose_b=True)
        scores = tf.concat([scores, activate(of_shared + shared_biases)], axis=1)
        others = tf.concat([others, tf.ones_like(of_shared, tf.bool)], axis=1)
        return tf.reduce_sum(self._loss(positives, scores, others))

    def loss_weight(self, batch: Batch) -> Tensor:
        return tf.reduce_sum(tf.cast(batch["targets"] > 0, tf.float32))

    def _loss(self, positives: Tensor, scores: Tensor, others: Tensor) -> Tensor:
        if self.settings["loss"] == "bpr_max":
            return losses.bpr_max(positives, scores, others, self.settings["regularization"])
        return {"top1": losses.top1, "top1_max": losses.top1_max}[self.settings["loss"]](positives, scores, others)

    def user_vectors(self, batch: Batch) -> Tensor:
        items, lengths = last_items_in_order(batch, self.max_history)
        states = self.states(items)
        after_last = tf.gather(states, tf.maximum(lengths - 1, 0), batch_dims=1)
        return tf.where(lengths[:, None] > 0, after_last, tf.zeros_like(after_last))

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        return scores_of(vectors, self.output_rows, candidates, self.bias)
