"""A run that is planned for a budget of minutes, and the final training that continues from the selected weights."""

import dataclasses
import json
import math
import time

import numpy as np
import pytest
from support.ranking_oracle import make_sequences
from support.trainings import killed_at_step, read_newest_weights

import bert4rec_tf as b4r
from bert4rec_tf.commands.run import read_budget
from bert4rec_tf.commands.run_options import Request
from bert4rec_tf.config import presets
from bert4rec_tf.config.presets.own import MEASUREMENTS
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.config.time_budget import Budget
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.experiment import execute, open_experiment
from bert4rec_tf.runs.planning import MAX_STEPS_RATIO, RESERVE, Planner
from bert4rec_tf.training.loop import Costs, Training, read_state

pytestmark = pytest.mark.usefixtures("quick")

TINY = {"evaluate_every": 4, "warmup_steps": 2, "batch_size": 8, "protocol": "all", "hidden_dim": 8}
SEQUENCES = make_sequences([[(7 * user + 3 * place) % 30 + 1 for place in range(5)] for user in range(40)], 30)


def make_run(model="bpr_mf", **settings):
    return presets.make_run("own-data", model, size=SEQUENCES, **{"steps": 16, **TINY, **settings})


class Timed:
    """A training whose parts take these seconds: compiling, a step, the first and each further measurement."""

    def __init__(self, *seconds):
        self.seconds, self.num_measured = seconds, 0

    def measure(self):
        yield Costs(*self.seconds[:2])
        self.num_measured += 1
        yield Costs(*self.seconds)


def plan(run, minutes, *seconds, named=(), spent=0.0, growth=1.0):
    """Plans a run of two trainings, with the same seconds before and after it is made smaller."""
    budget = Budget(minutes, named)
    object.__setattr__(budget, "begin", budget.begin - spent)
    planner = Planner(run, budget, [growth])
    planner.measure(Timed(*seconds))
    if planner.shrink():
        planner.measure(Timed(*seconds))
    return planner.choose_steps(), planner.record()


def test_a_large_budget_takes_a_few_times_the_steps_of_the_preset():
    run, record = plan(make_run(), 60, 1.0, 0.01, 1.0, 0.1)
    assert run.training.steps == MAX_STEPS_RATIO * 16
    assert run.training.evaluate_every == math.ceil(run.training.steps / MEASUREMENTS)
    assert record["minutes"] == 60 and 3_500 < record["max_seconds"] < 3_600


@pytest.mark.parametrize(("spent", "growth"), [(0.0, 1.0), (120.0, 1.0), (0.0, 1.4)])
def test_what_is_planned_takes_the_budget_without_its_reserve(spent, growth):
    large = make_run(steps=10_000_000, scale_final_steps=True)
    run, _ = plan(large, 4, 5.0, 0.01, 2.0, 0.5, named=("final_share",), spent=spent, growth=growth)
    left = 5.0 + (1 + growth) * 0.01 * run.training.steps + 0.5 * MEASUREMENTS  # the first is compiled and measured
    reporting = 1.5 * (5.0 + 2.0)
    assert spent + left + reporting == pytest.approx(4 * 60 * (1 - RESERVE), abs=2)


def test_a_plan_has_time_for_all_measurements_at_a_named_distance():
    large = make_run(steps=10_000_000, evaluate_every=10)
    run, _ = plan(large, 4, 5.0, 0.01, 2.0, 0.5, named=("final_share", "evaluate_every"))
    steps = run.training.steps
    measuring = 0.5 * math.ceil(steps / 10)
    reporting = 1.5 * (5.0 + 2.0)
    assert 5.0 + 2 * 0.01 * steps + measuring + reporting == pytest.approx(4 * 60 * (1 - RESERVE), abs=2)


def test_a_named_growth_of_the_final_training_stays():
    settings = {"steps": 10_000_000, "scale_final_steps": True}
    run, _ = plan(make_run(**settings), 1, 1.0, 0.01, 1.0, 0.1, named=("scale_final_steps",))
    assert run.training.scale_final_steps and not run.training.final_share


