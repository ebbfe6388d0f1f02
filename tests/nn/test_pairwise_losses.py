"""BPR, BCE, TOP1, TOP1-max and BPR-max against NumPy in double precision, finite differences, and extreme scores."""

import numpy as np
import pytest
import tensorflow as tf
from support.pairwise_oracles import ORACLES

MASKED = ("top1", "top1_max", "bpr_max")


def drawn(rows, size, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=rows) * 2, rng.normal(size=(rows, size)) * 2


def found_by(name, positives, negatives):
    """The loss if all negatives are valid."""
    valid = [tf.ones_like(negatives, tf.bool)] if name in MASKED else []
    return ORACLES[name][0](positives, negatives, *valid)


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_values_are_the_papers(name, size):
    positives, negatives = drawn(5, size)
    found = found_by(name, tf.constant(positives), tf.constant(negatives))
    expected = [ORACLES[name][1](positive, row) for positive, row in zip(positives, negatives)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("name", ORACLES)
def test_gradients_are_those_of_finite_differences(name):
    oracle = ORACLES[name][1]
    positives, negatives = drawn(1, 4, seed=3)
    point = np.append(positives, negatives[0])
    variable, step = tf.Variable(point), 1e-6
    with tf.GradientTape() as tape:
        value = found_by(name, variable[:1], variable[None, 1:])
    gradient = tf.convert_to_tensor(tape.gradient(value, variable))
    moved = point + step * np.eye(len(point))[:, None] * np.array([[1.0], [-1.0]])
    differences = [(oracle(up[0], up[1:]) - oracle(down[0], down[1:])) / (2 * step) for up, down in moved]
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", MASKED)
def test_invalid_negatives_change_neither_value_nor_gradients(name):
    """Weighted, as a batch weights its rows."""
    positives, negatives = (tf.constant(part) for part in drawn(3, 6, seed=7))
    valid = tf.constant([[True, False, True, True, False, True]] * 3)
    weights = tf.constant([1.0, 0.0, -2.5], tf.float64)

    def with_gradients(negatives, valid):
        with tf.GradientTape() as tape:
            tape.watch([positives, negatives])
            values = ORACLES[name][0](positives, negatives, valid)
            total = tf.reduce_sum(weights * values)
        return values, *tape.gradient(total, [positives, negatives])

    *found, of_negatives = with_gradients(negatives, valid)
    kept = tf.where(valid[0])[:, 0]
    *expected, of_kept = with_gradients(tf.gather(negatives, kept, axis=1), tf.ones([3, 4], tf.bool))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    np.testing.assert_allclose(tf.gather(of_negatives, kept, axis=1), of_kept, rtol=1e-10, atol=1e-15)
    np.testing.assert_array_equal(tf.boolean_mask(of_negatives, ~valid), 0)


@pytest.mark.parametrize("name", MASKED)
def test_without_any_negative_there_is_no_gradient(name):
    scores = tf.Variable([[3.0, -2.0]])
    with tf.GradientTape() as tape:
        value = ORACLES[name][0](tf.constant([1.0]), scores, tf.constant([[False, False]]))
    assert np.isfinite(value).all()
    np.testing.assert_array_equal(tf.convert_to_tensor(tape.gradient(value, scores)), 0)


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("size", [1e4, 1e30])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extreme_scores_stay_finite(name, size, sign):
    scores = tf.Variable([sign * size, -sign * size, 0.0, size, -size])
    with tf.GradientTape() as tape:
        value = found_by(name, scores[:1], scores[None, 1:])
    assert np.isfinite(value).all()
    assert np.isfinite(tf.convert_to_tensor(tape.gradient(value, scores))).all()
