"""Dropout drops the share it says, anew each time, and the same again from the same seed."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bert4rec_tf.nn.dropout import Dropout


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.2, 0.5, 0.9, 0.996])
def test_the_share_that_is_kept(rate):
    kept = Dropout(rate, seed=1)(tf.ones([1000, 1001]), training=True).numpy()
    zero, scale = np.unique(kept)
    assert zero == 0 and 1 / scale == pytest.approx(1 - rate, abs=1e-5)
    assert stats.binomtest(int((kept == 0).sum()), kept.size, 1 - 1 / scale).pvalue > 1e-4


def test_neighbours_and_rows_are_independent():
    """Four neighbours are bytes of one random number."""
    kept = Dropout(0.3, seed=1)(tf.ones([2_000, 512]), training=True).numpy() > 0
    for other in (kept[:, 1:], kept[:, 2:], kept[1:, :]):
        one = kept[: other.shape[0], : other.shape[1]]
        table = [[int(((one == a) & (other == b)).sum()) for b in (0, 1)] for a in (0, 1)]
        assert stats.chi2_contingency(table).pvalue > 1e-4


def test_nothing_is_dropped_outside_training():
    layer, inputs = Dropout(0.5), tf.ones([4, 5])
    assert layer(inputs) is inputs or (layer(inputs).numpy() == 1).all()
    assert (Dropout(0.0)(inputs, training=True).numpy() == 1).all()


def test_kept_values_are_scaled_up_and_each_call_draws_anew():
    layer, inputs = Dropout(0.2, seed=1), tf.fill([300, 300], 2.0)
    first, second = layer(inputs, training=True).numpy(), layer(inputs, training=True).numpy()
    np.testing.assert_allclose(np.unique(first), [0, 2 / 0.8], rtol=1e-4)
    assert first.mean() == pytest.approx(2, abs=0.02) and (first != second).any()
    np.testing.assert_array_equal(Dropout(0.2, seed=1)(inputs, training=True), first)


def test_the_gradient_flows_where_the_value_does():
    layer, inputs = Dropout(0.4, seed=1), tf.ones([50])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = layer(inputs, training=True)
    np.testing.assert_array_equal(tape.gradient(value, inputs), value)


def test_a_compiled_function_draws_anew_each_time_too():
    layer = Dropout(0.5, seed=1)
    call = tf.function(lambda inputs: layer(inputs, training=True))
    drawn = [call(tf.ones([64])).numpy() for _ in range(2)]
    assert (drawn[0] != drawn[1]).any()
    np.testing.assert_array_equal(Dropout(0.5, seed=1)(tf.ones([64]), training=True), drawn[0])


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2])
def test_rates_outside_the_range_are_refused(rate):
    with pytest.raises(ValueError, match="`rate` must be in"):
        Dropout(rate)