@pytest.mark.parametrize(("width", "named", "planned"), [(64, (), 32), (64, ("hidden_dim",), 64), (8, (), 8)])
def test_a_small_budget_narrows_a_wide_model_unless_its_width_is_named(width, named, planned):
    run, _ = plan(make_run(steps=10_000_000, hidden_dim=width), 1, 1.0, 0.01, 1.0, 0.1, named=named)
    assert run.architecture.hidden_dim == planned and run.training.final_share == 0.05
    warm = dataclasses.replace(make_run(steps=10_000_000, hidden_dim=width), initial_weights="of others")
    assert plan(warm, 1, 1.0, 0.01, 1.0, 0.1, named=named)[0].architecture.hidden_dim == width


@pytest.mark.parametrize(
    ("model", "named", "heads", "inner"),
    [("bert4rec", (), 2, 256), ("bert4rec", ("num_heads",), 4, 256), ("auto", (), 2, 256), ("sasrec", (), 1, None)],
)
def test_heads_and_inner_width_follow_a_narrower_model(model, named, heads, inner):
    settings = {"num_heads": 4} if named else {}
    wide = make_run(model, steps=10_000_000, hidden_dim=128, max_length=10, **settings)
    run, _ = plan(wide, 1, 1.0, 0.01, 1.0, 0.1, named=named)
    architecture = run.architecture
    assert (architecture.hidden_dim, architecture.num_heads) == (64, heads)
    assert getattr(architecture, "intermediate_dim", None) == inner


@pytest.mark.parametrize(
    ("model", "settings", "planned"),
    [
        ("sasrec", {"hidden_dim": 50, "num_heads": 5, "max_length": 10}, (35, 10)),
        ("sasrec", {"hidden_dim": 33, "num_heads": 33, "max_length": 10}, (33, 10)),
        ("bert4rec", {"hidden_dim": 32, "max_length": 20, "window_step": 0.06, "mask_copies": 1}, (32, 17)),
    ],
)
def test_smaller_sizes_suit_the_named_settings(model, settings, planned):
    """No size is refused that the user never gave."""
    run = make_run(model, steps=10_000_000, **settings)
    named = [name for name in settings if name in ("num_heads", "window_step")]
    architecture = plan(run, 1, 1.0, 0.01, 1.0, 0.1, named=named)[0].architecture
    assert (architecture.hidden_dim, architecture.max_length) == planned


def test_the_distance_of_measurements_stays_if_it_is_named():
    assert plan(make_run(), 60, 1.0, 0.01, 1.0, 0.1, named=("evaluate_every",))[0].training.evaluate_every == 4


def test_a_named_warm_up_is_shortened_with_the_steps():
    run = make_run(steps=100_000, warmup_steps=60_000)
    planned, _ = plan(run, 1, 1.0, 0.01, 1.0, 0.1, named=("warmup_steps",))
    assert 0 < planned.training.warmup_steps < planned.training.steps < 60_000


def test_a_budget_that_is_too_short_is_refused_before_anything_is_measured():
    training = Timed(60.0, 0.01, 1.0, 0.1)
    with pytest.raises(UserError, match=r"`minutes` must be above [\d.]+ for these data on this machine"):
        Planner(make_run(), Budget(2), [1.0]).measure(training)
    assert not training.num_measured


def test_the_minutes_that_a_refusal_names_are_enough():
    def ask(minutes):
        plan(make_run(steps=1_000), minutes, 4.0, 0.5, 3.0, 1.0)

    with pytest.raises(UserError, match="at least") as error:
        ask(0.5)
    ask(float(str(error.value).split("at least ")[1].split()[0]))


@pytest.mark.long
def test_the_planned_settings_give_the_bits_of_the_plan(tmp_path):
    """The steps that were timed leave no trace, and the compiled program takes the planned learning rates."""
    planned = execute(make_run(), SEQUENCES, workdir=tmp_path / "a", budget=Budget(60), silent=True)
    record = json.loads((tmp_path / "a" / "config.json").read_text())
    names = ("steps", "warmup_steps", "evaluate_every")
    named = {name: record["run"]["training"][name] for name in names}
    execute(make_run(**named), SEQUENCES, workdir=tmp_path / "b", silent=True)
    assert planned.metrics["all"]["steps"] and named["steps"] != 16
    for training in ("select", "all"):
        np.testing.assert_equal(*(read_newest_weights(tmp_path / folder / training) for folder in "ab"))


