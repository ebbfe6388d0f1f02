"""The report's tables: rows of our results, each followed by the paper's numbers and the differences."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import FULL, LIST_METRICS, NDCG, POPULAR, UNIFORM
from experiments.findings import SAMPLES, Findings
from experiments.tables import MODELS, TABLES

NOT_RUN = "not run"
ELSEWHERE = "†"
"""Marks a number that was measured on another data file than the others."""

PAPER, DIFFERENCE = "- paper", "- difference"
LARGE_DROP = 0.9
"""Table 5 marks results below this share of the default."""

AMONG_POPULAR = "results for the test items, each ranked among 100 popular items"
METRIC_TITLES = {SAMPLES: "samples/s"}
PROTOCOL_TITLES = {POPULAR: "100 popular", UNIFORM: "100 uniform", FULL: "all unseen items"}


class Text(NamedTuple):
    """The content of a cell."""

    text: str
    bold: bool = False
    underlined: bool = False


class Grid(NamedTuple):
    """A table. Its first column has the rows' labels."""

    header: Sequence[str]
    rows: Sequence[list[Text]]
    caption: str = ""


Value = float | None
Place = tuple[str, str, str, str]
"""A cell's data set, variant, metric and protocol."""

Mark = Callable[[Sequence[Value], Sequence[str]], Iterable[Text]]
"""(values, texts) of a row or column -> its cells, some of them marked."""


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
    caption: str = AMONG_POPULAR


def find_title(dataset: str) -> str:
    return datasets.find_dataset(dataset).title


def format_value(value: Value, metric: str = "") -> str:
    if value is None:
        return NOT_RUN
    return f"{value:,.0f}" if metric == SAMPLES else f"{value:.4f}"


def format_difference(value: Value, published: Value, metric: str = "") -> str:
    if value is None or published is None:
        return ""
    return f"{value - published:+,.0f}" if metric == SAMPLES else f"{value - published:+.4f}"


def compute_gain(findings: Findings, dataset: str, metric: str) -> Value:
    """Returns BERT4Rec's relative gain over the paper's best other model.

    None if a model's result is missing, the results are of different data files, or the best other one is 0.
    """
    *others, ours = (findings.compute_mean(dataset, model, metric) for model in MODELS)
    if ours is None or None in others or not max(others):
        return None
    if len({findings.is_elsewhere(dataset, model) for model in MODELS}) > 1:
        return None
    return ours / max(others) - 1


def mark_none(values: Sequence[Value], texts: Sequence[str]) -> Iterable[Text]:
    return map(Text, texts)


def mark_best_two(values: Sequence[Value], texts: Sequence[str]) -> Iterable[Text]:
    """Makes the best values bold and the second best underlined. If all known values are equal, marks none."""
    ordered = sorted({value for value in values if value is not None}, reverse=True)
    best, second = ordered[:2] if len(ordered) > 1 else (None, None)
    for value, text in zip(values, texts):
        yield Text(text, value is not None and value == best, value is not None and value == second)


def mark_best(values: Sequence[Value], texts: Sequence[str]) -> Iterable[Text]:
    """Makes the best values bold."""
    return (Text(text, bold) for text, bold, _ in mark_best_two(values, texts))


def mark_beside_first(values: Sequence[Value], texts: Sequence[str]) -> Iterable[Text]:
    """Makes values above the first one bold, and adds an arrow to values far below it."""
    for value, text in zip(values, texts):
        first = value if value is None or values[0] is None else values[0]
        is_low = value is not None and value < LARGE_DROP * first
        yield Text(text + " ↓" * is_low, value is not None and value > first)


def _mark_cells(rows: Sequence[Sequence[tuple[Value, str]]], mark: Mark, down: bool) -> list[list[Text]]:
    """Returns the cells of rows of (value, text), marked row by row or, with `down`, column by column."""
    cells = [list(mark(*zip(*line))) for line in (zip(*rows) if down else rows)]
    return list(map(list, zip(*cells))) if down else cells


def _read_ours(findings: Findings, place: Place) -> tuple[Value, str]:
    if (place[0], place[1]) not in findings.runs:
        return None, ""
    values, metric = findings.list_values(*place), place[2]
    spread = f" ± {format_value(float(np.std(values, ddof=1)), metric)}" if len(values) > 1 else ""
    mark = ELSEWHERE * findings.is_elsewhere(*place[:2])
    return findings.compute_mean(*place), format_value(findings.compute_mean(*place), metric) + spread + mark


