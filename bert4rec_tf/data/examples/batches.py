"""The training batches of a run, without end, from any step on."""

import tensorflow as tf

from bert4rec_tf.config.model_settings import LOSSES, SAMPLE
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.config.setting_fields import Settings
from bert4rec_tf.data.examples import in_memory
from bert4rec_tf.data.examples.in_memory import DRAWS_SEED_OFFSET, Examples
from bert4rec_tf.data.examples.tfrecords import Shards
from bert4rec_tf.foundation.graphs import no_autograph
from bert4rec_tf.foundation.types import Batch


def read_batches(source: Shards | Examples, run: Run, start_step: int) -> tf.data.Dataset:
    """Returns batches of masked examples from shards, or of examples made in memory."""
    if isinstance(source, Shards):
        batches = source.read(run.training.batch_size, run.seed, start_step).map(no_autograph(_make_batch))
    else:
        batches = in_memory.make_dataset(source, run.training.batch_size, run.seed, start_step)
    if samples_items(run.architecture):
        batches = add_draws(batches, run.seed, start_step)
    return batches.prefetch(8)


def _make_batch(columns: dict[str, tf.Tensor]) -> Batch:
    lengths = tf.math.count_nonzero(columns["items"], axis=1, dtype=tf.int32)
    rest = {name: column for name, column in columns.items() if name != "user"}
    return {"users": columns["user"], "lengths": lengths, **rest}


def samples_items(settings: Settings) -> bool:
    """Returns whether the loss of a model with these settings compares the targets with a sample of the items."""
    loss = LOSSES.get(getattr(settings, "loss", ""))
    return loss is not None and loss.negatives == SAMPLE


def add_draws(batches: tf.data.Dataset, seed: int, start_step: int = 0) -> tf.data.Dataset:
    """Adds `draw`, int64 [b, 2]: in every row the same seed, which depends on the run's seed and the step.

    A replica gets only some of the rows, and all replicas must draw the same negatives.
    """

    @no_autograph
    def add(step: tf.Tensor, batch: Batch) -> Batch:
        draw = tf.stack([[tf.constant(seed + DRAWS_SEED_OFFSET, tf.int64), step]])
        return {**batch, "draw": tf.tile(draw, [tf.shape(batch["items"])[0], 1])}

    return batches.enumerate(start_step).map(add, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
