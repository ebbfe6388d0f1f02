"""Losses over a large table."""

import tensorflow as tf

from bert4rec_tf.types import Tensor

PIECE = 2_048
"""Rows of the table per piece: its logits stay in the cache, and no [targets, rows] tensor is ever made."""


def table_cross_entropy(hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, piece: int = PIECE) -> tf.Tensor:
    """The negative log-likelihood of targets under softmax(hidden table^T + bias), with its own gradient.

    Works through the table in pieces: first the log-sum-exp of all logits, then, backwards, each piece's logits again.
    So memory does not grow with targets x rows.

    Args:
        hidden: float [targets, d].
        table: float [rows, d].
        bias: float [rows].
        targets: int32 [targets], row numbers.
        piece: rows of the table per piece.

    Returns:
        [targets], of the type of `hidden`.
    """

    targets = tf.convert_to_tensor(targets)

    @tf.custom_gradient
    def loss(hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor):
        log_sum = _log_sum_exp(hidden, table, bias, piece)
        target_logits = tf.reduce_sum(hidden * tf.gather(table, targets), axis=1) + tf.gather(bias, targets)

        def gradient(upstream: tf.Tensor):
            return _gradients(hidden, table, bias, targets, log_sum, upstream, piece)

        return log_sum - target_logits, gradient

    return loss(tf.convert_to_tensor(hidden), tf.convert_to_tensor(table), tf.convert_to_tensor(bias))


def _num_pieces(table: tf.Tensor, piece: int) -> int:
    return -(-table.shape[0] // piece)


def _logits(hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(hidden, table, transpose_b=True), bias)


def _log_sum_exp(hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor, piece: int) -> tf.Tensor:
    def add_piece(number: tf.Tensor, highest: tf.Tensor, total: tf.Tensor):
        rows = slice(number * piece, (number + 1) * piece)
        logits = _logits(hidden, table[rows], bias[rows])
        new_highest = tf.maximum(highest, tf.reduce_max(logits, axis=1))
        here = tf.reduce_sum(tf.exp(logits - new_highest[:, None]), axis=1)
        return number + 1, new_highest, total * tf.exp(highest - new_highest) + here

    lowest = tf.fill(tf.shape(hidden)[:1], hidden.dtype.min)
    _, highest, total = tf.while_loop(
        lambda number, *_: number < _num_pieces(table, piece),
        add_piece,
        (0, lowest, tf.zeros_like(lowest)),
        parallel_iterations=1,
    )
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
    count = _num_pieces(table, piece)
    scaled = tf.concat([hidden * upstream[:, None], upstream[:, None]], axis=1)

    def add_piece(number: tf.Tensor, of_hidden: tf.Tensor, of_rows: tf.TensorArray):
        rows = slice(number * piece, (number + 1) * piece)
        part = table[rows]
        weights = tf.exp(_logits(hidden, part, bias[rows]) - log_sum[:, None])
        of_rows = of_rows.write(number, tf.matmul(weights, scaled, transpose_a=True))
        return number + 1, of_hidden + tf.matmul(weights, part), of_rows

    _, of_hidden, of_rows = tf.while_loop(
        lambda number, *_: number < count,
        add_piece,
        (0, tf.zeros_like(hidden), tf.TensorArray(hidden.dtype, size=count, infer_shape=False)),
        parallel_iterations=1,
    )
    of_hidden = (of_hidden - tf.gather(table, targets)) * upstream[:, None]
    of_rows = tf.tensor_scatter_nd_sub(of_rows.concat(), targets[:, None], scaled)
    return of_hidden, tf.ensure_shape(of_rows[:, :-1], table.shape), tf.ensure_shape(of_rows[:, -1], bias.shape)
