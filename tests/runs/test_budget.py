"""A run that is planned for a budget of minutes, and the final training that continues from the selected weights."""

import json
import time

import numpy as np
import pytest
from support.ranking_oracle import make_sequences
from support.trainings import read_newest_weights

import bert4rec_tf as b4r
from bert4rec_tf.config import presets
from bert4rec_tf.config.presets.own import MEASUREMENTS
from bert4rec_tf.config.time_budget import Budget
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs import budget
from bert4rec_tf.runs.budget import MOST_STEPS, plan_run
from bert4rec_tf.runs.driver import execute
from bert4rec_tf.runs.pipeline import Experiment
from bert4rec_tf.runs.workdir import WorkDirectory

pytestmark = pytest.mark.usefixtures("quick")

TINY = {"evaluate_every": 4, "warmup_steps": 2, "batch_size": 8, "protocol": "all", "hidden_dim": 8}
SEQUENCES = make_sequences([[(7 * user + 3 * place) % 30 + 1 for place in range(5)] for user in range(40)], 30)


def make_run(model="bpr_mf", **settings):
    return presets.make_run("own-data", model, size=SEQUENCES, **{"steps": 16, **TINY, **settings})


def plan(folder, budget, run=None):
    return plan_run(run or make_run(), SEQUENCES, budget, WorkDirectory(folder))


def test_a_large_budget_takes_a_few_times_the_steps_of_the_preset(tmp_path):
    run, record, transitions = plan(tmp_path / "work", Budget(60))
    assert run.training.steps == MOST_STEPS * 16 and run.training.evaluate_every == run.training.steps // MEASUREMENTS
    assert record["minutes"] == 60 and 3_000 < record["max_seconds"] < 3_600
    assert transitions["settings"] and not (tmp_path / "work" / "config.json").exists()


def test_what_has_passed_leaves_fewer_steps(tmp_path, monkeypatch):
    """Both plans have the costs of one measurement: a machine that becomes busy must not decide."""
    measure, costs = budget._measure_costs, []

    def measure_once(*arguments):
        costs[:] = costs or [measure(*arguments)]
        return costs[0]

    monkeypatch.setattr(budget, "_measure_costs", measure_once)
    run = make_run(steps=10_000_000)
    whole = plan(tmp_path, Budget(4), run).run.training.steps
    half = plan(tmp_path, Budget(4, begin=time.monotonic() - 120), run).run.training.steps
    assert half < 0.75 * whole


@pytest.mark.parametrize(("width", "named", "planned"), [(64, (), 32), (64, ("hidden_dim",), 64), (8, (), 8)])
def test_a_small_budget_narrows_a_wide_model_unless_its_width_is_named(tmp_path, width, named, planned):
    run = make_run(steps=10_000_000, hidden_dim=width)
    assert plan(tmp_path, Budget(1, named), run).run.architecture.hidden_dim == planned


def test_the_planned_settings_give_the_bits_of_the_plan(tmp_path):
    planned = execute(make_run(), sequences=SEQUENCES, workdir=tmp_path / "a", budget=Budget(60), silent=True)
    record = json.loads((tmp_path / "a" / "config.json").read_text())
    named = {name: record["run"]["training"][name] for name in ("steps", "warmup_steps", "evaluate_every")}
    execute(make_run(**named), sequences=SEQUENCES, workdir=tmp_path / "b", silent=True)
    assert planned.metrics["all"]["steps"]
    np.testing.assert_equal(*(read_newest_weights(tmp_path / folder / "all") for folder in "ab"))


def test_a_folder_keeps_its_plan(tmp_path):
    options = {"sequences": SEQUENCES, "workdir": tmp_path, "silent": True}
    first = execute(make_run(), budget=Budget(60), **options)
    again = plan(tmp_path, Budget(60))
    assert again.run.digest == first.metrics["digest"] and again.record["minutes"] == 60
    execute(make_run(), budget=Budget(60), **options)
    with pytest.raises(UserError, match=r"`minutes` must be 60, as in .*Received: minutes=5"):
        execute(make_run(), budget=Budget(5), **options)
    with pytest.raises(UserError):
        execute(make_run(batch_size=4), budget=Budget(60), **options)


