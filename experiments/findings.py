"""The results of a table's cells: means over the seeds of finished runs, and the paper's numbers. NaN is not known."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.config.popularity_option import CORRECTION
from bert4rec_tf.evaluation.metrics import POPULAR
from experiments.line_fields import FINISHED
from experiments.plan import Plan
from experiments.results import CPU, Line, list_trainings, name_device
from experiments.tables import TABLES

SAMPLES = "samples_per_second"
"""Used like a metric: examples per second of a run's last training, including the time of its measurements."""

ALPHA = "alpha"
"""Used like a metric: the popularity correction that is best for the validation items."""


@dataclass(frozen=True)
class Findings:
    """A table's finished runs and their results, of all seeds.

    The cells of a data set are compared with each other, so all must have the same data file, that of the most finished
    runs, and the same budget: the one at which most cells have a run, the largest of several.

    Attributes:
        name: the table's key in TABLES.
        plan: the data sets, preset, budget and seeds that were requested.
        lines: the newest line of each key.
        attentions: keys of the runs whose mean attention is kept. A table that shows the attention counts only these.
        devices: data set -> the device of most of its runs. Speeds on other devices are not compared with these.
        budgets: data set -> the share of the presets' steps that its runs had.
        left_out: (another budget, data set) -> how many finished runs had that budget.
        runs: (data set, variant) -> the lines of its finished runs, in the order of the seeds.
    """

    name: str
    plan: Plan
    lines: Mapping[str, Line]
    attentions: Collection[str] = ()
    budgets: dict[str, float] = field(init=False, default_factory=dict)
    left_out: dict[tuple[float, str], int] = field(init=False, default_factory=dict)
    runs: dict[tuple[str, str], list[Line]] = field(init=False, default_factory=dict)
    devices: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        other_keys = find_runs_on_other_files(self.lines)
        keeps_attention = TABLES[self.name].keeps_attention
        used_lines = {
            key: line
            for key, line in self.lines.items()
            if line["status"] == FINISHED and key not in other_keys and (key in self.attentions or not keeps_attention)
        }
        seeds = sorted({*self.plan.seeds, *(line["run"]["seed"] for line in self.lines.values())})
        budgets = {self.plan.budget, *(line["budget"] for line in self.lines.values())}
        for dataset in self.plan.datasets:
            runs, counts, num_filled = {}, {}, {}
            for budget in budgets:
                plan = replace(self.plan, datasets=(dataset,), budget=budget, seeds=seeds)
                runs[budget] = {
                    cell: [used_lines[job.key] for job in jobs if job.key in used_lines]
                    for cell, jobs in plan.make_jobs(self.name).items()
                }
                counts[budget] = len({line["key"] for lines in runs[budget].values() for line in lines})
                num_filled[budget] = sum(map(bool, runs[budget].values()))
            best = max(budgets, key=lambda budget: (num_filled[budget], budget))
            if runs[best]:  # else the table does not have the data set
                self.budgets[dataset] = best
                self.runs.update(runs[best])
                names = Counter(name_device(line) for lines in runs[best].values() for line in lines)
                self.devices[dataset] = max(sorted(names), key=lambda name: names[name], default=CPU)
            self.left_out.update({(budget, dataset): counts[budget] for budget in budgets - {best} if counts[budget]})

    def list_datasets(self) -> list[str]:
        return list(self.budgets)

    def list_measured_datasets(self) -> list[str]:
        """Returns the data sets that have a finished run."""
        return [name for name in self.budgets if any(runs for (data, _), runs in self.runs.items() if data == name)]

    def list_variants(self, dataset: str) -> list[str]:
        return [variant for data, variant in self.runs if data == dataset]

    def list_lines(self, dataset: str, variant: str) -> list[Line]:
        """Returns the lines of a cell's finished runs, in the order of the seeds."""
        return self.runs.get((dataset, variant), [])

    def list_values(
        self, dataset: str, variant: str, metric: str, protocol: str = POPULAR, is_corrected: bool = False
    ) -> list[float]:
        """Returns a metric of each finished seed that has it; with `is_corrected`, of the ranks with ALPHA."""
        lines = self.list_lines(dataset, variant)
        if metric == SAMPLES:
            comparable_lines = [line for line in lines if name_device(line) == self.devices[dataset]]
            return [speed for line in comparable_lines if (speed := _compute_speed(line)) is not None]
        corrections = [line[CORRECTION] for line in lines if CORRECTION in line]
        if metric == ALPHA:
            return [correction[ALPHA] for correction in corrections]
        tests = [content["test"][protocol] for content in (corrections if is_corrected else lines)]
        return [test[metric] for test in tests if metric in test]  # older lines have no LIST_METRICS

    def compute_mean(
        self, dataset: str, variant: str, metric: str, protocol: str = POPULAR, is_corrected: bool = False
    ) -> float:
        """Returns the mean of `list_values`; NaN if there are none."""
        values = self.list_values(dataset, variant, metric, protocol, is_corrected)
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

    def find_published(self, dataset: str, variant: str, metric: str, protocol: str = POPULAR) -> float:
        """Returns the published number; NaN if there is none."""
        paper = read_paper().get(self.name, {}) if protocol == POPULAR else {}
        return paper.get(dataset, {}).get(variant, {}).get(metric, math.nan)

    def name_pair(self, dataset: str, first: str, second: str) -> str | None:
        """Returns the keys of two cells' runs, "first second", of the first seed that both have; None if none is."""
        first_keys, second_keys = (
            {line["run"]["seed"]: line["key"] for line in self.list_lines(dataset, name)} for name in (first, second)
        )
        return next((f"{key} {second_keys[seed]}" for seed, key in first_keys.items() if seed in second_keys), None)


def find_runs_on_other_files(lines: Mapping[str, Line]) -> set[str]:
    """Returns the keys of the finished runs that were not measured on the file of most runs of their data set."""
    finished = {key: line for key, line in lines.items() if line["status"] == FINISHED}
    files = {key: (line["run"]["dataset"], (line["data_file"] or {}).get("sha256")) for key, line in finished.items()}
    counts = Counter(files.values())
    main_files = {dataset: file for (dataset, file), _ in reversed(counts.most_common())}
    return {key for key, (dataset, file) in files.items() if file != main_files[dataset]}


def _compute_speed(line: Line) -> float | None:
    trainings = list_trainings(line)
    if not trainings or not trainings[-1]["seconds"]:
        return None
    training = trainings[-1]
    return training["steps"] * line["run"]["training"]["batch_size"] / training["seconds"]
