"""New actions without training: an updated count against a fresh one, new items and users, and what a kill leaves."""

import concurrent.futures
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import console
from support.trainings import Killed

import bert4rec_tf as b4r
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.export import saved_model
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.environment import list_versions
from bert4rec_tf.models.item_transitions import ItemTransitions
from bert4rec_tf.notebook import fitted
from bert4rec_tf.runs import exporting, updating
from bert4rec_tf.runs.folder import WorkDirectory

pytestmark = pytest.mark.usefixtures("quick")

ROWS = [(user, f"i{(3 * user + 2 * place) % 40}", place) for user in range(60) for place in range(8)]
FRAME = pd.DataFrame(ROWS, columns=["user_id", "movieId", "timestamp"])
LATER = pd.DataFrame(
    [(user, f"i{(3 * user + 16) % 40}", 9) for user in range(30)]
    + [(99, "i2", 8), (99, "i4", 9), (3, "new", 10), (4, "new", 10)],
    columns=FRAME.columns,
)
SMALL = {"steps": 12, "evaluate_every": 6, "warmup_steps": 1, "batch_size": 16, "hidden_dim": 8, "silent": True}
NETWORK = {"num_layers": 1, "max_length": 8, "evidence": "transitions"}


@pytest.fixture(scope="module")
def counted():
    return b4r.fit(FRAME, model="item_transitions", silent=True)


@pytest.fixture(scope="module", params=["bpr_mf", pytest.param("bert4rec", marks=pytest.mark.slow)])
def learnt(request):
    return b4r.fit(FRAME, model=request.param, **SMALL, **(NETWORK if request.param == "bert4rec" else {}))


def arrays(model):
    return {name: array for name, array in model.saved.read_weights()}


@pytest.mark.long
def test_an_updated_count_is_a_fresh_count_to_the_bit(counted):
    updated = counted.update(LATER).update(LATER.assign(timestamp=11))
    everything = pd.concat([FRAME, LATER, LATER.assign(timestamp=11)])
    settings = counted.saved.card["transitions"]
    fresh = b4r.fit(everything, model="item_transitions", silent=True, **settings)
    assert updated.items == fresh.items and updated.users == fresh.users
    for name, array in arrays(fresh).items():
        assert array.tobytes() == arrays(updated)[name].tobytes(), name
    columns = {"k": len(fresh.items), "silent": True}
    pd.testing.assert_frame_equal(updated.recommend_all(**columns), fresh.recommend_all(**columns), check_exact=True)
    assert "new" not in counted.items and not counted.saved.knows_user("99")
    sequences = b4r.interactions(everything)
    model = ItemTransitions(sequences.num_items, **settings)
    model.adapt(sequences)
    for name, weight in zip(arrays(updated), model.weights):
        assert arrays(updated)[name].tobytes() == np.asarray(weight).tobytes(), name


def test_a_network_keeps_its_weights_and_new_items_and_users_join(learnt):
    updated = learnt.update(LATER)
    old, new = dict(zip(learnt.items, learnt.item_vectors)), dict(zip(updated.items, updated.item_vectors))
    for item, vector in old.items():
        np.testing.assert_array_equal(new[item], vector)
    by_user = {user: group["movieId"].tolist() for user, group in FRAME.groupby("user_id")}
    by_user |= {user: by_user.get(user, []) + group["movieId"].tolist() for user, group in LATER.groupby("user_id")}
    of_users = [np.mean([old[item] for item in set(by_user[user]) - {"new"}], axis=0) for user in (3, 4)]
    np.testing.assert_allclose(new["new"], np.mean(of_users, axis=0), rtol=1e-5, atol=1e-6)
    assert updated.recommend(user=99, k=2)["item"].notna().all() and 99 in updated.users
    if learnt.saved.card["model"] == "BERT4Rec":
        assert arrays(updated)["evidence/mix"].tolist() == arrays(learnt)["evidence/mix"].tolist()
        best = updated.recommend(history=["i4", "i6", "i9", "i11"], k=41, exclude_seen=False)
        assert "new" in best["item"].tolist()
    else:
        known = updated.user_vectors([[], []], users=[3, 4])
        np.testing.assert_array_equal(known, learnt.user_vectors([[], []], users=[3, 4]))


