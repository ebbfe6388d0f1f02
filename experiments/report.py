"""The report: every table and figure beside the paper's, from whatever results there are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf import files
from bert4rec_tf.data import datasets
from bert4rec_tf.metrics import FULL, METRICS, UNIFORM
from experiments import markup, significance, statements
from experiments.findings import SAMPLES, Findings
from experiments.markup import Cell, Grid, Section, Text
from experiments.tables import ABLATIONS, MODELS, TABLES

NOT_RUN = "not run"
PAPER, DIFFERENCE = "- paper", "- difference"
LARGE_DROP = 0.9
"""Table 5 marks what falls below this share of the default."""


@dataclass
class Report:
    """What a report is made of.

    Attributes:
        findings: table -> its runs and results.
        comparisons: as `significance.read` returns them.
        statistics: data set -> its row of Table 1, of those whose file is there.
        pictures: table -> file names and what they show.
    """

    findings: Mapping[str, Findings]
    comparisons: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pictures: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)

    def sections(self) -> list[Section]:
        """Returns the sections of the tables that were asked for, in the paper's order."""
        made = [SECTIONS[name](self, name) for name in TABLES if name in self.findings]
        return [_about(self), *made]

    def write(self, folder: Path, title: str) -> list[Path]:
        """Writes `report.md` and `report.html`."""
        sections, paths = self.sections(), [folder / "report.md", folder / "report.html"]
        files.write_text(paths[0], markup.markdown(title, sections))
        files.write_text(paths[1], markup.page(title, sections))
        return paths


def _shown(value: float | None, metric: str = "") -> str:
    if value is None:
        return NOT_RUN
    return f"{value:,.0f}" if metric == SAMPLES else f"{value:.4f}"


def _with_deviation(values: Sequence[float], metric: str = "") -> str:
    if len(values) < 2:
        return _shown(values[0] if values else None, metric)
    return f"{_shown(float(np.mean(values)), metric)} ± {np.std(values, ddof=1):.4f}"


def _title(dataset: str) -> str:
    return datasets.find(dataset).title


def _about(report: Report) -> Section:
    """What the results were made with: data files, versions, and how many runs there are."""
    keys = {job.key for found in report.findings.values() for jobs in found.jobs.values() for job in jobs}
    lines = next(iter(report.findings.values())).lines if report.findings else {}
    finished = [line for key, line in lines.items() if key in keys and line["status"] == "finished"]
    used = {line["run"]["dataset"]: line["data_file"] for line in finished if line["data_file"]}
    paragraphs = [f"{len(finished)} of {len(keys)} runs are finished; a cell without one says “{NOT_RUN}”."]
    paragraphs += [
        f"{_title(name)}: file {file['name']}, SHA-256 {file['sha256'][:16]}." for name, file in sorted(used.items())
    ]
    versions = {str(line["environment"]["versions"]) for line in finished}
    paragraphs += [f"Versions: {found}." for found in sorted(versions)]
    failed = [line for key, line in lines.items() if key in keys and line["status"] == "failed"]
    paragraphs += [f"Failed: run {line['key']} ({line['error']})." for line in failed]
    return Section("About these results", paragraphs)


def _table1(report: Report, name: str) -> Section:
    header = ("", "users", "items", "actions", "mean length", "density")
    rows = []
    for dataset in TABLES[name].datasets:
        found, published = report.statistics.get(dataset), datasets.paper()["table1"][dataset]
        rows.append([_title(dataset), *([found[key] for key in header[1:]] if found else [NOT_RUN] * 5)])
        cells = (f"{published['users']:,}", f"{published['items']:,}", published["actions"])
        rows.append([PAPER, *cells, f"{published['mean_length']:.1f}", published["density"]])
    return Section(f"Table 1: {TABLES[name].title}", grids=[Grid(header, rows)])


def _table2(report: Report, name: str) -> Section:
    found = report.findings[name]
    grids = [_models_grid(found, dataset) for dataset in found.datasets()]
    grids += [_protocols_grid(found, dataset) for dataset in found.datasets()]
    paragraphs = [
        "Targets are ranked among 100 items drawn by popularity. Best bold, second best underlined; the last column is "
        "what BERT4Rec gains over the best other model.",
        *_mean_gains(found),
        *_significance(report, found),
    ]
    return Section(f"Table 2: {TABLES[name].title}", paragraphs, grids)


def _gain(ours: float | None, others: Sequence[float | None]) -> float | None:
    """Returns by which share BERT4Rec beats the best other model; None where one of the cells is missing."""
    if ours is None or any(value is None for value in others) or not others:
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
            of_paper = _gain(published[-1], published[:-1])
            rows.append([PAPER, *markup.ranked(published, list(map(_shown, published))), f"{of_paper:+.2%}"])
            rows.append([DIFFERENCE, *map(_difference, values, published), ""])
    return Grid(["", *MODELS.values(), "gain"], rows, _title(dataset))


def _difference(value: float | None, published: float | None) -> str:
    return "" if value is None or published is None else f"{value - published:+.4f}"


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
    for metric, published in datasets.paper()["gains"].items():
        gains = []
        for dataset in found.datasets():
            values = [found.mean(dataset, model, metric) for model in MODELS]
            gains.append(_gain(values[-1], values[:-1]))
        known = [gain for gain in gains if gain is not None]
        mean = f"{np.mean(known):+.2%} over {len(known)} complete data sets" if known else NOT_RUN
        said.append(f"{metric.upper()} {mean} (paper: {published:+.2%} over 4)")
    return ["Mean gain over the strongest other model (section 4.4): " + "; ".join(said) + "."]


