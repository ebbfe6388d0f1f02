"""Samples of the items, for catalogues whose whole softmax costs too much."""

import math

import tensorflow as tf

from bert4rec_tf.foundation.types import Tensor


def draw_shared_items(seed: Tensor, number: int, num_items: int, distribution: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws `number` (c) items with replacement. The same `seed`, int64 [2], draws the same items.

    `distribution` is "uniform", or "log_uniform": item i with probability log((i + 1) / i) / log(n + 1). Items are
    numbered from 1 to n by falling count.

    Returns the items, int32 [c], and the logarithm of each one's expected count among the c, float32 [c].
    """
    if distribution == "uniform":
        items = tf.random.stateless_uniform([number], seed, 1, num_items + 1, tf.int32, alg="philox")
        return items, tf.fill([number], math.log(number / num_items))
    # Inverts the cumulative distribution, log(i + 1) / log(n + 1). Random bits are the same on every device; floats are
    # not.
    bits = tf.random.stateless_uniform([number], seed, None, None, tf.uint32, alg="philox")
    places = tf.cast(bits, tf.float64) / 2**32 * math.log(num_items + 1)
    items = tf.minimum(tf.cast(tf.exp(places), tf.int32), num_items)
    shares = tf.math.log1p(1.0 / tf.cast(items, tf.float64)) / math.log(num_items + 1)
    return items, tf.cast(tf.math.log(number * shares), tf.float32)
