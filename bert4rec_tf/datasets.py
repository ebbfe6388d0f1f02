"""Batches for Keras' `fit` and for loops of your own, as `tf.data.Dataset`: `bert4rec_tf.datasets`.

One pass over training batches is one epoch, its last batch filled with examples of the next. Every pass has another
order, other masks and other negatives, by the seed. Batches to measure with are the same in every pass.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.model_settings import samples_items
from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples import in_memory
from bert4rec_tf.data.examples.epochs import lay_out_once, make_epochs
from bert4rec_tf.data.examples.masked import MaskedExamples
from bert4rec_tf.data.examples.rows import Examples, Feed
from bert4rec_tf.data.sequences import PAD, Sequences, Vocabulary, pad_rows
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models.recommender import Recommender

__all__ = ["cloze_batches", "next_item_batches", "sequences_of", "training_batches"]


def sequences_of(histories: Sequence[Sequence[int]], num_items: int | None = None) -> Sequences:
    """Returns histories of item numbers, oldest first, as `Sequences`. Items are 1 to `num_items` (None: the largest).

    Raises UserError for a number outside of that.
    """
    items = np.concatenate([np.asarray(history, np.int32) for history in histories])
    largest = int(items.max()) if num_items is None else num_items
    if items.min() <= PAD or items.max() > largest:
        raise UserError(f"`histories` must have items from 1 to {largest}. Received: {items.min()} to {items.max()}")
    splits = np.concatenate([[0], np.cumsum([len(history) for history in histories])])
    raw = np.array([str(number) for number in range(1, largest + 1)], object)
    vocabulary = Vocabulary(raw, np.bincount(items, minlength=largest + 1)[1:])
    users = np.array([str(number) for number in range(len(histories))], object)
    return Sequences(items, splits, users, vocabulary)


def cloze_batches(
    sequences: Sequences,
    max_length: int = 200,
    batch_size: int = 256,
    masking: MaskingSettings | None = None,
    last_only: bool = False,
    seed: int = 0,
) -> tf.data.Dataset:
    """Returns batches of the Cloze task, with new masks in every epoch.

    Args:
        sequences: the histories.
        max_length: N, the width of a row.
        masking: how windows are cut and masked; None for the defaults.
        last_only: mask the last item of every history alone, to measure how well a model finds it.
        seed: decides the order and the masks.

    Returns:
        Dictionaries of `users` and `lengths [b]`; `items [b, n]`, right-padded with 0 to the longest row, in which some
        are masked by the number `sequences.num_items + 1`; `mask_positions` and `mask_targets [b, p]`, whose unused
        slots have target 0.
    """
    examples = MaskedExamples(sequences, max_length, masking or MaskingSettings(), last_only)
    if last_only:
        return lay_out_once(examples, batch_size)
    return make_epochs(Feed(examples, batch_size, seed))


def training_batches(
    model: Recommender,
    sequences: Sequences,
    batch_size: int = 256,
    masking: MaskingSettings | None = None,
    seed: int = 0,
) -> tf.data.Dataset:
    """Returns the batches that a model's `training_loss` takes, for `fit`. `masking`: as for `cloze_batches`."""
    if model.examples is None:
        raise UserError(f"{type(model).__name__} is not trained by steps; call `model.adapt(sequences)` instead")
    if model.examples == "masked":
        examples: Examples = MaskedExamples(sequences, model.max_length, masking or MaskingSettings())
    else:
        examples = in_memory.KINDS[model.examples](sequences, **model.example_options)
    return make_epochs(Feed(examples, batch_size, seed, samples_items(model.settings)))


def next_item_batches(sequences: Sequences, batch_size: int = 256) -> tf.data.Dataset:
    """Returns pairs to measure a model by `fit(validation_data=...)` or `evaluate`: a history and its last item.

    The history is `users [b]`, `items [b, n]` and `lengths [b]`, without the last item. Users with one are skipped.
    """
    users = np.flatnonzero(sequences.lengths >= 2)
    starts, lengths = sequences.splits[users], sequences.lengths[users] - 1
    targets = sequences.items[sequences.splits[users + 1] - 1]
    items = pad_rows(sequences.items, starts, lengths, int(lengths.max(initial=1)))
    histories = {"users": users.astype(np.int32), "items": items, "lengths": lengths.astype(np.int32)}
    return tf.data.Dataset.from_tensor_slices((histories, targets)).batch(batch_size)


def __dir__() -> list[str]:
    return __all__
