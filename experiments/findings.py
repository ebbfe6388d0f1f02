"""What is known of a table's cells: the means over seeds of the finished runs, beside the paper's numbers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bert4rec_tf.config.paper import paper
from bert4rec_tf.evaluation.metrics import POPULAR
from experiments.jobs import Job, Plan
from experiments.results import FINISHED
from experiments.tables import TABLES

SAMPLES = "samples_per_second"

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Findings:
    """A table's runs and what they ended with.

    The cells of a data set are compared with each other, so they are all of one data file and one budget: those with
    the most finished runs, the largest of several budgets. All tables have the same file. Seeds count that are asked
    for or finished.

    Attributes:
        name: of the table.
        plan: what is asked for.
        lines: the newest line of each key.
        attentions: the keys of the runs whose mean attention is kept; no others count where a table shows that.
        budgets: data set -> the share of the presets' steps that its runs had.
        runs: (data set, variant) -> the jobs and lines of its finished runs, by the seed.
        left_out: the finished lines of other data files.
    """

    name: str
    plan: Plan
    lines: Mapping[str, Line]
    attentions: Collection[str] = ()
    budgets: dict[str, float] = field(init=False, default_factory=dict)
    runs: dict[tuple[str, str], list[tuple[Job, Line]]] = field(init=False, default_factory=dict)
    left_out: dict[str, Line] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.left_out.update(of_other_files(self.lines))
        seeds = sorted({*self.plan.seeds, *(line["run"]["seed"] for line in self.lines.values())})
        budgets = sorted({self.plan.budget, *(line["budget"] for line in self.lines.values())}, reverse=True)
        plans = {budget: replace(self.plan, budget=budget, seeds=seeds).jobs(self.name) for budget in budgets}
        for dataset in dict.fromkeys(dataset for dataset, _ in plans[self.plan.budget]):
            finished = {budget: self._finished(plans[budget], dataset) for budget in budgets}
            best = max(budgets, key=lambda budget: (sum(map(len, finished[budget].values())), budget))
            self.budgets[dataset] = best
            self.runs.update({(dataset, variant): found for variant, found in finished[best].items()})

    def _finished(self, jobs: Mapping[tuple[str, str], Sequence[Job]], dataset: str) -> dict[str, Any]:
        return {
            variant: [(job, self.lines[job.key]) for job in some if self._counts(job.key)]
            for (of, variant), some in jobs.items()
            if of == dataset
        }

    def _counts(self, key: str) -> bool:
        if TABLES[self.name].keeps_attention and key not in self.attentions:
            return False
        return self.lines.get(key, {}).get("status") == FINISHED and key not in self.left_out

    def datasets(self) -> list[str]:
        return list(self.budgets)

    def run_on(self) -> list[str]:
        """Returns the data sets of which a run is finished."""
        return [name for name in self.budgets if any(self.runs[name, variant] for variant in self.variants(name))]

    def variants(self, dataset: str) -> list[str]:
        return [variant for of, variant in self.runs if of == dataset]

    def finished(self, dataset: str, variant: str) -> list[Line]:
        """Returns the lines of a cell's finished seeds."""
        return [line for _, line in self.runs.get((dataset, variant), ())]

    def values(self, dataset: str, variant: str, metric: str, protocol: str = POPULAR) -> list[float]:
        """Returns a metric of each finished seed; for SAMPLES the examples per second of the last training."""
        lines = self.finished(dataset, variant)
        if metric == SAMPLES:
            return [rate for rate in map(samples_per_second, lines) if rate is not None]
        return [line["test"][protocol][metric] for line in lines]

    def mean(self, dataset: str, variant: str, metric: str, protocol: str = POPULAR) -> float | None:
        """Returns the mean over seeds; None where no seed is finished."""
        values = self.values(dataset, variant, metric, protocol)
        return float(np.mean(values)) if values else None

    def paper(self, dataset: str, variant: str, metric: str) -> float | None:
        """Returns the published number; None where there is none."""
        return paper().get(self.name, {}).get(dataset, {}).get(variant, {}).get(metric)

    def pair(self, dataset: str, first: str, second: str) -> tuple[Job, Job] | None:
        """Returns the jobs of two cells with the first seed that both have finished; None where they share none."""
        seconds = {job.run.seed: job for job, _ in self.runs.get((dataset, second), ())}
        for job, _ in self.runs.get((dataset, first), ()):
            if job.run.seed in seconds:
                return job, seconds[job.run.seed]
        return None

    def asked(self) -> dict[str, Job]:
        """Returns the jobs that the plan asks for, at its own budget, by their keys."""
        return {job.key: job for some in self.plan.jobs(self.name).values() for job in some}


def of_other_files(lines: Mapping[str, Line]) -> dict[str, Line]:
    """Returns the finished lines that were not measured on the data file of most of their data set, by their keys."""
    of_files: dict[str, dict[str | None, dict[str, Line]]] = {}
    for key, line in lines.items():
        if line["status"] == FINISHED:
            content = (line["data_file"] or {}).get("sha256")
            of_files.setdefault(line["run"]["dataset"], {}).setdefault(content, {})[key] = line
    others = {}
    for of_file in of_files.values():
        most = max(of_file.values(), key=len)
        others.update({key: line for some in of_file.values() if some is not most for key, line in some.items()})
    return others


def samples_per_second(line: Line) -> float | None:
    """Returns the examples per second of a run's last training; where that was measured on the way, this included."""
    phase = line.get("retrain") or line.get("select")
    if not phase or not phase["seconds"]:
        return None
    return phase["steps"] * line["run"]["training"]["batch_size"] / phase["seconds"]
