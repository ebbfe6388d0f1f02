"""Top-k items for many users, with bounded memory."""

from collections.abc import Callable

import tensorflow as tf

from bert4rec_tf.data.sequences import PAD
from bert4rec_tf.foundation.types import Tensor

HIDDEN = -float("inf")
"""The score of items that must not be returned."""

GROUP = 32
"""The largest scores are searched for in groups of so many columns."""

BLOCK_ELEMENTS = 1 << 26
"""Rows are processed in blocks whose tables have at most this many elements."""


def map_row_blocks(
    function: Callable[[Tensor], Tensor], rows: Tensor, width: Tensor, dtypes: tuple
) -> tuple[Tensor, ...]:
    """Applies a function to a block of rows at a time, and returns its results for all rows, each [m, any].

    Args:
        function: row numbers, int32 [r] -> tensors [r, any] of `dtypes`.
        rows: int32 [m], all row numbers.
        width: int32 [], elements per row of the function's largest table.
    """
    number = tf.size(rows)
    max_height = tf.maximum(BLOCK_ELEMENTS // tf.maximum(width, 1), 1)
    blocks = tf.maximum(-(-number // max_height), 1)
    # Blocks of equal height need the least padding.
    height = -(-number // blocks)
    padded = tf.reshape(tf.pad(rows, [[0, blocks * height - number]]), [blocks, height])
    shapes = tuple(tf.TensorSpec([None, None], dtype) for dtype in dtypes)
    results = tf.map_fn(function, padded, fn_output_signature=shapes, parallel_iterations=1)
    return tuple(tf.reshape(result, [blocks * height, tf.shape(result)[2]])[:number] for result in results)


def select_top(scores: Tensor, items: Tensor | None, k: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k best items, int32 [r, k], and their scores, best first. In a tie the first column wins.

    Args:
        scores: float32 [r, c], HIDDEN for items that must not be returned.
        items: int32 [r, c], the item of each column; None for item j + 1 in column j.
        k: at least 1. If fewer items are left, the rest is PAD with the score HIDDEN.
    """
    width = tf.shape(scores)[1]
    top, columns = find_largest(scores, tf.minimum(k, width))
    numbers = columns + 1 if items is None else tf.gather(items, columns, batch_dims=1)
    padding = [[0, 0], [0, tf.maximum(k - width, 0)]]
    numbers = tf.where(top > HIDDEN, numbers, PAD)
    return tf.pad(numbers, padding, constant_values=PAD), tf.pad(top, padding, constant_values=HIDDEN)


def find_largest(scores: Tensor, k: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Does what `tf.math.top_k` does for scores [r, c], in a fraction of the time if k is small."""
    width = tf.shape(scores)[1]

    def search_groups() -> tuple[tf.Tensor, tf.Tensor]:
        number = -(-width // GROUP)
        padded = tf.pad(scores, [[0, 0], [0, number * GROUP - width]], constant_values=HIDDEN)
        grouped = tf.reshape(padded, [tf.shape(scores)[0], number, GROUP])
        # Sorted, so that the first column still wins in a tie.
        groups = tf.sort(tf.math.top_k(tf.reduce_max(grouped, axis=2), k)[1], axis=1)
        selected = tf.gather(grouped, groups, batch_dims=1)
        values, places = tf.math.top_k(tf.reshape(selected, [tf.shape(scores)[0], k * GROUP]), k)
        selected_groups = places // GROUP
        first_columns = (tf.gather(groups, selected_groups, batch_dims=1) - selected_groups) * GROUP
        return values, first_columns + places

    values, columns = tf.cond(k * GROUP < width // 2, search_groups, lambda: tuple(tf.math.top_k(scores, k)))
    return values, columns


def hide_items(scores: Tensor, items: Tensor) -> tf.Tensor:
    """Sets the scores [r, n] of `items`, int32 [r, h], to HIDDEN. Column i - 1 is item i; item 0 is none."""
    places = tf.where(items != PAD)
    columns = tf.cast(tf.gather_nd(items, places), tf.int64) - 1
    indices = tf.stack([places[:, 0], columns], axis=1)
    return tf.tensor_scatter_nd_update(scores, indices, tf.fill(tf.shape(columns), HIDDEN))


def gather_rows(variable: tf.Variable, indices: Tensor) -> tf.Tensor:
    """Returns rows of a variable. A `tf.gather` of the variable itself would make later reads copy it whole."""
    return tf.gather(tf.convert_to_tensor(variable), indices)


def drop_repeated(items: Tensor) -> tf.Tensor:
    """Returns the items of each row, int32 [r, c], sorted, with 0 in place of repeated ones."""
    items = tf.sort(items, axis=1)
    repeated = tf.pad(items[:, 1:] == items[:, :-1], [[0, 0], [1, 0]])[:, : tf.shape(items)[1]]
    return tf.where(repeated, PAD, items)


def is_contained(items: Tensor, allowed: Tensor) -> tf.Tensor:
    """Returns which `items`, int32 [r, c], are among the `allowed`, int32 [r, h], of their row: bool [r, c]."""
    # An extra column, because there may be none; no item has this number.
    one_more = [[0, 0], [0, 1]]
    ordered = tf.sort(tf.pad(allowed, one_more, constant_values=tf.int32.max), axis=1)
    places = tf.searchsorted(ordered, tf.pad(items, one_more))[:, :-1]
    return tf.gather(ordered, places, batch_dims=1) == items
