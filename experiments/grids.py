"""The report's tables: rows of our results, each followed by the paper's numbers and the differences."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import FULL, LIST_METRICS, METRICS, NDCG, POPULAR, UNIFORM
from experiments.findings import SAMPLES, Findings
from experiments.tables import MODELS, TABLES

NOT_RUN = "not run"
ELSEWHERE = "†"
"""Marks a number that was measured on another data file than the others."""

PAPER, DIFFERENCE = "- paper", "- difference"
LARGE_DROP = 0.9
"""Table 5 marks results below this share of the default."""

AMONG_POPULAR = "results for the test items, each ranked among 100 popular items"
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
Place = Sequence[str]
"""A cell's data set, variant and metric, and its protocol if that is not the paper's."""

Layout = tuple[Iterable[str], Mapping[str, Sequence[Place]]]
"""The header of the columns, and label -> the places of a row."""

Mark = Callable[[Sequence[Value], Sequence[str]], Iterable[Text]]
"""(values, texts) of a row or column -> its cells, some of them marked."""


def title_of(dataset: str) -> str:
    return datasets.find_dataset(dataset).title


def shown(value: Value, metric: str = "") -> str:
    if value is None:
        return NOT_RUN
    return f"{value:,.0f}" if metric == SAMPLES else f"{value:.4f}"


def difference(value: Value, published: Value, metric: str = "") -> str:
    if value is None or published is None:
        return ""
    return f"{value - published:+,.0f}" if metric == SAMPLES else f"{value - published:+.4f}"


def gain(found: Findings, dataset: str, metric: str) -> Value:
    """Returns BERT4Rec's relative gain over the paper's best other model.

    None if a model's result is missing, the results are of different data files, or the best other one is 0.
    """
    *others, ours = (found.mean(dataset, model, metric) for model in MODELS)
    if ours is None or None in others or not max(others):
        return None
    if len({found.is_elsewhere(dataset, model) for model in MODELS}) > 1:
        return None
    return ours / max(others) - 1


def unmarked(values: Sequence[Value], texts: Sequence[str]) -> Iterable[Text]:
    return map(Text, texts)


def ranked(values: Sequence[Value], texts: Sequence[str]) -> Iterable[Text]:
    """Makes the best values bold and the second best underlined. If all known values are equal, marks none."""
    known = sorted({value for value in values if value is not None}, reverse=True)
    best, second = known[:2] if len(known) > 1 else (None, None)
    for value, text in zip(values, texts):
        yield Text(text, value is not None and value == best, value is not None and value == second)


def best(values: Sequence[Value], texts: Sequence[str]) -> Iterable[Text]:
    """Makes the best values bold."""
    return (Text(text, bold) for text, bold, _ in ranked(values, texts))


def beside_first(values: Sequence[Value], texts: Sequence[str]) -> Iterable[Text]:
    """Makes values above the first one bold, and adds an arrow to values far below it."""
    for value, text in zip(values, texts):
        first = value if value is None or values[0] is None else values[0]
        is_low = value is not None and value < LARGE_DROP * first
        yield Text(text + " ↓" * is_low, value is not None and value > first)


def _marked(rows: Sequence[Sequence[tuple[Value, str]]], mark: Mark, down: bool) -> list[list[Text]]:
    """Returns the cells of rows of (value, text), marked row by row or, with `down`, column by column."""
    cells = [list(mark(*zip(*line))) for line in (zip(*rows) if down else rows)]
    return list(map(list, zip(*cells))) if down else cells


def _ours(found: Findings, place: Place) -> tuple[Value, str]:
    if (place[0], place[1]) not in found.runs:
        return None, ""
    values, metric = found.values(*place), place[2]
    spread = f" ± {shown(float(np.std(values, ddof=1)), metric)}" if len(values) > 1 else ""
    mark = ELSEWHERE * found.is_elsewhere(*place[:2])
    return found.mean(*place), shown(found.mean(*place), metric) + spread + mark


def _theirs(found: Findings, place: Place) -> tuple[Value, str]:
    value = found.paper(*place)
    return value, "" if value is None else shown(value, place[2])


def grid(found: Findings, layout: Layout, mark: Mark, down: bool = False, caption: str = "") -> Grid:
    """Returns a table of results. Below a row follow the paper's results, if there are any, and the differences.

    Rows without a run of the table are left out. `mark` is applied to each row or, with `down`, to each column.
    """
    header, asked = layout
    kept = {label: row for label, row in asked.items() if any((place[0], place[1]) in found.runs for place in row)}
    ours, theirs = ([[one(found, place) for place in row] for row in kept.values()] for one in (_ours, _theirs))
    marked = [_marked(cells, mark, down) for cells in (ours, theirs)]
    rows: list[list[Text]] = []
    for (label, places), own, published, *cells in zip(kept.items(), ours, theirs, *marked):
        if places[0][2] == SAMPLES:  # being faster does not make a model better
            cells = [[Text(text) for _, text in row] for row in (own, published)]
        rows.append([Text(label), *cells[0]])
        if any(value is not None for value, _ in published):
            rows.append([Text(PAPER), *cells[1]])
            pairs = zip(own, published, places)
            differences = [difference(value, other, place[2]) for (value, _), (other, _), place in pairs]
            rows.append([Text(DIFFERENCE), *map(Text, differences)])
    return Grid(["", *header], rows, caption)


def _columns(found: Findings, dataset: str) -> dict[str, str]:
    """Returns model -> title, for the models that Table 2 has on a data set."""
    return {model: TABLES["table2"].variants[model] for model in found.variants(dataset)}


def _models(found: Findings, dataset: str) -> Layout:
    columns = _columns(found, dataset)
    return columns.values(), {metric.upper(): [(dataset, model, metric) for model in columns] for metric in METRICS}


def _protocols(found: Findings, dataset: str) -> Layout:
    columns = _columns(found, dataset)
    return columns.values(), {
        f"{metric.upper()}, {title}": [(dataset, model, metric, protocol) for model in columns]
        for protocol, title in PROTOCOL_TITLES.items()
        if protocol != POPULAR
        for metric in ("hr@10", "ndcg@10")
    }


def _lengths(found: Findings, dataset: str) -> Layout:
    lengths, metrics = found.variants(dataset), {"samples/s": SAMPLES, "HR@10": "hr@10", "NDCG@10": "ndcg@10"}
    rows = {label: [(dataset, length, metric) for length in lengths] for label, metric in metrics.items()}
    return [f"N = {length}" for length in lengths], rows


def _widths(found: Findings, dataset: str) -> Layout:
    models, widths = (dict.fromkeys(part) for part in zip(*(key.split("@") for key in found.variants(dataset))))
    return [f"d = {width}" for width in widths], {
        f"{metric.upper()} {MODELS[model]}": [(dataset, f"{model}@{width}", metric) for width in widths]
        for metric in TABLES[found.name].metrics
        for model in models
    }


def _proportions(found: Findings, dataset: str) -> Layout:
    table = TABLES[found.name]
    return map(str.upper, table.metrics), {
        table.variants[variant]: [(dataset, variant, metric) for metric in table.metrics]
        for variant in found.variants(dataset)
    }


def _each(
    layout: Callable[[Findings, str], Layout], mark: Mark, down: bool = False, items: str = AMONG_POPULAR
) -> Callable[..., list[Grid]]:
    """Returns a function that makes a grid for every data set with runs."""
    return lambda found: [
        grid(found, layout(found, dataset), mark, down, f"{title_of(dataset)}: {items}") for dataset in found.run_on()
    ]


def _together(mark: Mark) -> Callable[[Findings], list[Grid]]:
    """Returns a function that makes one grid of all data sets: a row per variant, a column per data set and metric."""

    def made(found: Findings) -> list[Grid]:
        table, several = TABLES[found.name], len(TABLES[found.name].metrics) > 1
        columns = [(dataset, metric) for dataset in found.run_on() for metric in table.metrics]
        header = [title_of(dataset) + f" {metric.upper()}" * several for dataset, metric in columns]
        rows = {
            title: [(data, variant, metric) for data, metric in columns] for variant, title in table.variants.items()
        }
        caption = f"{', '.join(map(str.upper, table.metrics))}: {AMONG_POPULAR}"
        return [grid(found, (header, rows), mark, True, caption)] if columns else []

    return made


def _table2(found: Findings) -> list[Grid]:
    """Returns the grids of the paper's protocol with the gains, of the other protocols, and of further measurements."""
    grids = _each(_models, ranked)(found)
    for dataset, made in zip(found.run_on(), grids):
        made.header.append("gain")
        for row in made.rows:
            label = row[0].text
            if label not in (PAPER, DIFFERENCE):
                metric = label.lower()
                ours = gain(found, dataset, metric)
                last = NOT_RUN if ours is None else f"{ours:+.2%}"
            else:
                last = f"{read_paper()['improvements'][dataset][metric]:+.2%}" if label == PAPER else ""
            row.append(Text(last))
    others = _each(_protocols, ranked, items="results for the test items among 100 uniform or all unseen items")(found)
    more = (made(found, dataset) for dataset in found.run_on() for made in (_corrected, _recommended))
    return [*grids, *others, *(one for one in more if one)]


