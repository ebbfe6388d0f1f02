"""A run that is measured and exported with a correction for popularity."""

import numpy as np
import pytest
import tensorflow as tf
from support.ranking_oracle import make_sequences

from bert4rec_tf.config import presets
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.driver import execute
from bert4rec_tf.runs.exporting import export
from bert4rec_tf.runs.pipeline import Experiment
from bert4rec_tf.runs.workdir import WorkDirectory

RNG = np.random.default_rng(1)
SHARES = 1 / np.arange(1, 31)
SEQUENCES = make_sequences([RNG.choice(30, 6, p=SHARES / SHARES.sum()) + 1 for _ in range(60)] + [np.arange(1, 31)], 30)


def experiment(folder, model="pop", **settings):
    run = presets.make_run("synthetic", model=model, num_negatives=10, **settings)
    return Experiment(run, SEQUENCES, WorkDirectory(folder), silent=True)


def test_an_invalid_popularity_correction_is_refused_before_the_training(tmp_path):
    for given in ("much", -1, None):
        with pytest.raises(UserError, match="`popularity_correction` must be"):
            execute(presets.make_run("synthetic", "pop"), given, sequences=SEQUENCES, workdir=tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_the_chosen_alpha_becomes_the_default_of_the_export(tmp_path):
    one = experiment(tmp_path)
    model = one.train()
    with pytest.raises(UserError, match="no popularity_correction was chosen; run --mode=evaluate"):
        export(one.workdir, tmp_path / "export", ExportOptions(popularity_correction="validation"))
    alpha = one.evaluate(model, "validation")["popularity_correction"]["alpha"]
    folder = export(one.workdir, tmp_path / "export", ExportOptions(popularity_correction="validation"))
    served = tf.saved_model.load(str(folder))
    histories = tf.constant([["item3"]])
    found = served.signatures["serving_default"](histories=histories)
    asked = served.recommend(histories, popularity_correction=tf.constant(alpha))
    assert found["items"].numpy().tolist() == asked["items"].numpy().tolist()
    np.testing.assert_allclose(found["scores"], asked["scores"])
