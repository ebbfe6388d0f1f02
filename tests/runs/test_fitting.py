"""`b4r.fit` and what it returns, on tables so regular that the right answers are known."""

import copy
import json
import logging
import pickle
import random
import re
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.forks import call_in_fork
from support.ranking_oracle import plain_metrics

import bert4rec_tf as b4r
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.export.histories import TIMES
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.runs import exporting
from bert4rec_tf.runs.folder import WorkDirectory

pytestmark = pytest.mark.usefixtures("quick")

ROWS = [(user, f"i{(3 * user + 2 * place) % 40}", place) for user in range(60) for place in range(8)]
FRAME = pd.DataFrame(ROWS, columns=["user_id", "movieId", "timestamp"])
LATER = pd.DataFrame([(user, f"i{(3 * user + 16) % 40}", 9) for user in range(60)], columns=FRAME.columns)
COUNTING = {"model": "item_transitions", "silent": True}
SMALL = {"model": "bpr_mf", "steps": 12, "evaluate_every": 6, "batch_size": 16, "silent": True}


@pytest.fixture(scope="module")
def counted():
    return b4r.fit(FRAME, titles={"i1": "One", "i2": 'Two, or "2"'}, **COUNTING)


@pytest.fixture(scope="module")
def learnt():
    return b4r.fit(FRAME, **SMALL)


def histories():
    return {str(user): group.tolist() for user, group in FRAME.groupby("user_id")["movieId"]}


def test_the_next_item_of_a_user_is_recommended(counted):
    best = counted.recommend(user=3, k=5)
    assert list(best) == ["rank", "item", "score", "title"] and best["rank"].tolist() == [1, 2, 3, 4, 5]
    assert best["item"][0] == f"i{(3 * 3 + 16) % 40}"
    same = counted.recommend(history=histories()["3"], k=5)
    pd.testing.assert_frame_equal(best, same)
    assert not set(best["item"]) & set(histories()["3"])
    assert set(counted.recommend(user="3", k=40, exclude_seen=False)["item"]) >= set(histories()["3"])


def test_recommendations_follow_exclude_candidates_and_correction(counted):
    best = counted.recommend(user=3, k=3)["item"].tolist()
    assert best[0] not in counted.recommend(user=3, k=3, exclude=best[:1])["item"].tolist()
    assert counted.recommend(user=3, candidates=best[1:])["item"].tolist() == best[1:]
    corrected = counted.recommend(user=3, k=40, popularity_correction=2.0)
    plain = counted.recommend(user=3, k=40).set_index("item")["score"]
    counts = FRAME["movieId"].value_counts()
    for _, row in corrected.iterrows():
        assert row["score"] == pytest.approx(plain[row["item"]] - 2 * np.log1p(counts[row["item"]]), rel=1e-4)


def test_all_users_get_what_each_gets_alone(counted):
    found = counted.recommend_all(k=3, silent=True)
    assert list(found) == ["user", "rank", "item", "score", "basis", "title"] and len(found) == 180
    for user in ("0", "17", "59"):
        alone = counted.recommend(user=user, k=3)
        assert found[found["user"] == int(user)]["item"].tolist() == alone["item"].tolist()
    some = counted.recommend_all(users=[5, "9"], k=1, silent=True, exclude=["i1"])
    assert some["user"].tolist() == [5, 9]


def test_unknown_users_and_empty_histories_get_what_was_popular_of_late(counted, learnt):
    newest = FRAME[FRAME["timestamp"] >= FRAME["timestamp"].quantile(0.9, interpolation="lower")]["movieId"]
    parts = [names.value_counts(normalize=True) for names in (newest, FRAME["movieId"])]
    shares = {item: sum(part.get(item, 0.0) for part in parts) / 2 for item in counted.items}
    popular = sorted(counted.items, key=lambda item: -shares[item])[:4]
    with pytest.warns(b4r.UnknownIdWarning, match="^1 of 3 users have no history that the model knows"):
        found = counted.recommend_all(users=[5, "nobody", "9"], k=4, silent=True)
    assert found.groupby("user", sort=False)["basis"].first().to_dict() == {
        "5": "history",
        "nobody": "popular",
        "9": "history",
    }
    best = found[found["basis"] == "popular"]
    assert sorted(best["item"]) == sorted(popular)
    np.testing.assert_allclose(np.exp(best["score"]), [shares[item] for item in best["item"]], rtol=1e-5)
    with pytest.warns(b4r.UnknownIdWarning, match="^1 of 1 users have no history that the model knows"):
        alone = counted.recommend(user="nobody", k=4, explain=True)
    assert alone["item"].tolist() == best["item"].tolist() and alone["reasons"].tolist() == [[]] * 4
    table = pd.DataFrame({"user_id": [5, 7, 5], "x": 0})
    pd.testing.assert_frame_equal(counted.recommend(users=table, k=2), counted.recommend_all([5, 7], k=2, silent=True))
    rows = [["i1", "i3"], [], ["none of ours"], histories()["3"]]
    many = counted.recommend_all(histories=rows, k=4, silent=True)
    assert many["user"].tolist() == [place for place in range(4) for _ in range(4)]
    assert many.groupby("user")["basis"].first().tolist() == ["history", "popular", "popular", "history"]
    assert many[many["user"] == 3]["item"].tolist() == counted.recommend(user=3, k=4)["item"].tolist()
    of_users = learnt.recommend_all(users=[3, "nobody"], histories=[["i1"], ["i1"]], k=1, silent=True)
    assert of_users["basis"].tolist() == ["history", "popular"]  # the model has vectors of users


