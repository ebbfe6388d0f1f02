"""FPMC: factorised personalised Markov chains (Rendle, Freudenthaler & Schmidt-Thieme, WWW 2010)."""

from typing import ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import FpmcSettings
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import ITEMS, USERS, Recommender, last_items, multiply_rows
from bert4rec_tf.nn import losses


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class Fpmc(Recommender):
    """Scores <U_u, I_i> + <L_last, J_i> (equation 11 with baskets of one item), trained with S-BPR."""

    settings_type: ClassVar = FpmcSettings
    examples: ClassVar[str] = "contexts"
    needs_users: bool = True
    num_users: int
    max_history = 1

    def make_variables(self) -> None:
        rows, width, stddev = self.num_items + 1, self.settings.hidden_dim, self.settings.initializer_stddev
        self.users = self.add_table("users", self.num_users, width, stddev, row_kind=USERS)
        self.items_for_users = self.add_table("of_users", rows, width, stddev, row_kind=ITEMS)
        self.last = self.add_table("last", rows, width, stddev, row_kind=ITEMS)
        self.items_for_last = self.add_table("of_last", rows, width, stddev, row_kind=ITEMS)

    @property
    def example_options(self) -> dict[str, int | bool]:
        return {"context": 1, "num_negatives": 1, "popular": self.settings.negatives == "popular"}

    def training_loss(self, batch: Batch, training: bool = True) -> Tensor:
        """Returns the mean of S-BPR, l2 included. `batch`: `users [b]`; `items`, `targets` and `negatives` [b, 1]."""
        pair = tf.concat([batch["targets"], batch["negatives"]], axis=1)
        scores = self.score(batch, pair)
        rows = [part[:, None] for part in self._look_up_context(batch)]
        rows += [tf.gather(table, pair) for table in (self.items_for_users, self.items_for_last)]
        norms = tf.reduce_sum(tf.square(tf.concat(rows, axis=1)), axis=[1, 2])
        return tf.reduce_mean(losses.bpr(scores[:, 0], scores[:, 1:]) + self.settings.l2 * norms)

    def user_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns [U_u ; L_last], [b, 2 d]."""
        return tf.concat(self._look_up_context(batch), axis=1)

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        user, last_item = tf.split(vectors, 2, axis=1)
        parts = ((user, self.items_for_users), (last_item, self.items_for_last))
        return tf.add_n([multiply_rows(part, table, None, candidates, self.num_items) for part, table in parts])

    def item_vectors(self) -> Tensor:
        """Returns [I ; J], [n, 2 d]: the item vectors that are multiplied with the user and the last item."""
        return tf.concat([self.items_for_users[1:], self.items_for_last[1:]], axis=1)

    def _look_up_context(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns U_u and L_last, both [b, d]; zeros for the last item of an empty history."""
        items = last_items(batch, 1)[:, 0]
        rows = tf.gather(self.last, items) * tf.cast(items > 0, self.last.dtype)[:, None]
        return tf.gather(self.users, batch["users"]), rows
