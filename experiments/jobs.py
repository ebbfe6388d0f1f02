"""A cell as a run: its settings at a budget and with a seed, and its key."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bert4rec_tf.config import presets
from bert4rec_tf.config.model_settings import MASKED_MODEL
from bert4rec_tf.config.run import Run
from experiments.tables import TABLES, Cell

QUICK = {"steps": 20, "warmup_steps": 5, "evaluate_every": 20, "protocol": "select", "batch_size": 64}
QUICK_MASKED = {"mask_copies": 1, "num_layers": 1}
QUICK_WIDTH = 32
"""What makes a run one of some seconds: few steps, few examples, one block, and no model wider than this."""


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        run: the record, whose digest is the job's key.
        budget: share of its preset's steps.
        attention: whether its mean attention is kept too.
        cells: where it stands, for the reader.
    """

    run: Run
    budget: float = 1.0
    attention: bool = False
    cells: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.run.digest

    @property
    def title(self) -> str:
        share = "" if self.budget == 1 else f", {100 * self.budget:.3g} % of the steps"
        cells = f" ({'; '.join(self.cells)})" if self.cells else ""
        return f"{self.run.model} on {self.run.dataset}, seed {self.run.seed}{share}, run {self.key}{cells}"


Jobs = dict[tuple[str, str], list[Job]]
"""(Data set, variant) -> one job per seed."""


@dataclass(frozen=True)
class Plan:
    """What is asked for.

    Attributes:
        datasets: on what.
        preset: settings of BERT4Rec to start from; the other models have `fast` alone.
        seeds: each run is done once with each.
        budget: share of the presets' steps.
        quick: with QUICK settings.
    """

    datasets: Sequence[str]
    preset: str = "fast"
    seeds: Sequence[int] = (1,)
    budget: float = 1.0
    quick: bool = False

    def cells(self, name: str) -> dict[tuple[str, str], Cell]:
        """Returns the cells of a table by data set and variant."""
        cells = TABLES[name].cells(self.datasets, self.preset, self.quick)
        return {(cell.dataset, cell.variant): cell for cell in cells}

    def jobs(self, name: str) -> Jobs:
        """Returns the jobs of a table."""
        table = TABLES[name]
        label = name.replace("table", "T").replace("figure", "F")
        return {
            (dataset, variant): [
                dataclasses.replace(
                    self.job(cell, seed),
                    attention=table.keeps_attention,
                    cells=(f"{label}: {table.variants[variant]}",),
                )
                for seed in self.seeds
            ]
            for (dataset, variant), cell in self.cells(name).items()
        }

    def job(self, cell: Cell, seed: int) -> Job:
        """Returns the job of a cell."""
        changes = dict(cell.changes)
        if self.quick:
            changes = {**QUICK, **(QUICK_MASKED if cell.model == MASKED_MODEL else {}), **changes}
        run = presets.make_run(cell.dataset, cell.model, self.preset_of(cell), seed, **changes)
        if self.quick and run.flat().get("hidden_dim", 0) > QUICK_WIDTH:
            changes["hidden_dim"] = QUICK_WIDTH
            run = presets.make_run(cell.dataset, cell.model, self.preset_of(cell), seed, **changes)
        return Job(shortened(run, self.budget), self.budget)

    def preset_of(self, cell: Cell) -> str:
        return self.preset if cell.model == MASKED_MODEL else "fast"


@dataclass(frozen=True)
class EncodedRequest:
    """The part of the paper that a sweep was asked for.

    Attributes:
        keys: of its runs.
        unknown: what the paper does not have of it, as "Table 3 of Steam".
    """

    keys: Collection[str]
    unknown: Sequence[str] = ()


def shortened(run: Run, budget: float) -> Run:
    """Returns a run with a share of its steps: the warm-up and the distance of measurements shrink alike."""
    if budget == 1:
        return run
    training = run.training
    steps = max(1, round(budget * training.steps))
    scaled: dict[str, Any] = {
        "steps": steps,
        "warmup_steps": min(round(budget * training.warmup_steps), steps - 1),
        "evaluate_every": max(1, round(budget * training.evaluate_every)),
    }
    return dataclasses.replace(run, training=dataclasses.replace(training, **scaled))


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """Returns each run once, for tables share some of theirs; what one of them keeps is kept."""
    found: dict[str, Job] = {}
    for job in jobs:
        known = found.get(job.key, job)
        cells = tuple(dict.fromkeys((*known.cells, *job.cells)))
        found[job.key] = dataclasses.replace(known, attention=known.attention or job.attention, cells=cells)
    return list(found.values())
