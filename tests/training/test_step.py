"""The training step: with large tables, in bfloat16, and shared by replicas, each against the ordinary one."""

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.models import make_step
from support.paths import ROOT, TESTS

from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.data.examples.joined import join_columns
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import BERT4Rec, Ensemble
from bert4rec_tf.runs.experiment import run_mode
from bert4rec_tf.training import checkpoints, step
from bert4rec_tf.training.optimizer import make_optimizer
from bert4rec_tf.training.step import compute_gradients
from bert4rec_tf.training.workers import make_strategy

NUM_ITEMS, LENGTH, MASK = 12, 5, 13
CALM = {"dropout": 0.0, "attention_dropout": 0.0}


def batch(rows, seed, counts=(1,)):
    """Rows 1 2 3 ...: the items around a masked one tell it. Row i has counts[i % len(counts)] masked positions."""
    rng = np.random.default_rng(seed)
    items = rng.integers(1, NUM_ITEMS - LENGTH + 2, size=(rows, 1)) + np.arange(LENGTH)
    is_real = np.arange(max(counts)) < np.resize(counts, rows)[:, None]
    positions = np.where(is_real, rng.permuted(np.tile(np.arange(LENGTH), (rows, 1)), axis=1)[:, : max(counts)], 0)
    targets = np.where(is_real, np.take_along_axis(items, positions, axis=1), 0)
    hidden = (np.arange(LENGTH) == np.where(is_real, positions, -1)[:, :, None]).any(axis=1)
    made = {"items": np.where(hidden, MASK, items), "mask_positions": positions, "mask_targets": targets}
    return {name: tf.constant(values, tf.int32) for name, values in made.items()}


def make(strategy=None, dtype=None, width=8, kind=BERT4Rec, **changes):
    """Returns a model, its optimizer and its step; `changes` are of the settings or of the model."""
    fields = {name: changes.pop(name) for name in list(changes) if hasattr(TrainingSettings, name)}
    settings = TrainingSettings(
        **{"steps": 400, "warmup_steps": 1, "learning_rate": 0.01, "weight_decay": 0.1, **fields}
    )
    keras.utils.set_random_seed(4)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = kind(
            NUM_ITEMS,
            max_length=6,
            hidden_dim=width,
            num_heads=2,
            num_layers=1,
            dtype=dtype,
            **{"initializer_stddev": 0.2, **changes},
        )
        optimizer = make_optimizer(settings, model)
        optimizer.build(model.trainable_variables)
    return model, optimizer, make_step(model, optimizer, settings.clip_norm)


def train(batches, **changes):
    """Returns what each step reported, and the weights after the last one."""
    model, optimizer, take = make(**changes)
    made = [take(part) for part in batches]
    weights = [np.asarray(variable) for variable in model.variables + optimizer.variables]
    return [{name: float(row[name]) for name in ("loss", "gradient_norm", "learning_rate")} for row in made], weights


def assert_same_training(got, expected, tolerance=1e-5):
    for one, other in zip(got[0], expected[0], strict=True):
        assert one == pytest.approx(other, rel=tolerance)
    for one, other in zip(got[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


# Large tables, whose updates XLA compiles


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adam", "adagrad"])
def test_large_tables_are_updated_as_small_ones_are(kind, monkeypatch):
    def update(large_size, monkeypatch):
        monkeypatch.setattr(step, "LARGE_VARIABLE", large_size)
        model, optimizer, take = make(bias_correction=True, optimizer=kind, momentum=0.2, **CALM)
        for seed in range(3):
            take(batch(16, seed))
        return [np.asarray(variable) for variable in model.variables + optimizer.variables]

    sizes = (60, 60, step.LARGE_VARIABLE)
    for large, again, small in zip(*(update(size, monkeypatch) for size in sizes), strict=True):
        np.testing.assert_array_equal(large, again)
        np.testing.assert_allclose(large, small, rtol=1e-5, atol=1e-5)


# In bfloat16


@pytest.mark.slow
def test_bfloat16_keeps_float32_weights_and_moments():
    _, weights = train([batch(8, 0)] * 2, dtype="mixed_bfloat16")
    kinds = {str(values.dtype) for values in weights}
    assert kinds == {"float32", "int64"}  # the seeds and the count of steps are whole numbers


def test_bfloat16_is_near_float32():
    part = batch(64, 3, counts=(1, 2, 3))
    narrow, _, _ = make(dtype="mixed_bfloat16", width=32, **CALM)
    plain, _, _ = make(width=32, **CALM)
    (loss, gradients), (expected, expected_gradients) = (compute_gradients(model, part) for model in (narrow, plain))
    assert loss.dtype == tf.float32 and float(loss) == pytest.approx(float(expected), rel=0.01)
    assert float(loss) != float(expected)
    for variable, one, other in zip(plain.trainable_variables, gradients, expected_gradients, strict=True):
        assert one.dtype == tf.float32
        if variable.path.endswith("key/bias"):  # its gradient is 0 but for rounding: softmax forgets a common score
            continue
        cosine = np.vdot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other))
        assert cosine > 0.99, variable.path


