"""Runs with features: from a file to an export that knows items without actions, killed, refused and continued."""

import json

import keras
import numpy as np
import pandas as pd
import pytest
from support import commands
from support.features import add_vectors, made

import bert4rec_tf as b4r
from bert4rec_tf.config.model_settings import ITEM_FEATURES, USER_FEATURES
from bert4rec_tf.config.run_record import SELECT, Run
from bert4rec_tf.evaluation.metrics import compute_per_user
from bert4rec_tf.models import MODELS
from bert4rec_tf.runs import experiment, trainings
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.runs.warm_start import StartWeights
from bert4rec_tf.serving.client import SavedRecommender

pytestmark = pytest.mark.usefixtures("quick")

ACTIONS = [(f"u{user}", f"i{(3 * user + 2 * place) % 40}", place) for user in range(50) for place in range(6)]
FRAME = pd.DataFrame(ACTIONS, columns=["user_id", "item_id", "time"])
ITEMS = pd.DataFrame(
    [(f"i{number}", f"even{number % 2}|fifth{number % 5}") for number in range(43)], columns=["item_id", "tags"]
)
"""i40, i41 and i42 have no actions."""
USERS = pd.DataFrame([(f"u{number}", f"third{number % 3}") for number in range(60)], columns=["user_id", "group"])
SHORT = {"steps": 4, "evaluate_every": 2, "batch_size": 16, "hidden_dim": 8, "num_layers": 1, "max_length": 8}
FLAGS = (
    "--interactions=actions.csv",
    "--workdir=work",
    "--data_dir=data",
    *(f"--{name}={value}" for name, value in SHORT.items()),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with data and the finished run of a model with all features, and what it printed."""
    folder = tmp_path_factory.mktemp("features")
    for name, table in {"actions": FRAME, "items": ITEMS, "users": USERS}.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    flags = (
        *FLAGS,
        "--model=sasrec",
        "--initial_vectors=random",
        "--item_features=items.csv",
        "--new_items",
        "--user_features=users.csv",
    )
    return folder, flags, commands.finished(*flags, cwd=folder).stdout


@pytest.mark.long
def test_the_command_prints_the_features_and_the_metrics_of_cold_items(finished):
    folder, _, told = finished
    assert "item_features: 43 rows, 7 values of tags; 0 rows have none" in told
    assert "3 items of item_features have no actions" in told and "user_features: 50 rows, 3 values of group" in told
    content = json.loads((folder / "work" / "metrics.json").read_text())
    assert content["run"]["architecture"]["use_item_features"] == "add"
    assert content["run"]["architecture"]["use_user_features"] is True
    cold = content["cold"]
    with np.load(folder / "work" / "ranks-test.npz") as ranks:
        users, full = ranks["users"], ranks["full"]
    rows = FRAME.groupby("user_id", sort=False)["item_id"].apply(list)
    seen = [item for history in rows for item in history[:-2]]  # the last two are held out
    names = sorted(f"u{number}" for number in range(50))  # own data are numbered by id
    is_cold = np.array([seen.count(rows[names[user]][-1]) < 5 for user in users])
    assert cold["cold"]["targets"] == is_cold.sum() and cold["others"]["targets"] == (~is_cold).sum()
    for part, which in (("cold", is_cold), ("others", ~is_cold)):
        if which.any():
            assert cold[part]["median_rank"] == np.median(full[which]) + 1
            assert cold[part]["ndcg@10"] == pytest.approx(compute_per_user("ndcg@10", full[which]).mean())


def test_an_item_without_actions_is_ranked_and_served(finished):
    folder, *_ = finished
    saved = SavedRecommender(folder / "work" / "saved_model")
    assert saved.items[-3:] == ["i40", "i41", "i42"]
    model = b4r.open(folder / "work")
    whole = model.recommend(user="u1", history=["i0", "i2"], k=43, exclude_seen=False)
    assert {"i40", "i41", "i42"} <= set(whole["item"]) and np.isfinite(whole["score"]).all()
    assert model.recommend(user="u1", history=["i42"], candidates=["i40", "i1"])["item"].size == 2
    assert len(model.similar("i42", k=3)) == 3 and model.item_vectors.shape[0] == 43


def test_a_stranger_is_served_by_the_history(finished):
    model = b4r.open(finished[0] / "work")
    known, strange = (model.recommend(user=user, history=["i0", "i2"])["score"] for user in ("u1", "nobody"))
    assert not np.allclose(known, strange)
    pd.testing.assert_series_equal(strange, model.recommend(user="another", history=["i0", "i2"])["score"])


def test_a_run_resumes_without_its_feature_files_and_refuses_others(finished):
    folder, flags, _ = finished
    before = (folder / "work" / "metrics.json").read_text()
    assert commands.run("--mode=evaluate", "--workdir=work", "--data_dir=data", cwd=folder).returncode == 0
    assert json.loads((folder / "work" / "metrics.json").read_text())["test"] == json.loads(before)["test"]
    ITEMS.iloc[:-1].to_csv(folder / "fewer.csv", index=False)
    for changed, message in (
        ([flag.replace("items.csv", "fewer.csv") for flag in flags], "was made with other features than --item_feat"),
        ([*flags, "--use_item_features=alone"], "there use_item_features=add, now use_item_features=alone"),
        (
            [flag for flag in flags if flag != "--new_items" and "item_features" not in flag],
            "there use_item_features=add",
        ),
        ([flag for flag in flags if "item_features" not in flag], "`new_items` needs `item_features`"),
    ):
        ended = commands.run(*changed, cwd=folder)
        assert ended.returncode == 2 and message in ended.stderr, ended.stderr
        assert len(ended.stderr.strip().splitlines()) == 1
    kept = folder / "work" / "item_features.npz"
    content = kept.read_bytes()
    kept.write_bytes(content[:-30])
    ended = commands.run("--mode=export", "--workdir=work", cwd=folder)
    assert ended.returncode == 2 and "run with --item_features=FILE to have it written again" in ended.stderr
    kept.unlink()
    assert commands.run(*flags, "--mode=evaluate", cwd=folder).returncode == 0 and kept.read_bytes() == content


@pytest.mark.long
def test_features_that_are_given_but_not_used_only_add_their_items(tmp_path):
    data = b4r.with_features(b4r.interactions(FRAME), item_features=ITEMS, new_items=True)
    run = b4r.make_run("own-shop", "sasrec", **SHORT)
    assert run.to_dict() == Run.from_dict(run.to_dict()).to_dict() and run.architecture.use_item_features == "no"
    result = experiment.execute(run, data, workdir=tmp_path / "work", silent=True)
    assert result.model.num_items == 43 and not result.model.features and "cold" in result.metrics


@pytest.mark.parametrize("name", ["bert4rec", "sasrec"])
@pytest.mark.parametrize("use", ["add", "alone"])
def test_a_warm_start_matches_feature_values_by_name(name, use):
    def model_of(items, users, num_values, seed):
        keras.utils.set_random_seed(seed)
        of_items = add_vectors(made(items, seed, num_values), num_values)
        features = {ITEM_FEATURES: of_items, USER_FEATURES: made(users, seed, num_values)}
        options = {"use_item_features": use, "use_user_features": True, "hidden_dim": 8}
        return MODELS[name](len(items), num_users=len(users), features=features, num_heads=1, **options)

    old = model_of(["a", "b", "c"], ["u", "v"], 4, 1)
    new = model_of(["c", "x", "a", "y"], ["w", "v", "u"], 6, 2)
    fresh = [np.asarray(table) for table in (new.item_feature_vectors, new.own_items)]
    source = StartWeights(name, old, ["a", "b", "c"], ["u", "v"], {"path": "here", "checkpoint": "select"})
    source.apply_to(new, ["c", "x", "a", "y"], ["w", "v", "u"])
    vectors = np.asarray(new.item_feature_vectors)
    np.testing.assert_array_equal(vectors[[0, 1, 2, 3, 6, 7, 8, 9]], old.item_feature_vectors)
    np.testing.assert_array_equal(vectors[[4, 5, 10, 11]], fresh[0][[4, 5, 10, 11]])
    np.testing.assert_array_equal(np.asarray(new.user_feature_vectors)[:4], old.user_feature_vectors)
    own, before = np.asarray(new.own_items), np.asarray(old.own_items)
    if use == "alone":
        np.testing.assert_array_equal(own, before)
    else:
        np.testing.assert_array_equal(own[:5], [before[0], before[3], fresh[1][2], before[1], fresh[1][4]])


@pytest.mark.slow
def test_vectors_reach_the_export_and_the_next_training(tmp_path):
    texts = ITEMS.assign(text=[[number % 2 + 0.5, number % 5 - 2.0] for number in range(43)])
    tastes = pd.DataFrame({"user_id": USERS["user_id"], "taste": [[user % 3 + 0.5] for user in range(60)]})
    options = {"model": "sasrec", "evidence": "none", "holdout": 2}
    options |= {"item_features": texts, "user_features": tastes, "new_items": True}
    model = b4r.fit(FRAME, workdir=tmp_path / "work", silent=True, **options, **SHORT)
    workdir = WorkDirectory(model.workdir)
    kept = workdir.read_features()[ITEM_FEATURES]
    assert kept.vector_columns == [("text", 2)] and kept.vectors.shape == (43, 2) and kept.num_values == 7
    trained = trainings.load_model(workdir, SELECT)
    np.testing.assert_allclose(model.item_vectors, trained.item_vectors(), rtol=1e-5, atol=1e-7)
    batch = {"users": np.array([1]), "lengths": np.array([2]), "items": np.array([[1, 2]], np.int32)}
    encoded = model.user_vectors([model.items[:2]], users=["u1"])
    np.testing.assert_allclose(encoded, trained.user_vectors(batch), rtol=1e-4, atol=1e-6)
    more = pd.DataFrame([("u1", "i42", 9), ("u2", "i42", 9)], columns=FRAME.columns)
    again = model.continue_training(more, silent=True)
    later = WorkDirectory(again.workdir).read_features()[ITEM_FEATURES]  # in another order, since i42 has actions now
    assert later.select_rows(kept.ids.tolist()).fingerprint == kept.fingerprint


@pytest.mark.slow
def test_features_of_a_data_set_are_used():
    data = b4r.with_features(b4r.interactions(FRAME), item_features=ITEMS, new_items=True)
    model = b4r.fit(data, model="sasrec", silent=True, holdout=2, **SHORT)
    kept = json.loads((model.workdir / "config.json").read_text())["run"]["architecture"]
    assert kept["use_item_features"] == "add" and not kept["use_user_features"] and "i42" in model.items
    assert b4r.fit(data, model="pop", silent=True).metrics["test"]["full"]
