"""NCF: neural collaborative filtering, the fused model NeuMF (He et al., WWW 2017)."""

from typing import ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import NcfSettings
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import ITEMS, USERS, Recommender
from bert4rec_tf.nn import layers, losses

NUM_LAYERS = 3
"""Layers of the tower above the embeddings, each half as wide as the one below (section 4.1: 64 - 32 - 16 - 8)."""


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class Ncf(Recommender):
    """GMF and an MLP side by side (equation 12), h^T [p_u * q_i ; MLP(p'_u, q'_i)], trained from scratch."""

    settings_type: ClassVar = NcfSettings
    examples: ClassVar[str] = "contexts"
    needs_users: bool = True
    num_users: int

    def make_variables(self) -> None:
        rows, hidden_dim, stddev = self.num_items + 1, self.settings.hidden_dim, self.settings.initializer_stddev
        widths = [hidden_dim // 2 ** (number + 1) for number in range(NUM_LAYERS)]
        factors = widths[-1]
        self.gmf_users = self.add_table("gmf_users", self.num_users, factors, stddev, row_kind=USERS)
        self.gmf_items = self.add_table("gmf_items", rows, factors, stddev, row_kind=ITEMS)
        self.mlp_users = self.add_table("mlp_users", self.num_users, hidden_dim // 2, stddev, row_kind=USERS)
        self.mlp_items = self.add_table("mlp_items", rows, hidden_dim // 2, stddev, row_kind=ITEMS)
        self.tower = [keras.layers.Dense(width, "relu", name=f"tower_{number}") for number, width in enumerate(widths)]
        for dense, width in zip(self.tower, [hidden_dim, *widths]):
            dense.build((None, width))
        self.output_dense = keras.layers.Dense(1, kernel_initializer=layers.truncated_normal(0.1), name="output")
        self.output_dense.build((None, 2 * factors))

    @property
    def example_options(self) -> dict[str, int]:
        return {"context": 0, "num_negatives": self.settings.train_negatives}

    def training_loss(self, batch: Batch, training: bool = True) -> Tensor:
        """Returns the mean of equation 7, and l2. `batch`: `users [b]`, `targets [b, 1]` and `negatives [b, c]`."""
        items = tf.concat([batch["targets"], batch["negatives"]], axis=1)
        scores = self.score(batch, items)
        loss = losses.binary_cross_entropy(scores[:, 0], scores[:, 1:]) / tf.cast(tf.shape(scores)[1], scores.dtype)
        if not self.settings.l2:
            return tf.reduce_mean(loss)
        rows = [tf.gather(table, batch["users"])[:, None] for table in (self.gmf_users, self.mlp_users)]
        rows += [tf.gather(table, items) for table in (self.gmf_items, self.mlp_items)]
        return tf.reduce_mean(
            loss + self.settings.l2 * sum(tf.reduce_sum(tf.square(part), axis=[1, 2]) for part in rows)
        )

    def user_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns [p_u ; W_u p'_u], where W_u is the user's half of the tower's first kernel."""
        user_part, _ = tf.split(tf.cast(self.tower[0].kernel, self.variable_dtype), 2)
        gmf_user = tf.gather(self.gmf_users, batch["users"])
        return tf.concat([gmf_user, tf.matmul(tf.gather(self.mlp_users, batch["users"]), user_part)], axis=1)

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        _, item_part = tf.split(tf.cast(self.tower[0].kernel, self.variable_dtype), 2)
        gmf_user, mlp_user = tf.split(vectors[:, None], [self.gmf_users.shape[1], self.tower[0].units], axis=2)
        if candidates is not None:
            mlp_item = tf.gather(self.mlp_items, candidates) @ item_part
            return self._compute_logits(gmf_user, tf.gather(self.gmf_items, candidates), mlp_user, mlp_item)
        # One user at a time: the tower's values for many users and all items would not fit into memory.
        mlp_item = tf.matmul(self.mlp_items[1:], item_part)
        return tf.map_fn(
            lambda user: self._compute_logits(user[0], self.gmf_items[1:], user[1], mlp_item),
            (gmf_user, mlp_user),
            fn_output_signature=tf.TensorSpec([self.num_items], gmf_user.dtype),
        )

    def item_vectors(self) -> Tensor:
        """Returns GMF's and the tower's vectors side by side, [n, hidden_dim / 8 + hidden_dim / 2]."""
        return tf.concat([self.gmf_items[1:], self.mlp_items[1:]], axis=1)

    def _compute_logits(self, gmf_user: Tensor, gmf_item: Tensor, mlp_user: Tensor, mlp_item: Tensor) -> Tensor:
        """Returns logits [..., c] of users [..., 1, d] and items [..., c, d]. `mlp_user` and `mlp_item` are already
        multiplied by their halves of the tower's first kernel."""
        first, *rest = self.tower
        hidden = tf.nn.relu(mlp_user + mlp_item + tf.cast(first.bias, self.variable_dtype))
        for dense in rest:
            hidden = tf.cast(dense(hidden), self.variable_dtype)
        logits = self.output_dense(tf.concat([gmf_user * gmf_item, hidden], axis=-1))[..., 0]
        return tf.cast(logits, self.variable_dtype)
