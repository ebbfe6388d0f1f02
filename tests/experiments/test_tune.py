"""`--tune` on the built-in data: resumable, pruned, without a look at the test item, and its result can be pasted."""

import dataclasses
import functools
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support.paths import ROOT

pytest.importorskip("optuna", reason="the extra [tune] is not installed")

import optuna

from bert4rec_tf.config import presets
from bert4rec_tf.config.presets import Preset
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import NDCG
from bert4rec_tf.evaluation.ranker import RankingTask
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from experiments import tune
from experiments.plan import Plan
from experiments.tables import MODELS

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
    monkeypatch.setitem(tune.SPACES, "bpr_mf", grid)
    return grid


def search(folder, model="bpr_mf"):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return tune.Search(model, "synthetic", QUICK, folder)


@pytest.mark.slow
def test_a_killed_search_resumes(tmp_path):
    """The killed trial is tried again with its settings, and the sampler does not repeat what it drew."""
    folder = tmp_path / "tuning" / "synthetic-bpr_mf"
    command = [sys.executable, "-m", "experiments", "--tune=bpr_mf", "--quick", f"--workdir={tmp_path}", "--trials=50"]
    root = str(ROOT)
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
    known = one.open_study().trials
    killed = [trial for trial in known if trial.state == STATES.RUNNING]
    assert len(killed) == 1
    study = one.resume(len(known) + 2)
    assert [trial.params for trial in study.trials[: len(known)]] == [trial.params for trial in known]
    (again,) = [trial for trial in study.trials if trial.user_attrs.get(tune.RETRY_OF) == killed[0].number]
    assert again.params == killed[0].params
    assert study.trials[killed[0].number].state == STATES.FAIL
    assert len(tune.list_ended(study)) == len(known) + 2


def test_only_the_validation_item_is_measured(tmp_path, monkeypatch, small_grid):
    parts, make = [], RankingTask.from_split
    monkeypatch.setattr(
        RankingTask,
        "from_split",
        lambda split, part, *rest, **named: parts.append(part) or make(split, part, *rest, **named),
    )
    study = search(tmp_path).resume(1)
    assert set(parts) == {"validation"} and len(tune.list_ended(study)) == 1
    assert not list(tmp_path.glob("*/ranks-test.npz")) and not list(tmp_path.glob("*/metrics.json"))
    assert not list(tmp_path.glob("*/config.json")), "the disk does not fill with ended trials"
    run = search(tmp_path).make_run(study.best_params)
    assert run.training.protocol == "select"


def invented(monkeypatch, value_of, steps=(5, 10, 15, 20)):
    """Trainings that measure what a function of the run says."""
    trained = []

    def train(self, run, watch):
        trained.append((run, []))
        for step in steps:
            trained[-1][1].append(step)
            watch({"step": step, NDCG: value_of(run) * step / steps[-1]})

    monkeypatch.setattr(tune.Search, "train", train)
    return trained


def test_the_best_of_the_grid_is_found_and_bad_ones_are_pruned(tmp_path, monkeypatch):
    trained = invented(
        monkeypatch, lambda run: 0.3 - abs(run.architecture.hidden_dim - 64) / 1e3 - run.architecture.l2 / 10
    )
    study = search(tmp_path).resume(40)
    assert study.best_params == {"hidden_dim": 64, "l2": 0.0001}
    pruned = [trial for trial in study.trials if trial.state == STATES.PRUNED]
    assert pruned and any(len(steps) < 4 for _, steps in trained)
    assert all(trial.number >= tune.FIRST_TRIALS for trial in pruned)


def test_a_point_is_trained_once(tmp_path, monkeypatch, small_grid):
    trained = invented(monkeypatch, lambda run: run.architecture.l2)
    study = search(tmp_path).resume(12)
    assert len(study.trials) == 12
    assert len(trained) == len({run.digest for run, _ in trained}) <= 4
    assert study.best_value == 0.1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("The loss is nan"), "fail, The loss is nan"),
        (MemoryError("a large table"), "fail, MemoryError: a large table"),
    ],
)
def test_a_failed_trial_is_reported_and_the_others_run(tmp_path, monkeypatch, small_grid, capsys, error, told):
    def value_of(run):
        if run.architecture.l2 == 0.1:
            raise error
        return 0.2

    invented(monkeypatch, value_of)
    study = search(tmp_path).resume(8)
    assert {trial.state for trial in study.trials} >= {STATES.FAIL, STATES.COMPLETE}
    assert len(study.trials) == 8, "a trial that failed by itself is not tried again"
    assert study.best_params["l2"] == 0.001
    assert told in capsys.readouterr().out
    assert search(tmp_path).resume(8).trials == study.trials, "nor by the next search"


