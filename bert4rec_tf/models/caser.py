"""Caser: convolutional sequence embedding (Tang & Wang, WSDM 2018)."""

from typing import ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import CaserSettings
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import ITEMS, USERS, Recommender, last_items, multiply_rows
from bert4rec_tf.nn.dropout import dropout_layer


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class Caser(Recommender):
    """Convolutions over the last L items as an image, joined with the user's embedding (section 3 of its paper).

    Some are horizontal (equations 4 to 6), some vertical (equations 7 and 8).
    """

    settings_type: ClassVar = CaserSettings
    examples: ClassVar[str] = "contexts"
    max_history: int
    needs_users: bool = True
    num_users: int

    def make_variables(self) -> None:
        rows, order, width = self.num_items + 1, self.settings.markov_order, self.settings.hidden_dim
        self.max_history = order
        self.items = self.add_table("items", rows, width, 1 / width, row_kind=ITEMS)
        self.users = self.add_table("users", self.num_users, width, 1 / width, row_kind=USERS)
        self.horizontal = [
            keras.layers.Conv1D(
                self.settings.horizontal_filters, height, activation="relu", name=f"horizontal_{height}"
            )
            for height in range(1, order + 1)
        ]
        for convolution in self.horizontal:
            convolution.build((None, order, width))
        self.vertical = self.add_weight(
            name="vertical",
            shape=(order, self.settings.vertical_filters),
            initializer="glorot_uniform",
            autocast=False,
        )
        self.dropout = dropout_layer("dropout", self.settings.dropout, self.dtype_policy)
        self.joined = keras.layers.Dense(width, activation="relu", name="joined")
        self.joined.build((None, self.settings.vertical_filters * width + self.settings.horizontal_filters * order))
        self.output_rows = self.add_table("output_rows", rows, 2 * width, 1 / (2 * width), row_kind=ITEMS)
        self.bias = self.add_bias("bias", rows)

    @property
    def example_options(self) -> dict[str, int]:
        names = {"context": "markov_order", "num_targets": "num_targets", "num_negatives": "train_negatives"}
        return {option: getattr(self.settings, name) for option, name in names.items()}

    def training_loss(self, batch: Batch, training: bool = True) -> Tensor:
        """Returns binary cross-entropy (equation 12), the mean over targets plus the mean over negatives, and l2.

        `batch`: `users [b]`, `items [b, L]`, `lengths [b]`, `targets [b, T]` and `negatives [b, c]`.
        """
        state = self.user_vectors(batch, training)
        total = self.settings.l2 * tf.add_n([tf.nn.l2_loss(weights) for weights in self.trainable_variables])
        for items, sign in ((batch["targets"], -1.0), (batch["negatives"], 1.0)):
            weights = tf.cast(items > 0, state.dtype)
            terms = tf.nn.softplus(sign * multiply_rows(state, self.output_rows, self.bias, items))
            total += tf.math.divide_no_nan(tf.reduce_sum(weights * terms), tf.reduce_sum(weights))
        return total

    def score_products(self) -> tuple[Tensor, Tensor | None]:
        return self.output_rows, self.bias

    def user_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns [b, 2 d]: the network's output for the last L items, then the user's embedding."""
        users = tf.convert_to_tensor(batch["users"])
        # TensorFlow cannot convolve a batch without rows, so an empty batch gets one.
        items = tf.pad(last_items(batch, self.max_history), [[0, tf.cast(tf.size(users) == 0, tf.int32)], [0, 0]])
        image = tf.gather(self.items, items) * tf.cast(items > 0, self.items.dtype)[:, :, None]
        vertical = tf.einsum("bld,lf->bfd", image, self.vertical)
        parts = [tf.reshape(vertical, [-1, self.settings.vertical_filters * image.shape[2]])]
        parts += [tf.reduce_max(convolution(image), axis=1) for convolution in self.horizontal]
        parts = [tf.cast(part, self.variable_dtype) for part in parts]
        vectors = self.joined(self.dropout(tf.concat(parts, axis=1), training=training))[: tf.size(users)]
        return tf.concat([tf.cast(vectors, self.variable_dtype), tf.gather(self.users, users)], axis=1)