def test_a_history_without_any_counts_gets_what_is_popular():
    """Although items without counts are in the order of rarity if the weight of popularity is below 0."""
    apart = pd.DataFrame([(60, "only here", 9)], columns=FRAME.columns)
    model = b4r.fit(pd.concat([FRAME, apart]), popularity_weight=-0.4, **COUNTING)
    with pytest.warns(b4r.UnknownIdWarning, match="^2 of 3 users"):
        found = model.recommend_all(users=[60, "nobody", 3], k=4, silent=True)
    assert found.groupby("user", sort=False)["basis"].first().tolist() == ["popular", "popular", "history"]
    assert found["item"][:4].tolist() == found["item"][4:8].tolist()
    with pytest.warns(b4r.UnknownIdWarning, match="the model has counted nothing after these items, so you get what"):
        model.recommend(user=60)


def test_similar_items_and_vectors(counted, learnt):
    assert counted.similar("i7", k=2)["item"].tolist() == ["i9", "i11"]
    vectors, similar = learnt.item_vectors, learnt.similar("i7", k=5)
    assert similar["score"].is_monotonic_decreasing and len(similar) == 5 and "title" not in similar
    users = learnt.user_vectors([["i1", "i2"], []], users=[3, 4])
    scores = learnt.recommend(user=3, history=["i1"], k=40).set_index("item")["score"]
    biases = next(array for name, array in learnt.saved.read_weights() if name.endswith("bias"))
    expected = dict(zip(learnt.items, users[0] @ vectors.T + biases[1 : len(vectors) + 1]))
    np.testing.assert_allclose(scores, [expected[item] for item in scores.index], rtol=1e-4, atol=1e-6)
    assert users.shape[0] == 2


def test_own_test_rows_are_ranked_as_plain_loops_do(learnt):
    known = histories()
    expected, listed = [], []
    for user, item in zip(LATER["user_id"].astype(str), LATER["movieId"]):
        scores = learnt.recommend(user=user, k=40).set_index("item")["score"]
        target = scores[item]
        expected.append(sum(score >= target for other, score in scores.items() if other != item))
        listed += scores.index[:10].tolist()
        assert item not in known[user]
    found = learnt.evaluate(LATER)
    actions = FRAME["movieId"].value_counts() / len(known)
    of_lists = {
        "coverage@10": len(set(listed)) / len(actions),
        "popularity@10": np.mean([actions[item] for item in listed]),
        "novelty@10": np.mean([-np.log2(actions[item]) for item in listed]),
    }
    assert found["full"].to_dict() == pytest.approx({**plain_metrics(expected), **of_lists})
    assert list(found) == ["popular", "uniform", "full"]


def test_each_case_has_its_rank_and_metrics_at_any_cutoff(learnt):
    cases, means = learnt.evaluate(LATER, k=[3, 20], per_user=True), learnt.evaluate(LATER, k=[3, 20])
    assert cases["user"].tolist() == LATER["user_id"].tolist() and cases["item"].tolist() == LATER["movieId"].tolist()
    for user, item, rank in zip(cases["user"], cases["item"], cases["rank"]):
        scores = learnt.recommend(user=user, k=40).set_index("item")["score"]
        assert rank == sum(scores >= scores[item])
    assert cases["hr@20"].tolist() == (cases["rank"] <= 20).tolist()
    names = [f"{kind}@{cutoff}" for kind in ("hr", "ndcg", "map", "precision", "recall") for cutoff in (3, 20)]
    assert list(cases) == ["user", "item", "rank", *names, "mrr"]
    assert cases[[*names, "mrr"]].mean().to_dict() == pytest.approx(means["full"][[*names, "mrr"]].to_dict())
    assert learnt.evaluate(LATER, k=5)["full"]["hr@5"] == learnt.evaluate(LATER)["full"]["hr@5"]


