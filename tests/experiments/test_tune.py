"""`--tune` on the built-in data: resumable, pruned, without a look at the test item, and its result can be pasted."""

import dataclasses
import functools
import re

import pytest

pytest.importorskip("optuna", reason="the extra [tune] is not installed")

import optuna

from bert4rec_tf.config import presets
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import NDCG
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.notebook import tuning
from experiments import tune
from experiments.plan import Plan
from experiments.tables import MODELS


@pytest.fixture(autouse=True)
def data_made_once(monkeypatch):
    monkeypatch.setattr(tune.datasets, "load", lambda *_: _data())


@functools.cache
def _data():
    return datasets.load_with_report("synthetic")[0]


@pytest.fixture
def small_grid(monkeypatch):
    monkeypatch.setitem(tune.SPACES, "bpr_mf", {"hidden_dim": (8, 16), "l2": (0.1, 0.001)})


SEARCH = tune.Search("bpr_mf", "synthetic", Plan(("synthetic",), quick=True))


@pytest.mark.slow
def test_only_the_validation_item_is_measured(tmp_path, monkeypatch, small_grid):
    parts, make = [], RankingTask.from_split
    monkeypatch.setattr(
        RankingTask,
        "from_split",
        lambda split, part, *rest, **named: parts.append(part) or make(split, part, *rest, **named),
    )
    (trial,) = SEARCH.run(1, tmp_path)
    assert set(parts) == {"validation"} and trial.state.name == "COMPLETE"
    assert not list(tmp_path.glob("**/ranks-test.npz")) and not list(tmp_path.glob("**/metrics.json"))
    assert not list(tmp_path.glob("*/config.json")), "the disk does not fill with ended trials"
    assert SEARCH.make_run(trial.params).training.protocol == "select"


def invent(monkeypatch, measure, steps=(5, 10, 15, 20)):
    """Trainings that measure what a function of the run says."""

    class Training:
        def __init__(self, run, watch):
            self.run, self.watch = run, watch

        def train(self):
            for step in steps:
                self.watch({"step": step, NDCG: measure(self.run) * step / steps[-1]})

    monkeypatch.setattr(tuning, "open_experiment", lambda run, *_, watch, **__: Training(run, watch))


@pytest.mark.long
def test_the_best_of_the_grid_is_found(tmp_path, monkeypatch):
    invent(monkeypatch, lambda run: 0.3 - abs(run.architecture.hidden_dim - 64) / 1e3 - run.architecture.l2 / 10)
    trials = SEARCH.run(40, tmp_path)
    assert tuning.find_best_trial(trials).params == {"hidden_dim": 64, "l2": 0.0001}
    assert "PRUNED" in {trial.state.name for trial in trials}


def test_a_failed_trial_is_reported_and_a_search_without_any_other_fails(tmp_path, monkeypatch, small_grid, capsys):
    def fail(run):
        raise MemoryError("a large table")

    invent(monkeypatch, fail)
    arguments = (["bpr_mf"], SEARCH.plan, tmp_path, 2, None, None)
    assert tune.main(*arguments) == 1
    said = "".join(capsys.readouterr())
    assert "fail, MemoryError: a large table" in said
    assert "bpr_mf on synthetic: no trial could be trained to its end: MemoryError: a large table" in said


@pytest.mark.parametrize("budget", [1.0, 0.5])
@pytest.mark.parametrize(
    ("model", "dataset", "preset"),
    [("bpr_mf", "ml-1m", "fast"), ("sasrec", "beauty", "fast"), ("bert4rec", "beauty", "released")],
)
def test_the_printed_settings_give_the_measured_run(tmp_path, monkeypatch, model, dataset, preset, budget):
    """With every setting that the search did not vary, as ML-1m's larger batches."""
    if model == "bpr_mf":
        known = presets.find_preset("fast", dataset, model)
        changed = dataclasses.replace(known, settings={**known.settings, "batch_size": 512, "learning_rate": 3e-3})
        monkeypatch.setitem(presets.PRESETS, ("fast", dataset, model), changed)
    invent(monkeypatch, lambda run: run.flatten()["hidden_dim"] / 1e4)
    one = tune.Search(model, dataset, Plan((dataset,), preset, budget=budget))
    trials = one.run(3, tmp_path)
    protocol = {"protocol", "evaluate_every"} | ({"steps", "warmup_steps"} if budget != 1 else set())

    def compared(run):
        return {name: value for name, value in run.flatten().items() if name not in protocol}

    expected = compared(one.make_run(tuning.find_best_trial(trials).params))
    searched = presets.find_preset(preset, dataset, model).search  # its steps are chosen again
    before = {**presets.make_run(dataset, model, preset).flatten(), **searched}
    said, command = one.format_command(trials).splitlines()
    assert f"(best of {len(trials)} trials" in said and ("with 50 % of the steps" in said) == (budget == 0.5)
    flags = dict(re.findall(r"--(\w+)=(\S+)", command))
    assert (flags.pop("dataset"), flags.pop("model"), flags.pop("preset", "fast")) == (dataset, model, preset)
    values = {name: type(before[name])(value) for name, value in flags.items()}
    printed = presets.make_run(dataset, model, preset, **values)
    assert compared(printed) == expected and printed.training.steps == before["steps"]
    assert printed.training.protocol == ("fixed" if preset == "released" else "select_and_retrain")


def test_a_number_of_steps_that_was_selected_for_other_settings_is_selected_again():
    decays = {"weight_decay": optuna.distributions.CategoricalDistribution([0.1])}
    trial = optuna.create_trial(params={"weight_decay": 0.1}, distributions=decays, value=0.3)
    command = tune.Search("sasrec", "beauty", Plan(("beauty",))).format_command([trial])
    assert command.endswith("--weight_decay=0.1 --protocol=select_and_retrain")


def test_the_tuned_settings_have_the_papers_grid_of_possible_runs():
    assert set(tune.SPACES) == set(MODELS) - {"pop"}
    for model, space in tune.SPACES.items():
        assert space["hidden_dim"] == (16, 32, 64, 128, 256)
        l2 = space.get("l2") or space.get("weight_decay")
        assert l2 is None or set(l2) >= {1, 0.1, 0.01, 0.001, 0.0001}
        if "dropout" in space:
            assert space["dropout"] == (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
        for name, value in ((name, value) for name, values in space.items() for value in values):
            presets.make_run("beauty", model, **{name: value})  # refuses settings that the model does not have
