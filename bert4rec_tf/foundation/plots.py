"""Plots, if matplotlib is installed (extra `plots`)."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

METRIC = "ndcg@10"
"""What of a curve is shown beside the loss."""

GROUPS = 5
"""The most groups of users in a panel."""


def is_available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def require() -> None:
    """Raises UserError if there is no matplotlib to plot with."""
    if not is_available():
        raise UserError("`plot` needs matplotlib: pip install 'bert4rec-tf[plots]'")


def plot_curve(path: Path, curve: Sequence[dict[str, float]], title: str) -> None:
    """Writes a PNG of the loss and NDCG@10 by step. `curve`: as `training.loop.State.curve`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    _draw_curve(figure.add_subplot(title=title), curve)
    with files.atomic_write(path) as temp_path:
        figure.savefig(temp_path, format="png", dpi=120, metadata={"Software": None})


def _draw_curve(
    axes: Any, curve: Sequence[dict[str, float]], metric_title: str = "NDCG@10 on the validation items"
) -> None:
    steps, style = [row["step"] for row in curve], {"marker": "."}
    lines = axes.plot(steps, [row["loss"] for row in curve], color="black", label="loss", **style)
    axes.set(xlabel="step", ylabel="training loss")
    if METRIC in curve[0]:
        right_axes = axes.twinx()
        right_axes.set(ylabel=metric_title)
        lines += right_axes.plot(steps, [row[METRIC] for row in curve], label="NDCG@10", **style)
        right_axes.set_ylim(bottom=0)
    axes.legend(handles=lines, loc="center right")
    axes.grid(alpha=0.3)


def plot_folds(folds: Any, title: str) -> Any:
    """Returns a figure of a metric by fold and model, with intervals. `folds`: as `CrossValidation.folds`."""
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(8, 4), layout="constrained")
    axes, metric = figure.subplots(), folds.columns[1]
    for model, rows in folds.groupby("model", sort=False):
        values = rows[metric]
        errors = np.stack([values - rows["low"], rows["high"] - values])
        axes.errorbar(
            rows.index.get_level_values("fold").astype(str), values, errors, marker="o", capsize=4, label=model
        )
    axes.set(xlabel="period, the newest last", ylabel=metric, title=title)
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)
    pyplot.close(figure)
    return figure


def plot_quality(
    curve: Sequence[dict[str, float]],
    values: Mapping[str, np.ndarray],
    traits: Mapping[str, np.ndarray],
    title: str,
    metric_title: str,
) -> Any:
    """Returns a figure of the training curve, if it has two points, and of the mean metric of users who are alike.

    A notebook shows it.

    Args:
        curve: as for `plot_curve`; empty for a model that only counts.
        values: name of a model -> the metric of each user, float [k].
        traits: name of a panel -> int [k]. Users are parted at its quantiles into at most GROUPS groups.
        title: names the metric too.
        metric_title: what the curve's metric is.
    """
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(14, 4), layout="constrained")
    has_curve = len(curve) > 1
    panels = figure.subplots(1, len(traits) + has_curve).tolist()
    if has_curve:
        _draw_curve(panels.pop(0), curve, metric_title)
    for axes, (trait, numbers) in zip(panels, traits.items()):
        edges = np.quantile(numbers, np.arange(1, GROUPS) / GROUPS, method="inverted_cdf")
        _, groups = np.unique(np.searchsorted(edges, numbers), return_inverse=True)
        sizes = np.bincount(groups)
        for name, metric in values.items():
            axes.plot(np.bincount(groups, metric) / sizes, marker="o", label=name)
        spans = [(numbers[groups == group].min(), numbers[groups == group].max()) for group in range(len(sizes))]
        axes.set_xticks(range(len(sizes)), [f"{low}" if low == high else f"{low} to {high}" for low, high in spans])
        axes.set(xlabel=trait)
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    pyplot.close(figure)  # else a notebook shows it twice
    return figure
