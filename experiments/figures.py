"""Draws Figures 2 to 4 in the paper's arrangement (extra `plots`)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation import files, plots
from bert4rec_tf.foundation.progress import warn
from experiments.findings import Findings
from experiments.results import Results
from experiments.tables import MODELS, PROPORTIONS, SEQUENTIAL, TABLES, WIDTHS

Picture = tuple[str, str]
"""A file name beside the report, and what it shows."""


def draw(findings: Mapping[str, Findings], results: Results) -> dict[str, list[Picture]]:
    """Draws the figures that have results, into the results' folder. Returns figure -> pictures."""
    if not plots.is_available():
        warn("The figures need matplotlib: pip install '.[plots]'")
        return {}
    drawn = {}
    for name, make in (("figure2", draw_attention), ("figure3", draw_widths), ("figure4", draw_proportions)):
        if name in findings and any(findings[name].runs.values()):
            drawn[name] = make(findings[name], results.folder)
    return drawn


def draw_attention(findings: Findings, folder: Path) -> list[Picture]:
    """Draws Figure 2 of each data set: a heat map per layer and head, of the first finished seed."""
    from matplotlib.figure import Figure

    drawn = []
    for dataset in findings.list_measured_datasets():
        job = next(job for (of, _), some in findings.runs.items() if of == dataset for job, _ in some)
        content = files.read_json(Results(folder).attention_path(job.key))
        title = f"{datasets.find_dataset(dataset).title}, {content['users']:,} users"
        maps = np.asarray(content["attention"])
        layers, heads, positions, _ = maps.shape
        figure = Figure(figsize=(4 * heads + 1, 3.6 * layers), layout="constrained")
        figure.suptitle(title)
        for number in range(layers * heads):
            layer, head = divmod(number, heads)
            axes = figure.add_subplot(layers, heads, number + 1)
            image = axes.imshow(maps[layer, head], cmap="viridis", vmin=0)
            axes.set(title=f"layer {layer + 1}, head {head + 1}", xticks=range(positions), yticks=range(positions))
            figure.colorbar(image, ax=axes)
        name = f"figure2-{dataset}.png"
        _save(figure, folder / name)
        caption = f"{title}: mean attention in each layer and head; position {positions - 1} is the mask token"
        drawn.append((name, caption))
    return drawn


def draw_widths(findings: Findings, folder: Path) -> list[Picture]:
    """Draws Figure 3: a column per data set, HR@10 above NDCG@10, a curve per model over the width."""

    def draw_curves(axes: Any, dataset: str, metric: str) -> None:
        for model in SEQUENTIAL:
            values = [findings.compute_mean(dataset, f"{model}@{width}", metric) for width in WIDTHS]
            _draw_curve(axes, WIDTHS, values, MODELS[model])
        axes.set_xscale("log", base=2)
        axes.set_xticks(WIDTHS, labels=[str(width) for width in WIDTHS])
        axes.set_xlabel("d")

    return _draw_panels(
        findings, folder / "figure3.png", draw_curves, "HR@10 and NDCG@10 among 100 popular items, by the width d"
    )


def draw_proportions(findings: Findings, folder: Path) -> list[Picture]:
    """Draws Figure 4: a column per data set, HR@10 above NDCG@10, over rho."""

    def draw_curves(axes: Any, dataset: str, metric: str) -> None:
        values = [findings.compute_mean(dataset, str(rho), metric) for rho in PROPORTIONS]
        _draw_curve(axes, PROPORTIONS, values, "BERT4Rec", marks_best=True)
        axes.set_xticks(PROPORTIONS)
        axes.set_xlabel("rho")

    caption = "HR@10 and NDCG@10 among 100 popular items, by the mask proportion rho; the large symbol is the best"
    return _draw_panels(findings, folder / "figure4.png", draw_curves, caption)


def _draw_curve(
    axes: Any, places: Sequence[float], values: Sequence[float | None], label: str, marks_best: bool = False
) -> None:
    points = {place: value for place, value in zip(places, values) if value is not None}
    if not points:
        return
    (line,) = axes.plot(list(points), list(points.values()), marker="o", label=label)
    if marks_best and len(points) > 1:
        best = max(points, key=points.__getitem__)
        axes.plot([best], [points[best]], marker="o", markersize=2 * line.get_markersize(), color=line.get_color())


def _draw_panels(
    findings: Findings, path: Path, draw_curves: Callable[[Any, str, str], None], caption: str
) -> list[Picture]:
    """Draws a panel per data set and metric. Draws and returns nothing if no line has two points."""
    from matplotlib.figure import Figure

    names, metrics = findings.list_measured_datasets(), TABLES[findings.name].metrics
    figure = Figure(figsize=(4 * len(names), 6), layout="constrained")
    for row, metric in enumerate(metrics):
        for column, dataset in enumerate(names):
            axes = figure.add_subplot(len(metrics), len(names), row * len(names) + column + 1)
            draw_curves(axes, dataset, metric)
            axes.set(title=datasets.find_dataset(dataset).title, ylabel=metric.upper())
            axes.grid(alpha=0.3)
            if axes.lines and row == column == 0:
                axes.legend(fontsize="small")
    if all(len(line.get_xdata()) < 2 for axes in figure.axes for line in axes.lines):
        return []
    _save(figure, path)
    return [(path.name, caption)]


def _save(figure: Any, path: Path) -> None:
    files.make_folder(path.parent)
    with files.atomic_write(path) as aside:
        figure.savefig(aside, format="png", dpi=120, metadata={"Software": None})
