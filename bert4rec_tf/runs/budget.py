"""Plans a run for a budget of time, from a few measured steps."""

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from bert4rec_tf.config.presets import shorten_warmup
from bert4rec_tf.config.presets.own import MEASUREMENTS
from bert4rec_tf.config.run_record import SELECT, Run
from bert4rec_tf.config.time_budget import Budget
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.phases import list_phases, select_training_data
from bert4rec_tf.runs.pipeline import Experiment
from bert4rec_tf.runs.workdir import WorkDirectory
from bert4rec_tf.training.calls import TrainingCalls
from bert4rec_tf.training.optimizer import make_optimizer

MEASURED_STEPS = 8
"""Steps that are timed, after one that compiles."""

FEWEST_STEPS = 50

MOST_STEPS = 4
"""A budget is not used for more than so many times the steps that the preset takes without one."""

WANTED_SHARE = 1 / 3
"""If fewer than this share of the preset's steps fit, the model is made narrower, and then its histories shorter."""

RESERVE = 0.15
"""The share of the budget that is left for what takes longer than planned."""

REPORTING = 1.5
"""Measuring the test items and exporting take about so many times one compiling and one first measurement."""

SHORT_FINAL, SHORT_SHARE = 0.05, 1 / 2
"""The `final_share` where less than this share of the preset's steps fits. It costs 1 to 3 % of NDCG@10; half of the
steps cost more (docs/quality.md)."""

SMALLEST = {"hidden_dim": 32, "max_length": 10}
"""The settings that make a step quicker when they are halved -> how small they become at most."""

PLANNED = (*SMALLEST, "steps", "warmup_steps", "evaluate_every", "final_share")
"""The settings that a plan may change."""


class Plan(NamedTuple):
    """A planned run.

    Attributes:
        run: the run with the planned settings.
        record: `minutes`, and `max_seconds` for the first training; kept in `config.json`.
        transitions: how transitions are counted (`WorkDirectory.write_transitions`), found while planning; or empty.
    """

    run: Run
    record: dict[str, float]
    transitions: dict[str, Any]


class _Costs(NamedTuple):
    """Measured seconds, from which those of the trainings follow.

    Attributes:
        compiling: of a new model with its first step.
        step: of a further step.
        first_measurement, measurement: of the first and each further measurement on the validation items.
    """

    compiling: float
    step: float
    first_measurement: float
    measurement: float

    def estimate_rest(self, run: Run, steps: int) -> float:
        """Returns the seconds of everything after the first training, which takes this many steps."""
        later_training = self.compiling + (run.training.final_share or 1.0) * steps * self.step
        reporting = REPORTING * (self.compiling + self.first_measurement)
        return (len(list_phases(run)) - 1) * later_training + reporting

    def estimate_total(self, run: Run, steps: int) -> float:
        validation = self.first_measurement + (MEASUREMENTS - 1) * self.measurement
        return self.compiling + steps * self.step + validation + self.estimate_rest(run, steps)


