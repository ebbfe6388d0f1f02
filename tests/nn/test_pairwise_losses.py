"""BPR, BCE, TOP1, TOP1-max and BPR-max against NumPy in double precision, finite differences, and extreme scores."""

import dataclasses
import inspect

import numpy as np
import pytest
import tensorflow as tf
from support.pairwise_oracles import ORACLES

from bert4rec_tf.config.model_settings import LOSSES, MODEL_SETTINGS
from bert4rec_tf.nn import losses

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
def test_ties_are_nothing_special(name):
    found = found_by(name, tf.constant([1.5], tf.float64), tf.constant([[1.5, 1.5, 0.0]], tf.float64))
    np.testing.assert_allclose(found[0], ORACLES[name][1](1.5, np.array([1.5, 1.5, 0.0])), rtol=1e-10)


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
def test_what_is_no_negative_does_not_count(name):
    loss, oracle = ORACLES[name]
    positives, negatives = drawn(4, 6, seed=5)
    valid = np.random.default_rng(1).random((4, 6)) < 0.6
    valid[:, 0] = True
    found = loss(tf.constant(positives), tf.constant(negatives), tf.constant(valid))
    expected = [oracle(positive, row[kept]) for positive, row, kept in zip(positives, negatives, valid)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("name", MASKED)
def test_gradients_are_those_of_the_negatives_alone(name):
    """Weighted, as a batch weights its rows."""
    positives, negatives = (tf.constant(part) for part in drawn(3, 6, seed=7))
    valid = tf.constant([[True, False, True, True, False, True]] * 3)
    weights = tf.constant([1.0, 0.0, -2.5], tf.float64)

    def gradients(negatives, valid):
        with tf.GradientTape() as tape:
            tape.watch([positives, negatives])
            total = tf.reduce_sum(weights * ORACLES[name][0](positives, negatives, valid))
        return tape.gradient(total, [positives, negatives])

    found, kept = gradients(negatives, valid), tf.where(valid[0])[:, 0]
    expected = gradients(tf.gather(negatives, kept, axis=1), tf.ones([3, 4], tf.bool))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
    np.testing.assert_allclose(tf.gather(found[1], kept, axis=1), expected[1], rtol=1e-10, atol=1e-15)
    np.testing.assert_array_equal(tf.boolean_mask(found[1], ~valid), 0)


@pytest.mark.parametrize("name", MASKED)
def test_without_any_negative_there_is_no_gradient(name):
    scores = tf.Variable([[3.0, -2.0]])
    with tf.GradientTape() as tape:
        value = ORACLES[name][0](tf.constant([1.0]), scores, tf.constant([[False, False]]))
    assert np.isfinite(value).all()
    np.testing.assert_array_equal(tf.convert_to_tensor(tape.gradient(value, scores)), 0)


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("size", [30.0, 1e4, 1e19, 1e30])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extreme_scores_stay_finite(name, size, sign):
    scores = tf.Variable([sign * size, -sign * size, 0.0, size, -size])
    with tf.GradientTape() as tape:
        value = found_by(name, scores[:1], scores[None, 1:])
    assert np.isfinite(value).all()
    assert np.isfinite(tf.convert_to_tensor(tape.gradient(value, scores))).all()


def test_bpr_max_has_a_bottom():
    found = losses.bpr_max(tf.constant([-500.0]), tf.constant([[500.0]]), tf.constant([[True]]), regularization=0.0)
    np.testing.assert_allclose(found, -np.log(1e-24), rtol=1e-6)


def test_losses_with_the_same_negatives_have_the_same_arguments():
    arguments = {}
    for loss in LOSSES.values():
        parameters = inspect.signature(getattr(losses, loss.function)).parameters.values()
        names = [one.name for one in parameters if one.default is inspect.Parameter.empty]
        inputs, settings = names[: len(names) - len(loss.settings)], names[len(names) - len(loss.settings) :]
        assert settings == list(loss.settings)
        assert arguments.setdefault(loss.negatives, inputs) == inputs


@pytest.mark.parametrize("settings", [kind for kind in MODEL_SETTINGS.values() if hasattr(kind, "loss")])
def test_a_model_offers_all_losses_with_its_negatives(settings):
    (field,) = (one for one in dataclasses.fields(settings) if one.name == "loss")
    choices = field.metadata["limits"]["choices"]
    kinds = {LOSSES[name].negatives for name in choices}
    assert settings().loss in choices == tuple(name for name, loss in LOSSES.items() if loss.negatives in kinds)