def entered(text, monkeypatch):
    """Enters a printed entry among the presets; returns the printed flags by their names."""
    pasted, command = re.search(r"# An entry for \S+:\n(.*)\n# Or by flags:\n(.*)", text, re.DOTALL).groups()
    (entry,) = eval(f"[{pasted}]", {"Preset": Preset})
    monkeypatch.setitem(presets.PRESETS, (entry.name, entry.dataset, entry.model), entry)
    return dict(re.findall(r"--(\w+)=(\S+)", command))


@pytest.mark.parametrize("budget", [1.0, 0.5])
@pytest.mark.parametrize(
    ("model", "dataset", "preset"),
    [("bpr_mf", "ml-1m", "fast"), ("sasrec", "steam", "fast"), ("bert4rec", "beauty", "released")],
)
def test_the_printed_settings_give_the_measured_run(tmp_path, monkeypatch, model, dataset, preset, budget):
    """With every setting that the search did not vary, as ML-1m's larger batches."""
    if model == "bpr_mf":
        known = presets.find_preset("fast", dataset, model)
        changed = dataclasses.replace(known, settings={**known.settings, "batch_size": 512, "learning_rate": 3e-3})
        monkeypatch.setitem(presets.PRESETS, ("fast", dataset, model), changed)
    invented(monkeypatch, lambda run: run.flatten()["hidden_dim"] / 1e4)
    one = tune.Search(model, dataset, Plan((dataset,), preset, budget=budget), tmp_path)
    study = one.resume(3)
    protocol = {"protocol", "evaluate_every"} | ({"steps", "warmup_steps"} if budget != 1 else set())

    def compared(run):
        return {name: value for name, value in run.flatten().items() if name not in protocol}

    expected = compared(one.make_run(study.best_params))
    searched = presets.find_preset(preset, dataset, model).search  # its steps are chosen again
    before = {**presets.make_run(dataset, model, preset).flatten(), **searched}
    text = one.format_preset(study)
    with monkeypatch.context() as patch:
        flags = entered(text, patch)
        pasted = presets.make_run(dataset, model, preset)
        assert compared(pasted) == expected
        fixed = model == "bert4rec" and preset == "released"
        assert pasted.training.protocol == ("fixed" if fixed else "select_and_retrain")
        assert (pasted.training.steps, pasted.flatten()["warmup_steps"]) == (before["steps"], before["warmup_steps"])
        told = presets.find_preset(preset, dataset, model).expect
        assert ("with 50 % of the steps" in told) == (budget == 0.5)
    assert (flags.pop("dataset"), flags.pop("model"), flags.pop("preset", "fast")) == (dataset, model, preset)
    values = {name: type(before[name])(value) for name, value in flags.items()}
    assert compared(presets.make_run(dataset, model, preset, **values)) == expected


def test_another_search_in_the_folder_is_refused(tmp_path):
    one = search(tmp_path)
    with files.FolderLock(tmp_path).lock(), pytest.raises(UserError, match="another search works in this folder"):
        one.resume(1)


def test_the_tuned_settings_have_the_papers_grid():
    assert set(tune.SPACES) == set(MODELS) - {"pop"}
    for model, space in tune.SPACES.items():
        assert space["hidden_dim"] == (16, 32, 64, 128, 256)
        l2 = space.get("l2") or space.get("weight_decay")
        assert l2 is None or set(l2) >= {1, 0.1, 0.01, 0.001, 0.0001}
        if "dropout" in space:
            assert space["dropout"] == (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
        run = presets.make_run("ml-1m", model)
        assert set(space) <= set(run.flatten())


def test_every_point_of_the_grids_is_a_run():
    for model, space in tune.SPACES.items():
        for name, values in space.items():
            for value in values:
                presets.make_run("beauty", model, **{name: value})