def test_cases_are_ranked_as_recommended_with_the_correction_of_the_export(learnt, tmp_path):
    options = ExportOptions(popularity_correction=3.0, histories=learnt.saved.require_histories())
    corrected = b4r.open(exporting.export(WorkDirectory(learnt.workdir), tmp_path / "corrected", options))
    cases = corrected.evaluate(LATER, per_user=True)
    for user, item, rank in zip(cases["user"], cases["item"], cases["rank"]):
        assert rank == corrected.recommend(user=user, k=40)["item"].tolist().index(item) + 1
    assert cases["rank"].tolist() != learnt.evaluate(LATER, per_user=True)["rank"].tolist()


def test_lists_have_a_diversity_and_a_serendipity(learnt):
    means, cases = (learnt.evaluate(LATER, distances=True, per_user=per_user) for per_user in (False, True))
    names = ["diversity@10", "serendipity@10"]
    assert cases[names].mean().to_dict() == pytest.approx(means["full"][names].to_dict())
    assert ((cases["serendipity@10"] > 0) <= (cases["rank"] <= 10)).all() and means.loc[names].gt(0).all(axis=None)
    pd.testing.assert_frame_equal(means.drop(names), learnt.evaluate(LATER))


def test_a_user_s_other_test_rows_are_no_rivals(learnt):
    more = pd.DataFrame([(user, f"i{(3 * user + shift) % 40}", 9) for user in range(60) for shift in (16, 17)])
    ranks = []
    for user, rows in more.set_axis(FRAME.columns, axis=1).groupby("user_id")["movieId"]:
        scores = learnt.recommend(user=user, k=40).set_index("item")["score"]
        ranks += [sum(scores.drop(rows.tolist()) >= scores[item]) for item in rows]
    found = learnt.evaluate(more.set_axis(FRAME.columns, axis=1))["full"]
    expected = plain_metrics(ranks)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_unknown_test_rows_are_skipped_with_a_warning(learnt):
    more = pd.concat([LATER, pd.DataFrame([(99, "i1", 9), (3, "new", 9)], columns=FRAME.columns)])
    with pytest.warns(b4r.UnknownIdWarning, match="^2 of 62 test rows have an unknown user or item"):
        pd.testing.assert_frame_equal(learnt.evaluate(more), learnt.evaluate(LATER))
    with pytest.raises(b4r.UserError, match="`test` must have rows of known users and items"):
        learnt.evaluate(more[-2:-1])


def test_a_model_is_saved_and_opened(counted, tmp_path):
    opened = b4r.open(counted.save(tmp_path / "kept"))
    pd.testing.assert_frame_equal(opened.recommend(user=3), counted.recommend(user=3))
    assert opened.titles == counted.titles and opened.metrics == counted.metrics
    assert repr(opened).splitlines()[:-1] == repr(counted).splitlines()[:-1]
    alone = b4r.open(tmp_path / "kept" / "saved_model", titles={"i1": "Uno"})
    assert alone.recommend(user=3)["item"].tolist() == opened.recommend(user=3)["item"].tolist()
    assert alone.metrics["test"] == counted.metrics["test"]
    with pytest.raises(b4r.UserError, match="needs the work directory"):
        alone.continue_training(LATER)
    with pytest.raises(b4r.UserError, match="`path` must be a new folder"):
        counted.save(tmp_path / "kept")
    with pytest.raises(b4r.UserError, match="`path` must be a work directory or a SavedModel"):
        b4r.open(tmp_path)


