"""The schedule, BERT's Adam and Adagrad against NumPy and Keras' own, what is decayed, and clipping."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.models.bert4rec import BERT4Rec
from bert4rec_tf.nn.optimizers import Adagrad, BertAdam, RowwiseAdagrad, WarmUpLinearDecay
from bert4rec_tf.training.optimizer import make_optimizer
from bert4rec_tf.training.step import clip_gradients, sum_repeated_rows

# Schedule

RATES = {0: 0.0, 1: 0.01, 50: 0.5, 99: 0.99, 100: 0.9, 101: 0.899, 500: 0.5, 999: 0.001, 1_000: 0.0, 5_000: 0.0}


@pytest.mark.parametrize(("step", "share"), RATES.items())
def test_the_rate_rises_in_the_warm_up_and_falls_to_zero(step, share):
    schedule = WarmUpLinearDecay(1e-4, steps=1_000, warmup_steps=100)
    np.testing.assert_allclose(schedule(step), 1e-4 * share, rtol=1e-6, atol=1e-11)


def test_the_lengths_change_in_a_graph_that_exists():
    schedule = WarmUpLinearDecay(1e-4, steps=100, warmup_steps=10)
    compute = tf.function(schedule)
    assert float(compute(50)) == pytest.approx(0.5e-4)
    schedule.set_lengths(1_000, 100)
    assert float(compute(50)) == float(compute(500)) == pytest.approx(0.5e-4)
    assert schedule.get_config() == {"learning_rate": 1e-4, "steps": 1_000, "warmup_steps": 100}


# BertAdam


def run(optimizer, variables, gradients):
    """Applies one row of gradients per step."""

    @tf.function
    def step(*row):
        optimizer.apply(list(row), variables)

    optimizer.build(variables)
    for row in gradients:
        step(*(tf.constant(gradient, tf.float32) for gradient in row))
    return [variable.numpy() for variable in variables]


class Oracle:
    """BERT's Adam in float64, without bias correction."""

    def __init__(self, weights, decay, beta_1, beta_2, epsilon):
        self.weights = np.array(weights, np.float64)
        self.first, self.second = np.zeros_like(self.weights), np.zeros_like(self.weights)
        self.decay, self.beta_1, self.beta_2, self.epsilon = decay, beta_1, beta_2, epsilon

    def step(self, gradient, rate):
        self.first = self.beta_1 * self.first + (1 - self.beta_1) * gradient
        self.second = self.beta_2 * self.second + (1 - self.beta_2) * gradient**2
        direction = self.first / (np.sqrt(self.second) + self.epsilon)
        self.weights = self.weights - rate * (direction + self.decay * self.weights)


def make_variables(rng):
    return [keras.Variable(rng.normal(size=(3, 4)), name="kernel"), keras.Variable(rng.normal(size=4), name="bias")]


@pytest.mark.parametrize("decay, beta_1, beta_2, epsilon", [(0.0, 0.9, 0.999, 1e-6), (0.3, 0.5, 0.9, 0.1)])
def test_many_steps_are_the_oracle_s(decay, beta_1, beta_2, epsilon):
    rng = np.random.default_rng(0)
    variables = make_variables(rng)
    gradients = [(rng.normal(size=(3, 4)) * 10.0 ** rng.integers(-3, 3), rng.normal(size=4)) for _ in range(60)]
    moments = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
    decays = [decay, 0.0]
    oracles = [Oracle(variable.numpy(), part, **moments) for variable, part in zip(variables, decays, strict=True)]
    got = run(BertAdam(0.02, decay, **moments), variables, gradients)
    for row in gradients:
        for oracle, gradient in zip(oracles, row, strict=True):
            oracle.step(gradient, 0.02)
    for weights, oracle in zip(got, oracles, strict=True):
        np.testing.assert_allclose(weights, oracle.weights, rtol=2e-5, atol=2e-6)


