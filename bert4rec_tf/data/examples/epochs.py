"""Training batches as `tf.data.Dataset`, for Keras' `fit` and for loops of your own."""

import itertools
import weakref
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.examples.joined import JoinedFeed
from bert4rec_tf.data.examples.rows import Examples, Feed
from bert4rec_tf.foundation.graphs import no_autograph
from bert4rec_tf.foundation.types import Batch

READ_AT_ONCE = 64
"""Steps that are read together, because each call of a generator takes TensorFlow as long as a small step."""


def make_epochs(feed: Feed | JoinedFeed) -> tf.data.Dataset:
    """Returns a dataset of which each pass has the batches of one epoch, and goes on where the pass before ended.

    TensorFlow keeps each generator function until the process ends. So this one does not hold the examples; the dataset
    does, and they go with it.
    """
    steps, reference, epochs = feed.steps_per_epoch, weakref.ref(feed), itertools.count()
    spec = {name: tf.TensorSpec([None, *column.shape[1:]], column.dtype) for name, column in feed.read(0, 1).items()}
    tables = {name: tf.constant(table) for name, table in feed.tables.items()}

    def read_epoch() -> Iterator[dict[str, np.ndarray]]:
        if (feed := reference()) is None:
            raise RuntimeError("The dataset of these examples is gone; it must live as long as what reads it")
        first = next(epochs) * steps
        for step in range(first, first + steps, READ_AT_ONCE):
            yield feed.read(step, min(READ_AT_ONCE, first + steps - step))

    @no_autograph
    def lay_out(columns: dict[str, tf.Tensor]) -> Batch:
        return feed.lay_out(tables, columns)

    columns = tf.data.Dataset.from_generator(read_epoch, output_signature=spec).unbatch()
    batches = columns.map(lay_out, num_parallel_calls=2, deterministic=True)
    dataset = batches.apply(tf.data.experimental.assert_cardinality(steps)).prefetch(4)
    dataset.feed = feed
    return dataset


def lay_out_once(examples: Examples, batch_size: int) -> tf.data.Dataset:
    """Returns every example once, in order, in batches that are the same in every pass."""
    columns = {"examples": np.arange(examples.num_examples), "seed": np.zeros(2, np.int64)}
    return tf.data.Dataset.from_tensor_slices(examples.lay_out(examples.tables, columns)).batch(batch_size)