@pytest.mark.parametrize("name", ["here", "here [v2] *\\d"])
def test_a_model_of_a_relative_folder_works_from_any_other(tmp_path, monkeypatch, name):
    """TensorFlow takes some names for patterns."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    fitted = b4r.fit(FRAME, workdir=name, **COUNTING)
    opened = b4r.open(name)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for model in (fitted, opened):
        assert model.recommend(user=3, k=1)["item"].tolist() == [f"i{(3 * 3 + 16) % 40}"]
        assert b4r.open(model.save("kept")).recommend(user=3, k=1)["item"].tolist() == [f"i{(3 * 3 + 16) % 40}"]
        shutil.rmtree("kept")


@pytest.mark.long
def test_titles_given_to_open_outlive_copies_updates_and_exports(counted, tmp_path):
    titles = {"i1": "Uno"}
    for number, folder in enumerate([counted.workdir, counted.saved.local_folder]):
        model = b4r.open(folder, titles=titles)
        copy = model.save(tmp_path / f"copy {number}")
        assert b4r.open(copy).titles == titles
        model.update(LATER, path=tmp_path / f"updated {number}")
        assert b4r.open(tmp_path / f"updated {number}").titles == titles
    assert b4r.open(exporting.export(WorkDirectory(tmp_path / "copy 0"))).titles == titles


def test_a_fitted_model_prints_its_metrics(counted):
    lines = repr(counted).splitlines()
    assert lines[0] == "ItemTransitions of own-frame: 60 users, 40 items, 480 actions" and len(lines) == 5
    assert re.fullmatch(r"  NDCG@10 among popular items: \S+, POP \S+, item_transitions \S+", lines[1])


def test_fit_takes_files_patterns_tables_and_names(tmp_path, monkeypatch):
    FRAME.to_csv(tmp_path / "ratings.csv", index=False)
    monkeypatch.setenv("BERT4REC_DATA", str(tmp_path))
    table, renamed = pa.Table.from_pandas(FRAME), FRAME.set_axis(["a", "b", "c"], axis=1)
    forms = (tmp_path / "ratings.csv", str(tmp_path / "rat*.csv"), [tmp_path / "ratings.csv"], b4r.interactions(FRAME))
    read = [inputs.load_any(data)[:2] for data in (*forms, table, FRAME)] + [
        inputs.load_any(renamed, "a", "b", "c")[:2]
    ]
    assert {sequences.fingerprint for _, sequences in read} == {read[0][1].fingerprint}
    assert [name for name, _ in read] == ["own-ratings", "own-rat_", "own-ratings", *["own-frame"] * 4]
    assert inputs.load_any("synthetic")[0] == "synthetic"
    (tmp_path / "ratings_Beauty.csv").write_text("".join(f"{u},{i},5,{i}\n" for u in range(5) for i in range(5)))
    assert inputs.load_any("beauty-raw")[0] == "beauty-raw"


@pytest.mark.long
def test_holdout_sets_what_is_held_out():
    counts = FRAME["movieId"].value_counts().sort_index()
    for holdout, cut in ((None, 0), (1, 1)):
        model = b4r.fit(FRAME, model="pop", holdout=holdout, silent=True)
        kept = FRAME[FRAME.groupby("user_id").cumcount(ascending=False) >= cut]["movieId"].value_counts()
        scores = model.recommend(history=["i0"], k=40, exclude_seen=False).set_index("item")["score"].sort_index()
        assert scores.to_dict() == kept.reindex(counts.index).fillna(0).to_dict()
    with pytest.raises(b4r.UserError, match=r"nothing to measure on; the last action is of 7$"):
        b4r.fit(FRAME, model="pop", test_from="8", silent=True)
    for other in (3, np.array([1, 2])):
        with pytest.raises(b4r.UserError, match="`holdout` must be None, 0, 1 or 2"):
            b4r.fit(FRAME, holdout=other, **COUNTING)


def test_a_split_by_time_holds_out_everybody_s_actions_from_then_on():
    late = FRAME.assign(timestamp=FRAME["timestamp"] + FRAME["user_id"])  # user u acts from u to u + 7
    model = b4r.fit(late, test_from=30, holdout=1, **{**COUNTING, "model": "pop"})
    before = late[late["timestamp"] < 30]
    tested = [
        user for user, times in late.groupby("user_id")["timestamp"] if times.max() >= 30 and sum(times < 30) >= 2
    ]
    assert model.metrics["users"] == len(tested) == 6
    scores = model.recommend(history=["i0"], k=40, exclude_seen=False).set_index("item")["score"]
    counts = before["movieId"].value_counts()
    assert scores.to_dict() == {item: counts.get(item, 0) for item in scores.index}


@pytest.mark.long
def test_a_continued_training_holds_out_new_actions_from_a_time_on():
    known = b4r.fit(FRAME, model="pop", silent=True)
    early = [(user, f"i{(3 * user + 16) % 40}", 9) for user in range(10)] + [(60, "i1", 9), (60, "i2", 9)]
    late = [(user, f"i{(3 * user + 18) % 40}", 11) for user in range(5)] + [(60, "i3", 12), (60, "i4", 13)]
    more = pd.DataFrame(late + early, columns=FRAME.columns)
    model = known.continue_training(more, test_from=11, protocol="select_and_retrain", silent=True)
    assert model.metrics["users"] == 6  # users 0 to 4, and the new one
    counts = pd.concat([FRAME["movieId"], pd.DataFrame(early)[1]]).value_counts()
    scores = model.recommend(history=["i0"], k=40, exclude_seen=False).set_index("item")["score"]
    assert scores.to_dict() == {item: counts.get(item, 0) for item in scores.index}


def test_callbacks_see_the_curve():
    rows = []
    changing = [dict.clear, rows.append, lambda row: row.update(step=0)]
    model = b4r.fit(FRAME, holdout=2, callbacks=changing, **SMALL)
    assert [row["step"] for row in rows] == [6, 12] and all("ndcg@10" in row for row in rows)
    assert pd.read_csv(model.workdir / "select" / "curve.csv")["step"].tolist() == [6, 12]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.recommend(), "needs a `user` or a `history`"),
        (lambda model: model.recommend(user=3, users=[5]), "`users` cannot be given with"),
        (lambda model: model.recommend(users=[5], history=["i1"]), "`users` cannot be given with"),
        (lambda model: model.recommend(users=[5], explain=True), "`users` cannot be given with"),
        (lambda model: model.recommend_all([5], explain=True), "Unknown argument: 'explain'"),
        (lambda model: model.recommend_all(histories=["i1"]), "`histories` must be a list of lists of items"),
        (lambda model: model.recommend_all(histories={"a": ["i1"]}), "`histories` must be a list of lists of items"),
        (
            lambda model: model.recommend(user=[1, 2]),
            "`user` must be one id; `recommend_all(users)` takes several. Received: a list",
        ),
        (lambda model: pickle.dumps(model), "A model cannot be pickled or copied"),
        (lambda model: copy.deepcopy(model), "A model cannot be pickled or copied"),
        (lambda model: model.recommend(history="i1"), "`history` must be a list of ids"),
        (lambda model: model.similar("nothing"), "`item` must be an item of the data. Received: item=nothing"),
        (lambda model: model.item_vectors, "has no signature `item_vectors`"),
        (lambda model: b4r.fit(FRAME, callbacks=print, **SMALL), "`callbacks` must be functions"),
        (lambda model: model.continue_training(LATER, train=True, callbacks=print), "`callbacks` must be functions"),
        (lambda model: b4r.fit(42), "must be a pandas DataFrame or an Arrow table"),
        (
            lambda model: b4r.fit(FRAME, test_from=10**6),
            "No user has an action after the split and two before",
        ),
        (lambda model: b4r.load(FRAME), "`dataset` must be a name"),
        (lambda model: model.save(None), "A path must be text or a Path. Received: None"),
        (lambda model: model.recommend(user=3, candidates=[]), "`candidates` must have at least one item"),
        (lambda model: model.recommend_all([3], candidates=()), "`candidates` must have at least one item"),
        (lambda model: model.recommend(user=3, k="3"), "`k` must be a whole number"),
        (lambda model: model.recommend(user=3, candidates=54), "`candidates` must be a list of ids"),
        (lambda model: model.evaluate(LATER, time="when"), "Unknown column of the table: 'when'"),
        (lambda model: model.continue_training(LATER, model="pop"), "`model` cannot be given to `continue_training`"),
        (lambda model: model.continue_training(LATER, minutes=1), "`minutes` cannot be given to `continue_training`"),
        (lambda model: model.continue_training(LATER, test_from=5, train=False), "`test_from` needs a training"),
        (lambda model: model.continue_training(LATER, silnt=True), "Unknown argument: 'silnt'. Did you mean 'silent'?"),
        (lambda model: model.update(LATER, itm="sku"), "Unknown argument: 'itm'. Did you mean 'item'?"),
        (lambda model: model.evaluate(LATER, user_column="u"), 'as in `evaluate(data, user="customer")`'),
        (lambda model: model.update(LATER, new_items=True), "`new_items` needs `item_features`"),
        (lambda model: b4r.fit(FRAME, new_items=True, **COUNTING), "`new_items` needs `item_features`"),
        (lambda model: b4r.fit(FRAME, workdir="", **COUNTING), "`workdir` must name a folder"),
        (lambda model: b4r.compare(FRAME, ["pop"], workdir="runs/all"), "`workdir` must be left out"),
        (lambda model: model.recommend(user=3, popularity_correction=True), "`popularity_correction` must be at least"),
    ],
)
def test_invalid_arguments_are_errors(counted, call, message):
    with pytest.raises(b4r.UserError, match=re.escape(message)):
        call(counted)


@pytest.mark.parametrize("name", ["update", "evaluate", "continue_training"])
def test_the_advice_for_bad_rows_can_be_followed(counted, name):
    measure = getattr(counted, name)
    frame = LATER.assign(movieId=LATER["movieId"].where(LATER.index != LATER.index[1]))
    with pytest.raises(
        b4r.UserError, match=r'b4r.interactions\(..., bad_rows="skip", to_train=False\) skips such rows'
    ):
        measure(frame)
    words = f"`b4r.interactions(..., to_train=False)` takes it, and `{name}` takes its result"
    for options in ({"bad_rows": "skip"}, {"future_times": True}):
        with pytest.raises(b4r.UserError, match=re.escape(words)):
            measure(frame, **options)
    rows = b4r.interactions(frame, bad_rows="skip", to_train=False)
    assert rows.num_actions == len(LATER) - 1 and measure(rows) is not None


def test_histories_may_come_from_a_generator(learnt):
    lists = [["i1", "i3"], ["i5"]]
    pd.testing.assert_frame_equal(
        learnt.recommend_all(histories=(iter(row) for row in lists), k=2, silent=True),
        learnt.recommend_all(histories=lists, k=2, silent=True),
    )


def test_a_model_whose_folder_now_holds_another_one_says_so(counted, tmp_path):
    place = counted.save(tmp_path / "model")
    opened = b4r.open(place)
    with pytest.warns(b4r.TrainingWarning, match="counted but not trained on"):
        later = counted.continue_training(LATER[:1])
    shutil.rmtree(place)
    later.save(place)
    for use in (lambda: opened.recommend(user=3), lambda: opened.save(tmp_path / "copy")):
        with pytest.raises(b4r.UserError, match="was replaced since it was opened; open it again"):
            use()
    assert len(b4r.open(place).recommend(user=3)) == 10


def test_an_empty_answer_has_an_empty_explanation(counted):
    answer = counted.recommend(history=["i1"], candidates=["i1"], exclude_seen=True, explain=True)
    assert answer.empty and "reasons" in answer and "lift" not in answer


def test_an_unknown_user_of_a_model_that_needs_users_is_warned_of(learnt):
    with pytest.warns(b4r.UnknownIdWarning, match="does not know user 'nobody'"):
        learnt.recommend(user="nobody", history=["i1"])
    with pytest.warns(b4r.UnknownIdWarning, match="this model needs `user`, so you get what is popular"):
        learnt.recommend(history=["i1"])


def test_histories_of_a_table_are_put_back_by_fitting_again(tmp_path):
    fitted = b4r.fit(FRAME, workdir=tmp_path / "work", **COUNTING)
    exporting.export(WorkDirectory(tmp_path / "work"))
    with pytest.raises(b4r.UserError, match=r"call b4r\.fit\(data, \.\.\., workdir="):
        b4r.open(fitted.workdir).recommend(user=3)


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"exclude": ["i1", "nothing"]}, "1 of the 2 items in `exclude` are unknown"),
        ({"candidates": ["i1", "i2", "x", "y"]}, "2 of the 4 items in `candidates` are unknown"),
        ({"exclude": ["i1"]}, ""),
    ],
)
def test_unknown_items_in_exclude_and_candidates_are_a_warning(counted, recwarn, choices, told):
    counted.recommend(user=3, **choices)
    counted.recommend_all([3], silent=True, **choices)
    lines = [str(one.message) for one in recwarn if issubclass(one.category, b4r.Bert4RecWarning)]
    assert [line.startswith(told) for line in lines] == [True] * 2 * bool(told)


def test_a_filter_decides_about_unknown_ids_and_the_users_line_is_named(counted):
    with pytest.warns(b4r.UnknownIdWarning, match="^1 of the 2 items in the history are unknown") as told:
        expected = counted.recommend(history=["i1", "nothing"])
    assert [one.filename for one in told] == [__file__]
    with warnings.catch_warnings(action="error", category=b4r.UnknownIdWarning):
        with pytest.raises(b4r.UnknownIdWarning, match="1 of the 2 items in the history"):
            counted.recommend(history=["i1", "nothing"])
        warnings.simplefilter("ignore", b4r.UnknownIdWarning)
        pd.testing.assert_frame_equal(counted.recommend(history=["i1", "nothing"]), expected)


class LazyFrame:
    """As that of polars, whose columns take a computation."""

    @property
    def columns(self):
        pytest.fail("the columns were computed")


def test_a_table_that_is_not_computed_is_told_of(counted):
    for call in (counted.recommend_all, counted.evaluate, lambda users: counted.recommend(users=users)):
        with pytest.raises(b4r.UserError, match=r"Received: LazyFrame, which is a table after \.collect\(\)$"):
            call(LazyFrame())
    with pytest.raises(b4r.UserError, match="`history` must be a list of ids"):
        counted.recommend(history=LazyFrame())


def test_users_in_the_index_of_a_table_are_named(counted):
    with pytest.raises(b4r.UserError, match=r"; pass frame\.reset_index\(\), because the index has user_id$"):
        counted.recommend(users=FRAME.set_index("user_id"))


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_a_process_that_is_forked_later_gets_an_error_and_does_not_hang(counted):
    calls = [
        lambda: counted.recommend(user=3),
        lambda: counted.recommend_all([3], silent=True),
        lambda: counted.similar("i1"),
        lambda: counted.evaluate(LATER),
        lambda: b4r.open(counted.workdir),
        lambda: b4r.fit(FRAME, **COUNTING),
    ]
    for call in calls:
        assert call_in_fork(call).startswith("UserError: This process was forked from one that had used TensorFlow")
    assert call_in_fork(lambda: counted.items) == ""


@pytest.mark.long
def test_fractions_that_pandas_makes_of_whole_ids_are_these_ids():
    model = b4r.fit(FRAME.assign(movieId=FRAME["movieId"].str[1:].astype(int)), **COUNTING)
    left_out = pd.Series([7.0, 8.0])
    assert not {7, 8} & set(model.recommend(user=3.0, k=40, exclude=left_out)["item"])
    assert model.recommend(history=[7.0]).equals(model.recommend(history=["7"]))
    titled = b4r.fit(
        FRAME.assign(movieId=FRAME["movieId"].str[1:]), titles=pd.Series({7.0: "Seven", 8: None}), **COUNTING
    )
    assert titled.titles == {"7": "Seven"}
    with pytest.raises(b4r.UserError, match="`exclude` must have ids alone, and no missing ones"):
        model.recommend(user=3, exclude=pd.Series([7.0, None]))


def test_known_actions_in_new_data_are_a_warning(counted):
    with warnings.catch_warnings(action="error", category=b4r.Bert4RecWarning):
        counted.evaluate(LATER.rename(columns={"timestamp": "stars"}))
    with pytest.warns(
        b4r.DataWarning, match=f"^{len(FRAME)} of {len(FRAME)} test rows are items that the user already"
    ):
        counted.evaluate(FRAME)
    with pytest.warns(b4r.DataWarning, match=f"^{len(FRAME):,} new rows repeat user, item and time of a known one"):
        counted.continue_training(pd.concat([FRAME, LATER]), silent=True)


def test_held_out_actions_are_not_measured_again_without_a_warning():
    model = b4r.fit(FRAME, model="pop", holdout=1, silent=True)
    with pytest.warns(b4r.DataWarning, match="training held them out, .* too low; see `model.metrics`"):
        model.evaluate(FRAME.groupby("user_id").tail(1))


@pytest.mark.slow
def test_actions_before_the_known_ones_come_first_in_a_continued_training(counted, tmp_path):
    known, earlier = histories()["3"], pd.DataFrame([(3, "i39", -1)], columns=FRAME.columns)
    counted.continue_training(earlier, silent=True).save(tmp_path / "more")
    with pytest.warns(b4r.DataWarning, match="new rows repeat user, item and time of a known one, which count once"):
        again = b4r.open(tmp_path / "more").continue_training(pd.concat([FRAME[::-1], LATER, earlier]), silent=True)
    assert again.saved.get_history("3") == ["i39", *known, "i25"]
    (tmp_path / "more/saved_model" / TIMES).unlink()  # as in a model of an older version
    with pytest.warns(b4r.DataWarning, match="^the known actions have no times"):
        last = b4r.open(tmp_path / "more").continue_training(earlier, silent=True)
    assert last.saved.get_history("3") == ["i39", *known, "i39"]


@pytest.mark.parametrize("raw", [{"i1", "i3"}, frozenset(["i1", "i3"])])
def test_a_history_without_an_order_is_refused(counted, learnt, raw):
    for call in (lambda: counted.recommend(history=raw), lambda: learnt.user_vectors([raw])):
        with pytest.raises(b4r.UserError, match=r"`histor(y|ies)` must have an order, oldest first\. Received: a "):
            call()
    left = raw - {*counted.saved.get_history("3")}
    assert {*counted.recommend(user=3, candidates=raw, k=2)["item"]} == left


def test_histories_without_users_are_nobody_s(learnt):
    """Their places, 0 and 1, could be users' ids. This model needs to know users, and ranks by what is popular."""
    items = histories()["3"][:2]
    with pytest.warns(b4r.UnknownIdWarning, match="^the model needs to know the users; without `users`, all get what"):
        nobody = learnt.recommend_all(histories=[items, items], k=3)
    assert set(nobody["basis"]) == {"popular"} and nobody["user"].tolist() == [0, 0, 0, 1, 1, 1]
    somebody = learnt.recommend_all(users=[3, 4], histories=[items, items], k=3)
    assert set(somebody["basis"]) == {"history"} and somebody["user"].tolist() == [3, 3, 3, 4, 4, 4]


