"""The endless training batches of a run, from the first step or from a later one."""

import tensorflow as tf

from bert4rec_tf.config.model_settings import SAMPLED
from bert4rec_tf.config.run import Run
from bert4rec_tf.data.examples import in_memory
from bert4rec_tf.data.examples.dynamic_masks import mask_dynamically
from bert4rec_tf.data.examples.in_memory import Examples
from bert4rec_tf.data.examples.tfrecords import Shards
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.graphs import plain
from bert4rec_tf.foundation.types import Batch

OF_USERS, OF_BATCHES = 1 << 33, 1 << 34
"""Added to the run's seed, so that these draws differ from those of the masks, whose seeds are below 2^32."""


def of_examples(examples: Examples, run: Run, sequences: Sequences, start_step: int) -> tf.data.Dataset:
    """Returns batches of examples made in memory. `sequences`: the data, for the number of users."""
    batches = in_memory.dataset_of(examples, run.training.batch_size, run.seed, start_step)
    return _with_all_draws(batches, run, sequences, start_step)


def of_shards(shards: Shards, run: Run, sequences: Sequences, start_step: int) -> tf.data.Dataset:
    """Returns batches of masked examples. `sequences`: the data, for the numbers of items and users."""
    batches = shards.read(run.training.batch_size, run.seed, start_step)
    if run.masking.masking == "dynamic":
        batches = mask_dynamically(batches, run.masking, sequences.num_items, run.seed, start_step)
    return _with_all_draws(batches.map(plain(_batch_of_columns)), run, sequences, start_step).prefetch(8)


def _batch_of_columns(columns: dict[str, tf.Tensor]) -> Batch:
    lengths = tf.math.count_nonzero(columns["items"], axis=1, dtype=tf.int32)
    rest = {name: column for name, column in columns.items() if name not in ("user", "window", "epoch")}
    return {"users": columns["user"], "lengths": lengths, **rest}


def _with_all_draws(batches: tf.data.Dataset, run: Run, sequences: Sequences, start_step: int) -> tf.data.Dataset:
    """Adds what is drawn for every batch: the users that replace others, and the seed of its negatives."""
    settings = run.architecture
    if getattr(settings, "loss", None) in SAMPLED:
        batches = with_draws(batches, run.seed, start_step)
    if run.reads_users and settings.user_replacement:
        batches = replace_users(batches, settings.user_replacement, sequences.num_users, run.seed, start_step)
    return batches


def with_draws(batches: tf.data.Dataset, seed: int, start_step: int = 0) -> tf.data.Dataset:
    """Adds `draw`, int64 [b, 2]: in every row the same seed, which depends on the run's seed and the step.

    A replica gets only some of the rows. With the seed in every row, all replicas draw the same.
    """

    @plain
    def add(step: tf.Tensor, batch: Batch) -> Batch:
        rows = tf.shape(batch["items"])[0]
        return {**batch, "draw": tf.tile(tf.stack([[tf.constant(seed + OF_BATCHES, tf.int64), step]]), [rows, 1])}

    return batches.enumerate(start_step).map(add, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def replace_users(
    batches: tf.data.Dataset, probability: float, num_users: int, seed: int, start_step: int = 0
) -> tf.data.Dataset:
    """Gives each example the number of a random user, with some probability. The draws depend on seed and step only.

    This is SSE (Wu et al., NeurIPS 2019) for user vectors, as in SSE-PT (RecSys 2020).
    """

    @plain
    def replace(step: tf.Tensor, batch: Batch) -> Batch:
        shape, first = tf.shape(batch["users"]), tf.constant(seed + OF_USERS, tf.int64)
        chances = tf.random.stateless_uniform(shape, tf.stack([first, 2 * step]))
        others = tf.random.stateless_uniform(shape, tf.stack([first, 2 * step + 1]), 0, num_users, tf.int32)
        return {**batch, "users": tf.where(chances < probability, others, batch["users"])}

    return batches.enumerate(start_step).map(replace, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
