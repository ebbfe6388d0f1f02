"""Operations with gradients of their own: the same values as the plain formulas, in fewer passes over memory.

On a processor the encoder's products take less time than everything between them, and that time is a matter of how
often the large tensors are read and written.
"""

import math

import tensorflow as tf

from bert4rec_tf.foundation.types import Tensor


def gelu(inputs: Tensor) -> tf.Tensor:
    """The exact GELU, x Phi(x) (equation 3), through erf, which every runtime has.

    Args:
        inputs: float [...].

    Returns:
        Of the same shape and type. The slope, Phi(x) + x phi(x), is made with the value.
    """

    @tf.custom_gradient
    def value(inputs: tf.Tensor):
        # In the shape by which converters know GELU; halving is exact, so its place does not change the bits.
        doubled = 1.0 + tf.math.erf(inputs / math.sqrt(2.0))
        slope = 0.5 * doubled + inputs * tf.exp(-0.5 * tf.square(inputs)) / math.sqrt(2.0 * math.pi)
        return (0.5 * inputs) * doubled, lambda upstream: upstream * slope

    return value(tf.convert_to_tensor(inputs))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    penalty: Tensor | None = None,
    kept: Tensor | None = None,
    scale: float = 1,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Scaled dot-product attention (equation 2), the scaling left to the caller: softmax(Q K^T + penalty) V.

    The backward pass needs no sum over the products of probabilities and their gradients: it equals the sum over the
    products of output and its gradient, which are far fewer.

    Args:
        query, key, value: [b, h, n, e], in float32 or a narrower type, that of the four products.
        penalty: float32, to be broadcast to [b, h, n, n] and added to the scores; no gradient flows to it.
        kept: float32 [b, h, n, n], 0 where dropout drops a probability and 1 elsewhere; None for no dropout.
        scale: what the kept probabilities are multiplied with.

    Returns:
        [b, h, n, e] of the type of `query`, and the probabilities before dropout, float32 [b, h, n, n] (query, key),
        through which no gradient flows.
    """

    @tf.custom_gradient
    def attended(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), wide)
        probabilities = tf.nn.softmax(scores if penalty is None else scores + penalty)
        left = probabilities if kept is None else probabilities * kept
        narrow_left = tf.cast(left, narrow)
        output = tf.matmul(narrow_left, value) * tf.cast(scale, narrow)

        def gradients(upstream: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            mean = tf.reduce_sum(tf.cast(upstream, wide) * tf.cast(output, wide), axis=-1, keepdims=True)
            upstream = upstream * tf.cast(scale, narrow)
            of_left = tf.cast(tf.matmul(upstream, value, transpose_b=True), wide)
            of_scores = tf.cast(left * of_left - probabilities * mean, narrow)
            of_value = tf.matmul(narrow_left, upstream, transpose_a=True)
            return tf.matmul(of_scores, key), tf.matmul(of_scores, query, transpose_a=True), of_value

        return (output, probabilities), gradients

    query, key, value = (tf.convert_to_tensor(part) for part in (query, key, value))
    narrow, wide = query.dtype, tf.float64 if query.dtype == tf.float64 else tf.float32
    output, probabilities = attended(query, key, value)
    return output, tf.stop_gradient(probabilities)
