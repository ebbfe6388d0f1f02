"""The cross-entropy over a large table, its value and its gradients, against TensorFlow's plain one in float64."""

import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.nn.losses import table_cross_entropy

NAMES = ("value", "hidden", "table", "bias")


def make_inputs(rows, num_targets, width=6, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(num_targets, width)) * scale
    table, bias = rng.normal(size=(rows, width)), rng.normal(size=rows)
    targets = rng.integers(rows, size=num_targets).astype(np.int32)
    weights = rng.normal(size=num_targets)
    return hidden, table, bias, targets, weights


def with_gradients(loss, *inputs):
    """The upstream gradient is 3, so that it must be heeded."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = loss(*inputs)
    gradients = tape.gradient(value, inputs, output_gradients=tf.constant(3, value.dtype))
    return [tf.convert_to_tensor(part) for part in (value, *gradients)]


def ours(hidden, table, bias, targets, weights, chunk, hidden_dtype="float32"):
    def loss(*inputs):
        return table_cross_entropy(*inputs, tf.constant(targets), tf.constant(weights, "float32"), chunk)

    wide = (tf.constant(part, "float32") for part in (table, bias))
    return with_gradients(loss, tf.constant(hidden, hidden_dtype), *wide)


def plain(hidden, table, bias, targets, weights):
    def loss(hidden, table, bias):
        logits = tf.matmul(hidden, table, transpose_b=True) + bias
        likelihoods = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(likelihoods * tf.constant(weights, "float64"))

    return with_gradients(loss, *(tf.constant(part, "float64") for part in (hidden, table, bias)))


def assert_same(got, expected, tolerance=1e-5):
    for name, one, other in zip(NAMES, got, expected, strict=True):
        one, other = one.numpy(), other.numpy()
        largest = max(np.abs(other).max(initial=0), 1e-3)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * largest, err_msg=name)


SIZES = {
    "one target in the last chunk": (41, 4, 13),
    "chunks that fit": (40, 4, 12),
    "one target per chunk": (7, 1, 5),
    "one chunk": (40, 13, 13),
    "a chunk larger than the targets": (40, 1_000, 13),
    "one target": (41, 20, 1),
    "two rows, many targets": (2, 7, 300),
    "the usual chunk": (2_049, None, 300),
}


@pytest.mark.parametrize(("rows", "chunk", "num_targets"), SIZES.values(), ids=SIZES)
def test_value_and_gradients_are_the_plain_ones(rows, chunk, num_targets):
    inputs = make_inputs(rows, num_targets)
    assert_same(ours(*inputs, chunk), plain(*inputs))


EXTREME = {
    "rising": [-1e4, -5e3, 0.0, 5e3, 1e4],
    "falling": [1e4, 5e3, 0.0, -5e3, -1e4],
    "all high": [1e4, 1e4, 1e4, 1e4, 1e4],
    "all low": [-1e4, -1e4, -1e4, -1e4, -1e4],
    "close together and high": [1e4, 9_999.0, 9_998.0, 1e4, 9_997.5],
    "close together and low": [-1e4, -9_999.0, -9_998.0, -1e4, -9_997.5],
}


@pytest.mark.parametrize("logits", EXTREME.values(), ids=EXTREME)
@pytest.mark.parametrize("chunk", [2, 5])
def test_extreme_logits_neither_overflow_nor_lose_the_answer(logits, chunk):
    """A float32 near 1e4 is exact to 1e-3."""
    hidden, targets = np.full((5, 1), 100.0), np.arange(5, dtype=np.int32)
    table, bias = np.trunc(np.array(logits) / 100)[:, None], np.fmod(logits, 100.0)
    got = ours(hidden, table, bias, targets, np.ones(5), chunk)
    expected = plain(hidden, table, bias, targets, np.ones(5))
    assert all(np.isfinite(part.numpy()).all() for part in got)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-2)
    for one, other, size in zip(got[1:], expected[1:], (100, 500, 5), strict=True):
        np.testing.assert_allclose(one, other, atol=6e-3 * size)


@pytest.mark.parametrize("gap", [40.0, 46.0, 47.0, 80.0, 100.0, 120.0])
def test_the_value_is_exact_however_unlikely_a_target_is(gap):
    """Near the probability below which the logits are asked, and where the probability is no float32 any more."""
    inputs = np.array([[1.0]] * 3), np.array([[0.0], [-gap], [-1.0]]), np.zeros(3), np.array([1, 0, 2]), np.ones(3)
    assert_same(ours(*inputs, 2), plain(*inputs), tolerance=1e-6)


@pytest.mark.parametrize(("rows", "chunk", "num_targets"), SIZES.values(), ids=SIZES)
def test_bfloat16_rounds_the_products_of_the_gradients_only(rows, chunk, num_targets):
    hidden, *others = make_inputs(rows, num_targets)
    hidden = tf.cast(tf.constant(hidden, tf.bfloat16), tf.float64).numpy()
    value, *gradients = ours(hidden, *others, chunk, hidden_dtype="bfloat16")
    expected, *expected_gradients = plain(hidden, *others)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)
    assert [gradient.dtype for gradient in gradients] == [tf.bfloat16, tf.float32, tf.float32]
    for name, one, other in zip(NAMES[1:], gradients, expected_gradients, strict=True):
        error = np.linalg.norm(tf.cast(one, tf.float64) - other)
        assert error < 0.01 * np.linalg.norm(other), name


def test_one_graph_serves_any_number_of_targets():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 6]),
            tf.TensorSpec([41, 6]),
            tf.TensorSpec([41]),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None]),
        ]
    )
    def compiled(hidden, table, bias, targets, weights):
        with tf.GradientTape() as tape:
            tape.watch([hidden, table, bias])
            value = table_cross_entropy(hidden, table, bias, targets, weights, 4)
        return value, *tape.gradient(value, [hidden, table, bias], output_gradients=3.0)

    for num_targets in (13, 8, 1, 0):
        inputs = make_inputs(41, num_targets)
        *floats, targets, weights = inputs
        got = compiled(*(part.astype(np.float32) for part in floats), targets, weights.astype(np.float32))
        assert_same(got, plain(*inputs))
