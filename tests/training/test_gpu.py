"""What holds on a GPU: `pytest -m gpu`. Without one, each test is skipped and says so."""

import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import whole_runs
from support.models import HISTORIES, batches, make, make_quiet, tensors
from support.paths import ROOT, TESTS
from support.whole_runs import FLAGS, Moment

from bert4rec_tf.foundation import devices
from bert4rec_tf.training.step import compute_gradients

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu():
    if not devices.has_accelerator():
        pytest.skip("TensorFlow sees no GPU")


def run_python(code, folder, **environment):
    """Runs a program in a process of its own and returns what it printed."""
    paths = os.pathsep.join([str(ROOT), str(TESTS)])
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_authors_numbers_are_met_layers_losses_and_fifteen_steps():
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/nn/test_golden.py"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


@pytest.mark.parametrize("name", ["bert4rec", "sasrec", "gru4rec"])
def test_both_devices_give_the_same_scores_and_the_same_ten_best(name):
    model = make(name)
    with tf.device("GPU:0"):
        scores = model.score(tensors(HISTORIES)).numpy()
    with tf.device("CPU:0"):
        expected = model.score(tensors(HISTORIES)).numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    np.testing.assert_array_equal(np.argsort(-scores, axis=1)[:, :10], np.argsort(-expected, axis=1)[:, :10])


def test_products_are_exact_unless_they_are_asked_to_be_rounded():
    rng = np.random.default_rng(1)
    left, right = (rng.normal(size=(256, 256)).astype(np.float32) for _ in range(2))
    exact = left.astype(float) @ right.astype(float)
    errors = {}
    try:
        for is_exact in (True, False):
            devices.set_exact_products(is_exact)
            errors[is_exact] = np.abs(tf.matmul(left, right).numpy() - exact).max()
    finally:
        devices.set_exact_products(True)
    assert errors[True] < 1e-3 and errors[True] < errors[False]


def test_bfloat16_is_near_float32():
    plain, narrow = make_quiet("bert4rec", hidden_dim=32), make_quiet("bert4rec", hidden_dim=32, dtype="mixed_bfloat16")
    narrow.set_weights(plain.get_weights())
    batch = tensors(next(batches(plain)))
    (loss, gradients), (expected, others) = (compute_gradients(model, batch) for model in (narrow, plain))
    assert float(loss) == pytest.approx(float(expected), rel=0.01) and float(loss) != float(expected)
    assert all(one.dtype == other.dtype == tf.float32 for one, other in zip(gradients, others, strict=True))


def test_a_killed_run_resumes_to_the_bit_on_the_same_card(tmp_path):
    flags = (*FLAGS["dynamic"], "--checkpoint_seconds=0", "--steps_per_call=2", "--deterministic")
    straight = whole_runs.finished(tmp_path / "one", *flags)
    process = whole_runs.run(
        tmp_path / "other", *flags, "--workdir=work", moment=Moment("after", "*/select/step-000000006.npz")
    )
    assert process.returncode < 0, "killed"
    whole_runs.assert_same_runs(straight, whole_runs.finished(tmp_path / "other", *flags))


EXPORT = """
    from bert4rec_tf.foundation.startup import import_tensorflow
    import_tensorflow()
    import bert4rec_tf as b4r, pandas as pd
    rows = pd.DataFrame([(u, 1 + (3 * u + 2 * p) % 30, p) for u in range(60) for p in range(8)],
                        columns=["user", "item", "time"])
    model = b4r.fit(rows, steps=40, warmup_steps=4, evaluate_every=20, silent=True, protocol="select")
    model.save("exported")
    print(model.recommend(history=[4, 6, 8], k=5)["item"].tolist())
"""
SERVE = """
    from bert4rec_tf.foundation.startup import import_tensorflow
    import_tensorflow()
    import bert4rec_tf as b4r
    print(b4r.open("exported").recommend(history=[4, 6, 8], k=5)["item"].tolist())
"""
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(("exporting", "serving"), [({}, HIDDEN), (HIDDEN, {})], ids=["on a GPU", "on a CPU"])
def test_what_one_device_exports_the_other_serves(tmp_path, exporting, serving):
    expected = run_python(EXPORT, tmp_path, **exporting)
    assert run_python(SERVE, tmp_path, **serving) == expected


def test_two_parts_of_one_card_train_as_the_whole_does(tmp_path):
    code = f"""
        import json, tensorflow as tf
        gpu = tf.config.list_physical_devices("GPU")[0]
        part = tf.config.LogicalDeviceConfiguration(memory_limit=2048)
        tf.config.set_logical_device_configuration(gpu, [part] * 3)
        from training import test_step
        names = [name for name in test_step.CHECKS if "refused" not in name and "repeat" not in name]
        test_step.main({str(tmp_path / "outcomes.json")!r}, names)
        print({{name: text for name, text in json.load(open({str(tmp_path / "outcomes.json")!r})).items() if text}})
    """
    assert run_python(code, tmp_path).splitlines()[-1] == "{}"


def test_too_little_memory_is_one_line_that_names_the_batch_size(tmp_path):
    code = """
        import sys, tensorflow as tf
        gpu = tf.config.list_physical_devices("GPU")[0]
        part = tf.config.LogicalDeviceConfiguration(memory_limit=256)
        tf.config.set_logical_device_configuration(gpu, [part])
        from support.models import make, make_training_step, batches
        from bert4rec_tf.config.run_record import TrainingSettings
        from bert4rec_tf.foundation.errors import UserError
        model = make("bert4rec", hidden_dim=256, num_heads=2)
        try:
            make_training_step(model, TrainingSettings(), compile="xla")(next(batches(model, 20_000)))
        except UserError as error:
            print(error)
    """
    assert "a smaller --batch_size needs less" in run_python(code, tmp_path)


def test_a_training_of_keras_is_compiled_by_itself():
    model = make("bpr_mf")
    model.compile(keras.optimizers.SGD(0.01))
    assert model.jit_compile
