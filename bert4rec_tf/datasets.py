"""From tables and files to batches for Keras' `fit` and for loops of your own: `bert4rec_tf.datasets`.

Batches are a `tf.data.Dataset`. One pass over training batches is one epoch, its last batch filled with examples of the
next. Every pass has another order, other masks and other negatives, by the seed. Batches to measure with are always the
same.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.model_settings import samples_items
from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.epochs import lay_out_once, make_epochs
from bert4rec_tf.data.examples.joined import make_model_feed
from bert4rec_tf.data.examples.kinds import make_examples
from bert4rec_tf.data.examples.masked import MaskedExamples
from bert4rec_tf.data.examples.rows import Feed, gather_ragged
from bert4rec_tf.data.sequences import Sequences, Vocabulary, make_splits
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.foundation.errors import UserError, speak_python
from bert4rec_tf.foundation.graphs import no_autograph
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.batch_checks import check_numbers
from bert4rec_tf.models.raw_ids import check_catalogue, check_sequences, number_items
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.nn.layers import check_size

__all__ = [
    "MaskingSettings",
    "cloze_batches",
    "next_item_batches",
    "read",
    "sequences_of",
    "training_batches",
    "without_last",
]

MOST_ITEMS = 2**31 - 2
"""The largest number that an item can have: int32, with one more for the mask."""


@speak_python()
def read(data: Any, user: Any = None, item: Any = None, time: Any = None) -> Sequences:
    """Reads one action per row.

    Args:
        data: a pandas or polars DataFrame, an Arrow table, a path, a pattern or several paths; or the name of a data
            set. `b4r.interactions` and `b4r.Interactions` have more options.
        user, item, time: the columns; None to find them by common names. `time="none"`: the rows are in order.

    Returns:
        The histories, oldest first, as numbers from 1 to `num_items`. Their `vocabulary` has the raw ids.

    Raises UserError for data that cannot be read, or whose columns must be named.
    """
    return inputs.load_any(data, user, item, time)[1]


def sequences_of(histories: Sequence[Sequence[int]], num_items: int | None = None) -> Sequences:
    """Returns histories of item numbers, oldest first, as `Sequences`. Items are 1 to `num_items` (None: the largest).

    Raises UserError for what is no whole number in that range, and for no items at all.
    """
    max_item = MOST_ITEMS if num_items is None else check_size("num_items", num_items)
    rows = [check_numbers("histories", row, 1, max_item) for row in histories] if np.iterable(histories) else None
    if rows is None or not all(row.ndim == 1 for row in rows):
        raise UserError("`histories` must be a list of lists of item numbers, such as [[1, 2], [3]]")
    if not any(map(len, rows)):
        raise UserError("`histories` must have items. Received: none")
    items = np.concatenate(rows)
    vocabulary = number_items(int(items.max()) if num_items is None else max_item)
    counts = np.bincount(items, minlength=vocabulary.num_items + 1)[1:]
    users = np.arange(len(rows)).astype(str).astype(object)
    splits = make_splits([len(row) for row in rows])
    columns = {role: {"name": role, "type": "int64"} for role in ("user", "item")}
    return Sequences(items, splits, users, Vocabulary(vocabulary.items, counts), columns=columns)


def without_last(sequences: Sequences) -> Sequences:
    """Returns the histories to train on if `next_item_batches` measures: without the last items, which these find.

    A history of one item stays.
    """
    check_sequences(sequences)
    parts = sequences.drop_last((sequences.lengths >= 2).astype(int))
    return replace(parts, columns=sequences.columns, features=sequences.features)


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
    check_sequences(sequences)
    check_size("max_length", max_length)
    check_size("batch_size", batch_size)
    check_size("seed", seed, 0)
    examples = MaskedExamples(sequences, max_length, _choose_masking(masking), last_only)
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
    """Returns the batches that a model's `training_loss` takes, for `fit`. `masking`: as for `cloze_batches`.

    Raises UserError for `sequences` of another number of items than the model's.
    """
    if not isinstance(model, Recommender):
        raise UserError(f"`model` must be a model of this package. Received: a {type(model).__name__}")
    check_size("batch_size", batch_size)
    check_size("seed", seed, 0)
    if model.examples is None:
        raise UserError(f"{type(model).__name__} is not trained by steps; call `model.adapt(sequences)` instead")
    check_catalogue(model, sequences)
    masking_settings = _choose_masking(masking)

    def make_feed(network: Recommender, batch_size: int) -> Feed:
        examples = make_examples(network, sequences, masking_settings)
        return Feed(examples, batch_size, seed, samples_items(network.settings))

    return make_epochs(make_model_feed(model, batch_size, make_feed))


def _choose_masking(masking: MaskingSettings | None) -> MaskingSettings:
    if not isinstance(masking, MaskingSettings | None):
        raise UserError(f"`masking` must be `datasets.MaskingSettings(...)`. Received: {masking!r}")
    return masking or MaskingSettings()


def next_item_batches(sequences: Sequences, batch_size: int = 256) -> tf.data.Dataset:
    """Returns pairs to measure a model by `fit(validation_data=...)` or `evaluate`: a history and its last item.

    They give the loss and the metrics of `compile`. The history is `users [b]`, `items [b, n]` and `lengths [b]`,
    without the last item, right-padded with 0 to the longest of its batch. Users with one item are skipped.
    """
    check_sequences(sequences)
    check_size("batch_size", batch_size)
    users = np.flatnonzero(sequences.lengths >= 2)
    begins, lengths = sequences.splits[users], sequences.lengths[users].astype(np.int32) - 1
    targets = sequences.items[sequences.splits[users + 1] - 1]
    values = tf.constant(sequences.items)

    @no_autograph
    def lay_out(users: Tensor, begins: Tensor, lengths: Tensor, targets: Tensor) -> tuple[Batch, Tensor]:
        items = gather_ragged(values, begins, lengths, tf.reduce_max(lengths))
        return {"users": users, "items": items, "lengths": lengths}, targets

    rows = tf.data.Dataset.from_tensor_slices((users.astype(np.int32), begins, lengths, targets))
    return rows.batch(batch_size).map(lay_out)


def __dir__() -> list[str]:
    return __all__
