"""How a training step lays out its batch: by the lengths of the rows, or in fixed places.

Padding is most of many batches. BY_LENGTH leaves it out: it cuts a batch into groups of similar rows and drops unused
slots, so shapes change from step to step, which a CPU does not mind. An accelerator wants one compiled program for all
steps. So FIXED keeps every shape and gives padding a weight of 0. A model writes its loss once, over what these
functions return.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import tensorflow as tf

from bert4rec_tf.foundation.types import Batch, Tensor

BY_LENGTH, FIXED = "by_length", "fixed"

MIN_WORK = 1 << 17
"""Rows x width x hidden size from which groups pay: below, compiling them takes longer than they save."""

_AS_WIDE = ("items", "targets", "negatives")
_PER_ROW = ("users", "mask_positions", "mask_targets")

_layout = contextvars.ContextVar("_layout", default=BY_LENGTH)


@contextlib.contextmanager
def use_layout(layout: str) -> Iterator[None]:
    """Inside the block, losses are traced in this layout, BY_LENGTH or FIXED."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


def is_fixed() -> bool:
    """Returns whether shapes must stay the same from step to step."""
    return _layout.get() == FIXED


def split_rows(batch: Batch, cuts: Sequence[float], hidden_dim: int) -> list[Batch]:
    """Returns a batch in groups of similar length, each only as wide as its longest row; FIXED: as one group.

    Most histories are far shorter than N, and a group fits the cache better. But each group takes about a second to
    compile, so a batch of little work (MIN_WORK) stays whole.

    Args:
        batch: `items [b, n]`, and columns of _AS_WIDE and _PER_ROW; other columns are dropped.
        cuts: where one group ends and the next begins, as fractions of the rows sorted by length.
        hidden_dim: d of the model.
    """
    columns = {name: tf.convert_to_tensor(column) for name, column in batch.items() if name in (*_AS_WIDE, *_PER_ROW)}
    if is_fixed():
        return [columns]
    lengths = _count_read(columns)
    size = columns["items"].shape
    if size.is_fully_defined() and size.num_elements() * hidden_dim < MIN_WORK:
        return [_cut_columns(columns, tf.maximum(tf.reduce_max(lengths), 1))]
    order = tf.argsort(lengths, stable=True)
    columns = {name: tf.gather(column, order) for name, column in columns.items()}
    rows, lengths = tf.size(lengths), tf.gather(lengths, order)
    ends = [tf.cast(share * tf.cast(rows, tf.float32), tf.int32) for share in cuts] + [rows]
    groups = []
    for begin, end in zip([0, *ends], ends):
        group = {name: column[begin:end] for name, column in columns.items()}
        groups.append(_cut_columns(group, tf.reduce_max(tf.concat([lengths[begin:end], [1]], axis=0))))
    return groups


def _cut_columns(group: Batch, width: Tensor) -> Batch:
    return {name: column[:, :width] if name in _AS_WIDE else column for name, column in group.items()}


def count_used(columns: Tensor) -> Tensor:
    """Returns the number of columns of each row up to its last that is not 0, int32 [b], for `columns [b, n]`."""
    numbers = tf.range(1, tf.shape(columns)[1] + 1)
    return tf.reduce_max(tf.pad(tf.where(columns != 0, numbers[None, :], 0), [[0, 0], [0, 1]]), axis=1)


def _count_read(columns: Batch) -> Tensor:
    """Returns how many columns of each row a loss reads, int32 [b]: up to its last item or masked position."""
    length = count_used(columns["items"])
    if "mask_positions" not in columns:
        return length
    last_position = tf.reduce_max(tf.pad(tf.cast(columns["mask_positions"], tf.int32), [[0, 0], [0, 1]]), axis=1)
    return tf.maximum(length, tf.where(last_position > 0, last_position + 1, 0))


def cut_slots(positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns masked positions and their targets, int32 [b, p], without slots that no row uses; FIXED: with them."""
    if is_fixed():
        return positions, targets
    num_used = tf.reduce_max(count_used(targets))
    return positions[:, :num_used], targets[:, :num_used]


def flatten_targets(targets: Tensor, *columns: Tensor) -> list[Tensor]:
    """Flattens `targets [b, n]` to [t] and `columns [b, n, ...]` to [t, ...].

    BY_LENGTH drops the places without a target (0). FIXED keeps them; the caller gives them a weight of 0.
    """
    if is_fixed():
        return [tf.reshape(column, [-1, *column.shape[2:]]) for column in (targets, *columns)]
    places = tf.where(targets > 0)
    return [tf.gather_nd(column, places) for column in (targets, *columns)]