def _significance(report: Report, found: Findings) -> list[str]:
    p_values, differences = {}, {}
    for dataset in found.datasets():
        for model in list(MODELS)[:-1]:
            first, second = (found.jobs.get((dataset, one)) for one in (model, "bert4rec"))
            compared = report.comparisons.get(f"{first[0].key} {second[0].key}") if first and second else None
            for metric in METRICS if compared else ():
                p_values[dataset, model, metric] = compared[metric]["p_value"]
                differences[dataset, model, metric] = compared[metric]["mean"]
    if not p_values:
        return ["Significance: not known, for it needs the ranks of two runs, which stay in their work directories."]
    corrected = significance.holm(p_values)
    open_ones = [name for name, p in corrected.items() if p >= 0.01]
    worse = [name for name, p in corrected.items() if p < 0.01 and differences[name] < 0]
    lines = [
        f"Significance (first seed; differences paired over users; p-values of all {len(corrected)} comparisons "
        f"corrected by Holm's method): BERT4Rec is better with p < .01 in "
        f"{len(corrected) - len(open_ones) - len(worse)} of them, worse in {len(worse)}."
    ]
    for title, names in (("Not significant", open_ones), ("Worse", worse)):
        if names:
            told = (f"{_title(data)} {MODELS[model]} {metric.upper()}" for data, model, metric in names)
            lines.append(f"{title}: " + ", ".join(told) + ".")
    return lines


def _table3(report: Report, name: str) -> Section:
    found, table = report.findings[name], TABLES[name]
    columns = [(dataset, metric) for dataset in found.datasets() for metric in table.metrics]
    rows: list[list[Cell]] = []
    for variant, title in table.variants.items():
        rows.append([title, *(_with_deviation(found.values(data, variant, metric)) for data, metric in columns)])
        published = [found.paper(data, variant, metric) for data, metric in columns]
        if None not in published:
            rows.append([PAPER, *map(_shown, published)])
    header = ["", *(f"{_title(dataset)} {metric.upper()}" for dataset, metric in columns)]
    return Section(f"Table 3: {table.title}", grids=[Grid(header, rows)])


def _table4(report: Report, name: str) -> Section:
    found, grids = report.findings[name], []
    for dataset in found.datasets():
        lengths, rows = found.variants(dataset), []
        for metric in (SAMPLES, *TABLES[name].metrics):
            values = [found.mean(dataset, length, metric) for length in lengths]
            shown = [_shown(value, metric) for value in values]
            label = "samples/s" if metric == SAMPLES else metric.upper()
            rows.append([label, *(shown if metric == SAMPLES else markup.ranked(values, shown))])
            published = [found.paper(dataset, length, metric) for length in lengths]
            if any(value is not None for value in published):
                rows.append([PAPER, *("" if value is None else _shown(value, metric) for value in published)])
        grids.append(Grid(["N", *lengths], rows, _title(dataset)))
    paragraph = (
        "The paper's samples per second are those of a GPU; ours are this machine's, and count the last training."
    )
    return Section(f"Table 4: {TABLES[name].title}", [paragraph], grids)


def _table5(report: Report, name: str) -> Section:
    found, rows = report.findings[name], []
    for variant, (title, _) in ABLATIONS.items():
        ours = [_beside_default(found, data, variant, found.mean) for data in found.datasets()]
        published = [_beside_default(found, data, variant, found.paper) for data in found.datasets()]
        if any((data, variant) in found.jobs for data in found.datasets()):
            rows.append([title, *ours])
            rows.append([PAPER, *published])
    paragraph = "NDCG@10. Bold is better than the default, ↓ more than 10 % below it."
    header = ["", *map(_title, found.datasets())]
    return Section(f"Table 5: {TABLES[name].title}", [paragraph], [Grid(header, rows)])


def _beside_default(
    found: Findings, dataset: str, variant: str, value_of: Callable[[str, str, str], float | None]
) -> Cell:
    value, default = (value_of(dataset, one, "ndcg@10") for one in (variant, "default"))
    if value is None:
        return NOT_RUN if value_of == found.mean and (dataset, variant) in found.jobs else ""
    if default is None or variant == "default":
        return _shown(value)
    return Text(_shown(value) + (" ↓" if value < LARGE_DROP * default else ""), bold=value > default)


def _figure(report: Report, name: str) -> Section:
    found, grids = report.findings[name], []
    for dataset in found.datasets():
        rows = []
        for variant in found.variants(dataset):
            means = [found.mean(dataset, variant, metric) for metric in TABLES[name].metrics]
            rows.append([TABLES[name].variants[variant], *map(_shown, means)])
        if rows and TABLES[name].metrics:
            grids.append(Grid(["", *(metric.upper() for metric in TABLES[name].metrics)], rows, _title(dataset)))
    said = statements.of(name, found)
    title = f"Figure {name.removeprefix('figure')}: {TABLES[name].title}"
    return Section(title, said, grids, report.pictures.get(name, ()))


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
