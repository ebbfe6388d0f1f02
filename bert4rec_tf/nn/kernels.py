"""Operations with custom gradients: the same values as the plain formulas, with fewer passes over memory.

On a CPU the encoder's matrix products take less time than the element-wise operations between them. The time of those
depends on how often the large tensors are read and written.
"""

import math

import tensorflow as tf

from bert4rec_tf.foundation.graphs import with_gradient
from bert4rec_tf.foundation.types import Tensor


def gelu(inputs: Tensor) -> tf.Tensor:
    """The exact GELU, x Phi(x) (equation 3), written with erf, which every runtime has.

    Args:
        inputs: float [...].

    Returns:
        A tensor of the same shape and type. Its slope, Phi(x) + x phi(x), is computed together with the value.
    """

    @with_gradient
    def value(inputs: tf.Tensor):
        # Converters recognise GELU in this form. Halving is exact, so where it stands does not change the bits.
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
    """Dot-product attention (equation 2): softmax(Q K^T + penalty) V. The caller scales the queries.

    The backward pass of a softmax sums probability x gradient over the keys. That sum equals output x its gradient
    summed over the e features, which are far fewer, so this one is used.

    Args:
        query, key, value: [b, h, n, e], float32 or narrower. The matrix products run in this type.
        penalty: float32, broadcast to [b, h, n, n] and added to the scores. No gradient flows to it.
        kept: float32 [b, h, n, n], 0 where dropout drops a probability and 1 elsewhere; None for no dropout.
        scale: factor of the kept probabilities.

    Returns:
        [b, h, n, e] of the type of `query`, and the probabilities before dropout, float32 [b, h, n, n] (query, key),
        through which no gradient flows.
    """

    @with_gradient
    def attended(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), wide)
        probabilities = tf.nn.softmax(scores if penalty is None else scores + penalty)
        dropped = probabilities if kept is None else probabilities * kept
        narrow_dropped = tf.cast(dropped, narrow)
        output = tf.matmul(narrow_dropped, value) * tf.cast(scale, narrow)

        def gradients(upstream: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            mean = tf.reduce_sum(tf.cast(upstream, wide) * tf.cast(output, wide), axis=-1, keepdims=True)
            upstream = upstream * tf.cast(scale, narrow)
            d_dropped = tf.cast(tf.matmul(upstream, value, transpose_b=True), wide)
            d_scores = tf.cast(dropped * d_dropped - probabilities * mean, narrow)
            d_value = tf.matmul(narrow_dropped, upstream, transpose_a=True)
            return tf.matmul(d_scores, key), tf.matmul(d_scores, query, transpose_a=True), d_value

        return (output, probabilities), gradients

    query, key, value = (tf.convert_to_tensor(part) for part in (query, key, value))
    narrow, wide = query.dtype, tf.float64 if query.dtype == tf.float64 else tf.float32
    output, probabilities = attended(query, key, value)
    return output, tf.stop_gradient(probabilities)
