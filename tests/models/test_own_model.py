"""A model of the user's own, in the user's own file."""

import dataclasses
import random
import re
import runpy

import keras
import numpy as np
import pandas as pd
import pytest
from support.commands import console
from support.paths import ROOT

import bert4rec_tf as b4r
from bert4rec_tf.config.model_settings import MODEL_SETTINGS
from bert4rec_tf.models import resolve_name
from bert4rec_tf.models.pop import Pop

EXAMPLE = ROOT / "examples/own_model.py"


@pytest.fixture(scope="module")
def own():
    yield runpy.run_path(str(EXAMPLE))["MeanOfHistory"]
    for models in (b4r.MODELS, MODEL_SETTINGS):
        models.pop("mean_of_history", None)


@pytest.mark.slow
def test_the_example_runs(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    assert "mean_of_history" in out and len(re.findall(r" P\d{3} ", out)) >= 3


@pytest.mark.long
def test_it_is_trained_exported_updated_and_served_like_any_other(own, tmp_path):
    frame = [(user, (3 * user + 2 * place) % 20, place) for user in range(40) for place in range(7)]
    table = {name: [row[column] for row in frame] for column, name in enumerate(("user", "item", "time"))}
    model = b4r.fit(
        pd.DataFrame(table), model=own, steps=6, evaluate_every=3, batch_size=16, silent=True, workdir=tmp_path / "own"
    )
    inputs, outputs, bias = (array for _, array in model.saved.read_weights())
    order = [model.items.index(item) + 1 for item in (4, 6)]
    expected = outputs @ inputs[order].mean(axis=0) + bias
    best = model.recommend(history=[4, 6], k=3)
    left = [number for number in np.argsort(-expected) if number not in (0, *order)]
    assert best["item"].tolist() == [model.items[number - 1] for number in left[:3]]
    assert console("recommend", f"--model={tmp_path / 'own'}", "--history=4,6", cwd=tmp_path).returncode == 0
    more = pd.DataFrame({"user": [1, 2], "item": [99, 99], "time": [9, 9]})
    assert 99 in model.update(more).items
    longer = model.continue_training(more, train=True, steps=4, silent=True)
    assert 99 in longer.items


@pytest.mark.long
def test_draws_of_a_model_without_a_seed_follow_the_seed_of_the_run(own):
    class DroppingMean(own):
        def training_loss(self, batch, training=True):
            return super().training_loss(batch) * keras.random.uniform([])

    frame = pd.DataFrame(
        [(user, (3 * user + 2 * place) % 20, place) for user in range(40) for place in range(7)],
        columns=["user", "item", "time"],
    )
    tables, draws = [], []
    for seed in (1, 2):
        random.seed(seed)
        model = b4r.fit(frame, model=DroppingMean, steps=6, evaluate_every=3, batch_size=16, silent=True)
        tables.append(model.recommend_all(k=3, silent=True))
        draws.append(random.random() == random.Random(seed).random())
    b4r.MODELS.pop("dropping_mean")
    MODEL_SETTINGS.pop("dropping_mean", None)
    pd.testing.assert_frame_equal(*tables)
    assert draws == [True, True]


def test_what_is_no_model_says_why(own):
    class NoSettings(b4r.Recommender):
        pass

    class Masked(Pop):
        examples = "masked"

    @dataclasses.dataclass(frozen=True)
    class Plain:
        width: int = 3

    class OtherSettings(b4r.Recommender):
        settings_type = Plain

    for kind, words in (
        (dict, "`model` must be a name or a subclass of `b4r.Recommender`"),
        (NoSettings, "`settings_type` of NoSettings must be a dataclass based on `b4r.Settings`"),
        (OtherSettings, "`settings_type` of OtherSettings must be"),
        (Masked, "`examples` of Masked must be None or one of 'contexts', 'shifted'. Received: 'masked'"),
        (type("Pop", (Pop,), {}), "Pop must have another name: Pop is known as 'pop'"),
    ):
        with pytest.raises(b4r.UserError, match=words):
            b4r.fit([], model=kind)
    assert b4r.register(own) is own and b4r.MODELS["mean_of_history"] is own


@pytest.mark.parametrize("name", sorted(MODEL_SETTINGS))
def test_a_class_of_the_package_is_a_model_too(name):
    assert resolve_name(b4r.MODELS[name]) == name
