"""Runs of two networks side by side: what is chosen, measured, resumed, exported, continued and updated."""

import json

import numpy as np
import pandas as pd
import pytest

import bert4rec_tf as b4r
from bert4rec_tf.commands.summary import make_short_table, make_table
from bert4rec_tf.config.run_record import SELECT
from bert4rec_tf.evaluation.mix_search import NETWORK_SHARES
from bert4rec_tf.export import portable
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.exporting import export
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.runs.trainings import load_model
from bert4rec_tf.runs.warm_start import read_start_weights

pytestmark = pytest.mark.usefixtures("quick")

SMALL = {"hidden_dim": 8, "num_layers": 1, "max_length": 6, "steps": 6, "evaluate_every": 3, "batch_size": 32}
RNG = np.random.default_rng(3)
ROWS = [
    (f"u{user}", f"i{item}", place)
    for user in range(45)
    for place, item in enumerate(dict.fromkeys(np.cumsum([user % 30, *RNG.choice([1, 2, 7], 7)]) % 30))
]
FRAME = pd.DataFrame(ROWS, columns=["user", "item", "time"])
MORE = pd.DataFrame([("u1", "i3", 99), ("new", "i4", 100), ("u2", "fresh", 101)], columns=["user", "item", "time"])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return b4r.fit(FRAME, model="auto", silent=True, workdir=tmp_path_factory.mktemp("auto") / "run", **SMALL)


def test_the_summary_says_how_the_networks_were_joined(fitted):
    networks = fitted.metrics["networks"]
    model = load_model(WorkDirectory(fitted.workdir), SELECT)
    share = model.get_network_share()
    assert share in NETWORK_SHARES and networks["shares"] == {"bert4rec": share, "sasrec": 1 - share}
    assert networks["joined"] == pytest.approx(fitted.metrics["validation"]["full"]["ndcg@10"])
    assert set(networks["alone"]) == {"bert4rec", "sasrec"}
    words = f"{share:g} of bert4rec and {1 - share:g} of sasrec {networks['joined']:.4f}; bert4rec alone "
    assert words in make_short_table(fitted.metrics) and words in make_table(fitted.metrics)


@pytest.mark.long
def test_each_network_keeps_its_own_vectors_of_users_in_an_update():
    tastes = pd.DataFrame([(f"u{user}", "ab"[user % 2]) for user in range(45)], columns=["user", "taste"])
    model = b4r.fit(FRAME, model="auto", silent=True, protocol="select", user_features=tastes, **SMALL)
    old, new = (
        [array for name, array in one.saved.read_weights() if name.endswith("users")]
        for one in (model, model.update(MORE[:1]))
    )
    assert len(old) == len(new) == 2 and not np.array_equal(*old)
    for before, after in zip(old, new):
        np.testing.assert_array_equal(before, after)


def test_its_export_scores_as_the_model_does(fitted, tmp_path):
    model = load_model(WorkDirectory(fitted.workdir))
    history = FRAME["item"][:4].tolist()
    items = [fitted.items.index(item) + 1 for item in history]
    scores = np.asarray(model.score({"users": [0], "items": [items], "lengths": [4]}), np.float64)[0]
    scores -= np.log(np.exp(scores).sum())
    for row in fitted.recommend(history=history, k=5).itertuples():
        assert row.score == pytest.approx(scores[fitted.items.index(row.item)], rel=1e-4, abs=1e-4)
    assert len(fitted.similar("i3", k=3)) == 3 and fitted.item_vectors.shape == (30, 16)


@pytest.mark.long
@pytest.mark.parametrize("way", ["update", pytest.param("continue", marks=pytest.mark.slow)])
def test_it_is_continued_and_updated(fitted, way):
    trained = way == "continue"
    model = fitted.continue_training(MORE, train=True, steps=3, silent=True) if trained else fitted.update(MORE)
    assert {"fresh"} < set(model.items) and len(model.recommend(user="new", k=4)) == 4
    assert model.saved.card["run"]["model"] == "auto"


@pytest.mark.slow
def test_equal_settings_give_equal_bytes(fitted, tmp_path):
    again = b4r.fit(FRAME, model="auto", silent=True, workdir=tmp_path / "run", **SMALL)
    assert (again.workdir / "ranks-test.npz").read_bytes() == (fitted.workdir / "ranks-test.npz").read_bytes()


@pytest.mark.long
def test_a_finished_run_is_not_trained_again(fitted):
    before = json.loads((fitted.workdir / "metrics.json").read_text())
    resumed = b4r.fit(FRAME, model="auto", silent=True, workdir=fitted.workdir, **SMALL)
    assert resumed.metrics["select"] == before["select"] and resumed.metrics["networks"] == before["networks"]


@pytest.mark.slow
def test_given_shares_are_kept_and_need_no_validation(tmp_path):
    mix = {"evidence_gain": 1.0, "evidence_popularity": -0.1, "network_share": 0.25}
    fitted = b4r.fit(FRAME, model="auto", silent=True, protocol="fixed", workdir=tmp_path / "run", **SMALL, **mix)
    assert load_model(WorkDirectory(fitted.workdir)).get_network_share() == 0.25
    assert "networks" not in fitted.metrics
    with pytest.raises(UserError, match="`evidence_gain` and `evidence_popularity` must be given"):
        b4r.fit(FRAME, model="auto", silent=True, protocol="fixed", evidence_gain=1.0, **SMALL)


@pytest.mark.long
def test_a_named_share_replaces_that_of_the_weights_to_start_from(fitted, tmp_path):
    named = {"network_share": 0.1, "protocol": SELECT}
    warm = b4r.fit(FRAME, model="auto", silent=True, init_from=fitted.workdir, workdir=tmp_path, **SMALL, **named)
    assert load_model(WorkDirectory(warm.workdir)).get_network_share() == pytest.approx(0.1)


@pytest.mark.long
def test_a_warm_start_ends_with_the_share_that_was_chosen_and_not_that_of_its_weights(fitted, tmp_path):
    weights = read_start_weights(fitted.workdir)
    weights.model.network_share.assign(0.9)
    warm = b4r.fit(FRAME, model="auto", silent=True, init_from=weights, workdir=tmp_path / "warm", **SMALL)
    shares = [load_model(WorkDirectory(warm.workdir), name).get_network_share() for name in ("select", "all")]
    assert shares[0] == shares[1] != pytest.approx(0.9)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "litert"])
def test_it_is_exported_for_other_runtimes(fitted, tmp_path, form):
    for name in portable.NEEDED[form]:
        pytest.importorskip(name)
    folder = export(WorkDirectory(fitted.workdir), tmp_path / form, form=form)
    assert {path.suffix for path in folder.iterdir()} >= {portable.SUFFIXES[form]}
