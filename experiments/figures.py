"""Draws Figures 2 to 4 in the paper's arrangement (extra `plots`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation import files, plots
from bert4rec_tf.foundation.warning import Bert4RecWarning, warn
from experiments.findings import Findings
from experiments.results import Results
from experiments.tables import MODELS, PROPORTIONS, SEQUENTIAL, TABLES, WIDTHS

Picture = tuple[str, str]
"""A file name beside the report, and what it shows."""


def draw(findings: Mapping[str, Findings], results: Results) -> dict[str, list[Picture]]:
    """Draws the figures that have results, into the results' folder. Returns figure -> pictures."""
    if not plots.is_available():
        warn("The figures need matplotlib: pip install '.[plots]'", Bert4RecWarning)
        return {}
    makers = {"figure2": draw_attention, "figure3": draw_widths, "figure4": draw_proportions}
    return {
        name: make(findings[name], results)
        for name, make in makers.items()
        if name in findings and any(findings[name].runs.values())
    }


def draw_attention(findings: Findings, results: Results) -> list[Picture]:
    """Draws Figure 2 of each data set: a heat map per layer and head, of the first finished seed."""
    from matplotlib.figure import Figure

    pictures = []
    for dataset in findings.list_measured_datasets():
        (variant,) = findings.list_variants(dataset)
        content = files.read_json(results.attention_path(findings.list_lines(dataset, variant)[0]["key"]))
        title = f"{datasets.find_dataset(dataset).title}, {content['users']:,} users"
        maps = np.asarray(content["attention"])
        layers, heads, positions, _ = maps.shape
        figure = Figure(figsize=(4 * heads + 1, 3.6 * layers), layout="constrained")
        figure.suptitle(title)
        for (layer, head), axes in np.ndenumerate(figure.subplots(layers, heads, squeeze=False)):
            image = axes.imshow(maps[layer, head], cmap="viridis", vmin=0)
            axes.set(title=f"layer {layer + 1}, head {head + 1}", xticks=range(positions), yticks=range(positions))
            figure.colorbar(image, ax=axes)
        caption = f"{title}: mean attention in each layer and head; position {positions - 1} is the mask token"
        pictures.append(_save(figure, locate(results, findings, f"figure2-{dataset}", "png"), caption))
    return pictures


def locate(results: Results, findings: Findings, name: str, form: str) -> Path:
    """Returns the path of a file of the report, whose name ends with the preset of BERT4Rec, if not the usual one."""
    preset = findings.plan.preset
    return results.folder / f"{name}{'' if preset == 'fast' else f'-{preset}'}.{form}"


def draw_widths(findings: Findings, results: Results) -> list[Picture]:
    """Draws Figure 3: a curve per model over the width."""
    variants = {MODELS[model]: [f"{model}@{width}" for width in WIDTHS] for model in SEQUENTIAL}
    caption = "HR@10 and NDCG@10 among 100 popular items, by the width d"
    path = locate(results, findings, "figure3", "png")
    return _draw_curves(findings, path, "d", WIDTHS, variants, caption)


def draw_proportions(findings: Findings, results: Results) -> list[Picture]:
    """Draws Figure 4: BERT4Rec over rho."""
    variants = {"BERT4Rec": list(map(str, PROPORTIONS))}
    caption = "HR@10 and NDCG@10 among 100 popular items, by the mask proportion rho; the large symbol is the best"
    path = locate(results, findings, "figure4", "png")
    return _draw_curves(findings, path, "rho", PROPORTIONS, variants, caption)


def _draw_curves(
    findings: Findings,
    path: Path,
    label: str,
    places: Sequence[float],
    curves: Mapping[str, Sequence[str]],
    caption: str,
) -> list[Picture]:
    """Draws a column per data set, with HR@10 above NDCG@10. Draws and returns nothing if no curve has two points.

    Args:
        findings: the figure.
        path: the file.
        label: what the x axis shows, at equal distances.
        places: the values of x.
        curves: title -> the variant at each of `places`. If there is a single curve, its best point is large.
        caption: the picture's.
    """
    from matplotlib.figure import Figure

    names, metrics = findings.list_measured_datasets(), TABLES[findings.name].metrics
    figure = Figure(figsize=(4 * len(names), 6), layout="constrained")
    for (row, column), axes in np.ndenumerate(figure.subplots(len(metrics), len(names), squeeze=False)):
        for title, variants in curves.items():
            values = findings.compute_means(variants, [metrics[row]], [names[column]])[0, 0]
            (indices,) = np.nonzero(~np.isnan(values))
            if len(indices):
                (line,) = axes.plot(indices, values[indices], marker="o", label=title)
            if len(curves) == 1 and len(indices) > 1:
                best, size = np.nanargmax(values), 2 * line.get_markersize()
                axes.plot([best], [values[best]], marker="o", markersize=size, color=line.get_color())
        axes.set_xticks(range(len(places)), labels=list(map(str, places)))
        axes.set(title=datasets.find_dataset(names[column]).title, xlabel=label, ylabel=metrics[row].upper())
        axes.grid(alpha=0.3)
        if axes.lines and row == column == 0:
            axes.legend(fontsize="small")
    if all(np.size(line.get_xdata()) < 2 for axes in figure.axes for line in axes.lines):
        return []
    return [_save(figure, path, caption)]


def _save(figure: Any, path: Path, caption: str) -> Picture:
    files.make_folder(path.parent)
    with files.atomic_write(path) as temp_path:
        figure.savefig(temp_path, format="png", dpi=120, metadata={"Software": None})
    return path.name, caption
