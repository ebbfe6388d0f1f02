"""Metrics from the ranks of evaluated runs: of one, or of two on the same data, compared user by user."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bert4rec_tf.evaluation.metrics import (
    ANY,
    METRICS,
    PROTOCOLS,
    Difference,
    compute_difference,
    compute_metrics,
    compute_per_user,
    find_served_protocol,
)
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.folder import RunConfig, WorkDirectory

Comparison = dict[str, dict[str, Difference]]
"""Protocol -> metric -> difference."""


def measure(path: Path, names: Iterable[str] = METRICS) -> dict[str, dict[str, float]]:
    """Returns protocol -> metric -> its mean over the users. Raises UserError as `compare`."""
    folder = WorkDirectory(path)
    ranks = _read_ranks(folder, folder.read_config())
    return {protocol: compute_metrics(ranks[protocol], names) for protocol in ranks}


def _read_ranks(folder: WorkDirectory, config: RunConfig) -> dict[str, np.ndarray]:
    """Returns the ranks by protocol, ANY first where the run recommends seen items."""
    if not folder.ranks.exists():
        raise UserError(f"{folder.path}: has not been evaluated; run with --mode=evaluate first")
    return npz.read(folder.ranks, (ANY, *PROTOCOLS) if find_served_protocol(config.repeats) == ANY else PROTOCOLS)


def compare(first: Path, second: Path, names: Iterable[str] = METRICS) -> Comparison:
    """Compares the ranks of two work directories, by metrics (`evaluation.metrics.compute_per_user`).

    ANY comes first, where both have it.

    Raises UserError if one is not a work directory, has not been evaluated or has damaged ranks, or if their actions,
    items or candidates differ. Features may.
    """
    folders = [WorkDirectory(first), WorkDirectory(second)]
    configs = [folder.read_config() for folder in folders]
    ranks = [_read_ranks(folder, config) for folder, config in zip(folders, configs)]
    if len({config.actions_fingerprint or config.data_fingerprint for config in configs}) > 1:
        raise UserError(f"{first} and {second} cannot be compared: their data differ, perhaps by --new_items")
    if configs[0].run.evaluation != configs[1].run.evaluation:
        raise UserError(f"{first} and {second} cannot be compared: their candidates differ")
    return {
        protocol: {
            name: compute_difference(*(compute_per_user(name, run_ranks[protocol]) for run_ranks in ranks))
            for name in names
        }
        for protocol in ranks[0]
        if protocol in ranks[1]
    }
