"""The report: every table and figure beside the paper's, from whatever results there are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.config.paper import paper
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import FULL, METRICS, UNIFORM
from bert4rec_tf.foundation import files
from experiments import markup, significance, statements
from experiments.findings import SAMPLES, Findings
from experiments.jobs import EncodedRequest
from experiments.markup import Cell, Grid, Section, Text
from experiments.runs import about, all_runs
from experiments.tables import MODELS, TABLES

NOT_RUN = "not run"
PAPER, DIFFERENCE = "- paper", "- difference"
MARKS_BEST = ("figure4",)
"""Figures whose best scores are marked, as in the paper."""
CHOOSING = (
    "BERT4Rec trains for its preset's steps at every width, with the validation item; another model whose sizes are "
    "not its preset's chooses its steps on that item first."
)
LARGE_DROP = 0.9
"""Table 5 marks what falls below this share of the default."""


@dataclass
class Report:
    """What a report is made of.

    Attributes:
        findings: table -> its runs and results.
        comparisons: as `significance.read` returns them.
        statistics: data set -> its row of Table 1, of those whose file is or was there.
        pictures: table -> file names and what they show.
        can_draw: whether there is what draws them.
        asked: the part that was asked for; None for all of `findings`.
    """

    findings: Mapping[str, Findings]
    comparisons: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pictures: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    can_draw: bool = True
    asked: EncodedRequest | None = None

    def sections(self) -> list[Section]:
        """Returns the sections of the tables, in the paper's order, between two about the runs."""
        made = [SECTIONS[name](self, name) for name in TABLES if name in self.findings]
        return [about(self.findings, self.asked), *made, all_runs(self.findings)]

    def write(self, folder: Path, title: str) -> list[Path]:
        """Writes `report.md` and `report.html`."""
        sections, paths = self.sections(), [folder / "report.md", folder / "report.html"]
        files.make_folder(folder)
        files.write_text(paths[0], markup.markdown(title, sections))
        files.write_text(paths[1], markup.page(title, sections))
        return paths


def _shown(value: float | None, metric: str = "") -> str:
    if value is None:
        return NOT_RUN
    return f"{value:,.0f}" if metric == SAMPLES else f"{value:.4f}"


def _published(value: float | None, metric: str = "") -> str:
    return "" if value is None else _shown(value, metric)


def _with_deviation(values: Sequence[float]) -> str:
    if len(values) < 2:
        return _shown(values[0] if values else None)
    return f"{_shown(float(np.mean(values)))} ± {np.std(values, ddof=1):.4f}"


def _difference(value: float | None, published: float | None, metric: str = "") -> str:
    if value is None or published is None:
        return ""
    return f"{value - published:+,.0f}" if metric == SAMPLES else f"{value - published:+.4f}"


def _beside(published: Sequence[float | None], values: Sequence[float | None], metric: str = "") -> list[list[Cell]]:
    """Returns the two rows below one of ours: the paper's numbers, where it has any, and the differences."""
    if all(value is None for value in published):
        return []
    theirs = [_published(value, metric) for value in published]
    return [[PAPER, *theirs], [DIFFERENCE, *(_difference(*pair, metric) for pair in zip(values, published))]]


def _title(dataset: str) -> str:
    return datasets.find(dataset).title


def _budgets(found: Findings) -> list[str]:
    """Says where runs had a share of their presets' steps."""
    budgets = {data: found.budgets[data] for data in found.run_on()}
    told = [f"{_title(data)} {markup.percent(budget)}" for data, budget in budgets.items() if budget != 1]
    return [f"Budget: of the steps of their presets these runs had: {', '.join(told)}."] if told else []


def _missing(found: Findings) -> list[str]:
    """Names the data sets that a section has nothing of, in place of a grid of cells that say so."""
    named = [_title(data) for data in found.datasets() if data not in found.run_on()]
    return [f"{', '.join(named)}: {NOT_RUN}."] if named else []


