"""The results of a table's cells: means over the seeds of finished runs, and the paper's numbers. NaN is not known."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.config.popularity_option import CORRECTION
from bert4rec_tf.config.run_record import RETRAIN, SELECT
from bert4rec_tf.evaluation.metrics import POPULAR
from experiments.plan import Job, Plan
from experiments.results import FINISHED, Line, list_trainings
from experiments.tables import TABLES

SAMPLES = "samples_per_second"
"""Used like a metric: examples per second of a run's last training, including the time of its measurements."""

ALPHA = "alpha"
"""Used like a metric: the popularity correction that is best for the validation items."""


@dataclass(frozen=True)
class Findings:
    """A table's finished runs and their results, of all seeds.

    The cells of a data set are compared with each other, so all must have the same budget. It is the budget at which
    the data set's finished runs have the most steps in total. A run that several cells share counts once.

    Attributes:
        name: the table's key in TABLES.
        plan: the data sets, preset, budget and seeds that were requested.
        lines: the newest line of each key.
        attentions: keys of the runs whose mean attention is kept. A table that shows the attention counts only these.
        budgets: data set -> the share of the presets' steps that its runs had.
        left_out: (data set, another budget) -> how many finished runs had that budget.
        runs: (data set, variant) -> the jobs and lines of its finished runs, in the order of the seeds.
        elsewhere: keys of the runs that were measured on another data file than the rest of their data set. The rest is
            on the authors' own file if any run is, else on the file of most runs.
    """

    name: str
    plan: Plan
    lines: Mapping[str, Line]
    attentions: Collection[str] = ()
    budgets: dict[str, float] = field(init=False, default_factory=dict)
    left_out: dict[tuple[str, float], int] = field(init=False, default_factory=dict)
    runs: dict[tuple[str, str], list[tuple[Job, Line]]] = field(init=False, default_factory=dict)
    elsewhere: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.elsewhere.update(_find_other_files(self.lines))
        seeds = sorted({*self.plan.seeds, *(line["run"]["seed"] for line in self.lines.values())})
        finished: dict[tuple[str, float], dict[str, list[tuple[Job, Line]]]] = {}
        for budget in {self.plan.budget, *(line["budget"] for line in self.lines.values())}:
            for (dataset, variant), jobs in replace(self.plan, budget=budget, seeds=seeds).make_jobs(self.name).items():
                counted = [(job, self.lines[job.key]) for job in jobs if self._is_counted(job.key)]
                finished.setdefault((dataset, budget), {})[variant] = counted
        counts = {
            place: len({job.key for some in runs.values() for job, _ in some}) for place, runs in finished.items()
        }
        for dataset in dict.fromkeys(dataset for dataset, _ in finished):
            _, budget = max((count * share, share) for (of, share), count in counts.items() if of == dataset)
            self.budgets[dataset] = budget
            self.runs.update({(dataset, variant): counted for variant, counted in finished[dataset, budget].items()})
        chosen_budgets = self.budgets.items()
        self.left_out.update({place: count for place, count in counts.items() if count and place not in chosen_budgets})

    def _is_counted(self, key: str) -> bool:
        if TABLES[self.name].keeps_attention and key not in self.attentions:
            return False
        return self.lines.get(key, {}).get("status") == FINISHED

    def list_datasets(self) -> list[str]:
        return list(self.budgets)

    def list_measured_datasets(self) -> list[str]:
        """Returns the data sets that have a finished run."""
        return [name for name in self.budgets if any(runs for (of, _), runs in self.runs.items() if of == name)]

    def list_variants(self, dataset: str) -> list[str]:
        return [variant for of, variant in self.runs if of == dataset]

    def list_lines(self, dataset: str, variant: str) -> list[Line]:
        """Returns the lines of a cell's finished runs, in the order of the seeds."""
        return [line for _, line in self.runs.get((dataset, variant), ())]

    def list_values(
        self, dataset: str, variant: str, metric: str, protocol: str = POPULAR, corrected: bool = False
    ) -> list[float]:
        """Returns a metric of each finished seed that has it; with `corrected`, of the ranks with ALPHA."""
        lines = self.list_lines(dataset, variant)
        if metric == SAMPLES:
            return [speed for speed in map(_compute_speed, lines) if speed is not None]
        corrections = [line[CORRECTION] for line in lines if CORRECTION in line]
        if metric == ALPHA:
            return [correction[ALPHA] for correction in corrections]
        tests = [measured["test"][protocol] for measured in (corrections if corrected else lines)]
        return [test[metric] for test in tests if metric in test]  # older lines have no LIST_METRICS

    def compute_mean(
        self, dataset: str, variant: str, metric: str, protocol: str = POPULAR, corrected: bool = False
    ) -> float:
        """Returns the mean of `list_values`; NaN if there are none."""
        values = self.list_values(dataset, variant, metric, protocol, corrected)
        return float(np.mean(values)) if values else math.nan

    def compute_means(
        self, variants: Sequence[str], metrics: Sequence[str], datasets: Sequence[str] | None = None
    ) -> np.ndarray:
        """Returns the means among popular items, float [datasets, metrics, variants]; NaN where there are none."""
        names = self.list_datasets() if datasets is None else datasets
        means = [
            self.compute_mean(name, variant, metric) for name in names for metric in metrics for variant in variants
        ]
        return np.reshape(means, (len(names), len(metrics), len(variants)))

    def has_known_spread(self, dataset: str, variant: str) -> bool:
        """Returns whether chance in training is known: several seeds, or a model that only counts and has none."""
        lines = self.list_lines(dataset, variant)
        return len(lines) > 1 or not any(list_trainings(line) for line in lines)

    def is_elsewhere(self, dataset: str, variant: str) -> bool:
        """Returns whether one of a cell's runs is in `elsewhere`."""
        return any(line["key"] in self.elsewhere for line in self.list_lines(dataset, variant))

    def find_published(self, dataset: str, variant: str, metric: str, protocol: str = POPULAR) -> float:
        """Returns the published number; NaN if there is none."""
        published = read_paper().get(self.name, {}) if protocol == POPULAR else {}
        return published.get(dataset, {}).get(variant, {}).get(metric, math.nan)

    def name_pair(self, dataset: str, first: str, second: str) -> str | None:
        """Returns the keys of two cells' runs, "first second", of the first seed that both have; None if none is."""
        ours, theirs = (
            {line["run"]["seed"]: line["key"] for line in self.list_lines(dataset, one)} for one in (first, second)
        )
        return next((f"{key} {theirs[seed]}" for seed, key in ours.items() if seed in theirs), None)


def _find_other_files(lines: Mapping[str, Line]) -> set[str]:
    """Returns `Findings.elsewhere`."""
    places = {}
    for key, line in lines.items():
        if line["status"] == FINISHED:
            file = line["data_file"] or {}
            places[key] = line["run"]["dataset"], bool(file.get("as_published")), file.get("sha256")
    counts = Counter(places.values())
    main_files = {
        max((place for place in counts if place[0] == dataset), key=lambda place: (place[1], counts[place]))
        for dataset, *_ in counts
    }
    return {key for key, place in places.items() if place not in main_files}


def _compute_speed(line: Line) -> float | None:
    phase = line.get(RETRAIN) or line.get(SELECT)
    if not phase or not phase["seconds"]:
        return None
    return phase["steps"] * line["run"]["training"]["batch_size"] / phase["seconds"]