# Shared by replicas. Virtual devices are made before TensorFlow starts, so these run in a process of their own.

SHARED = {
    "two, clipped": {"rows": 8, "clip_norm": 0.05},
    "three and an odd batch, never clipped": {"rows": 7, "replicas": 3, "clip_norm": 0.0},
}


def shared_training_is_that_of_one_device(rows, replicas=2, clip_norm=0.5):
    """The first rows have most of the masked positions, so the replicas' shares differ."""
    batches = [batch(rows, seed, counts=(3, 3, 1, 0, 2, 0, 0)) for seed in range(6)]
    strategy = make_strategy(replicas)
    assert strategy.num_replicas_in_sync == replicas
    shared = train(batches, strategy=strategy, clip_norm=clip_norm, **CALM)
    assert_same_training(shared, train(batches, clip_norm=clip_norm, **CALM))
    assert shared[0][0]["gradient_norm"] > clip_norm


def two_networks_are_trained_as_on_one_device():
    """Each has rows of its own number, so the replicas' shares of their losses differ."""

    def make_batch(seed):
        masked, shown = batch(7, seed, counts=(3, 1, 0, 2)), batch(4, seed, counts=(0,))["items"]
        shifted = {"items": shown[:, :-1], "targets": shown[:, 1:] * [[1], [0], [1], [1]]}
        return join_columns({"bert4rec": masked, "sasrec": shifted})

    batches = [make_batch(seed) for seed in range(6)]
    how = {"kind": Ensemble, "clip_norm": 0.5, **CALM}
    # A key bias of SASRec has a gradient of 0 but for rounding, which Adam makes large.
    assert_same_training(train(batches, strategy=make_strategy(2), **how), train(batches, **how), tolerance=1e-4)


def rows_are_updated_as_on_one_device():
    """With the loss and the optimizer that touch few rows; the replicas' shares of a row are added."""
    draws = [tf.constant([[3, seed]] * 7, tf.int64) for seed in range(6)]
    batches = [{**batch(7, seed, counts=(3, 1, 0, 2)), "draw": draw} for seed, draw in enumerate(draws)]
    how = {"loss": "sampled_softmax", "shared_negatives": 5, "optimizer": "rowwise_adagrad", "clip_norm": 0.5, **CALM}
    strategy = make_strategy(2)
    shared, alone = train(batches, strategy=strategy, **how), train(batches, **how)
    assert_same_training(shared, alone)
    model, optimizer, take = make(strategy, **how)
    for part in batches:
        take(part)
    copies_are_the_same(model.variables + optimizer.variables)


def copies_are_the_same(variables):
    for variable in variables:
        first, second = (np.asarray(copy) for copy in variable.value.values)
        np.testing.assert_array_equal(first, second, err_msg=variable.path)


def replicas_drop_different_units():
    """Two replicas with the same rows and the same noise would make the step of one with these rows."""
    part = batch(8, 0, counts=(1, 2))
    both = {name: tf.concat([values, values], axis=0) for name, values in part.items()}
    for dropout, is_same in ((0.0, True), (0.3, False)):
        rates = {"dropout": dropout, "attention_dropout": dropout}
        shared, _ = train([both], strategy=make_strategy(2), **rates)
        alone, _ = train([part], **rates)
        assert (abs(shared[0]["loss"] / alone[0]["loss"] - 1) < 1e-5) is is_same


def the_first_replica_drops_what_a_single_device_does():
    """All targets are in its rows, so the other's noise does not count."""
    part = batch(4, 0, counts=(2,))
    empty = {**part, "mask_targets": tf.zeros_like(part["mask_targets"])}
    both = {name: tf.concat([part[name], empty[name]], axis=0) for name in part}
    shared = train([both] * 3, strategy=make_strategy(2), dropout=0.3)
    assert_same_training(shared, train([part] * 3, dropout=0.3))