def _read_published(findings: Findings, place: Place) -> tuple[Value, str]:
    value = findings.find_published(*place)
    return value, "" if value is None else format_value(value, place[2])


def _lay_out(findings: Findings, layout: Layout, names: Sequence[str]) -> tuple[list[str], dict[str, list[Place]]]:
    """Returns the labels of the columns, and label -> the places of a row. Rows without a run are left out."""
    table = TABLES[findings.name]
    columns: dict[str, None] = {}
    rows: dict[str, list[Place]] = {}
    for protocol, dataset, metric in itertools.product(layout.protocols, names, layout.metrics or table.metrics):
        for key in table.variants if layout.is_joint else findings.list_variants(dataset):
            title = table.variants[key].title
            model, _, width = title.partition(", ")
            labels = {"variant": title, "model": model, "width": width, "dataset": find_title(dataset)}
            labels |= {"metric": METRIC_TITLES.get(metric, metric.upper()), "protocol": PROTOCOL_TITLES[protocol]}
            columns[layout.column.format(**labels)] = None
            rows.setdefault(layout.row.format(**labels), []).append((dataset, key, metric, protocol))
    with_runs = {label: row for label, row in rows.items() if any(place[:2] in findings.runs for place in row)}
    return list(columns), with_runs


def make_grids(findings: Findings, layout: Layout) -> list[Grid]:
    """Returns the grids of a table. Below a row follow the paper's results, if there are any, and the differences."""
    names = findings.list_measured_datasets()
    return [_make_grid(findings, layout, group) for group in ([names] if layout.is_joint else zip(names)) if group]


def _make_grid(findings: Findings, layout: Layout, names: Sequence[str]) -> Grid:
    columns, places_of_rows = _lay_out(findings, layout, names)
    our_rows, paper_rows = (
        [[read(findings, place) for place in places] for places in places_of_rows.values()]
        for read in (_read_ours, _read_published)
    )
    marked = [_mark_cells(cells, layout.mark, layout.down) for cells in (our_rows, paper_rows)]
    rows: list[list[Text]] = []
    for (label, places), our_cells, paper_cells, *cells in zip(places_of_rows.items(), our_rows, paper_rows, *marked):
        if places[0][2] == SAMPLES:  # being faster does not make a model better
            cells = [[Text(text) for _, text in row] for row in (our_cells, paper_cells)]
        rows.append([Text(label), *cells[0]])
        if any(value is not None for value, _ in paper_cells):
            rows.append([Text(PAPER), *cells[1]])
            pairs = zip(our_cells, paper_cells, places)
            differences = [format_difference(value, other, place[2]) for (value, _), (other, _), place in pairs]
            rows.append([Text(DIFFERENCE), *map(Text, differences)])
    metrics = ", ".join(map(str.upper, TABLES[findings.name].metrics))
    return Grid(["", *columns], rows, f"{metrics if layout.is_joint else find_title(names[0])}: {layout.caption}")


def _list_models(findings: Findings, dataset: str) -> dict[str, str]:
    """Returns model -> title, for the models that Table 2 has on a data set."""
    return {model: TABLES["table2"].variants[model].title for model in findings.list_variants(dataset)}


def _make_table2(findings: Findings) -> list[Grid]:
    """Returns the grids of the paper's protocol with the gains, of the other protocols, and of further measurements."""
    grids = make_grids(findings, Layout("{metric}", "{variant}", mark_best_two))
    for dataset, made in zip(findings.list_measured_datasets(), grids):
        made.header.append("gain")
        for row in made.rows:
            label = row[0].text
            if label not in (PAPER, DIFFERENCE):
                metric = label.lower()
                ours = compute_gain(findings, dataset, metric)
                last = NOT_RUN if ours is None else f"{ours:+.2%}"
            else:
                last = f"{read_paper()['improvements'][dataset][metric]:+.2%}" if label == PAPER else ""
            row.append(Text(last))
    other_protocols = Layout(
        "{metric}, {protocol}",
        "{variant}",
        mark_best_two,
        metrics=("hr@10", "ndcg@10"),
        protocols=(UNIFORM, FULL),
        caption="results for the test items among 100 uniform or all unseen items",
    )
    more = (
        made(findings, dataset)
        for dataset in findings.list_measured_datasets()
        for made in (_make_corrected_grid, _make_recommended_grid)
    )
    return [*grids, *make_grids(findings, other_protocols), *(one for one in more if one)]


