"""Gives training batches the seed of what is drawn for the whole batch."""

import tensorflow as tf

from bert4rec_tf.foundation.graphs import plain
from bert4rec_tf.foundation.types import Batch

SALT = 1 << 34
"""Keeps these draws apart from those of the masks and of the users (`users.SALT`)."""


def with_draws(batches: tf.data.Dataset, seed: int, start_step: int = 0) -> tf.data.Dataset:
    """Adds `draw`, int64 [b, 2], to each batch: in every row the same seed, which depends on the run's and the step.

    Each row has it so that every replica, which gets part of the rows, draws the same.

    Args:
        batches: with `items`, [b, n].
        seed: of the run.
        start_step: the number of the first batch.
    """

    @plain
    def add(step: tf.Tensor, batch: Batch) -> Batch:
        rows = tf.shape(batch["items"])[0]
        return {**batch, "draw": tf.tile(tf.stack([[tf.constant(seed + SALT, tf.int64), step]]), [rows, 1])}

    return batches.enumerate(start_step).map(add, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