def _table1(report: Report, name: str) -> Section:
    header = ("", "users", "items", "actions", "mean length", "density")
    rows = []
    for dataset in dict.fromkeys((*TABLES[name].datasets, *report.statistics)):
        found, published = report.statistics.get(dataset), paper()["table1"].get(dataset)
        rows.append([_title(dataset), *([found[key] for key in header[1:]] if found else [NOT_RUN] * 5)])
        if published:
            cells = (f"{published['users']:,}", f"{published['items']:,}", published["actions"])
            rows.append([PAPER, *cells, f"{published['mean_length']:.1f}", published["density"]])
        if published and found:
            rows.append([DIFFERENCE, *_from_table1(found, published)])
    remarks = [datasets.find(dataset).remark for dataset in report.statistics]
    said = [remark for remark in remarks if remark is not None]
    return Section(f"Table 1: {TABLES[name].title}", said, [Grid(header, rows)])


def _from_table1(found: Mapping[str, str], published: Mapping[str, Any]) -> list[str]:
    """Returns the differences of a row, each to the digits that the paper prints."""
    users, items, actions = (int(found[key].replace(",", "")) for key in ("users", "items", "actions"))
    millions, digits = datasets.in_millions(published["actions"])
    density, of_paper = (float(text.removesuffix("%")) for text in (found["density"], published["density"]))
    return [
        f"{users - published['users']:+,}",
        f"{items - published['items']:+,}",
        f"{round(actions / 1e6, digits) - millions:+.{digits}f}m",
        f"{float(found['mean length']) - published['mean_length']:+.1f}",
        f"{density - of_paper:+.2f}%",
    ]


def _table2(report: Report, name: str) -> Section:
    found = report.findings[name]
    grids = [_models_grid(found, dataset) for dataset in found.run_on()]
    grids += [_protocols_grid(found, dataset) for dataset in found.run_on()]
    titles = {dataset: _title(dataset) for dataset in found.datasets()}
    paragraphs = [
        "Targets are ranked among 100 items drawn by popularity. Best bold, second best underlined; the last column is "
        "what BERT4Rec gains over the best other model, for the paper as it prints it.",
        *_budgets(found),
        *_width_of_ours(found),
        *_mean_gains(found),
        *significance.sentences(found, report.comparisons, titles),
        *_missing(found),
    ]
    return Section(f"Table 2: {TABLES[name].title}", paragraphs, grids)


def _width_of_ours(found: Findings) -> list[str]:
    """Where BERT4Rec is as narrow as in Table 5, that number of the paper belongs beside it too."""
    said = []
    for dataset in found.datasets():
        lines, published = found.finished(dataset, "bert4rec"), paper()["table5"].get(dataset)
        if lines and published and lines[0]["run"]["architecture"]["hidden_dim"] == 64:
            value, default = found.mean(dataset, "bert4rec", "ndcg@10"), published["default"]["ndcg@10"]
            said.append(
                f"{_title(dataset)} {value:.4f} (paper {default:.4f}, difference {_difference(value, default)})"
            )
    if not said:
        return []
    return [
        "BERT4Rec has d = 64 here, and the paper's Table 2 its best width. At d = 64 (the paper: Table 5) NDCG@10: "
        + "; ".join(said)
        + "."
    ]


def _gain(ours: float | None, others: Sequence[float | None]) -> float | None:
    """Returns what BERT4Rec gains over the best other model; None where one of them is not known, or that is 0."""
    if ours is None or None in others or not max(others):
        return None
    return ours / max(others) - 1


def _models_grid(found: Findings, dataset: str) -> Grid:
    rows: list[list[Cell]] = []
    for metric in METRICS:
        values = [found.mean(dataset, model, metric) for model in MODELS]
        shown = [_with_deviation(found.values(dataset, model, metric)) for model in MODELS]
        published = [found.paper(dataset, model, metric) for model in MODELS]
        gain = _gain(values[-1], values[:-1])
        rows.append([metric.upper(), *markup.ranked(values, shown), NOT_RUN if gain is None else f"{gain:+.2%}"])
        if None not in published:
            printed = paper()["improvements"][dataset][metric]
            rows.append([PAPER, *markup.ranked(published, list(map(_shown, published))), f"{printed:+.2%}"])
            rows.append([DIFFERENCE, *map(_difference, values, published), ""])
    return Grid(["", *MODELS.values(), "gain"], rows, _title(dataset))


