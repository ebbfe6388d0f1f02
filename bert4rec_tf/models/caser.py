"""Caser: convolutional sequence embedding (Tang & Wang, WSDM 2018)."""

from typing import Any, ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import ITEMS, USERS, Recommender, last_items, scores_of
from bert4rec_tf.nn.dropout import dropout_layer


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class Caser(Recommender):
    """Convolutions over the last L items as an image, joined with the user's embedding (section 3 of its paper).

    Args:
        num_items: n.
        num_users: m.
        markov_order: L, the items it reads.
        num_targets: T, the next items that an example predicts.
        hidden_dim: d, of items, users and the joined layer's halves.
        horizontal_filters: of each height from 1 to L (equations 4 to 6).
        vertical_filters: (equations 7 and 8).
        dropout: of the convolutions' output.
        train_negatives: unseen items per example.
        l2: weight of half the squared norm of all weights, which the authors' optimizer adds to the gradients.
    """

    examples: ClassVar[str] = "contexts"
    has_user_embeddings: ClassVar[bool] = True

    def __init__(
        self,
        num_items: int,
        num_users: int,
        markov_order: int = 5,
        num_targets: int = 3,
        hidden_dim: int = 50,
        horizontal_filters: int = 16,
        vertical_filters: int = 4,
        dropout: float = 0.5,
        train_negatives: int = 3,
        l2: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.settings = {
            "num_users": num_users,
            "markov_order": markov_order,
            "num_targets": num_targets,
            "hidden_dim": hidden_dim,
            "horizontal_filters": horizontal_filters,
            "vertical_filters": vertical_filters,
            "dropout": dropout,
            "train_negatives": train_negatives,
            "l2": l2,
        }
        self.num_items, self.l2 = num_items, l2
        self.max_history = markov_order
        self.items = self.add_table("items", num_items + 1, hidden_dim, 1 / hidden_dim, of=ITEMS)
        self.users = self.add_table("users", num_users, hidden_dim, 1 / hidden_dim, of=USERS)
        self.horizontal = [
            keras.layers.Conv1D(horizontal_filters, height, activation="relu", name=f"horizontal_{height}")
            for height in range(1, markov_order + 1)
        ]
        for convolution in self.horizontal:
            convolution.build((None, markov_order, hidden_dim))
        self.vertical = self.add_weight(
            name="vertical", shape=(markov_order, vertical_filters), initializer="glorot_uniform"
        )
        self.dropout = dropout_layer("dropout", dropout, self.dtype_policy)
        self.joined = keras.layers.Dense(hidden_dim, activation="relu", name="joined")
        self.joined.build((None, vertical_filters * hidden_dim + horizontal_filters * markov_order))
        self.output_rows = self.add_table("output_rows", num_items + 1, 2 * hidden_dim, 1 / (2 * hidden_dim), of=ITEMS)
        self.bias = self.add_bias("bias", num_items + 1)
        self.built = True

    @property
    def example_options(self) -> dict[str, int]:
        names = {"context": "markov_order", "num_targets": "num_targets", "num_negatives": "train_negatives"}
        return {option: self.settings[name] for option, name in names.items()}

    def training_loss(self, batch: Batch) -> Tensor:
        """Binary cross-entropy (equation 12), the means over targets and over negatives added, and l2.

        `batch`: `users [b]`, `items [b, L]`, `lengths [b]`, `targets [b, T]` and `negatives [b, c]`.
        """
        state = self._state(batch, training=True)
        total = self.l2 * tf.add_n([tf.nn.l2_loss(weights) for weights in self.trainable_variables])
        for items, sign in ((batch["targets"], -1.0), (batch["negatives"], 1.0)):
            weights = tf.cast(items > 0, state.dtype)
            terms = tf.nn.softplus(sign * scores_of(state, self.output_rows, items, self.bias))
            total += tf.math.divide_no_nan(tf.reduce_sum(weights * terms), tf.reduce_sum(weights))
        return total

    def user_vectors(self, batch: Batch) -> Tensor:
        return self._state(batch)

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        return scores_of(vectors, self.output_rows, candidates, self.bias)

    def _state(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns [b, 2 d]: what the convolutions make of the last L items, and the user."""
        last = last_items(batch, self.max_history)
        image = tf.gather(self.items, last) * tf.cast(last > 0, self.items.dtype)[:, :, None]
        vertical = tf.einsum("bld,lf->bfd", image, self.vertical)
        parts = [tf.reshape(vertical, [-1, self.settings["vertical_filters"] * image.shape[2]])]
        parts += [tf.reduce_max(convolution(image), axis=1) for convolution in self.horizontal]
        joined = self.joined(self.dropout(tf.concat(parts, axis=1), training=training))
        return tf.concat([joined, tf.gather(self.users, batch["users"])], axis=1)