@pytest.mark.slow
def test_the_planned_settings_of_a_narrower_bert4rec_with_evidence_give_its_bits(monkeypatch, tmp_path):
    """The costs are made up, so that the plan is the same on any machine."""
    measure = Training.measure
    monkeypatch.setattr(Training, "measure", lambda self: [Costs(1.0, 0.2, 1.0, 0.1) for _ in measure(self)])
    run = make_run("bert4rec", steps=2_000_000, hidden_dim=64, max_length=6, evidence="transitions")
    execute(run, SEQUENCES, workdir=tmp_path / "a", budget=Budget(1), silent=True)
    record = json.loads((tmp_path / "a" / "config.json").read_text())
    assert record["run"]["architecture"]["hidden_dim"] == 32
    steps = json.loads((tmp_path / "a" / "metrics.json").read_text())["select"]["steps"]
    planned = Run.from_dict(record["run"]).change(stop_after=steps)
    execute(planned, SEQUENCES, workdir=tmp_path / "b", silent=True)
    np.testing.assert_equal(*(read_newest_weights(tmp_path / folder / "select") for folder in "ab"))


@pytest.mark.long
def test_a_folder_keeps_its_plan(tmp_path):
    options = {"sequences": SEQUENCES, "workdir": tmp_path, "silent": True}
    first = execute(make_run(), budget=Budget(60), **options)
    again = execute(make_run(), budget=Budget(60), **options)
    assert again.metrics["digest"] == first.metrics["digest"] and again.metrics["select"] == first.metrics["select"]
    with pytest.raises(UserError, match=r"`minutes` must be 60, as in .*Received: minutes=5"):
        execute(make_run(), budget=Budget(5), **options)
    with pytest.raises(UserError, match=r"holds another run .*, planned with --minutes=60; name another"):
        execute(make_run(), **options)
    with pytest.raises(UserError, match="holds another run"):
        execute(make_run(batch_size=4), budget=Budget(60), **options)
    with pytest.raises(UserError, match=r"holds another run \(there hidden_dim=8, now hidden_dim=16\)"):
        execute(make_run(hidden_dim=16), budget=Budget(60, named_settings=("hidden_dim",)), **options)


@pytest.mark.parametrize("warmup_steps", [4, 15])
def test_a_planned_folder_takes_the_same_named_settings_again(tmp_path, warmup_steps):
    """Also a warm-up that the plan has shortened, but no other one."""
    run, budget = make_run(steps=1_000, warmup_steps=500), Budget(60, named_settings=("warmup_steps", "hidden_dim"))
    opened = open_experiment(run, SEQUENCES, tmp_path, budget=budget, silent=True)
    opened.workdir.write_plan(run.change(steps=100, warmup_steps=50), {"minutes": 60, "max_seconds": 9})
    again = open_experiment(run, SEQUENCES, tmp_path, budget=budget, silent=True)
    assert (again.run.training.steps, again.run.training.warmup_steps, again.budget) == (100, 50, None)
    with pytest.raises(UserError, match="there warmup_steps=50, now warmup_steps="):
        open_experiment(run.change(warmup_steps=warmup_steps), SEQUENCES, tmp_path, budget=budget, silent=True)


def test_a_budget_that_nothing_was_planned_for_can_be_left_out_or_come_later(tmp_path):
    def begin(budget):
        return open_experiment(make_run(), SEQUENCES, tmp_path, budget=budget, silent=True)

    for budget in (Budget(60, named_settings=("hidden_dim",)), None, Budget(5)):
        opened = begin(budget)
        plan = json.loads((tmp_path / "config.json").read_text()).get("plan")
        assert opened.budget is budget and plan == (budget and budget.record())
    begin(None)
    with pytest.raises(UserError, match="`minutes` needs --interactions or --dataset again"):
        read_budget(Request.from_flags({"workdir": str(tmp_path), "minutes": 5.0}), 0.0)
    begin(None).train()
    with pytest.raises(UserError, match="`minutes` must be left out, as in "):
        begin(Budget(5))


