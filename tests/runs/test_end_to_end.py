"""What the built-in data sets promise: the ordered one is learned, from the orderless one there is nothing to learn."""

import pytest

from bert4rec_tf.config import presets
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.runs.experiment import execute


def ndcg(metrics, name):
    return metrics[name]["popular"]["ndcg@10"]


@pytest.mark.slow
def test_the_default_run_reaches_four_fifths_of_the_generator_itself(tmp_path):
    metrics = execute(presets.make_run("synthetic"), datasets.load("synthetic"), workdir=tmp_path, silent=True).metrics
    test, ceiling, pop, random = (ndcg(metrics, name) for name in ("test", "ceiling", "pop", "random"))
    assert test >= 0.8 * ceiling
    assert test > 4 * pop > random


@pytest.mark.slow
def test_mixed_precision_reaches_the_same_quality(tmp_path):
    run = presets.make_run("synthetic", protocol="select", mixed_precision=True)
    metrics = execute(run, datasets.load("synthetic"), workdir=tmp_path, silent=True).metrics
    assert ndcg(metrics, "test") >= 0.8 * ndcg(metrics, "ceiling")