@pytest.mark.long
def test_a_new_item_starts_near_items_that_share_its_feature(learnt):
    kinds = pd.DataFrame({"id": [*learnt.items, "a", "b"], "kind": ["x"] * 20 + ["y"] * 20 + ["x", "y"]})
    updated = learnt.update(LATER, item_features=kinds, new_items=True)
    vectors = dict(zip(updated.items, updated.item_vectors))
    for item, alike in (("a", learnt.items[:20]), ("b", learnt.items[20:])):
        np.testing.assert_allclose(vectors[item], np.mean([vectors[one] for one in alike], 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["item_transitions", pytest.param("sasrec", marks=pytest.mark.long)])
def test_items_without_actions_and_attributes_outlive_updates_and_trainings(model, tmp_path):
    names = [f"i{n}" for n in range(45)]
    films = pd.DataFrame({"movieId": names, "id": names[::-1], "price": range(45)})
    small = {**SMALL, "num_layers": 1} if model == "sasrec" else {"silent": True}
    features = {"item_features": films, "new_items": True} if model == "sasrec" else {}
    fitted = b4r.fit(FRAME, model=model, workdir=tmp_path / "work", **features, **small)
    num_items = 45 if features else 40
    assert len(fitted.items) == num_items
    updated = fitted.update(LATER).update(LATER.assign(timestamp=12), item_features=films)
    assert set(updated.items) == {*fitted.items, "new"} and len(updated.items) == num_items + 1
    if features:
        longer = fitted.continue_training(LATER, train=True, steps=2, silent=True)
        training = longer.saved.card["run"]["training"]
        assert (training["steps"], training["evaluate_every"]) == (2, 1), "measured as often as usual, in fewer steps"
        assert len(longer.items) == num_items + 1
        exporting.export(WorkDirectory(tmp_path / "work"))
        for one in (fitted, longer, b4r.open(tmp_path / "work")):
            assert set(one.recommend(history=["i1"], k=40, where="price > 42")["item"]) == {"i43", "i44"}
    assert set(updated.recommend(history=["i1"], k=40, where="price < 2")["item"]) <= {"i0", "i1"}


def test_choices_of_an_export_of_other_data_are_not_taken(counted, tmp_path):
    other = b4r.fit(FRAME[FRAME["user_id"] < 50], model="item_transitions", silent=True, workdir=tmp_path / "other")
    assert other.saved.card["digest"] == counted.saved.card["digest"]
    mine = exporting.read_options(WorkDirectory(counted.workdir), counted.saved.folder, True)
    assert mine.histories.num_actions == len(FRAME) and mine.histories.times is not None
    for folder in (other.saved.folder, tmp_path / "nothing"):
        assert exporting.read_options(WorkDirectory(counted.workdir), folder, True) is exporting.DEFAULT


def test_some_users_of_larger_data_are_fitted_twice(tmp_path):
    """Their vocabulary counts the actions of all."""
    some = b4r.interactions(FRAME).select_users(np.arange(40))
    for _ in range(2):
        fitted = b4r.fit(some, model="pop", workdir=tmp_path / "work", silent=True)
    assert len(fitted.users) == 40


def test_an_export_that_does_not_know_how_transitions_are_counted_cannot_be_updated(counted, tmp_path):
    workdir = WorkDirectory(counted.save(tmp_path / "work"))
    workdir.transitions.unlink()
    exporting.export(workdir, options=ExportOptions(histories=b4r.interactions(FRAME)))
    with pytest.raises(b4r.UserError, match="does not say how transitions are counted; export it again"):
        b4r.open(tmp_path / "work").update(LATER)


def test_rows_that_are_known_are_not_trained_on(counted, monkeypatch):
    monkeypatch.setattr(fitted, "train_and_open", lambda *_, **__: pytest.fail("nothing is new"))
    few = pd.concat([FRAME, LATER.iloc[:2]])
    with pytest.warns(b4r.TrainingWarning, match="2 new actions are few"), pytest.warns(b4r.DataWarning):
        assert counted.continue_training(few).saved.card["data"]["actions"] == len(few)
    with pytest.warns(b4r.DataWarning, match=f"{len(FRAME)} new rows repeat"):
        counted.continue_training(FRAME)


def test_few_new_rows_are_counted_and_trained_on_only_if_asked(learnt, monkeypatch):
    def fail(*_, **__):
        raise Killed

    monkeypatch.setattr(fitted, "train_and_open", fail)
    two = LATER.iloc[:2]
    line = "2 new actions are few, and so counted but not trained on; train=True trains"
    with pytest.warns(b4r.TrainingWarning, match=line):
        assert learnt.continue_training(two).recommend(user=0, k=1)["rank"].tolist() == [1]
    for options, words in (({"train": "no"}, "must be None, True or False"), ({"train": False, "steps": 3}, "`steps`")):
        with pytest.raises(b4r.UserError, match=words):
            learnt.continue_training(two, **options)
    with pytest.raises(b4r.UserError, match="`row_learning_rate` needs optimizer=rowwise_adagrad"):
        learnt.continue_training(LATER, row_learning_rate=0.2)
    for more, options in ((two, {"train": True}), (two, {"steps": 3}), (LATER, {})):
        with pytest.raises(Killed):
            learnt.continue_training(more, **options)


@pytest.mark.parametrize("learnt", ["bpr_mf"], indirect=True)
def test_a_later_training_refuses_what_its_model_does_not_read(learnt):
    for options in ({"mixed_precision": True}, {"user_features": LATER}):
        with pytest.raises(b4r.UserError, match=f"`{next(iter(options))}` needs model="):
            learnt.continue_training(LATER, **options)


@pytest.mark.slow
def test_an_updated_model_is_saved_and_goes_on(learnt, tmp_path):
    updated = b4r.open(learnt.update(LATER).save(tmp_path / "kept"))
    assert 99 in updated.users and updated.workdir == tmp_path / "kept"
    longer = updated.continue_training(LATER.assign(timestamp=12), silent=True)
    assert "new" in longer.items and longer.saved.card["data"]["actions"] == 480 + 34 * 2


def test_the_command_updates_in_place(counted, tmp_path):
    counted.save(tmp_path / "work")
    LATER.to_csv(tmp_path / "today.csv", index=False)
    ended = console("update", "--model=work", "--interactions=today.csv", cwd=tmp_path)
    expected = "34 new actions, 1 new items, 1 new users\n"
    assert (ended.returncode, ended.stdout) == (
        0,
        f"{tmp_path / 'work/saved_model'}: {expected}".replace(f"{tmp_path}/", ""),
    )
    again = console("update", "--model=work", "--interactions=today.csv", cwd=tmp_path)
    assert "no new actions; nothing changed" in again.stdout and "34 new rows repeat" in again.stderr
    assert b4r.open(tmp_path / "work").saved.knows_user("99")


@pytest.mark.long
def test_the_command_adds_a_version(counted, tmp_path, memory):
    LATER.to_csv(tmp_path / "today.csv", index=False)
    shutil.copytree(counted.saved.local_folder, tmp_path / "versions" / "3")
    memory.put(str(counted.saved.local_folder), "/bucket/versions/3", recursive=True)
    for place in ("versions", "memory://bucket/versions"):
        ended = console("update", f"--model={place}", "--interactions=today.csv", cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in (tmp_path / "versions").glob("[!.]*")) == ["3", "4"]
    for folder in (tmp_path / "versions/4", "memory://bucket/versions/4"):
        assert b4r.open(folder).saved.knows_user("99")


def test_a_mounted_model_is_updated_without_a_file_beside_it(counted, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(counted.saved.local_folder, folder)
    (tmp_path / "data").mkdir()
    LATER.to_csv(tmp_path / "data" / "today.csv", index=False)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == folder)
    ended = console("update", f"--model={folder}", "--interactions=today.csv", cwd=tmp_path / "data")
    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "model"]
    updated = b4r.open(folder)
    assert updated.saved.knows_user("99") and updated.saved.card["exported_with"] == list_versions()


