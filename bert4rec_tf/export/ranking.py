"""The best of many items for many users, in tables that stay small."""

from collections.abc import Callable

import tensorflow as tf

from bert4rec_tf.data.sequences import PAD
from bert4rec_tf.foundation.types import Tensor

HIDDEN = -float("inf")
"""The score of what must not come back."""

BLOCK_ELEMENTS = 1 << 26
"""Rows are worked through in blocks whose tables have at most so many elements."""


def in_blocks(function: Callable[[Tensor], Tensor], rows: Tensor, width: Tensor, dtypes: tuple) -> tuple[Tensor, ...]:
    """Applies a function to a few rows at a time.

    Args:
        function: numbers of rows, int32 [r], to tensors [r, any].
        rows: int32 [m], the numbers of all rows.
        width: how many elements the function's largest table has for a row, int32 [].
        dtypes: of what the function gives.

    Returns:
        What the function gives for all rows, each [m, any].
    """
    number = tf.size(rows)
    most = tf.maximum(BLOCK_ELEMENTS // tf.maximum(width, 1), 1)
    blocks = tf.maximum(-(-number // most), 1)
    # Blocks of equal height: then fewer rows are made up to fill the last one than there are blocks.
    height = -(-number // blocks)
    filled = tf.reshape(tf.pad(rows, [[0, blocks * height - number]]), [blocks, height])
    shapes = tuple(tf.TensorSpec([None, None], dtype) for dtype in dtypes)
    found = tf.map_fn(function, filled, fn_output_signature=shapes, parallel_iterations=1)
    return tuple(tf.reshape(part, [blocks * height, tf.shape(part)[2]])[:number] for part in found)


def best(scores: Tensor, items: Tensor | None, k: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k best items, int32 [r, k], and their scores, best first; of equal ones the first column.

    Args:
        scores: float32 [r, c]; HIDDEN for what must not come back.
        items: int32 [r, c], which item each column stands for; None for item j + 1 in column j.
        k: at least 1; where fewer are left, the rest is PAD with the score HIDDEN.
    """
    width = tf.shape(scores)[1]
    found, columns = tf.math.top_k(scores, tf.minimum(k, width))
    numbers = columns + 1 if items is None else tf.gather(items, columns, batch_dims=1)
    missing = [[0, 0], [0, tf.maximum(k - width, 0)]]
    numbers = tf.where(found > HIDDEN, numbers, PAD)
    return tf.pad(numbers, missing, constant_values=PAD), tf.pad(found, missing, constant_values=HIDDEN)


def hide(scores: Tensor, items: Tensor) -> tf.Tensor:
    """Returns scores [r, n] of all items with those of `items`, int32 [r, h], hidden; 0 stands for none."""
    places = tf.where(items != PAD)
    columns = tf.cast(tf.gather_nd(items, places), tf.int64) - 1
    indices = tf.stack([places[:, 0], columns], axis=1)
    return tf.tensor_scatter_nd_update(scores, indices, tf.fill(tf.shape(columns), HIDDEN))


def once(items: Tensor) -> tf.Tensor:
    """Returns the items of each row, int32 [r, c], in rising order, each once, with 0 between them."""
    items = tf.sort(items, axis=1)
    again = tf.pad(items[:, 1:] == items[:, :-1], [[0, 0], [1, 0]])[:, : tf.shape(items)[1]]
    return tf.where(again, PAD, items)


def contained(items: Tensor, others: Tensor, num_items: int) -> tf.Tensor:
    """Tells which items, int32 [r, c], are among the others of their row, int32 [r, h]: bool [r, c]."""
    rows = tf.shape(others)[0]
    numbers = tf.broadcast_to(tf.range(rows)[:, None], tf.shape(others))
    indices = tf.reshape(tf.stack([numbers, others], axis=2), [-1, 2])
    nowhere = tf.zeros([rows, num_items + 1], tf.bool)
    there = tf.tensor_scatter_nd_update(nowhere, indices, tf.fill(tf.shape(indices)[:1], True))
    return tf.gather(there, items, batch_dims=1)
