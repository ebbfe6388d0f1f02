"""The report's tables: rows of our results, each followed by the paper's numbers and the differences."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import FULL, LIST_METRICS, NDCG, POPULAR, UNIFORM
from experiments.findings import ALPHA, SAMPLES, Findings
from experiments.tables import MODELS, TABLES

NOT_RUN = "not run"
PAPER, DIFFERENCE = "- paper", "- difference"
LARGE_DROP = 0.9
"""Table 5 marks results below this share of the default."""

METRIC_TITLES = {SAMPLES: "samples/s"}
PROTOCOL_TITLES = {POPULAR: "100 popular", UNIFORM: "100 uniform", FULL: "all unseen items"}
FORMATS = {SAMPLES: ",.0f", ALPHA: ".2g"}
"""Metric -> the format of its values, other than .4f."""


class Cell(NamedTuple):
    """The text of a cell, and the value that it shows; NaN is not compared."""

    text: str
    value: float = math.nan
    bold: bool = False
    underlined: bool = False


class Grid(NamedTuple):
    """A table. Its first column has the rows' labels."""

    header: list[str]
    rows: Sequence[list[Cell]]
    caption: str = ""


Mark = Callable[[Sequence[Cell]], Sequence[Cell]]
"""The cells of a row or column -> the same, some of them marked."""


class Layout(NamedTuple):
    """How the results of a table become grids.

    Attributes:
        row, column: the labels. They name `{metric}`, `{protocol}`, `{dataset}`, `{variant}` (its title) and, if the
            title has a comma, what is before and behind it, `{model}` and `{width}`.
        mark: marks the cells of each row or, with `down`, of each column.
        is_joint: whether all data sets share a grid; else each has its own.
        metrics: in place of the table's.
        protocols: sets of candidates.
        caption: what the results are, for grids of one data set.
    """

    row: str
    column: str
    mark: Mark
    down: bool = False
    is_joint: bool = False
    metrics: tuple[str, ...] | None = None
    protocols: tuple[str, ...] = (POPULAR,)
    caption: str = "results for the test items, each ranked among 100 popular items"


def find_title(dataset: str) -> str:
    return datasets.find_dataset(dataset).title


def format_value(value: float, metric: str = "") -> str:
    return NOT_RUN if math.isnan(value) else f"{value:{FORMATS.get(metric, '.4f')}}"


def format_difference(value: float, paper_value: float, metric: str = "") -> str:
    difference = value - paper_value
    return "" if math.isnan(difference) else f"{difference:+{FORMATS.get(metric, '.4f')}}"


def compute_gain(findings: Findings, dataset: str, metric: str) -> float:
    """Returns BERT4Rec's relative gain over the paper's best other model.

    NaN if a model's result is missing, or the best other one is 0.
    """
    *rival_means, mean = findings.compute_means(list(MODELS), [metric], [dataset])[0, 0]
    best = np.max(rival_means)
    return math.nan if best == 0 else mean / best - 1


def mark_none(cells: Sequence[Cell]) -> Sequence[Cell]:
    return cells


def mark_best_two(cells: Sequence[Cell]) -> list[Cell]:
    """Makes the best values bold and the second best underlined. If all known values are equal, marks none."""
    values = sorted({cell.value for cell in cells if not math.isnan(cell.value)}, reverse=True)
    best, second = values[:2] if len(values) > 1 else (math.nan, math.nan)
    return [cell._replace(bold=cell.value == best, underlined=cell.value == second) for cell in cells]


def mark_best(cells: Sequence[Cell]) -> list[Cell]:
    """Makes the best values bold."""
    return [cell._replace(underlined=False) for cell in mark_best_two(cells)]


def mark_beside_first(cells: Sequence[Cell]) -> list[Cell]:
    """Makes values above the first one bold, and adds an arrow to values far below it."""
    first = cells[0].value
    return [
        cell._replace(text=cell.text + " ↓" * (cell.value < LARGE_DROP * first), bold=cell.value > first)
        for cell in cells
    ]


