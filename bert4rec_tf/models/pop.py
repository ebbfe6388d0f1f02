"""POP: the most popular items for everybody (section 4.3)."""

from typing import ClassVar

import keras
import numpy as np
from keras import ops

from bert4rec_tf.config.model_settings import PopSettings
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import ITEMS, Recommender


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class Pop(Recommender):
    """Scores an item by how often it occurs in the training sequences."""

    settings_type: ClassVar = PopSettings
    scores_are_shared: ClassVar[bool] = True

    def make_variables(self) -> None:
        self.counts = self.add_weight(
            name="counts", shape=(self.num_items + 1,), initializer="zeros", trainable=False, autocast=False
        )
        self.mark_rows(self.counts, ITEMS)

    def adapt(self, sequences: Sequences, transitions: ItemTransitionsSettings | None = None) -> None:
        super().adapt(sequences)
        self.counts.assign(sequences.count_items().astype(np.float32))

    def user_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns ones, [b, 1]: every user is the same."""
        return ops.ones((ops.shape(batch["items"])[0], 1))

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        return vectors * (self.counts[1:] if candidates is None else ops.take(self.counts, candidates))