def test_kernels_and_embeddings_are_decayed_and_every_bias_and_layer_norm_is_not():
    model = BERT4Rec(num_items=10, max_length=5, hidden_dim=8, num_heads=1, use_token_type=True)
    variables = model.trainable_variables
    for variable in variables:
        variable.assign(np.ones(variable.shape))
    after = run(BertAdam(1.0, decay=0.25), variables, [[np.zeros(variable.shape) for variable in variables]])
    kept = {variable.path for variable, value in zip(variables, after, strict=True) if (value == 1.0).all()}
    shrunk = {variable.path for variable, value in zip(variables, after, strict=True) if (value == 0.75).all()}
    assert kept | shrunk == {variable.path for variable in variables} and len(kept | shrunk) == len(variables)
    assert {path.split("/")[-1] for path in kept} == {"bias", "gamma", "beta"}
    embeddings = {"item_embeddings", "embeddings", "kernel", "token_type"}
    assert {path.split("/")[-1] for path in shrunk} == embeddings
    per_block = 4 + 2 + 2 * 2
    assert len(kept) == 2 * per_block + 2 + (1 + 2) + 1
    assert len(shrunk) == 2 * (4 + 2) + 1 + len(embeddings) - 1


def test_with_bias_correction_it_is_keras_adam_with_decay():
    rng = np.random.default_rng(3)
    start = rng.normal(size=(5, 3))
    gradients = [(rng.choice([-1, 1], size=(5, 3)) * rng.uniform(0.1, 2, size=(5, 3)),) for _ in range(40)]
    ours, keras_own, uncorrected = (keras.Variable(start, name="kernel") for _ in range(3))
    run(BertAdam(0.01, decay=0.1, epsilon=1e-7, bias_correction=True), [ours], gradients)
    run(keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-7), [keras_own], gradients)
    run(BertAdam(0.01, decay=0.1, epsilon=1e-7), [uncorrected], gradients)
    np.testing.assert_allclose(ours.numpy(), keras_own.numpy(), rtol=1e-5, atol=2e-6)
    assert np.abs(uncorrected.numpy() - keras_own.numpy()).max() > 0.05


ADAM = {"decay": 0.2, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3, "bias_correction": True, "name": "mine"}
ADAGRAD = {"momentum": 0.3, "epsilon": 1e-3, "name": "mine"}


@pytest.mark.parametrize(("kind", "others"), [(BertAdam, ADAM), (Adagrad, ADAGRAD)])
def test_optimizer_survives_its_configuration(kind, others):
    made = kind(WarmUpLinearDecay(3e-4, steps=77, warmup_steps=5), **others)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
    assert isinstance(copy, kind) and copy.get_config() == made.get_config()
    assert {name: getattr(copy, name) for name in others} == others
    one, other = (keras.Variable([1.0, -2.0], name="kernel") for _ in range(2))
    gradients = [([0.3, -0.1],), ([0.5, 2.0],), ([0.5, 1.0],)]
    np.testing.assert_array_equal(run(copy, [one], gradients), run(made, [other], gradients))
    assert (one.numpy() != [1.0, -2.0]).all()


# Adagrad


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_adagrad_s_steps_are_the_oracle_s(momentum, epsilon):
    """In float64: a velocity that falls by the momentum, moved by the gradient over the root of all squares so far."""
    rng = np.random.default_rng(5)
    schedule = WarmUpLinearDecay(0.3, steps=40, warmup_steps=4)
    variables = make_variables(rng)
    gradients = [(rng.normal(size=(3, 4)) * 10.0 ** rng.integers(-3, 3), rng.normal(size=4)) for _ in range(30)]
    expected = [variable.numpy().astype(np.float64) for variable in variables]
    squares, velocities = ([np.zeros_like(weights) for weights in expected] for _ in range(2))
    got = run(Adagrad(schedule, momentum, epsilon), variables, gradients)
    for step, row in enumerate(gradients):
        for place, gradient in enumerate(row):
            squares[place] += gradient**2
            moved = float(schedule(step)) * gradient / np.sqrt(squares[place] + epsilon)
            velocities[place] = momentum * velocities[place] - moved
            expected[place] += velocities[place]
    for weights, oracle in zip(got, expected, strict=True):
        np.testing.assert_allclose(weights, oracle, rtol=2e-5, atol=2e-6)


def test_settings_reach_the_optimizer():
    settings = TrainingSettings(
        steps=50,
        warmup_steps=7,
        learning_rate=0.3,
        weight_decay=0.2,
        beta_1=0.8,
        beta_2=0.95,
        epsilon=1e-3,
        bias_correction=True,
    )
    optimizer = make_optimizer(settings)
    expected = BertAdam(WarmUpLinearDecay(0.3, 50, 7), 0.2, 0.8, 0.95, 1e-3, True)
    assert optimizer.get_config() == expected.get_config()
    assert (optimizer.epsilon, optimizer.bias_correction) == (1e-3, True)