def replicas_stay_together_and_repeat_themselves():
    strategy, batches = make_strategy(2), [batch(7, seed) for seed in range(5)]
    model, optimizer, take = make(strategy, dropout=0.3)
    for part in batches:
        take(part)
    copies_are_the_same(model.variables + optimizer.variables)
    _, again = train(batches, strategy=strategy, dropout=0.3)
    for variable, values in zip(model.variables + optimizer.variables, again, strict=True):
        np.testing.assert_array_equal(np.asarray(variable), values)


def a_checkpoint_goes_from_one_number_of_replicas_to_another():
    """As bits between the same numbers, with dropout; as the same training, without it, between different ones."""
    strategy, batches = make_strategy(2), [batch(8, seed) for seed in range(6)]
    with tempfile.TemporaryDirectory() as folder:
        for later, rates in ((strategy, {"dropout": 0.3}), (None, CALM)):
            model, optimizer, take = make(strategy, **rates)
            for part in batches[:3]:
                take(part)
            checkpoints.save(Path(folder) / "half.npz", groups_of(model, optimizer), {"step": 3})
            expected = [float(take(part)["loss"]) for part in batches[3:]]
            model, optimizer, take = make(later, **rates)
            checkpoints.restore(Path(folder) / "half.npz", groups_of(model, optimizer))
            got = [float(take(part)["loss"]) for part in batches[3:]]
            assert got == (expected if later else pytest.approx(expected, rel=1e-5))
            if later:
                copies_are_the_same(model.variables + optimizer.variables)


def groups_of(model, optimizer):
    return {"model": model.variables, "optimizer": optimizer.variables}


def more_replicas_than_rows_or_devices_are_refused():
    with pytest.raises(
        UserError, match=r"`batch_size` must be at least `replicas`. Received: batch_size=1, replicas=2"
    ):
        TrainingSettings(batch_size=1, replicas=2)
    with pytest.raises(UserError, match=r"`replicas` must be at most 3, the number of devices. Received: replicas=4"):
        make_strategy(4)


CHECKS = {name: functools.partial(shared_training_is_that_of_one_device, **how) for name, how in SHARED.items()} | {
    check.__name__.replace("_", " "): check
    for check in (
        two_networks_are_trained_as_on_one_device,
        rows_are_updated_as_on_one_device,
        replicas_drop_different_units,
        the_first_replica_drops_what_a_single_device_does,
        replicas_stay_together_and_repeat_themselves,
        a_checkpoint_goes_from_one_number_of_replicas_to_another,
        more_replicas_than_rows_or_devices_are_refused,
    )
}


def main(path, names):
    """Makes three virtual devices, runs the checks, and writes what went wrong in each."""
    make_strategy(3)
    outcomes = dict.fromkeys(names, "")
    for name in names:
        try:
            CHECKS[name]()
        except BaseException:
            outcomes[name] = traceback.format_exc()
    Path(path).write_text(json.dumps(outcomes))


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """What comes of the checks that are to be tested, in one process for all of them."""
    items = [item for item in request.session.items if item.module is request.module]
    names = [item.callspec.params["check"] for item in items if item.originalname == "test_replicas"]
    path = tmp_path_factory.mktemp("shared") / "outcomes.json"
    folders = os.pathsep.join([str(ROOT), str(TESTS)])
    command = [sys.executable, "-c", f"from training import test_step; test_step.main({str(path)!r}, {names!r})"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_replicas(outcomes, check):
    assert not outcomes[check], outcomes[check]


def test_one_replica_needs_no_strategy():
    assert make_strategy(1) is None


def test_too_many_replicas_are_refused_before_anything_is_prepared():
    tf.config.list_logical_devices()  # starts them, so that no more can be made
    experiment = SimpleNamespace(
        run=SimpleNamespace(training=SimpleNamespace(replicas=1_000)),
        workdir=SimpleNamespace(lock=contextlib.nullcontext),
        prepare=lambda: pytest.fail("prepared"),
    )
    for mode in ("all", "train"):
        with pytest.raises(UserError, match="`replicas` must be at most"):
            run_mode(experiment, mode)


def test_weights_that_no_gradient_reaches_are_named():
    model, _, _ = make()
    model.trainable = False
    with pytest.raises(UserError, match=r"`model` must have weights to train\. Received: .* all frozen"):
        compute_gradients(model, batch(4, 1))

    class Other(BERT4Rec):
        def training_loss(self, batch, training=True):
            return tf.reduce_sum(tf.square(self.head.bias.value))

    with pytest.raises(UserError, match=r"`training_loss` must read every weight .* does not read .*embeddings"):
        compute_gradients(Other(NUM_ITEMS, max_length=6, hidden_dim=8, num_heads=2, num_layers=1), batch(4, 1))
