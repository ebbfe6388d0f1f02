"""Plans a run for a budget of time, by the first calls of its first training."""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

from bert4rec_tf.config.presets import shorten_warmup
from bert4rec_tf.config.presets.own import MEASUREMENTS, space_measurements
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.config.time_budget import FOLLOWING, MIN_SIZES, Budget
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.trainings import compute_final_share
from bert4rec_tf.training.loop import Costs, Training

MIN_PLANNED_STEPS = 50

MAX_STEPS_RATIO = 4
"""A budget is not used for more than so many times the steps that the preset takes without one."""

WANTED_SHARE = 1 / 3
"""If fewer than this share of the preset's steps fit, the model is made narrower, and then its histories shorter."""

RESERVE = 0.15
"""The share of the budget that is left for what takes longer than planned."""

REPORTING = 1.5
"""Measuring the test items and exporting take about so many times one compiling and one first measurement."""

SHORT_FINAL, SHORT_SHARE = 0.05, 1 / 2
"""The `final_share` where less than this share of the preset's steps fits. It costs 1 to 3 % of NDCG@10; half of the
steps cost more (experiments/journal/own-data.md)."""


class Planner:
    """Chooses as many steps as fit into a budget, and a smaller model if too few do.

    Args:
        run: with the steps that the preset takes without a budget.
        budget: the time for everything, and the settings that stay because the user named them.
        growths: of each later training, how many times the actions of the first one it learns from.
    """

    def __init__(self, run: Run, budget: Budget, growths: Sequence[float]) -> None:
        self.run, self._budget, self._growths = run, budget, growths
        self._preset_steps = run.training.steps
        self._costs = Costs(0.0, 0.0)

    def measure(self, training: Training) -> None:
        """Times a training that has not begun. Raises UserError as soon as it is clear that the budget is too short."""
        for costs in training.measure():
            self._costs = costs
            self._check_steps(0)

    def shrink(self) -> bool:
        """Makes the final training short if time is short, and then the model smaller. Returns whether the model is.

        If there is time for less than WANTED_SHARE of the preset's steps, the width is halved, which about halves the
        time of a step. If that is not enough, the longest history is halved too. What the user named stays, and so do
        the sizes of weights to start from.
        """
        named_settings = self._budget.named_settings
        may_shorten = not {"final_share", "scale_final_steps"} & {*named_settings}
        if may_shorten and self._count_steps() < SHORT_SHARE * self._preset_steps:
            self.run = self.run.change(final_share=SHORT_FINAL)
        share = self._count_steps() / self._preset_steps
        change = {} if self.run.initial_weights else _choose_sizes(self.run, named_settings, share)
        self.run = self.run.change(**change)
        return bool(change)

    def choose_steps(self) -> Run:
        """Returns the run with the steps that fit. Raises UserError if they are too few."""
        self._check_steps(MIN_PLANNED_STEPS)
        steps = self._count_steps()
        is_named = "evaluate_every" in self._budget.named_settings
        self.run = self.run.change(
            steps=steps,
            warmup_steps=shorten_warmup(self.run.training.warmup_steps, self._preset_steps, steps),
            evaluate_every=self.run.training.evaluate_every if is_named else space_measurements(steps),
        )
        return self.run

    def record(self) -> dict[str, Any]:
        """Returns what `config.json` keeps: `minutes`, and `max_seconds` for the first training."""
        rest = self._estimate_rest(self.run.training.steps)
        max_seconds = round(60 * self._budget.minutes - self._budget.spent_seconds - rest, 1)
        return {"minutes": float(self._budget.minutes), "max_seconds": max_seconds}

    def describe(self) -> str:
        """Returns a line that says what is planned."""
        sizes = {name: getattr(self.run.architecture, name, None) for name in MIN_SIZES}
        settings = "".join(f", {name} {value}" for name, value in sizes.items() if value is not None)
        training = self.run.training
        final_note = f"; the final training adds {training.final_share:.0%} of them" if training.final_share else ""
        steps = f"{training.steps:,} steps of {training.batch_size}{settings}{final_note}"
        return f"Planned for {self._budget.minutes:g} minutes: {steps}"

    def _count_steps(self) -> int:
        """Returns how many steps fit into what is left of the budget, at most MAX_STEPS_RATIO times the preset's."""
        seconds = 60 * self._budget.minutes * (1 - RESERVE) - self._budget.spent_seconds
        numbers = range(1, MAX_STEPS_RATIO * self._preset_steps + 1)
        return bisect.bisect_right(numbers, seconds, key=self._estimate_total)

    def _check_steps(self, steps: int) -> None:
        """Raises UserError if the budget has no time for so many steps."""
        needed_seconds = self._budget.spent_seconds + self._estimate_total(steps)
        if needed_seconds > 60 * self._budget.minutes * (1 - RESERVE):
            seconds = (self._budget.spent_seconds + self._estimate_total(MIN_PLANNED_STEPS)) / (1 - RESERVE)
            bound = "at least" if self._costs.measurement else "above"  # what is measured later takes time too
            raise UserError(
                f"`minutes` must be {bound} {math.ceil(seconds / 6) / 10} for these data on this machine "
                "(model=item_transitions takes seconds). "
                f"Received: minutes={self._budget.minutes:g}"
            )

    def _estimate_total(self, steps: int) -> float:
        """Returns the seconds of everything that is left after `measure`, with a first training of so many steps."""
        costs = self._costs
        is_named = "evaluate_every" in self._budget.named_settings
        number = max(1, math.ceil(steps / self.run.training.evaluate_every)) if is_named else MEASUREMENTS
        return steps * costs.step + number * costs.measurement + self._estimate_rest(steps)

    def _estimate_rest(self, steps: int) -> float:
        """Returns the seconds of everything after the first training."""
        costs = self._costs
        shares = [compute_final_share(self.run.training, growth) for growth in self._growths]
        later_trainings = sum(costs.compiling + share * steps * costs.step for share in shares)
        return later_trainings + REPORTING * (costs.compiling + costs.first_measurement)


def _choose_sizes(run: Run, named_settings: Collection[str], share: float) -> dict[str, Any]:
    """Returns the smaller sizes of a model that has time for this share of the preset's steps; empty for the same.

    The heads that stay divide the width, and windows still slide.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(run.architecture)}
    followers = {name: None for name in FOLLOWING if name not in named_settings and defaults.get(name, 1) is None}
    heads = 1 if "num_heads" in followers else getattr(run.architecture, "num_heads", 1)
    min_length = next(length for length in itertools.count(1) if int(run.masking.window_step * length))
    change: dict[str, Any] = {}
    for name, min_size in MIN_SIZES.items():
        size = getattr(run.architecture, name, 0)
        new_size = max(size // 2, min_size)
        new_size = math.ceil(new_size / heads) * heads if name == "hidden_dim" else max(new_size, min_length)
        if share < WANTED_SHARE and size > new_size and name not in named_settings:
            change[name] = new_size
            share *= 2
    return {**change, **(followers if "hidden_dim" in change else {})}
