"""Attention equals the plain formula, head by head; GELU stays finite in both types."""

import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.nn.attention import attend, gelu
from bert4rec_tf.nn.dropout import Dropout


def normal(shape, seed, dtype=tf.float64):
    return tf.cast(tf.constant(np.random.default_rng(seed).normal(size=shape)), dtype)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_gelu_keeps_the_type_and_stays_finite_far_out(dtype):
    point = tf.cast([-1e30, -300.0, 300.0, 1e30], dtype)
    with tf.GradientTape() as tape:
        tape.watch(point)
        value = gelu(point)
    assert value.dtype == dtype
    assert np.isfinite(tf.cast(value, tf.float32)).all()
    np.testing.assert_array_equal(tf.cast(tape.gradient(value, point), tf.float32), [0, 0, 1, 1])


def plain(query, key, value, heads, penalty, dropout, training):
    query, key, value = (tf.stack(tf.split(part, heads, axis=-1), axis=1) for part in (query, key, value))
    scores = tf.matmul(query, key, transpose_b=True) / query.shape[-1] ** 0.5
    probabilities = tf.nn.softmax(scores if penalty is None else scores + penalty)
    mixed = tf.matmul(probabilities * dropout(tf.ones_like(probabilities), training=training), value)
    return tf.concat(tf.unstack(mixed, axis=1), axis=-1), probabilities


SHAPES = [(1, 1, 1, 1), (2, 2, 5, 4), (3, 1, 7, 2), (0, 2, 4, 3)]
"""Batch, heads, length, width of a head."""


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_and_all_its_gradients_are_the_plain_formulas(shape, training, padded):
    batch, heads, length, features = shape
    query, key, value, upstream = (normal((batch, length, heads * features), seed) for seed in range(4))
    penalty = -10_000.0 * tf.cast(normal((batch, 1, 1, length), 5) > 0.8, tf.float64) if padded else None

    def with_gradients(function):
        dropout = Dropout(0.4, seed=6, dtype="float64")
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            output, probabilities = function(query, key, value, heads, penalty, dropout, training)
            total = tf.reduce_sum(output * upstream)
        return [output, probabilities, *tape.gradient(total, [query, key, value])]

    for found, expected in zip(with_gradients(attend), with_gradients(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
