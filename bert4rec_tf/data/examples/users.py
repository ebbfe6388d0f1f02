"""Replaces users in training batches (SSE: Wu et al., NeurIPS 2019; for user vectors in SSE-PT, RecSys 2020)."""

import tensorflow as tf

from bert4rec_tf.foundation.graphs import plain
from bert4rec_tf.foundation.types import Batch

SALT = 1 << 33
"""Keeps these draws apart from those of the masks, whose seeds are below 2^32."""


def replace_users(
    batches: tf.data.Dataset, probability: float, num_users: int, seed: int, start_step: int = 0
) -> tf.data.Dataset:
    """Gives each example of a batch the number of a random user, with some probability.

    What is drawn depends only on the seed and the step.

    Args:
        batches: with `users`, int32 [b].
        probability: from 0 to 1.
        num_users: users are drawn uniformly from 0 .. num_users - 1.
        seed: of the run.
        start_step: the number of the first batch.
    """

    @plain
    def replace(step: tf.Tensor, batch: Batch) -> Batch:
        shape, first = tf.shape(batch["users"]), tf.constant(seed + SALT, tf.int64)
        chances = tf.random.stateless_uniform(shape, tf.stack([first, 2 * step]))
        others = tf.random.stateless_uniform(shape, tf.stack([first, 2 * step + 1]), 0, num_users, tf.int32)
        return {**batch, "users": tf.where(chances < probability, others, batch["users"])}

    return batches.enumerate(start_step).map(replace, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