def plan_run(run: Run, sequences: Sequences, budget: Budget, workdir: WorkDirectory, silent: bool = False) -> Plan:
    """Returns the run with as many steps as fit into a budget.

    `run` has the steps that the preset takes without a budget. A work directory that already holds a plan for as many
    minutes keeps it. So a resumed run gives the same bytes, and so do the planned settings, if they are given instead
    of the minutes. The training examples, which the measured steps need, are kept in the folder.

    Raises UserError if the run cannot be planned, or the budget is too small.
    """
    budget.check(run)
    if workdir.config.exists():
        return _read_plan(run, budget.minutes, workdir)
    costs, transitions = _measure_costs(run, sequences, workdir, {}, silent)
    steps = _count_steps(run, budget, costs)
    if steps < SHORT_SHARE * run.training.steps and "final_share" not in budget.named:
        run = run.change(final_share=SHORT_FINAL)
        steps = _count_steps(run, budget, costs)
    if change := _narrow(run, budget.named, steps / run.training.steps):
        run = run.change(**change)
        costs, transitions = _measure_costs(run, sequences, workdir, transitions, silent)
        steps = _count_steps(run, budget, costs)
    if steps < FEWEST_STEPS:
        needed = (budget.spent + costs.estimate_total(run, FEWEST_STEPS)) / (1 - RESERVE) / 60
        raise UserError(
            f"`minutes` must be at least {needed:.1f} for these data on this machine (model=item_transitions takes "
            f"seconds). Received: minutes={budget.minutes:g}"
        )
    steps = min(steps, MOST_STEPS * run.training.steps)
    run = run.change(
        steps=steps,
        warmup_steps=shorten_warmup(run.training.warmup_steps, run.training.steps, steps),
        evaluate_every=max(steps // MEASUREMENTS, 1),
    )
    max_seconds = round(60 * budget.minutes - budget.spent - costs.estimate_rest(run, steps), 1)
    record = {"minutes": float(budget.minutes), "max_seconds": max_seconds}
    return Plan(run, record, transitions)


def describe_plan(run: Run, budget: Budget) -> str:
    """Returns a line that says what was planned."""
    sizes = {name: getattr(run.architecture, name, None) for name in SMALLEST}
    settings = ", ".join(f"{name} {value}" for name, value in sizes.items() if value is not None)
    return (
        f"Planned for {budget.minutes:g} minutes: {run.training.steps:,} steps of {run.training.batch_size}, {settings}"
    )


def _count_steps(run: Run, budget: Budget, costs: _Costs) -> int:
    """Returns how many steps fit into what is left of a budget."""
    without_steps = costs.estimate_total(run, 0)
    left = 60 * budget.minutes * (1 - RESERVE) - budget.spent - without_steps
    return int(left / (costs.estimate_total(run, 1) - without_steps))


def _narrow(run: Run, named: Collection[str], share: float) -> dict[str, Any]:
    """Returns the change of the architecture for a budget that has time for a share of the preset's steps.

    Below WANTED_SHARE the width is halved, which about halves the time of a step. If that is not enough, the longest
    history is halved too. What the user named stays.
    """
    change = {}
    for name, least in SMALLEST.items():
        if share < WANTED_SHARE and hasattr(run.architecture, name) and name not in named:
            size = getattr(run.architecture, name)
            change[name] = min(size, max(size // 2, least))
            share *= 2
    return change


def _read_plan(run: Run, minutes: float, workdir: WorkDirectory) -> Plan:
    """Returns the plan that a folder holds. Its settings are those of `run`, but for PLANNED."""
    config = workdir.read_config()
    record, planned = config.plan or {}, config.run.flatten()
    if record.get("minutes") != minutes:
        has = f"{record['minutes']:g}" if record else "left out"
        raise UserError(f"`minutes` must be {has}, as in {workdir.path}. Received: minutes={minutes:g}")
    run = run.change(**{name: planned[name] for name in PLANNED if name in planned})
    return Plan(run, record, {})


def _measure_costs(
    run: Run, sequences: Sequences, workdir: WorkDirectory, transitions: dict[str, Any], silent: bool
) -> tuple[_Costs, dict[str, Any]]:
    """Trains a few steps in a folder that is deleted, and measures the model on the validation items.

    Also returns how transitions are counted, which is searched if `transitions` is empty.
    """
    run = dataclasses.replace(run, initial_weights=None)
    with tempfile.TemporaryDirectory() as folder:
        scratch = WorkDirectory(Path(folder), workdir.prepared)
        experiment = Experiment(run, sequences, scratch, silent=silent, known_transitions=transitions)
        experiment.prepare()
        laps = [time.monotonic()]
        model = experiment.new_model()
        training = select_training_data(experiment.split, SELECT)
        model.adapt(training, experiment.transitions)
        model.initialise(training)
        optimizer = make_optimizer(run.training, model)
        optimizer.build(model.trainable_variables)
        feed = experiment.make_feed(SELECT, model)
        calls = TrainingCalls(model, optimizer, feed, run.training.clip_norm, experiment.execution)
        calls.run(calls.read(0, 1), 1)
        laps.append(time.monotonic())
        steps = min(MEASURED_STEPS, calls.max_steps)
        calls.run(calls.read(1, steps), steps)
        laps.append(time.monotonic())
        validate = experiment.make_validation(model)
        for _ in range(2):
            validate()
            laps.append(time.monotonic())
        compiling, stepping, first, second = (end - start for start, end in itertools.pairwise(laps))
        costs = _Costs(compiling, stepping / steps, first, second)
        return costs, scratch.read_transitions()