def _read_ours(findings: Findings, dataset: str, variant: str, metric: str, protocol: str) -> Cell:
    if (dataset, variant) not in findings.runs:
        return Cell("")
    values = findings.list_values(dataset, variant, metric, protocol)
    mean = findings.compute_mean(dataset, variant, metric, protocol)
    spread = f" ± {format_value(float(np.std(values, ddof=1)), metric)}" if len(values) > 1 else ""
    return Cell(format_value(mean, metric) + spread, mean)


def _read_published(findings: Findings, dataset: str, variant: str, metric: str, protocol: str) -> Cell:
    value = findings.find_published(dataset, variant, metric, protocol)
    return Cell("" if math.isnan(value) else format_value(value, metric), value)


def make_grids(findings: Findings, layout: Layout) -> list[Grid]:
    """Returns the grids of a table. Below a row follow the paper's results, if there are any, and the differences."""
    names = findings.list_measured_datasets()
    return [_make_grid(findings, layout, group) for group in ([names] if layout.is_joint else zip(names)) if group]


def _make_grid(findings: Findings, layout: Layout, names: Sequence[str]) -> Grid:
    table = TABLES[findings.name]
    places: dict[str, dict[str, tuple[str, str, str, str]]] = {}
    for protocol, dataset, metric in itertools.product(layout.protocols, names, layout.metrics or table.metrics):
        for key in table.variants if layout.is_joint else findings.list_variants(dataset):
            title = table.variants[key].title
            model, _, width = title.partition(", ")
            labels = {"variant": title, "model": model, "width": width, "dataset": find_title(dataset)}
            labels |= {"metric": METRIC_TITLES.get(metric, metric.upper()), "protocol": PROTOCOL_TITLES[protocol]}
            row = places.setdefault(layout.row.format(**labels), {})
            row[layout.column.format(**labels)] = dataset, key, metric, protocol
    header = ["", *next(iter(places.values()))]
    places = {label: row for label, row in places.items() if any(place[:2] in findings.runs for place in row.values())}
    metrics = [next(iter(row.values()))[2] for row in places.values()]
    our_rows, paper_rows = (
        _mark_cells([[read(findings, *place) for place in row.values()] for row in places.values()], metrics, layout)
        for read in (_read_ours, _read_published)
    )
    rows: list[list[Cell]] = []
    for label, metric, our_cells, paper_cells in zip(places, metrics, our_rows, paper_rows):
        rows.append([Cell(label), *our_cells])
        if any(cell.text for cell in paper_cells):
            pairs = zip(our_cells, paper_cells)
            differences = [format_difference(cell.value, paper_cell.value, metric) for cell, paper_cell in pairs]
            rows += [[Cell(PAPER), *paper_cells], [Cell(DIFFERENCE), *map(Cell, differences)]]
    subject = ", ".join(map(str.upper, table.metrics)) if layout.is_joint else find_title(names[0])
    return Grid(header, rows, f"{subject}: {layout.caption}")


def _mark_cells(rows: Sequence[Sequence[Cell]], metrics: Sequence[str], layout: Layout) -> Iterable[Sequence[Cell]]:
    if layout.down:
        return zip(*map(layout.mark, zip(*rows)))
    # being faster does not make a model better
    return [row if metric == SAMPLES else layout.mark(row) for metric, row in zip(metrics, rows)]


def _make_table2(findings: Findings) -> list[Grid]:
    """Returns the grids of the paper's protocol with the gains, of the other protocols, and of further measurements."""
    names = findings.list_measured_datasets()
    grids = make_grids(findings, Layout("{metric}", "{variant}", mark_best_two))
    for dataset, grid in zip(names, grids):
        grid.header.append("gain")
        metric = ""
        for row in grid.rows:
            label, text = row[0].text, ""
            if label == PAPER:
                text = f"{read_paper()['improvements'][dataset][metric]:+.2%}"
            elif label != DIFFERENCE:
                metric = label.lower()
                gain = compute_gain(findings, dataset, metric)
                text = NOT_RUN if math.isnan(gain) else f"{gain:+.2%}"
            row.append(Cell(text))
    other_protocols = Layout(
        "{metric}, {protocol}",
        "{variant}",
        mark_best_two,
        metrics=("hr@10", "ndcg@10"),
        protocols=(UNIFORM, FULL),
        caption="results for the test items among 100 uniform or all unseen items",
    )
    extra_grids = [grid for dataset in names for grid in _make_further_grids(findings, dataset)]
    return [*grids, *make_grids(findings, other_protocols), *extra_grids]