@pytest.mark.long
def test_a_run_that_is_killed_before_its_plan_is_planned_when_it_starts_again(tmp_path):
    """Also if nothing but the folder is named, as `bert4rec run --workdir=...` does."""
    options = {"sequences": SEQUENCES, "workdir": tmp_path, "silent": True}
    with killed_at_step(1):
        execute(make_run(), budget=Budget(60, named_settings=("hidden_dim",)), **options)
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["plan"] == {"minutes": 60, "named": ["hidden_dim"]} and record["run"]["training"]["steps"] == 16
    budget = read_budget(Request.from_flags({"workdir": str(tmp_path)}), time.monotonic())
    assert (budget.minutes, budget.named_settings) == (60, ["hidden_dim"])
    planned = execute(make_run(), budget=budget, **options).metrics["run"]["training"]
    assert planned["steps"] == MAX_STEPS_RATIO * 16


def test_when_time_is_up_training_stops_and_stop_after_gives_the_same_bits(tmp_path):
    planned = open_experiment(make_run(), SEQUENCES, tmp_path / "a", budget=Budget(60), silent=True)
    planned.budget = None
    planned.workdir.write_plan(planned.run, {"minutes": 60, "max_seconds": 0})
    planned.train()
    open_experiment(make_run(stop_after=1), SEQUENCES, tmp_path / "b", silent=True).train()
    for phase in ("select", "all"):
        assert sorted((tmp_path / "a" / phase).glob("step-*"))[-1].name == "step-000000001.npz"
        np.testing.assert_equal(*(read_newest_weights(tmp_path / folder / phase) for folder in "ab"))


def test_a_budget_below_what_the_data_need_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"`minutes` must be above \d+\.\d for these data on this machine"):
        execute(make_run(), SEQUENCES, workdir=tmp_path, budget=Budget(0.001), silent=True)
    execute(make_run(), SEQUENCES, workdir=tmp_path, budget=Budget(0.5), silent=True)  # the folder takes another one
    with pytest.raises(UserError, match=r"`minutes` must be 0.5, as in"):
        execute(make_run(), SEQUENCES, workdir=tmp_path, budget=Budget(0.6), silent=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"minutes": bad}, "`minutes` must be a number above 0") for bad in (0, -1, "5", float("inf"), True)),
        ({"minutes": 5, "steps": 5}, "left out with `steps`"),
        ({"minutes": 5, "stop_after": 5}, "left out with `stop_after`"),
        ({"holdout": 2, "protocol": "all"}, "`holdout` must be left out with `protocol`"),
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


def test_a_run_of_fixed_steps_takes_no_budget(tmp_path):
    run = make_run("bpr_mf", protocol="fixed")
    with pytest.raises(UserError, match="`minutes` needs one device, and a protocol that selects on the validation"):
        open_experiment(run, SEQUENCES, tmp_path / "work", budget=Budget(1.0))
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("model", ["bpr_mf", pytest.param("bert4rec", marks=pytest.mark.slow)])
def test_a_final_training_continues_from_the_selected_weights(tmp_path, model):
    def train(folder, **settings):
        run = make_run(model, steps=24, evaluate_every=8, **settings)
        open_experiment(run, SEQUENCES, tmp_path / folder, silent=True).train()
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


@pytest.mark.parametrize(
    ("protocol", "name", "growth"), [("select_and_retrain", "retrain", 4 / 3), ("all", "all", 5 / 3)]
)
def test_the_steps_of_a_final_training_grow_with_its_actions(tmp_path, protocol, name, growth):
    """Every user has five actions, and the first training learns from three of them."""
    settings = {"steps": 24, "evaluate_every": 8}
    grown = make_run(**settings, protocol=protocol, scale_final_steps=True)
    open_experiment(grown, SEQUENCES, tmp_path / "grown", silent=True).train()
    steps = round(growth * read_state(tmp_path / "grown/select").best_step)
    assert read_state(tmp_path / "grown" / name).step == steps
    if name == "retrain":
        alone = make_run(steps=round(growth * 24), stop_after=steps, protocol="fixed", evaluate_every=8)
        open_experiment(alone, SEQUENCES, tmp_path / "alone", silent=True).train()
        folders = (tmp_path / folder / name for folder in ("grown", "alone"))
        np.testing.assert_equal(*(read_newest_weights(folder) for folder in folders))
