"""Time and memory by number of items, length of histories and number of users."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import lines, measuring, shapes
from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples import preparation
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation import candidates
from bert4rec_tf.foundation import files, plots

CATALOGUES = (10_000, 100_000, 1_000_000)
LENGTHS = (50, 100, 200, 400)
USERS = (1_000, 10_000, 100_000, 1_000_000)
ITEMS = 20_000

Curves = dict[str, dict[str, list[float]]]


def measure() -> Curves:
    """Measures, prints and returns the curves: name -> `x` and one list per figure."""
    return {"catalogue": measure_by_catalogue(), "length": measure_by_length(), "users": measure_by_users()}


def measure_by_catalogue() -> dict[str, list[float]]:
    """Measures the time and peak memory of a training step of 256 samples, by number of items."""
    return _measure_steps("catalogue", CATALOGUES, [(8_000, items, 50) for items in CATALOGUES])


def measure_by_length() -> dict[str, list[float]]:
    """Measures the same by length of histories, without padding."""
    return _measure_steps("length", LENGTHS, [(2_000, 5_000, length) for length in LENGTHS])


def measure_by_users() -> dict[str, list[float]]:
    """Measures the seconds to prepare examples and to draw candidates, by number of users."""
    seconds: dict[str, list[float]] = {"preparation seconds": [], "candidates seconds": []}
    masking = MaskingSettings(mask_proportion=0.6, max_predictions=30, window_step=0.1, mask_copies=1)
    for users in USERS:
        sequences = shapes.generate(users, ITEMS, 5, 8.8)
        split = LeaveOneOut(sequences)
        with tempfile.TemporaryDirectory() as folder:
            prepare = partial(preparation.prepare_shards, split.training(True), masking, 50, 1, Path(folder))
            seconds["preparation seconds"].append(measuring.once(prepare))
        draw = partial(candidates.draw_popular, sequences, split.users, 100, 0)
        seconds["candidates seconds"].append(measuring.once(draw))
    return _print_curve("users", USERS, seconds)


def _measure_steps(name: str, sizes: tuple[int, ...], data: list[tuple[int, int, int]]) -> dict[str, list[float]]:
    """`data`: for each size the users, items and length. Each is measured in a process of its own."""
    seconds, memory = zip(*(measuring.peak_memory(step_seconds, *one) for one in data))
    return _print_curve(name, sizes, {"step seconds": list(seconds), "peak GB": [peak / 1e9 for peak in memory]})


def step_seconds(users: int, items: int, length: int) -> float:
    """Returns the median seconds of a step. Histories are about `length` long; for 50, they are like Beauty's."""
    masking = MaskingSettings(mask_proportion=0.2, max_predictions=max(20, length // 5))
    shortest, mean = (5, 8.8) if length == 50 else (length, length + 2)
    shape = shapes.Shape(users, items, shortest, mean, length, masking)
    sequences = shapes.generate(users, items, shortest, mean)
    batch, _, _ = lines.make_batch(shape, sequences)
    step = lines.step_of(shape, items, "ours")
    return measuring.alternate({"step": lambda: float(step(batch)["loss"])}, rounds=3)["step"].median


def _print_curve(name: str, sizes: tuple[int, ...], figures: dict[str, list[float]]) -> dict[str, list[float]]:
    table = pd.DataFrame(figures, sizes).T.rename_axis(name)
    print(table.to_string(float_format="{:.3g}".format), end="\n\n", flush=True)
    return {"x": [float(size) for size in sizes], **figures}


def plot(curves: Curves, folder: Path) -> None:
    """Draws one plot per curve, on logarithmic axes. Without matplotlib, prints how to install it."""
    if not plots.is_available():
        print("The plots need matplotlib: pip install '.[plots]'")
        return
    from matplotlib.figure import Figure

    files.make_folder(folder)
    for name, curve in curves.items():
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        for label, values in curve.items():
            if label != "x":
                axes.plot(curve["x"], values, marker="o", label=label)
        axes.set(xscale="log", yscale="log", xlabel=name, title=f"growth with the {name}")
        axes.set_ylim(bottom=min(np.min(values) for label, values in curve.items() if label != "x") / 2)
        axes.legend()
        axes.grid(alpha=0.3)
        with files.atomic_write(folder / f"{name}.png") as aside:
            figure.savefig(aside, format="png", dpi=120)