def _corrected(found: Findings, dataset: str) -> Grid | None:
    """Returns NDCG@10 without and with the best popularity correction; None if no run was measured with one."""
    columns = _columns(found, dataset)
    alphas = [found.alpha(dataset, model) for model in columns]
    if not any(alpha is not None for alpha in alphas):
        return None
    rows = [[Text("alpha"), *(Text(NOT_RUN if alpha is None else f"{alpha:.2g}") for alpha in alphas)]]
    for protocol, title in PROTOCOL_TITLES.items():
        plain = [found.mean(dataset, model, NDCG, protocol) for model in columns]
        others = [found.corrected(dataset, model, NDCG, protocol) for model in columns]
        for label, values in ((f"{title}, alpha 0", plain), (f"{title}, alpha as above", others)):
            rows.append([Text(label), *ranked(values, [shown(value) for value in values])])
    return Grid(["", *columns.values()], rows, f"{title_of(dataset)}: NDCG@10 of the test items with and without alpha")


def _recommended(found: Findings, dataset: str) -> Grid | None:
    """Returns LIST_METRICS of the recommended items, under every protocol; None if no run has them."""
    columns, rows = _columns(found, dataset), []
    for protocol, title in PROTOCOL_TITLES.items():
        for metric in LIST_METRICS:
            values = [found.mean(dataset, model, metric, protocol) for model in columns]
            rows.append([Text(f"{metric}, {title}"), *(Text(shown(value)) for value in values)])
    measured = any(found.mean(dataset, model, LIST_METRICS[0]) is not None for model in columns)
    caption = (
        f"{title_of(dataset)}, what is recommended: share of items, mean actions / users, mean log2(users / actions)"
    )
    return Grid(["", *columns.values()], rows, caption) if measured else None


