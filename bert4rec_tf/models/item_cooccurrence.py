"""Item co-occurrence: recommends what stood near the last items in other histories. Only counts; not in the paper."""

from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.config.model_settings import ItemCooccurrenceSettings
from bert4rec_tf.data.cooccurrence import pair_counts, strongest
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import ITEMS, Recommender, last_items


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class ItemCooccurrence(Recommender):
    """Scores an item by how strongly it follows the last items of the history, newer ones counting more.

    In a training history h with places a < b, the item h_b follows h_a with decay^(b - a - 1) if b - a <= window, and
    h_a follows h_b with `backward` times that. The strength of a pair is the sum over all histories, divided by
    count^count_power of the first item. A score is the sum of the strengths from the last `window` items, each times
    decay^age, where the newest has age 0. Items without any strength come after all others, the most popular first:
    their score is -1 / (1 + count).

    Only the strongest neighbours of each item are kept. Of equal ones, the smaller item numbers stay.
    """

    settings_type: ClassVar = ItemCooccurrenceSettings

    def make_variables(self) -> None:
        self.max_history = self.settings.window
        rows, columns = self.num_items + 1, min(self.settings.num_neighbors, self.num_items)
        options = {"initializer": "zeros", "trainable": False, "autocast": False}
        self.neighbors = self.add_weight((rows, columns), name="neighbors", dtype="int32", **options)
        self.strengths = self.add_weight((rows, columns), name="strengths", **options)
        self.unrelated = self.add_weight((rows,), name="unrelated", **options)
        for weight in (self.neighbors, self.strengths, self.unrelated):
            self.mark_rows(weight, ITEMS)

    def adapt(self, sequences: Sequences) -> None:
        counts, most = sequences.counts(), self.neighbors.shape[1]
        neighbors, strengths = np.zeros(self.neighbors.shape, np.int32), np.zeros(self.strengths.shape, np.float32)
        for block in pair_counts(sequences, self.settings.window):
            found = strongest(*block, counts, self.settings, most)
            neighbors[found.items, found.places] = found.others
            strengths[found.items, found.places] = found.strengths
        self.neighbors.assign(neighbors)
        self.strengths.assign(strengths)
        self.unrelated.assign(-1.0 / (1.0 + counts))

    def user_vectors(self, batch: Batch) -> Tensor:
        """Returns the last items' numbers (exact up to 2^24), then their weights, float32 [b, 2 window]; padding 0."""
        window = self.settings.window
        items = last_items(batch, window)
        weights = tf.constant(self.settings.decay ** np.arange(window - 1, -1, -1.0), tf.float32)
        return tf.concat([tf.cast(items, tf.float32), tf.where(items > 0, weights, 0.0)], axis=1)

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        items, weights = tf.split(vectors, 2, axis=1)
        items, shape = tf.cast(items, tf.int32), [-1, items.shape[1] * self.neighbors.shape[1]]
        neighbors = tf.reshape(tf.gather(self.neighbors, items), shape)
        terms = tf.reshape(tf.gather(self.strengths, items) * weights[:, :, None], shape)
        if candidates is None:
            sums = _sums(neighbors, terms, self.num_items + 1)[:, 1:]
            return tf.where(sums > 0, sums, self.unrelated[1:])
        # An extra column, because there may be none, and for the neighbours that are not candidates.
        padded = tf.pad(candidates, [[0, 0], [0, 1]], constant_values=tf.int32.max)
        ordered, width = tf.sort(padded, axis=1), tf.shape(padded)[1]

        def column_of(found: Tensor) -> Tensor:
            """Returns the first column of `ordered` that holds each item; the last one if none does."""
            columns = tf.searchsorted(ordered, found)
            return tf.where(tf.gather(ordered, columns, batch_dims=1) == found, columns, width - 1)

        sums = _sums(column_of(neighbors), terms, width)
        sums = tf.gather(sums, column_of(padded)[:, :-1], batch_dims=1)
        return tf.where(sums > 0, sums, tf.gather(self.unrelated, candidates))

    def similarities(self, items: Tensor) -> Tensor:
        """Returns the strengths of the items' neighbours, float32 [b, n]; -inf for all other items."""
        neighbors, strengths = tf.gather(self.neighbors, items), tf.gather(self.strengths, items)
        sums = _sums(neighbors, strengths, self.num_items + 1)[:, 1:]
        return tf.where(sums > 0, sums, -float("inf"))


def _sums(columns: Tensor, terms: Tensor, width: Tensor | int) -> tf.Tensor:
    """Returns the sums of `terms`, float32 [b, t], by their `columns`, int32 [b, t]: float32 [b, width]."""
    number = tf.shape(columns)[0]
    rows = tf.broadcast_to(tf.range(number)[:, None], tf.shape(columns))
    return tf.tensor_scatter_nd_add(tf.zeros(tf.stack([number, width])), tf.stack([rows, columns], axis=2), terms)
