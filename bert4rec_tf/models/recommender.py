"""The contract of all models."""

from typing import ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.sequences import Sequences
from bert4rec_tf.types import Batch, Shape, Tensor


class Recommender(keras.Model):
    """What training, evaluation and export ask of a model.

    A model defines `examples`, `training_loss` and `score`, makes its variables in its constructor, and takes
    `num_items` as its constructor's first argument. Items are 1 .. n, 0 pads rows on the right.

    Attributes:
        examples: the kind of training example it eats; None where it only counts (`adapt`).
        max_history: how many of the last items of a history it reads; None for any number.
        scores_are_logits: whether `score` gives logits of a softmax over the items.
        static_shapes: set where XLA compiles the step: then no shape in `training_loss` may depend on what the batch
            holds, so slots without a target are computed too, and weigh nothing.
    """

    examples: ClassVar[str | None] = None
    max_history: int | None = None
    scores_are_logits: ClassVar[bool] = False
    static_shapes: bool = False

    def build(self, input_shape: Shape | None = None) -> None:
        """The constructor has made the variables already."""

    def training_loss(self, batch: Batch) -> Tensor:
        """Returns the loss of a training batch, float32 []. What the batch holds depends on `examples`."""
        raise TypeError(f"{type(self).__name__} is not trained by steps")

    def loss_weight(self, batch: Batch) -> Tensor:
        """Returns what `training_loss` divides a sum by, float32 []; the rows, unless a model's loss has other terms.

        The share of a part of a batch is its weight divided by that of the batch.
        """
        return tf.cast(tf.shape(batch["items"])[0], tf.float32)

    def score(self, batch: Batch, candidates: Tensor | None = None) -> Tensor:
        """Scores what may come next; higher is better.

        Args:
            batch: `users [b]`, `items [b, n]` histories oldest first, right-padded, and `lengths [b]`.
            candidates: int32 [b, c] item ids, or None for all items. 0 stands for no candidate; its score is of no
                meaning.

        Returns:
            float32 [b, c]; for all items [b, num_items], column j for item j + 1.
        """
        raise TypeError(f"{type(self).__name__} must define `score`")

    def adapt(self, sequences: Sequences) -> None:
        """Learns from what can be counted in the training sequences, before training."""

    def call(self, batch: Batch) -> Tensor:
        """Scores all items, as `score` does."""
        return self.score(batch)