def _protocols_grid(found: Findings, dataset: str) -> Grid:
    """NDCG@10 and HR@10 by the protocols that the paper does not have."""
    rows = []
    for protocol, title in ((UNIFORM, "100 uniform"), (FULL, "all unseen items")):
        for metric in ("hr@10", "ndcg@10"):
            values = [found.mean(dataset, model, metric, protocol) for model in MODELS]
            rows.append([f"{metric.upper()}, {title}", *markup.ranked(values, list(map(_shown, values)))])
    return Grid(["", *MODELS.values()], rows, f"{_title(dataset)}, other protocols")


def _mean_gains(found: Findings) -> list[str]:
    """Section 4.4's mean gains over the strongest other model, over the data sets that are complete."""
    said = []
    for metric, published in paper()["gains"].items():
        gains = []
        for dataset in found.datasets():
            values = [found.mean(dataset, model, metric) for model in MODELS]
            gains.append(_gain(values[-1], values[:-1]))
        known = [gain for gain in gains if gain is not None]
        mean = f"{np.mean(known):+.2%} over {len(known)} complete data sets" if known else NOT_RUN
        said.append(f"{metric.upper()} {mean} (paper: {published:+.2%} over 4)")
    return ["Mean gain over the strongest other model (section 4.4): " + "; ".join(said) + "."]


def _table3(report: Report, name: str) -> Section:
    found, table = report.findings[name], TABLES[name]
    columns = [(dataset, metric) for dataset in found.run_on() for metric in table.metrics]
    marked = [_marked_column(found, data, list(table.variants), metric) for data, metric in columns]
    rows: list[list[Cell]] = []
    for number, (variant, title) in enumerate(table.variants.items()):
        values = [found.mean(data, variant, metric) for data, metric in columns]
        rows.append([title, *(column[number] for column in marked)])
        rows += _beside([found.paper(data, variant, metric) for data, metric in columns], values)
    header = ["", *(f"{_title(dataset)} {metric.upper()}" for dataset, metric in columns)]
    grids = [Grid(header, rows)] if columns else []
    return Section(f"Table 3: {table.title}", [CHOOSING, *_budgets(found), *_missing(found)], grids)


def _marked_column(found: Findings, dataset: str, variants: Sequence[str], metric: str) -> list[Cell]:
    """Returns the cells of a metric, one for each variant, the best two marked."""
    values = [found.mean(dataset, variant, metric) for variant in variants]
    shown = [_with_deviation(found.values(dataset, variant, metric)) for variant in variants]
    return markup.ranked(values, shown)


def _table4(report: Report, name: str) -> Section:
    found, grids = report.findings[name], []
    for dataset in found.run_on():
        lengths, rows = found.variants(dataset), []
        for metric in (SAMPLES, *TABLES[name].metrics):
            values = [found.mean(dataset, length, metric) for length in lengths]
            shown = [_shown(value, metric) for value in values]
            label = "samples/s" if metric == SAMPLES else metric.upper()
            rows.append([label, *(shown if metric == SAMPLES else markup.ranked(values, shown))])
            rows += _beside([found.paper(dataset, length, metric) for length in lengths], values, metric)
        grids.append(Grid(["N", *lengths], rows, _title(dataset)))
    paragraph = (
        "The paper's samples per second are those of a GPU; ours are this machine's, and count the last training with "
        "its measurements. The paper's HR@10 and NDCG@10 on ML-1m are not shown: the text that these "
        "numbers were taken from has lost them."
    )
    return Section(f"Table 4: {TABLES[name].title}", [paragraph, *_budgets(found), *_missing(found)], grids)


def _table5(report: Report, name: str) -> Section:
    found, rows = report.findings[name], []
    names = found.run_on()
    for variant, title in TABLES[name].variants.items():
        if not any((data, variant) in found.runs for data in names):
            continue
        rows.append([title, *(_beside_default(found, data, variant, found.mean) for data in names)])
        published = [found.paper(data, variant, "ndcg@10") for data in names]
        if any(value is not None for value in published):
            rows.append([PAPER, *(_beside_default(found, data, variant, found.paper) for data in names)])
            values = [found.mean(data, variant, "ndcg@10") for data in names]
            rows.append([DIFFERENCE, *map(_difference, values, published)])
    explained = "NDCG@10. Bold is better than the default, ↓ more than 10 % below it."
    paragraphs = [explained, *_without_dropout(found), *_budgets(found)]
    said = [*statements.of(name, found), *_missing(found)]
    grids = [Grid(["", *map(_title, names)], rows)] if names else []
    return Section(f"Table 5: {TABLES[name].title}", [*paragraphs, *said], grids)