def test_vectors_of_users_name_whom_the_model_does_not_know(learnt):
    with pytest.raises(b4r.UserError, match="`users` must be given: the model needs to know the users"):
        learnt.user_vectors([["i1"]])
    with pytest.raises(b4r.UserError, match="`users` must be as many as `histories`, 1"):
        learnt.user_vectors([["i1"]], users=[3, 4])
    with pytest.warns(b4r.UnknownIdWarning, match=r"^1 of the 2 users are unknown, .* zeros \(such as 'zz'\)"):
        vectors = learnt.user_vectors([["i1"], ["i1"]], users=[3, "zz"])
    assert vectors[0].any() and not vectors[1].any()


def test_reasons_can_be_written_as_json(learnt, counted):
    for model in (learnt, counted):
        table = model.recommend(user=3, k=2, explain=True)
        assert json.loads(json.dumps(table["reasons"].tolist())) == table["reasons"].tolist()


def test_few_new_actions_of_one_event_are_read_for_an_update(counted):
    day = pd.DataFrame([(3, "i5", 90, "b"), (3, "i6", 91, "v")], columns=[*FRAME.columns, "event"])
    with pytest.raises(b4r.UserError, match="no user has two actions left"):
        b4r.interactions(day, event_column="event", events="b")
    bought = b4r.interactions(day, event_column="event", events="b", to_train=False)
    assert counted.update(bought).saved.get_history("3") == [*histories()["3"], "i5"]


