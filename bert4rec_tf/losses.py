"""Losses over a large table."""

from collections.abc import Callable

import tensorflow as tf

from bert4rec_tf.types import Tensor

PIECE = 2_048
"""Rows of the table per piece: its logits stay in the cache, and no [targets, rows] tensor is ever made."""


def table_cross_entropy(hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, piece: int = PIECE) -> tf.Tensor:
    """The negative log-likelihood of targets under softmax(hidden table^T + bias), with its own gradient.

    Works through the table in pieces: first the log-sum-exp of all logits, then, backwards, each piece's logits again.
    So memory does not grow with targets x rows.

    In mixed precision, `hidden` in bfloat16 and the rest in float32, the two products of the gradients run in bfloat16.
    That of the logits does not: its result would be bfloat16 as well, and 8 bits are few for what is exponentiated.

    Args:
        hidden: float [targets, d], of the table's type or a narrower one.
        table: float [rows, d].
        bias: float [rows], of the table's type.
        targets: int32 [targets], row numbers.
        piece: rows of the table per piece.

    Returns:
        [targets], of the type of the table.
    """

    targets = tf.convert_to_tensor(targets)

    @tf.custom_gradient
    def loss(hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor):
        rows = min(piece, table.shape[0])
        wide = tf.cast(hidden, table.dtype)
        log_sum = _log_sum_exp(wide, table, bias, rows)
        target_logits = tf.reduce_sum(wide * tf.gather(table, targets), axis=1) + tf.gather(bias, targets)

        def gradient(upstream: tf.Tensor):
            return _gradients(hidden, table, bias, targets, log_sum, upstream, rows)

        return log_sum - target_logits, gradient

    return loss(tf.convert_to_tensor(hidden), tf.convert_to_tensor(table), tf.convert_to_tensor(bias))


def _fold(add_piece: Callable[..., tuple], state: tuple, rows: int, piece: int) -> tuple:
    """Calls `add_piece(number, size, *state) -> state` for each piece of a table of `rows` rows.

    The loop has the whole pieces, for XLA wants the same shapes in every turn; a smaller last one comes after it.
    """
    count, rest = divmod(rows, piece)
    _, *state = tf.while_loop(
        lambda number, *_: number < count,
        lambda number, *state: (number + 1, *add_piece(number, piece, *state)),
        (0, *state),
        parallel_iterations=1,
    )
    return add_piece(count, rest, *state) if rest else tuple(state)


def _logits(hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(hidden, table, transpose_b=True), bias)


def _log_sum_exp(hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor, piece: int) -> tf.Tensor:
    def add_piece(number: tf.Tensor, size: int, highest: tf.Tensor, total: tf.Tensor):
        start = number * piece
        logits = _logits(hidden, tf.slice(table, [start, 0], [size, -1]), tf.slice(bias, [start], [size]))
        new_highest = tf.maximum(highest, tf.reduce_max(logits, axis=1))
        here = tf.reduce_sum(tf.exp(logits - new_highest[:, None]), axis=1)
        return new_highest, total * tf.exp(highest - new_highest) + here

    lowest = tf.fill(tf.shape(hidden)[:1], hidden.dtype.min)
    highest, total = _fold(add_piece, (lowest, tf.zeros_like(lowest)), table.shape[0], piece)
    return highest + tf.math.log(total)


def _gradients(
    hidden: tf.Tensor,
    table: tf.Tensor,
    bias: tf.Tensor,
    targets: tf.Tensor,
    log_sum: tf.Tensor,
    upstream: tf.Tensor,
    piece: int,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sums the gradients piece by piece, then puts the targets' own part right.

    The upstream gradient scales rows of `hidden` here, not the far larger rows of weights, and the gradient of the
    bias is one more column of the table's product: a sum over the columns of the weights would cost more.
    """
    narrow, wide, (rows, width) = hidden.dtype, tf.cast(hidden, table.dtype), table.shape
    scaled = tf.concat([wide * upstream[:, None], upstream[:, None]], axis=1)
    factors = tf.cast(scaled, narrow)

    def add_piece(number: tf.Tensor, size: int, of_hidden: tf.Tensor, of_rows: tf.TensorArray):
        start = number * piece
        part = tf.slice(table, [start, 0], [size, -1])
        logits = _logits(wide, part, tf.slice(bias, [start], [size]))
        weights = tf.cast(tf.exp(logits - log_sum[:, None]), narrow)
        of_hidden += tf.cast(tf.matmul(weights, tf.cast(part, narrow)), table.dtype)
        of_part = tf.cast(tf.matmul(weights, factors, transpose_a=True), table.dtype)
        if size < piece:
            of_part = tf.pad(of_part, [[0, piece - size], [0, 0]])
        return of_hidden, of_rows.write(number, of_part)

    of_rows = tf.TensorArray(table.dtype, size=-(-rows // piece), element_shape=[piece, width + 1])
    of_hidden, of_rows = _fold(add_piece, (tf.zeros_like(wide), of_rows), rows, piece)
    of_hidden = tf.cast((of_hidden - tf.gather(table, targets)) * upstream[:, None], narrow)
    of_rows = tf.tensor_scatter_nd_sub(tf.reshape(of_rows.stack(), [-1, width + 1]), targets[:, None], scaled)
    return of_hidden, of_rows[:rows, :-1], of_rows[:rows, -1]