def test_an_update_says_what_it_was_exported_with(counted, monkeypatch):
    versions = {"bert4rec_tf": "9.9.9"}
    monkeypatch.setattr(saved_model, "list_versions", lambda: versions)
    card = counted.update(LATER).saved.card
    assert card["exported_with"] == versions and card["trained_with"] == counted.saved.card["trained_with"]


def test_a_file_without_rows_changes_nothing(counted, tmp_path):
    folder = counted.save(tmp_path / "work") / "saved_model"
    before = (folder / "saved_model.pb").stat().st_mtime_ns
    LATER.iloc[:0].to_csv(tmp_path / "today.csv", index=False)
    ended = console("update", "--model=work", "--interactions=today.csv", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "today.csv: no rows; nothing changed\n")
    assert (folder / "saved_model.pb").stat().st_mtime_ns == before


@pytest.mark.slow
def test_an_update_waits_for_another_one(counted, tmp_path):
    shutil.copytree(counted.saved.local_folder, tmp_path / "versions" / "1")
    LATER.to_csv(tmp_path / "today.csv", index=False)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with files.FolderLock(tmp_path / "versions").lock():
            waiting = pool.submit(console, "update", "--model=versions", "--interactions=today.csv", cwd=tmp_path)
            with pytest.raises(concurrent.futures.TimeoutError):
                waiting.result(timeout=1)
            counted.update(LATER.assign(timestamp=11), path=tmp_path / "versions" / "2")
        assert waiting.result().returncode == 0
    assert b4r.open(tmp_path / "versions/3").saved.card["data"]["actions"] == 480 + 34 * 2