def test_options_that_a_door_does_not_have_are_refused():
    with pytest.raises(b4r.UserError, match=r"Unknown argument: 'min_users'. Did you mean 'min_user_actions'\?"):
        b4r.interactions(FRAME, min_users=5)
    with pytest.raises(b4r.UserError, match="`test_from` must be left out: `folds` and `test_days` choose the cuts"):
        b4r.cross_validate(FRAME, test_from=5)


def test_a_folder_of_versions_names_the_newest(counted, tmp_path):
    for version in (1, 2):
        counted.save(tmp_path / "work")
        (tmp_path / "work" / "saved_model").rename(tmp_path / str(version))
        shutil.rmtree(tmp_path / "work")
    with pytest.raises(b4r.UserError, match=f"Received: a folder of versions; open {tmp_path}/2$"):
        b4r.open(tmp_path)


def test_a_fit_leaves_the_generators_and_the_log_of_the_caller_as_they_were(monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])  # as in a program that has not set up its log yet
    numbers = []
    for is_fitted in (False, True):
        random.seed(5)
        np.random.seed(6)
        if is_fitted:
            b4r.fit(FRAME, **SMALL)
        numbers.append((random.random(), np.random.random()))
    assert numbers[0] == numbers[1]
    assert logging.root.handlers == []


@pytest.mark.long
def test_fits_in_two_threads_give_what_each_gives_alone():
    settings = {**SMALL, "model": "sasrec", "hidden_dim": 8}

    def fit(seed):
        return b4r.fit(FRAME, seed=seed, **settings).recommend_all(k=3, silent=True)

    expected = [fit(seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        received = list(pool.map(fit, (1, 2)))
    for one, other in zip(expected, received):
        pd.testing.assert_frame_equal(one, other)