GRIDS: dict[str, Callable[[Findings], list[Grid]]] = {
    "table2": _table2,
    "table3": _together(ranked),
    "table4": _each(_lengths, ranked),
    "table5": _together(beside_first),
    "figure2": lambda found: [],
    "figure3": _each(_widths, unmarked),
    "figure4": _each(_proportions, best, down=True),
}
"""Table -> the function that makes its grids. Table 1 has `of_statistics`."""


def of_statistics(statistics: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[Grid]]:
    """Returns remarks on the data sets, and the grid of Table 1. `statistics`: data set -> its row."""
    header = ("users", "items", "actions", "mean length", "density")
    rows: list[list[str]] = []
    for dataset in dict.fromkeys((*TABLES["table1"].datasets, *statistics)):
        found, published = statistics.get(dataset), read_paper()["table1"].get(dataset)
        rows.append([title_of(dataset), *([found[key] for key in header] if found else [NOT_RUN] * len(header))])
        if published:
            counts = (f"{published['users']:,}", f"{published['items']:,}", published["actions"])
            rows.append([PAPER, *counts, f"{published['mean_length']:.1f}", published["density"]])
        if published and found:
            rows.append([DIFFERENCE, *_from_table1(found, published)])
    remarks = [remark for dataset in statistics if (remark := datasets.find_dataset(dataset).remark) is not None]
    return remarks, [Grid(["", *header], [list(map(Text, row)) for row in rows])]


def _from_table1(found: Mapping[str, str], published: Mapping[str, Any]) -> list[str]:
    """Returns the differences from the paper's row, each with as many digits as the paper prints."""
    users, items, actions = (int(found[key].replace(",", "")) for key in ("users", "items", "actions"))
    millions, digits = datasets.parse_millions(published["actions"])
    density, of_paper = (float(text.removesuffix("%")) for text in (found["density"], published["density"]))
    return [
        f"{users - published['users']:+,}",
        f"{items - published['items']:+,}",
        f"{round(actions / 1e6, digits) - millions:+.{digits}f}m",
        f"{float(found['mean length']) - published['mean_length']:+.1f}",
        f"{density - of_paper:+.2f}%",
    ]