@pytest.mark.long
def test_an_export_does_not_replace_one_that_was_updated(counted, tmp_path, monkeypatch):
    work = counted.update(LATER).save(tmp_path / "work")
    monkeypatch.setattr(fitted, "run_mode", lambda _: pytest.fail("known before the work"))
    for export in (
        lambda: exporting.export(WorkDirectory(work)),
        lambda: b4r.fit(FRAME, model="item_transitions", workdir=work, silent=True),
    ):
        with pytest.raises(b4r.UserError, match="has 34 more actions than this run, of updates or of"):
            export()
    exporting.export(WorkDirectory(work), tmp_path / "another")


def test_an_updated_model_says_where_it_is(counted, tmp_path):
    assert repr(counted).endswith(f"  in {counted.workdir}")
    assert repr(counted.update(LATER, path=tmp_path / "new")).endswith(f"  in {tmp_path / 'new'}, updated")


@pytest.mark.long
def test_a_bad_file_or_a_kill_loses_nothing(counted, tmp_path, monkeypatch):
    folder = counted.save(tmp_path / "work") / "saved_model"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (tmp_path / "half.csv").write_text("user_id,movieId,timestamp\n1,i2,9\n5,i")
    ended = console("update", "--model=work", "--interactions=half.csv", cwd=tmp_path)
    assert ended.returncode == 2 and ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1, ended
    LATER.to_csv(tmp_path / "today.csv", index=False)

    def kill(*_):
        raise Killed

    for module, name in ((saved_model, "save_module"), (files, "_flush_to_disk")):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(module, name, kill)
            console("update", "--model=work", "--interactions=today.csv", cwd=tmp_path)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_what_cannot_be_updated_says_why(counted, tmp_path):
    card = counted.saved.card
    with pytest.raises(b4r.UserError, match="the new data must have rows"):
        counted.update(LATER.iloc[:0])
    for change, words in (
        ({"run": None}, "was not exported from a run"),
        ({}, "holds 480 of the 481 actions"),
        ({"run": {**card["run"], "model": "mine"}}, "its model is mine, of your own; import its class"),
    ):
        changed = {**card, "data": {**card["data"], "actions": 481}, **change}
        folder = counted.save(tmp_path / (words[:5].strip())) / "saved_model"
        content = {name: value for name, value in changed.items() if value is not None}
        (folder / "assets.extra/model_card.json").write_text(json.dumps(content))
        with pytest.raises(b4r.UserError, match=words):
            b4r.open(folder).update(LATER)
    cut = b4r.open(folder.parent.parent / "holds" / "saved_model")
    new = inputs.load_any(LATER, to_train=False)[1]
    with pytest.raises(b4r.UserError, match="holds 480 of the 481 actions"):
        updating.join_more(cut.saved, new)  # as a continued training does
    with pytest.warns(b4r.DataWarning, match="holds 480 of the 481 actions, so that items seen before"):
        cut.evaluate(LATER)


def test_features_of_new_items_leave_the_attributes_of_the_others(tmp_path):
    films = pd.DataFrame({"movieId": [f"i{n}" for n in range(40)], "price": range(40)})
    fitted = b4r.fit(FRAME, model="item_transitions", silent=True).update(LATER, item_features=films)
    new = pd.DataFrame({"movieId": ["new", "i1"], "price": [2.5, 100.0], "kind": ["a", "a"]})
    with pytest.warns(b4r.DataWarning):  # 2 of 41 ids match
        updated = fitted.update(LATER.assign(movieId="new", timestamp=12), item_features=new)
    found = updated.recommend(history=["i5"], k=50, exclude_seen=False, where="price < 4")["item"]
    assert {*found} == {"i0", "i2", "i3", "new"}