def _make_further_grids(findings: Findings, dataset: str) -> list[Grid]:
    """Returns NDCG@10 without and with the popularity correction, and LIST_METRICS, as far as a run has them."""

    def make_row(label: str, metric: str, protocol: str = POPULAR, is_corrected: bool = False) -> list[Cell]:
        values = [findings.compute_mean(dataset, model, metric, protocol, is_corrected) for model in models]
        cells = [Cell(format_value(value, metric), value) for value in values]
        return [Cell(label), *(mark_best_two(cells) if metric == NDCG else cells)]

    models = findings.list_variants(dataset)
    corrections, list_rows = [make_row(ALPHA, ALPHA)], []
    for protocol, title in PROTOCOL_TITLES.items():
        corrections.append(make_row(f"{title}, alpha 0", NDCG, protocol))
        corrections.append(make_row(f"{title}, alpha as above", NDCG, protocol, is_corrected=True))
        list_rows += [make_row(f"{metric}, {title}", metric, protocol) for metric in LIST_METRICS]
    header = ["", *(TABLES[findings.name].variants[model].title for model in models)]
    title = find_title(dataset)
    grids = [
        Grid(header, corrections, f"{title}: NDCG@10 of the test items with and without alpha"),
        Grid(
            header,
            list_rows,
            f"{title}, what is recommended: share of items, mean actions / users, mean log2(users / actions)",
        ),
    ]
    return [grid for grid in grids if any(cell.text != NOT_RUN for cell in grid.rows[0][1:])]


GRIDS: dict[str, Callable[[Findings], list[Grid]] | Layout] = {
    "table2": _make_table2,
    "table3": Layout("{variant}", "{dataset} {metric}", mark_best_two, down=True, is_joint=True),
    "table4": Layout("{metric}", "{variant}", mark_best_two, metrics=(SAMPLES, "hr@10", "ndcg@10")),
    "table5": Layout("{variant}", "{dataset}", mark_beside_first, down=True, is_joint=True),
    "figure3": Layout("{metric} {model}", "{width}", mark_none),
    "figure4": Layout("{variant}", "{metric}", mark_best, down=True),
}
"""Table -> the layout of its grids, or the function that makes them. Table 1 has `describe_statistics`."""


def make_all_grids(findings: Findings) -> list[Grid]:
    """Returns the grids of a table or figure; none if it has only pictures."""
    entry = GRIDS.get(findings.name, lambda _: [])
    return make_grids(findings, entry) if isinstance(entry, Layout) else entry(findings)


def describe_statistics(statistics: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[Grid]]:
    """Returns remarks on the data sets, and the grid of Table 1. `statistics`: data set -> its row."""
    header = ("users", "items", "actions", "mean length", "density")
    rows: list[list[str]] = []
    for dataset in dict.fromkeys((*TABLES["table1"].datasets, *statistics)):
        facts, paper_row = statistics.get(dataset), read_paper()["table1"].get(dataset)
        rows.append([find_title(dataset), *([facts[name] for name in header] if facts else [NOT_RUN] * len(header))])
        if paper_row:
            counts = [f"{paper_row['users']:,}", f"{paper_row['items']:,}", paper_row["actions"]]
            rows.append([PAPER, *counts, f"{paper_row['mean_length']:.1f}", paper_row["density"]])
        if paper_row and facts:
            rows.append([DIFFERENCE, *map(_subtract, rows[-2][1:], rows[-1][1:])])
    remarks = [remark for dataset in statistics if (remark := datasets.find_dataset(dataset).remark) is not None]
    return remarks, [Grid(["", *header], [list(map(Cell, row)) for row in rows])]


def _subtract(text: str, paper_text: str) -> str:
    """Returns the difference of two printed numbers with the digits and the unit (m or %) of the published one."""
    unit = paper_text[-1] if paper_text[-1] in "m%" else ""
    number = paper_text.removesuffix(unit).replace(",", "")
    digits = len(number.partition(".")[2])
    value = float(text.removesuffix("%").replace(",", "")) / (1e6 if unit == "m" else 1)
    return f"{round(value, digits) - float(number):+,.{digits}f}{unit}"