def _make_corrected_grid(findings: Findings, dataset: str) -> Grid | None:
    """Returns NDCG@10 without and with the best popularity correction; None if no run was measured with one."""
    columns = _list_models(findings, dataset)
    alphas = [findings.compute_mean_alpha(dataset, model) for model in columns]
    if not any(alpha is not None for alpha in alphas):
        return None
    rows = [[Text("alpha"), *(Text(NOT_RUN if alpha is None else f"{alpha:.2g}") for alpha in alphas)]]
    for protocol, title in PROTOCOL_TITLES.items():
        plain = [findings.compute_mean(dataset, model, NDCG, protocol) for model in columns]
        others = [findings.compute_corrected_mean(dataset, model, NDCG, protocol) for model in columns]
        for label, values in ((f"{title}, alpha 0", plain), (f"{title}, alpha as above", others)):
            rows.append([Text(label), *mark_best_two(values, [format_value(value) for value in values])])
    return Grid(
        ["", *columns.values()], rows, f"{find_title(dataset)}: NDCG@10 of the test items with and without alpha"
    )


def _make_recommended_grid(findings: Findings, dataset: str) -> Grid | None:
    """Returns LIST_METRICS of the recommended items, under every protocol; None if no run has them."""
    columns, rows = _list_models(findings, dataset), []
    for protocol, title in PROTOCOL_TITLES.items():
        for metric in LIST_METRICS:
            values = [findings.compute_mean(dataset, model, metric, protocol) for model in columns]
            rows.append([Text(f"{metric}, {title}"), *(Text(format_value(value)) for value in values)])
    measured = any(findings.compute_mean(dataset, model, LIST_METRICS[0]) is not None for model in columns)
    caption = (
        f"{find_title(dataset)}, what is recommended: share of items, mean actions / users, mean log2(users / actions)"
    )
    return Grid(["", *columns.values()], rows, caption) if measured else None


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
    made = GRIDS.get(findings.name)
    if made is None:
        return []
    return make_grids(findings, made) if isinstance(made, Layout) else made(findings)


def describe_statistics(statistics: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[Grid]]:
    """Returns remarks on the data sets, and the grid of Table 1. `statistics`: data set -> its row."""
    header = ("users", "items", "actions", "mean length", "density")
    rows: list[list[str]] = []
    for dataset in dict.fromkeys((*TABLES["table1"].datasets, *statistics)):
        measured, published = statistics.get(dataset), read_paper()["table1"].get(dataset)
        rows.append(
            [find_title(dataset), *([measured[key] for key in header] if measured else [NOT_RUN] * len(header))]
        )
        if published:
            counts = (f"{published['users']:,}", f"{published['items']:,}", published["actions"])
            rows.append([PAPER, *counts, f"{published['mean_length']:.1f}", published["density"]])
        if published and measured:
            rows.append([DIFFERENCE, *_compare_with_table1(measured, published)])
    remarks = [remark for dataset in statistics if (remark := datasets.find_dataset(dataset).remark) is not None]
    return remarks, [Grid(["", *header], [list(map(Text, row)) for row in rows])]


def _compare_with_table1(measured: Mapping[str, str], published: Mapping[str, Any]) -> list[str]:
    """Returns the differences from the paper's row, each with as many digits as the paper prints."""
    users, items, actions = (int(measured[key].replace(",", "")) for key in ("users", "items", "actions"))
    millions, digits = datasets.parse_millions(published["actions"])
    density, of_paper = (float(text.removesuffix("%")) for text in (measured["density"], published["density"]))
    return [
        f"{users - published['users']:+,}",
        f"{items - published['items']:+,}",
        f"{round(actions / 1e6, digits) - millions:+.{digits}f}m",
        f"{float(measured['mean length']) - published['mean_length']:+.1f}",
        f"{density - of_paper:+.2f}%",
    ]