def _without_dropout(found: Findings) -> list[str]:
    """Says where “w/o dropout” changes nothing, for the preset has none."""
    runs = {place: jobs[0].run for place, jobs in found.plan.jobs(found.name).items()}
    same = [data for data in found.datasets() if runs[data, "default"] == runs.get((data, "no_dropout"))]
    named = " and ".join(map(_title, same))
    return [f"On {named} the default has no dropout, so “w/o dropout” is the same run."] if same else []


def _beside_default(
    found: Findings, dataset: str, variant: str, value_of: Callable[[str, str, str], float | None]
) -> Cell:
    value, default = (value_of(dataset, one, "ndcg@10") for one in (variant, "default"))
    if value is None:
        return NOT_RUN if value_of == found.mean and (dataset, variant) in found.runs else ""
    if default is None or variant == "default":
        return _shown(value)
    return Text(_shown(value) + (" ↓" if value < LARGE_DROP * default else ""), bold=value > default)


def _figure(report: Report, name: str) -> Section:
    found, grid_of = report.findings[name], _widths_grid if name == "figure3" else _variants_grid
    grids = [grid_of(found, dataset) for dataset in found.run_on()] if TABLES[name].metrics else []
    pictures = report.pictures.get(name, ())
    said = [*_budgets(found), *statements.of(name, found), *_missing(found)]
    if name == "figure3":
        said.insert(0, CHOOSING)
    if not pictures:
        said.append(f"The picture: {_why_not_drawn(found, report.can_draw)}.")
    title = f"Figure {name.removeprefix('figure')}: {TABLES[name].title}"
    return Section(title, said, grids, pictures)


def _why_not_drawn(found: Findings, can_draw: bool) -> str:
    if not any(found.runs.values()):
        return NOT_RUN
    return "not drawn: no line has two points" if can_draw else "not drawn: needs the extra [plots]"


def _variants_grid(found: Findings, dataset: str) -> Grid:
    """A row per variant, a column per metric."""
    table, variants = TABLES[found.name], found.variants(dataset)
    columns = [_column(found, dataset, variants, metric, found.name in MARKS_BEST) for metric in table.metrics]
    rows = [[table.variants[variant], *row] for variant, row in zip(variants, zip(*columns))]
    return Grid(["", *(metric.upper() for metric in table.metrics)], rows, _title(dataset))


def _widths_grid(found: Findings, dataset: str) -> Grid:
    """Figure 3: a row per metric and model, a column per width."""
    asked = [variant.split("@") for variant in found.variants(dataset)]
    models, widths = (list(dict.fromkeys(part)) for part in zip(*asked))
    rows = [
        [
            f"{metric.upper()} {MODELS[model]}",
            *(_shown(found.mean(dataset, f"{model}@{width}", metric)) for width in widths),
        ]
        for metric in TABLES[found.name].metrics
        for model in models
    ]
    return Grid(["", *(f"d = {width}" for width in widths)], rows, _title(dataset))


def _column(found: Findings, dataset: str, variants: Sequence[str], metric: str, marks_best: bool) -> list[Cell]:
    """Returns the cells of a metric, one for each variant; the best bold, where that is marked and there are others."""
    values = [found.mean(dataset, variant, metric) for variant in variants]
    known = [value for value in values if value is not None]
    best = max(known) if marks_best and len(known) > 1 else None
    return [Text(_shown(value), bold=value is not None and value == best) for value in values]


SECTIONS: dict[str, Callable[[Report, str], Section]] = {
    "table1": _table1,
    "table2": _table2,
    "table3": _table3,
    "table4": _table4,
    "table5": _table5,
    "figure2": _figure,
    "figure3": _figure,
    "figure4": _figure,
}
