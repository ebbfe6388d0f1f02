"""How exactly TensorFlow multiplies, and what is said of a GPU. No GPU is needed."""

import subprocess
import sys

import pytest
import tensorflow as tf
from support.paths import ROOT
from support.profiles import slow_but

from bert4rec_tf.config.run_record import Run
from bert4rec_tf.foundation import devices, environment
from bert4rec_tf.runs import trainings

is_rounded = tf.config.experimental.tensor_float_32_execution_enabled


@pytest.fixture(autouse=True)
def exact():
    yield
    devices.set_exact_products(True)


@pytest.mark.long
@pytest.mark.parametrize(
    "imported",
    slow_but(["bert4rec_tf.layers"], ["bert4rec_tf.models", "bert4rec_tf; bert4rec_tf.BERT4Rec", "bert4rec_tf.layers"]),
)
def test_products_are_exact_however_the_package_is_imported(imported):
    code = (
        f"import {imported}; import tensorflow as tf; print(tf.config.experimental.tensor_float_32_execution_enabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("settings", [{"tensor_float_32": True}, {"mixed_precision": True}])
def test_a_run_rounds_products_only_if_its_settings_say_so(settings):
    for changes in ({}, settings, {}):
        run = Run.make("beauty", "bert4rec", hidden_dim=8, num_heads=2, num_layers=1, max_length=5, **changes)
        trainings.make_model(run, num_items=9, num_users=3)
        assert is_rounded() == bool(changes)


def test_the_record_of_a_run_names_the_cards_and_how_exact_they_are(monkeypatch):
    assert "accelerators" not in environment.describe_environment()
    monkeypatch.setattr(devices, "has_accelerator", lambda: True)
    monkeypatch.setattr(devices, "describe_accelerators", lambda: ["A card"])
    for exact, expected in ((True, "exact"), (False, "TensorFloat-32")):
        devices.set_exact_products(exact)
        record = environment.describe_environment()
        assert (record["accelerators"], record["float32_products"]) == (["A card"], expected)


def test_without_a_gpu_the_memory_is_not_known_and_nothing_is_named():
    if devices.has_accelerator():
        pytest.skip("there is a GPU")
    assert devices.read_memory() == devices.UNKNOWN_MEMORY and devices.describe_accelerators() == []