# Clipping


def gradients_of_norm(norm):
    parts = [np.random.default_rng(4).normal(size=shape) for shape in ((3, 4), (5,), ())]
    scale = norm / np.sqrt(sum((part**2).sum() for part in parts))
    return [tf.constant(part * scale, tf.float32) for part in parts]


@pytest.mark.parametrize(("norm", "clip_norm"), [(4.995, 5.0), (5e-6, 5.0), (0.4995, 0.5), (1e6, 0.0)])
def test_gradients_stay_bit_for_bit_below_the_threshold_and_without_one(norm, clip_norm):
    gradients = gradients_of_norm(norm)
    clipped, before = clip_gradients(gradients, clip_norm)
    assert float(before) == pytest.approx(norm, rel=1e-5)
    for one, other in zip(clipped, gradients, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("norm", [5.01, 80.0, 1e6])
def test_gradients_above_the_threshold_are_scaled_to_it(norm):
    gradients = gradients_of_norm(norm)
    clipped, before = clip_gradients(gradients, 5.0)
    assert float(before) == pytest.approx(norm, rel=1e-5)
    assert float(tf.linalg.global_norm(clipped)) == pytest.approx(5.0, rel=1e-5)
    for one, other in zip(clipped, gradients, strict=True):
        np.testing.assert_allclose(one, other * (5.0 / norm), rtol=1e-5)


def slices(rows, values, total):
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(rows), tf.constant([total, 2]))


def test_repeated_rows_are_added():
    found = sum_repeated_rows(slices([5, 1, 5], [[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]], 9))
    assert found.indices.numpy().tolist() == [1, 5, 0]
    assert found.values.numpy().tolist() == [[3.0, 4.0], [11.0, 22.0], [0.0, 0.0]], "row 0 stays as it is"


def test_rows_have_one_step_size_each_and_others_stay():
    rng = np.random.default_rng(0)
    table, weight = (
        keras.Variable(rng.normal(size=(9, 2)), dtype="float32", name="table"),
        keras.Variable([0.5], name="kernel"),
    )
    optimizer = RowwiseAdagrad(0.01, decay=0.1, tables=[table.path], row_scale=5.0)
    optimizer.build([table, weight])
    assert [tuple(variable.shape) for variable in optimizer.variables[2:]] == [(9,), (1,), (1,)]
    expected, sums = np.asarray(table).astype(np.float64), np.zeros(9)
    twin, alone = keras.Variable([0.5], name="kernel"), BertAdam(0.01, decay=0.1)
    alone.build([twin])
    for _ in range(4):
        rows, values = rng.permutation(9)[:3], rng.normal(size=(3, 2))
        optimizer.update_step(slices(rows, values, 9), table, optimizer.learning_rate)
        for row, value in zip(rows, values):
            sums[row] += np.mean(value**2)
            expected[row] -= 0.05 * value / np.sqrt(sums[row])
        for kind, variable in ((optimizer, weight), (alone, twin)):
            kind.update_step(tf.constant([0.3]), variable, kind.learning_rate)
    np.testing.assert_allclose(np.asarray(table), expected, rtol=1e-5, atol=1e-6)
    assert np.asarray(weight) == np.asarray(twin)


@pytest.mark.parametrize("learning_rate", [0.01, 0.4])
def test_rows_have_a_learning_rate_of_their_own(learning_rate):
    settings = TrainingSettings(
        warmup_steps=0,
        schedule="constant",
        optimizer="rowwise_adagrad",
        learning_rate=learning_rate,
        row_learning_rate=0.03,
    )
    model = BERT4Rec(num_items=9, max_length=3, hidden_dim=2, num_heads=1)
    table, optimizer = model.item_embeddings, make_optimizer(settings, model)
    optimizer.build(model.trainable_variables)
    before = table.numpy()
    optimizer.update_step(slices([4], [[5.0, -5.0]], 11), table, optimizer.learning_rate)
    np.testing.assert_allclose(before[4] - table.numpy()[4], [0.03, -0.03], rtol=1e-4)


def test_slices_are_clipped_with_the_other_gradients():
    clipped, norm = clip_gradients([slices([1], [[3.0, 0.0]], 9), tf.constant([4.0])], 1.0)
    assert float(norm) == 5.0
    np.testing.assert_allclose(clipped[0].values, [[0.6, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], [0.8], rtol=1e-6)
