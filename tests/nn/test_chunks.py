"""A loss summed over chunks of its columns, its value and its gradients, against the loss of the whole."""

import numpy as np
import pytest
import tensorflow as tf
from support.profiles import slow_but

from bert4rec_tf.nn.losses import sum_in_chunks

WIDTH = 4


def loss(chosen, rows, factors, matrix, unused):
    """0 for rows of zeros, as the sum asks for."""
    logits = tf.matmul(rows, matrix) * factors[:, None]
    return tf.reduce_sum(tf.gather(tf.square(logits), chosen, batch_dims=1)) + 0.0 * tf.reduce_sum(unused)


def inputs(number):
    rng = np.random.default_rng(number)
    chosen = rng.integers(WIDTH, size=number).astype(np.int32)
    floats = rng.normal(size=(number, 3)), rng.normal(size=number), rng.normal(size=(3, WIDTH)), rng.normal(size=2)
    return tf.constant(chosen), *(tf.constant(part, tf.float64) for part in floats)


def with_gradients(total, sources):
    """The upstream gradient is 3, so that it must be heeded."""
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = total()
    gradients = tape.gradient(value, sources, output_gradients=tf.constant(3.0, tf.float64))
    return [value, *(tf.convert_to_tensor(gradient) for gradient in gradients)]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("chunk", slow_but([4], [1, 4, 13, 100]))
@pytest.mark.parametrize("number", [0, 1, 12, 13])
def test_value_and_gradients_are_those_of_the_whole(number, chunk, compiled):
    chosen, *floats = inputs(number)
    rows, factors, *constants = floats

    def total():
        return sum_in_chunks(loss, chunk)((chosen, rows, factors), constants)

    got = with_gradients(tf.function(total) if compiled else total, floats)
    expected = with_gradients(lambda: loss(chosen, *floats), floats)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_the_loss_is_traced_once_and_sees_no_more_than_a_chunk():
    sizes = []

    def spying(*tensors):
        sizes.append(tensors[0].shape[0])
        return loss(*tensors)

    total = sum_in_chunks(spying, 5)
    for number in (13, 13, 22):
        chosen, rows, factors, *constants = inputs(number)
        total((chosen, rows, factors), constants)
    assert sizes == [5]