def test_when_time_is_up_training_stops_and_stop_after_gives_the_same_bits(tmp_path):
    run = make_run(steps=40)
    Experiment(
        run, SEQUENCES, WorkDirectory(tmp_path / "a"), silent=True, plan={"minutes": 1, "max_seconds": 0}
    ).train()
    Experiment(make_run(steps=40, stop_after=1), SEQUENCES, WorkDirectory(tmp_path / "b"), silent=True).train()
    for phase in ("select", "all"):
        assert sorted((tmp_path / "a" / phase).glob("step-*"))[-1].name == "step-000000001.npz"
        np.testing.assert_equal(*(read_newest_weights(tmp_path / folder / phase) for folder in "ab"))


def test_a_budget_below_what_the_data_need_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"`minutes` must be at least \d+\.\d for these data on this machine"):
        plan(tmp_path, Budget(0.001))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"minutes": bad}, "`minutes` must be a number above 0") for bad in (0, -1, "5", float("inf"), True)),
        ({"minutes": 5, "steps": 5}, "left out with `steps`"),
        ({"minutes": 5, "model": "pop"}, "left out for pop"),
        ({"minutes": 5, "holdout": 3}, "`holdout` must be None, 0, 1 or 2"),
        ({"minutes": 5, "replicas": 2}, "needs one device"),
        ({"minutes": 5, "protocol": "fixed"}, "needs one device, and a protocol that selects"),
        ({"minutes": 5, "tune": 2}, "`minutes` must be left out with `tune`"),
        *(({"steps": bad}, "`steps` must be ") for bad in (0, -1, 2.5, "9", True)),
        ({"model": "sasrec", "mask_prob": 0.5}, "'mask_prob'"),
    ],
)
def test_a_mistake_in_the_settings_is_an_error_before_the_data_are_read(options, message):
    with pytest.raises(UserError, match=message):
        b4r.fit("absent.csv", silent=True, **options)


@pytest.mark.parametrize("settings", [{"mask_prob": 0.5}, {"warmup_steps": 9_000}, {}])
def test_settings_that_suit_data_of_some_size_are_no_mistake(settings):
    with pytest.raises(UserError, match=r"absent\.csv: no such file"):
        b4r.fit("absent.csv", silent=True, **settings)


@pytest.mark.parametrize("model", ["bpr_mf", pytest.param("bert4rec", marks=pytest.mark.slow)])
def test_a_final_training_continues_from_the_selected_weights(tmp_path, model):
    def train(folder, **settings):
        run = make_run(model, steps=24, evaluate_every=8, **settings)
        experiment = Experiment(run, SEQUENCES, WorkDirectory(tmp_path / folder), silent=True)
        experiment.prepare()
        experiment.train()
        return {phase: read_newest_weights(tmp_path / folder / phase) for phase in ("select", "all")}

    whole, short = train("whole"), train("short", final_share=0.25)
    best = npz.read(tmp_path / "short/select/best.npz")
    step = json.loads((tmp_path / "short/select/curve.csv").read_text().splitlines()[-1].split(",")[0])
    np.testing.assert_equal(short["select"], whole["select"])
    assert step == 24
    names = [name for name in best if name in short["all"] and best[name].dtype.kind == "f" and best[name].size > 40]

    def distance(end):
        return sum(np.abs(end[name] - best[name]).sum() for name in names if end[name].shape == best[name].shape)

    assert names and 0 < distance(short["all"]) < distance(whole["all"]) / 2
    assert int(sorted((tmp_path / "short/all").glob("step-*"))[-1].stem[5:]) <= 6
