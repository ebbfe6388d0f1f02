"""Plots, if matplotlib is installed (extra `plots`)."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bert4rec_tf.foundation import files


def is_available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def plot_curve(path: Path, curve: Sequence[dict[str, float]], title: str) -> None:
    """Writes a PNG of the loss and the validation metrics by step. `curve`: as `training.trainer.State.curve`."""
    from matplotlib.figure import Figure

    steps = [row["step"] for row in curve]
    metrics = [name for name in curve[0] if name not in ("step", "seconds", "loss")]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    lines = axes.plot(steps, [row["loss"] for row in curve], color="black", marker=".", label="loss")
    axes.set(title=title, xlabel="step", ylabel="training loss")
    if metrics:
        right = axes.twinx()
        right.set(ylabel="validation item, popular negatives", ylim=(0, None))
        for name in metrics:
            lines += right.plot(steps, [row[name] for row in curve], marker=".", label=name)
        right.set_ylim(bottom=0)
    axes.legend(handles=lines, loc="center right")
    axes.grid(alpha=0.3)
    with files.atomic_write(path) as aside:
        figure.savefig(aside, format="png", dpi=120, metadata={"Software": None})


def plot_ranked(path: Path, counts: Mapping[str, np.ndarray], title: str) -> None:
    """Writes a PNG of counts of actions on logarithmic axes. `counts`: name of a panel -> counts, descending."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, len(counts), squeeze=False)[0], counts.items()):
        axes.plot(np.arange(1, len(values) + 1), values, color="black")
        axes.set(xscale="log", yscale="log", xlabel=f"{name}, most active first", ylabel="actions")
        axes.set_title(f"{len(values):,} {name}, {np.mean(values):,.1f} actions each")
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    with files.atomic_write(path) as aside:
        figure.savefig(aside, format="png", dpi=120, metadata={"Software": None})
