"""BPR-MF: matrix factorisation that learns to rank (Rendle et al., UAI 2009)."""

from typing import ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import BprMfSettings
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import ITEMS, USERS, Recommender
from bert4rec_tf.nn import losses


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class BprMf(Recommender):
    """Scores <p_u, q_i> + b_i (section 4.3.1 of its paper), trained with BPR-Opt on pairs of seen and unseen items."""

    settings_type: ClassVar = BprMfSettings
    examples: ClassVar[str] = "contexts"
    needs_users: bool = True
    num_users: int

    def make_variables(self) -> None:
        rows, width, stddev = self.num_items + 1, self.settings.hidden_dim, self.settings.initializer_stddev
        self.users = self.add_table("users", self.num_users, width, stddev, row_kind=USERS)
        self.items = self.add_table("items", rows, width, stddev, row_kind=ITEMS)
        self.bias = self.add_bias("bias", rows)

    @property
    def example_options(self) -> dict[str, int | bool]:
        return {"context": 0, "num_negatives": 1, "popular": self.settings.negatives == "popular"}

    def training_loss(self, batch: Batch, training: bool = True) -> Tensor:
        """Returns the mean of BPR-Opt, l2 included. `batch`: `users [b]`, `targets` and `negatives` [b, 1]."""
        pair = tf.concat([batch["targets"], batch["negatives"]], axis=1)
        scores = self.score(batch, pair)
        loss = losses.bpr(scores[:, 0], scores[:, 1:])
        rows = tf.concat([tf.gather(self.users, batch["users"])[:, None], tf.gather(self.items, pair)], axis=1)
        biases = tf.gather(self.bias, pair)
        norms = tf.reduce_sum(tf.square(rows), axis=[1, 2]) + tf.reduce_sum(tf.square(biases), axis=1)
        return tf.reduce_mean(loss + self.settings.l2 * norms)

    def user_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        return tf.gather(self.users, batch["users"])

    def score_products(self) -> tuple[Tensor, Tensor | None]:
        return self.items, self.bias
