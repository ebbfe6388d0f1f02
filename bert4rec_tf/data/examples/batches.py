"""The endless training batches of a run, from the first step or from a later one."""

import tensorflow as tf

from bert4rec_tf.config.model_settings import SAMPLED
from bert4rec_tf.config.run import Run
from bert4rec_tf.data.examples import in_memory
from bert4rec_tf.data.examples.draws import with_draws
from bert4rec_tf.data.examples.in_memory import Examples
from bert4rec_tf.data.examples.masking import mask_dynamically
from bert4rec_tf.data.examples.tfrecords import Shards
from bert4rec_tf.data.examples.users import replace_users
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.graphs import plain
from bert4rec_tf.foundation.types import Batch


def of_examples(examples: Examples, run: Run, sequences: Sequences, start_step: int) -> tf.data.Dataset:
    """Returns batches of examples made in memory. `sequences`: the data, for their numbers."""
    batches = in_memory.dataset_of(examples, run.training.batch_size, run.seed, start_step)
    return _with_draws(batches, run, sequences, start_step)


def of_shards(shards: Shards, run: Run, sequences: Sequences, start_step: int) -> tf.data.Dataset:
    """Returns batches of masked examples. `sequences`: the data, for their numbers."""
    batches = shards.read(run.training.batch_size, run.seed, start_step)
    if run.masking.masking == "dynamic":
        batches = mask_dynamically(batches, run.masking, sequences.num_items, run.seed, start_step)
    return _with_draws(batches.map(plain(_batch_of_columns)), run, sequences, start_step).prefetch(8)


def _with_draws(batches: tf.data.Dataset, run: Run, sequences: Sequences, start_step: int) -> tf.data.Dataset:
    """Adds what is drawn anew for every batch: other users, and the seed of its negatives."""
    settings = run.architecture
    if getattr(settings, "loss", None) in SAMPLED:
        batches = with_draws(batches, run.seed, start_step)
    if run.reads_users and settings.user_replacement:
        batches = replace_users(batches, settings.user_replacement, sequences.num_users, run.seed, start_step)
    return batches


def _batch_of_columns(columns: dict[str, tf.Tensor]) -> Batch:
    lengths = tf.math.count_nonzero(columns["items"], axis=1, dtype=tf.int32)
    rest = {name: column for name, column in columns.items() if name not in ("user", "window", "epoch")}
    return {"users": columns["user"], "lengths": lengths, **rest}
