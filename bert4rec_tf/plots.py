"""Pictures, where matplotlib is installed (extra `plots`)."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from bert4rec_tf import files


def available() -> bool:
    """Tells whether pictures can be made."""
    return importlib.util.find_spec("matplotlib") is not None


def plot_curve(path: Path, curve: Sequence[dict[str, float]], title: str) -> None:
    """Draws the loss and the validation metrics over the steps.

    Args:
        path: ends in `.png`.
        curve: rows with `step`, `loss` and metrics, as `training.State.curve`.
        title: above the picture.
    """
    from matplotlib.figure import Figure

    steps = [row["step"] for row in curve]
    metrics = [name for name in curve[0] if name not in ("step", "seconds", "loss")]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    lines = axes.plot(steps, [row["loss"] for row in curve], color="black", marker=".", label="loss")
    axes.set(title=title, xlabel="step", ylabel="training loss")
    if metrics:
        right = axes.twinx()
        right.set(ylabel="validation item, 100 popular negatives", ylim=(0, None))
        for name in metrics:
            lines += right.plot(steps, [row[name] for row in curve], marker=".", label=name)
        right.set_ylim(bottom=0)
    axes.legend(handles=lines, loc="center right")
    axes.grid(alpha=0.3)
    with files.whole_file(path) as aside:
        figure.savefig(aside, format="png", dpi=120, metadata={"Software": None})
