"""What is known of a table's cells: the means over seeds of the finished runs, beside the paper's numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert4rec_tf.data import datasets
from bert4rec_tf.metrics import POPULAR
from experiments.results import FINISHED
from experiments.sweep import Job, job_of
from experiments.tables import TABLES

Jobs = dict[tuple[str, str], list[Job]]
"""(Data set, variant) -> one job per seed."""

SAMPLES = "samples_per_second"


def jobs_of(name: str, chosen: Sequence[str], preset: str, seeds: Sequence[int], quick: bool = False) -> Jobs:
    """Returns the jobs of a table on the chosen data sets."""
    cells = TABLES[name].cells(chosen, quick)
    return {(cell.dataset, cell.variant): [job_of(cell, preset, seed, quick) for seed in seeds] for cell in cells}


@dataclass(frozen=True)
class Findings:
    """A table's runs and what they ended with.

    Attributes:
        name: of the table.
        jobs: its runs.
        lines: the newest line of each key.
    """

    name: str
    jobs: Jobs
    lines: Mapping[str, Mapping[str, Any]]

    def datasets(self) -> list[str]:
        return list(dict.fromkeys(dataset for dataset, _ in self.jobs))

    def variants(self, dataset: str) -> list[str]:
        return [variant for of, variant in self.jobs if of == dataset]

    def finished(self, dataset: str, variant: str) -> list[Mapping[str, Any]]:
        """Returns the lines of a cell's finished seeds."""
        found = [self.lines.get(job.key, {}) for job in self.jobs.get((dataset, variant), ())]
        return [line for line in found if line.get("status") == FINISHED]

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
        return datasets.paper().get(self.name, {}).get(dataset, {}).get(variant, {}).get(metric)


def samples_per_second(line: Mapping[str, Any]) -> float | None:
    """Returns the examples per second of a run's last training; where that was measured on the way, this included."""
    phase = line.get("final") or line.get("choose")
    if not phase or not phase["seconds"]:
        return None
    return phase["steps"] * line["run"]["training"]["batch_size"] / phase["seconds"]
