"""`--tune` on the built-in data: resumable, pruned, without a look at the test item, and its result can be pasted."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="the extra [tune] is not installed")

import optuna

from bert4rec_tf import files, presets
from bert4rec_tf.data import datasets
from bert4rec_tf.errors import UserError
from bert4rec_tf.evaluation import RankingTask
from bert4rec_tf.presets import Preset
from experiments import spaces, tune
from experiments.jobs import Plan

QUICK = Plan(("synthetic",), quick=True)
STATES = optuna.trial.TrialState


@pytest.fixture(autouse=True)
def data_made_once(monkeypatch):
    monkeypatch.setattr(tune.datasets, "load", lambda *_: _data())


@functools.cache
def _data():
    return datasets.load_with_report("synthetic")[0]


@pytest.fixture
def small_grid(monkeypatch):
    grid = {"hidden_dim": (8, 16), "l2": (0.1, 0.001)}
    monkeypatch.setitem(spaces.SPACES, "bpr_mf", grid)
    return grid


def search(folder, model="bpr_mf"):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return tune.Search(model, "synthetic", QUICK, folder)


def test_a_search_goes_on_after_a_kill(tmp_path):
    """The killed trial is tried again with its settings, and the sampler does not repeat what it drew."""
    folder = tmp_path / "tuning" / "synthetic-bpr_mf"
    command = [sys.executable, "-m", "experiments", "--tune=bpr_mf", "--quick", f"--workdir={tmp_path}", "--trials=50"]
    root = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        first = process.stdout.readline().decode()
        assert "bpr_mf on synthetic, trial 0: complete, NDCG@10 0." in first, first
        end = time.monotonic() + 120
        while not list(folder.glob("*/config.json")) and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    one = search(folder)
    known = one.study().trials
    killed = [trial for trial in known if trial.state == STATES.RUNNING]
    assert len(killed) == 1
    study = one.go_on(len(known) + 2)
    assert [trial.params for trial in study.trials[: len(known)]] == [trial.params for trial in known]
    (again,) = [trial for trial in study.trials if trial.user_attrs.get(tune.GOES_ON_WITH) == killed[0].number]
    assert again.params == killed[0].params
    assert study.trials[killed[0].number].state == STATES.FAIL
    assert len(tune.ended(study)) == len(known) + 2


def test_ctrl_c_leaves_a_study_that_goes_on(tmp_path, small_grid, monkeypatch):
    one, train = search(tmp_path), tune.Search.train

    def interrupted(self, run, watch):
        watch({"step": 5, tune.MEASURE: 0.1})
        raise KeyboardInterrupt

    monkeypatch.setattr(tune.Search, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.go_on(1)
    monkeypatch.setattr(tune.Search, "train", train)
    study = one.go_on(1)
    assert [trial.state for trial in study.trials] == [STATES.FAIL, STATES.COMPLETE]
    assert study.trials[0].params == study.trials[1].params


def test_a_stopped_training_shows_its_earlier_measurements_again(tmp_path, small_grid):
    """What is pruned by its curve is pruned alike, stopped or not."""
    one, seen = search(tmp_path), []
    run = one.run_of({"hidden_dim": 8, "l2": 0.001})

    def watch(row):
        seen.append(row["step"])
        if seen == [5, 10]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.train(run, watch)
    one.train(run, watch)
    assert seen == [5, 10, 5, 10, 15, 20]


def test_only_the_validation_item_is_measured(tmp_path, monkeypatch, small_grid):
    parts, make = [], RankingTask.of
    monkeypatch.setattr(RankingTask, "of", lambda split, part, *rest: parts.append(part) or make(split, part, *rest))
    study = search(tmp_path).go_on(1)
    assert set(parts) == {"validation"} and len(tune.ended(study)) == 1
    assert not list(tmp_path.glob("*/ranks-test.npz")) and not list(tmp_path.glob("*/metrics.json"))
    assert not list(tmp_path.glob("*/config.json")), "the disk does not fill with ended trials"
    run = search(tmp_path).run_of(study.best_params)
    assert run.training.retrain is False and run.training.train_on_validation is False


def invented(monkeypatch, value_of, steps=(5, 10, 15, 20)):
    """Trainings that measure what a function of the run says."""
    trained = []

    def train(self, run, watch):
        trained.append((run, []))
        for step in steps:
            trained[-1][1].append(step)
            watch({"step": step, tune.MEASURE: value_of(run) * step / steps[-1]})

    monkeypatch.setattr(tune.Search, "train", train)
    return trained


def test_the_best_of_the_grid_is_found_and_bad_ones_are_pruned(tmp_path, monkeypatch):
    trained = invented(
        monkeypatch, lambda run: 0.3 - abs(run.architecture.hidden_dim - 64) / 1e3 - run.architecture.l2 / 10
    )
    study = search(tmp_path).go_on(40)
    assert study.best_params == {"hidden_dim": 64, "l2": 0.0001}
    pruned = [trial for trial in study.trials if trial.state == STATES.PRUNED]
    assert pruned and any(len(steps) < 4 for _, steps in trained)
    assert all(trial.number >= tune.FIRST_TRIALS for trial in pruned)


def test_a_point_is_trained_once(tmp_path, monkeypatch, small_grid):
    trained = invented(monkeypatch, lambda run: run.architecture.l2)
    study = search(tmp_path).go_on(12)
    assert len(study.trials) == 12
    assert len(trained) == len({run.digest for run, _ in trained}) <= 4
    assert study.best_value == 0.1


def test_a_trial_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch, small_grid, capsys):
    def value_of(run):
        if run.architecture.l2 == 0.1:
            raise UserError("The loss is nan")
        return 0.2

    invented(monkeypatch, value_of)
    study = search(tmp_path).go_on(8)
    assert {trial.state for trial in study.trials} >= {STATES.FAIL, STATES.COMPLETE}
    assert len(study.trials) == 8, "a trial that failed by itself is not tried again"
    assert "fail, The loss is nan" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["sasrec", "bert4rec"])
def test_the_best_settings_can_be_pasted(tmp_path, monkeypatch, model):
    invented(monkeypatch, lambda run: run.architecture.hidden_dim / 1e4)
    one = search(tmp_path, model)
    study = one.go_on(3)
    text = one.preset(study)
    entry = re.search(r"# An entry for (\S+):\n(.*)\n# Or by flags:\n(.*)", text, re.DOTALL)
    place, pasted, command = entry.groups()
    added = eval("{" + pasted + "}", {"Preset": Preset})
    if model == "bert4rec":
        assert place == 'PRESETS["fast"]'
        monkeypatch.setitem(presets.PRESETS["fast"], "synthetic", added["synthetic"])
    else:
        assert place == "TUNED"
        monkeypatch.setitem(presets.TUNED, (model, "synthetic"), added[model, "synthetic"])
    flat = presets.make_run("synthetic", model).flat()
    expected = study.best_params
    assert {name: flat[name] for name in expected} == expected
    assert presets.find("fast", "synthetic", model).expect.startswith(
        f"NDCG@10 {study.best_value:.4f} on the validation"
    )
    if model == "bert4rec":
        assert flat["max_predictions"] == round(expected["mask_proportion"] * flat["max_length"])
    for name, value in expected.items():
        assert f"--{name}={value}" in command


def test_another_search_in_the_folder_is_refused(tmp_path):
    one = search(tmp_path)
    with files.FolderLock(tmp_path).held(), pytest.raises(UserError, match="another search works in this folder"):
        one.go_on(1)
