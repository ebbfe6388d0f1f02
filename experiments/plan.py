"""Plans the runs: a table's cells, with a budget and seeds."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bert4rec_tf.config import presets
from bert4rec_tf.config.model_settings import PAPERS_MODEL
from bert4rec_tf.config.run_record import SELECT, Run
from experiments.tables import TABLES, Variant, make_cell_label

PRESETS = ("fast", "released", "table2")
"""The settings of BERT4Rec that a plan can start from."""

SELECT_ONLY = {"protocol": SELECT}
"""The protocol of quick runs and searches: one training, with the validation item held out."""

QUICK = {"steps": 20, "warmup_steps": 5, "evaluate_every": 20, "batch_size": 64, **SELECT_ONLY}
QUICK_MASKED = {"mask_copies": 1, "num_layers": 1}
QUICK_WIDTH = 32
"""A quick run takes seconds: few steps, few examples, one block, and no model wider than this."""


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        run: the record, whose digest is the job's key.
        budget: share of its preset's steps.
        attention: whether to keep its mean attention too.
        cells: the cells that show it, as text.
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


@dataclass(frozen=True)
class Plan:
    """The runs that the command line requests.

    Attributes:
        datasets: names of the data sets.
        preset: settings of BERT4Rec to start from; the other models only have `fast`.
        seeds: each run is done once per seed.
        budget: share of the presets' steps.
        quick: whether to use the QUICK settings.
    """

    datasets: Sequence[str]
    preset: str = "fast"
    seeds: Sequence[int] = (1,)
    budget: float = 1.0
    quick: bool = False

    def make_jobs(self, name: str) -> dict[tuple[str, str], list[Job]]:
        """Returns the jobs of a table: (data set, variant) -> one per seed."""
        table, jobs = TABLES[name], {}
        for dataset, key in table.list_cells(self.datasets, self.quick):
            runs = [self.make_run(dataset, table.variants[key], seed) for seed in self.seeds]
            cells = (make_cell_label(name, key),)
            jobs[dataset, key] = [Job(run, self.budget, table.keeps_attention, cells) for run in runs]
        return jobs

    def make_all_jobs(self, names: Iterable[str]) -> list[Job]:
        """Returns every run of some tables once."""
        return merge_equal(job for name in names for jobs in self.make_jobs(name).values() for job in jobs)

    def make_run(self, dataset: str, variant: Variant, seed: int) -> Run:
        """Returns the run of a variant, with the plan's share of the steps."""
        is_masked, changes = variant.model == PAPERS_MODEL, variant.make_changes(dataset, self.preset)
        preset = variant.preset or (self.preset if is_masked else "fast")
        if self.quick:
            changes = {**QUICK, **(QUICK_MASKED if is_masked else {}), **changes}
        run = presets.make_run(dataset, variant.model, preset, seed, **changes)
        if self.quick and run.flatten().get("hidden_dim", 0) > QUICK_WIDTH:
            run = presets.make_run(dataset, variant.model, preset, seed, **{**changes, "hidden_dim": QUICK_WIDTH})
        return shorten(run, self.budget)


def shorten(run: Run, budget: float) -> Run:
    """Returns a run with a share of its steps. The warm-up and the distance of measurements shrink likewise."""
    if budget == 1:
        return run
    training = run.training
    steps = max(1, round(budget * training.steps))
    return run.change(
        steps=steps,
        warmup_steps=min(round(budget * training.warmup_steps), steps - 1),
        evaluate_every=max(1, round(budget * training.evaluate_every)),
    )


def merge_equal(jobs: Iterable[Job]) -> list[Job]:
    """Returns each run once, because tables share runs, with all its cells; its attention is kept if a table asks."""
    unique_jobs: dict[str, Job] = {}
    for job in jobs:
        twin = unique_jobs.get(job.key, job)
        cells = tuple(dict.fromkeys((*twin.cells, *job.cells)))
        unique_jobs[job.key] = dataclasses.replace(twin, attention=twin.attention or job.attention, cells=cells)
    return list(unique_jobs.values())
