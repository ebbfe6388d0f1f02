"""Operations with custom gradients: the same values as the plain formulas, with fewer passes over memory.

On a CPU the encoder's matrix products take less time than the element-wise operations between them, whose time depends
on how often they read and write the large tensors.
"""

import math

import tensorflow as tf
from keras import ops

from bert4rec_tf.foundation.graphs import define_gradient
from bert4rec_tf.foundation.types import Tensor


def dense(inputs: Tensor, kernel: Tensor, bias: Tensor) -> tf.Tensor:
    """Returns inputs kernel + bias, [..., m], for float inputs [..., k], kernel [k, m] and bias [m] of one type.

    The kernel's gradient is the product of two long matrices. It is faster with the narrower one first, so it may be
    computed transposed.
    """

    @define_gradient
    def product(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor):
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            if kernel.shape[0] <= kernel.shape[1]:
                d_kernel = tf.matmul(rows, upstream, transpose_a=True)
            else:
                d_kernel = tf.transpose(tf.matmul(upstream, rows, transpose_a=True))
            d_bias = tf.raw_ops.BiasAddGrad(out_backprop=upstream)
            return tf.matmul(upstream, kernel, transpose_b=True), d_kernel, d_bias

        return tf.nn.bias_add(tf.matmul(rows, kernel), bias), gradients

    inputs, kernel, bias = (tf.convert_to_tensor(part) for part in (inputs, kernel, bias))
    outputs = product(tf.reshape(inputs, [-1, kernel.shape[0]]), kernel, bias)
    return tf.reshape(outputs, [*ops.shape(inputs)[:-1], kernel.shape[1]])


def gelu(inputs: Tensor) -> tf.Tensor:
    """Returns the exact GELU of floats, x Phi(x) (equation 3), by erf, which every runtime has.

    Its slope, Phi(x) + x phi(x), is computed together with the value.
    """

    @define_gradient
    def value(inputs: tf.Tensor):
        # Converters recognise GELU in this form. Halving is exact, so its place does not change the bits.
        scaled = inputs / math.sqrt(2.0)
        doubled = 1.0 + tf.math.erf(scaled)
        slope = 0.5 * doubled + scaled * tf.exp(-0.5 * math.log(math.pi) - tf.square(scaled))
        return (0.5 * inputs) * doubled, lambda upstream: upstream * slope

    return value(tf.convert_to_tensor(inputs))


BY_ROWS, BY_COLUMNS = (0, 2, 1, 3), (0, 2, 3, 1)
"""Orders of the axes that turn [b, n, h, e] into [b, h, n, e] and into [b, h, e, n]."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    penalty: Tensor | None,
    keep_mask: Tensor | None,
    scale: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Dot-product attention (equation 2): softmax(Q K^T + penalty) V in every head. The caller scales the queries.

    The backward pass of a softmax sums probability x gradient over the keys. The same sum is output x its gradient
    over the e features, which are far fewer, so that one is computed. Products that would read an [n, n] matrix
    transposed are computed transposed instead: their results are far smaller, and their axes change order anyway.

    Args:
        query: [b, m, d], float32 or narrower. The matrix products run in this type.
        key, value: [b, n, d] of the same type.
        num_heads: h, a divisor of d; e = d / h.
        penalty: broadcast to [b, h, m, n] and added to the scores. No gradient flows to it.
        keep_mask: [b, h, m, n], 0 where dropout drops a probability and 1 elsewhere; None for no dropout.
        scale: factor that scales up the kept probabilities.

    Returns:
        [b, m, d] of the type of `query`, and the probabilities before dropout, float32 [b, h, m, n] (query, key),
        through which no gradient flows.
    """

    # One head has no axes to change. The converter to ONNX would take the wrong shape from changing an axis of one.
    def split(joined: tf.Tensor, order: tuple[int, ...], length: tf.Tensor) -> tf.Tensor:
        if num_heads == 1:
            return (joined if order == BY_ROWS else tf.linalg.matrix_transpose(joined))[:, None]
        return tf.transpose(tf.reshape(joined, [batch, length, num_heads, width // num_heads]), order)

    def join(heads: tf.Tensor, order: tuple[int, ...], length: tf.Tensor) -> tf.Tensor:
        if num_heads == 1:
            return (heads if order == BY_ROWS else tf.linalg.matrix_transpose(heads))[:, 0]
        ordered = tf.transpose(heads, [order.index(axis) for axis in range(4)])
        return tf.reshape(ordered, [batch, length, width])

    @define_gradient
    def attend_heads(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):
        queries = split(query, BY_ROWS, num_queries)
        scores = tf.cast(tf.matmul(queries, split(key, BY_COLUMNS, num_keys)), wide)
        probabilities = tf.nn.softmax(scores if penalty is None else scores + penalty)
        dropped = probabilities if keep_mask is None else probabilities * keep_mask
        narrow_dropped = tf.cast(dropped, narrow)
        output = tf.matmul(narrow_dropped, split(value, BY_ROWS, num_keys)) * tf.cast(scale, narrow)

        def gradients(upstream: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream = split(upstream, BY_ROWS, num_queries)
            mean = tf.reduce_sum(tf.cast(upstream, wide) * tf.cast(output, wide), axis=-1, keepdims=True)
            upstream = upstream * tf.cast(scale, narrow)
            d_dropped = tf.cast(tf.matmul(upstream, split(value, BY_COLUMNS, num_keys)), wide)
            d_scores = tf.cast(dropped * d_dropped - probabilities * mean, narrow)
            d_query = join(tf.matmul(d_scores, split(key, BY_ROWS, num_keys)), BY_ROWS, num_queries)
            d_key = join(tf.matmul(queries, d_scores, transpose_a=True), BY_COLUMNS, num_keys)
            return d_query, d_key, join(tf.matmul(upstream, narrow_dropped, transpose_a=True), BY_COLUMNS, num_keys)

        return (join(output, BY_ROWS, num_queries), probabilities), gradients

    query, key, value = (tf.convert_to_tensor(part) for part in (query, key, value))
    narrow, wide = query.dtype, tf.float64 if query.dtype == tf.float64 else tf.float32
    penalty, keep_mask = (None if part is None else tf.cast(part, wide) for part in (penalty, keep_mask))
    batch, num_queries, width = ops.shape(query)
    # Of one feature: the converter to ONNX takes the shape of a dense layer's reshaped outputs from before the reshape.
    num_keys = ops.shape(key[..., 0])[1]
    output, probabilities = attend_heads(query, key, value)
    return output, tf.stop_gradient(probabilities)
