"""The report: every table and figure beside the paper's, made from the results that are there."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.config.run_record import RETRAIN, SELECT
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import POPULAR
from bert4rec_tf.foundation import files, plots
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import format_clock, warn
from experiments import answer, claims, figures, significance
from experiments.findings import Findings
from experiments.grids import ELSEWHERE, GRIDS, NOT_RUN, Grid, Text, difference, gain, of_statistics, title_of
from experiments.plan import QUICK, QUICK_WIDTH
from experiments.results import FAILED, FINISHED, STOPPED, Line, newest
from experiments.sweep import Sweep
from experiments.tables import TABLES, label

try:
    import jinja2
except ImportError as error:
    raise UserError("The report needs jinja2: pip install '.[report]'") from error

TITLE = "BERT4Rec: the paper's tables and figures, measured again"
STATISTICS = "statistics.json"
RUNS = (
    "“Cells” says where a run is shown: T is a table, F a figure. “Budget” is the share of its preset's steps. “Steps” "
    "has the steps of each training and, after “of”, the examples in a step. A run with two trainings holds the "
    "validation items out of the first, which gives “validation”; with one training, “validation” is none."
)
READING = (
    "Each metric is a mean over users, and over the seeds that were run. “Here” tells in how many cases what the paper "
    "says is true of these means, significant or not. A case is a comparison of results, or the shape of a curve, "
    "among popular items: by NDCG@10 for Tables 4 and 5 and Figure 4 (speed: by samples/s), else by each metric."
)


class Section(NamedTuple):
    """A part of the report: paragraphs of plain text, tables, and pictures."""

    title: str
    paragraphs: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    pictures: Sequence[figures.Picture] = ()


@dataclass
class Report:
    """A report and its material.

    Attributes:
        findings: table -> its runs and results.
        comparisons: as `significance.sentences` takes them.
        statistics: data set -> its row of Table 1, if its file is or was there.
        pictures: table -> file names and what the pictures show.
        asked: keys of the runs that were asked for; None for all of `findings`.
        not_published: tables that were asked for but are not in the paper, as "Table 3 of Steam".
    """

    findings: Mapping[str, Findings]
    comparisons: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pictures: Mapping[str, Sequence[figures.Picture]] = field(default_factory=dict)
    asked: Collection[str] | None = None
    not_published: Sequence[str] = ()

    def sections(self) -> list[Section]:
        """Returns the sections: the answer, about the results, the tables in the paper's order, and the runs."""
        made = [self._section(found) for name in TABLES if (found := self.findings.get(name))]
        first: list[Section] = []
        if found := self.findings.get("table2"):
            grid = answer.grid(found, self.comparisons)
            first = [Section("Which model ranks best?", answer.sentences(found, grid.rows), [grid])]
        return [*first, self._about(), *made, self._runs()]

    def _section(self, found: Findings) -> Section:
        name, table = found.name, TABLES[found.name]
        title = f"{label(name)}: {table.title}"
        if name == "table1":
            return Section(title, *of_statistics(self.statistics))
        paragraphs = [table.note] if table.note else []
        paragraphs += claims.sentences(found)
        if name == "table2":
            paragraphs += significance.sentences(found, self.comparisons)
        for more in DETAILS.get(name, ()):
            paragraphs += more(found)
        paragraphs += _remarks(found.lines[job.key] for some in found.runs.values() for job, _ in some)
        paragraphs += _budgets(found)
        missing = [title_of(data) for data in found.datasets() if data not in found.run_on()]
        if missing:
            paragraphs.append(f"{', '.join(missing)}: {NOT_RUN}.")
        pictures = self.pictures.get(name, ())
        if name.startswith("figure") and not pictures:
            paragraphs.append(f"No picture: {self._why_not_drawn(found)}.")
        return Section(title, paragraphs, GRIDS[name](found), pictures)

    @staticmethod
    def _why_not_drawn(found: Findings) -> str:
        if not found.run_on():
            return NOT_RUN
        return "no line has two points" if plots.is_available() else "it needs the extra [plots]"

    def _about(self) -> Section:
        """Returns the section about the results: data files, versions, and the number of runs."""
        every = {job.key for found in self.findings.values() for job in found.plan.all_jobs([found.name])}
        part = every if self.asked is None else set(self.asked)
        shown, lines = [line for _, line in self._shown()], self._lines()
        statuses = [lines.get(key, {}).get("status") for key in part]
        counts = {status: statuses.count(status) for status in (FINISHED, FAILED, STOPPED)}
        counts["missing"] = len(part) - sum(counts.values())
        states = ", ".join(f"{status}: {count}" for status, count in counts.items())
        paragraphs = [f"Runs shown here: {len(shown)}. Runs asked for: {len(part)} ({states}).", READING]
        untouched = [
            label(found.name) for found in self.findings.values() if TABLES[found.name].cell and not found.run_on()
        ]
        if untouched:
            paragraphs.append(f"Not run at all: {', '.join(untouched)}.")
        if self.not_published:
            paragraphs.append(f"The paper has no {' and no '.join(self.not_published)}.")
        if any(found.plan.quick for found in self.findings.values()):
            paragraphs.append(
                f"These are quick runs: {QUICK['steps']} steps, no model wider than d = {QUICK_WIDTH} and BERT4Rec of "
                "one block, whatever a title says. They show that everything works, and nothing about the models."
            )
        used = {(line["run"]["dataset"], str(line["data_file"])): line["data_file"] for line in shown}
        paragraphs += [file_sentence(dataset, file) for (dataset, _), file in sorted(used.items())]
        paragraphs += self._elsewhere()
        paragraphs += sorted({f"Versions: {_versions(line['environment'])}." for line in shown})
        known = {*every, *part, *(line["key"] for line in shown)}
        for line in (newest(line) for key, line in sorted(lines.items()) if key in known):
            if line["status"] == FAILED:
                run = line["run"]
                paragraphs.append(f"Failed: {run['model']} on {run['dataset']}, run {line['key']} ({line['error']}).")
        return Section("About these results", paragraphs)

    def _elsewhere(self) -> list[str]:
        """Returns sentences: which runs are of another data file than the others of their data set."""
        keys: dict[tuple[str, str], list[str]] = {}
        elsewhere = {key for found in self.findings.values() for key in found.elsewhere}
        for _, line in self._shown():
            if line["key"] in elsewhere:
                place = title_of(line["run"]["dataset"]), _named(line["data_file"])
                keys.setdefault(place, []).append(f"{line['key']} ({line['run']['model']})")
        return [
            f"{ELSEWHERE} These runs on {title} used another data file than the rest, so compare them with care: "
            f"{', '.join(some)}. The other file is {file}."
            for (title, file), some in sorted(keys.items())
        ]

    def _lines(self) -> Mapping[str, Line]:
        return next(iter(self.findings.values())).lines if self.findings else {}

    def _shown(self) -> list[tuple[str, Line]]:
        """Returns the cells and the line of each finished run that a table shows."""
        cells: dict[str, list[str]] = {}
        for found in self.findings.values():
            for job, _ in (one for some in found.runs.values() for one in some):
                cells.setdefault(job.key, []).extend(job.cells)
        return [("; ".join(some), self._lines()[key]) for key, some in cells.items()]

    def _runs(self) -> Section:
        """Returns the section with a row per finished run: its cells, its budget, and the time and memory it took."""
        shown = self._shown()
        if not shown:
            return Section("All runs", ["No run is finished."])
        last = [line["key"] for _, line in shown if _is_best_at_the_end(line)]
        capped = f"Best at the last step that was allowed, so more steps may do better: {', '.join(last)}."
        rows = [list(map(Text, _run_row(cells, line).values())) for cells, line in shown]
        return Section(
            "All runs",
            [RUNS, *([capped] if last else []), *_remarks(line for _, line in shown)],
            [Grid(list(_run_row(*shown[0])), rows, "Finished runs, with NDCG@10 among 100 popular items")],
        )


def _named(file: Mapping[str, Any] | None) -> str:
    return "an unknown file" if file is None else f"{file['name']}, SHA-256 of its content {file['sha256']}"


def file_sentence(dataset: str, file: Mapping[str, Any] | None) -> str:
    """Returns a sentence: on which file the results of a data set were measured."""
    if datasets.find_source(dataset) is None:
        return f"{title_of(dataset)}: built in."
    if file is None or file["as_published"] is None:
        return f"{title_of(dataset)}: {_named(file)}. Whether it is the authors' own file is unknown."
    if file["as_published"]:
        return f"{title_of(dataset)}: {_named(file)}, the authors' own file."
    return (
        f"{title_of(dataset)}: {_named(file)}. This is not the file that the authors published: actions at equal "
        "times may be in another order, and so other items may be held out."
    )


def _versions(environment: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(environment["versions"].items()))
    threads = "1 thread" if environment["threads"] == 1 else f"{environment['threads']} threads"
    return f"{versions}; {threads} on {', '.join(environment['devices'])}"


def _is_best_at_the_end(line: Line) -> bool:
    return line.get(SELECT, {}).get("best_step") == line["run"]["training"]["steps"]


def _remarks(lines: Iterable[Line]) -> list[str]:
    """Returns sentences: what is known to be wrong with runs, from the `remark` of their lines."""
    keys: dict[str, list[str]] = {}
    for line in lines:
        if "remark" in line:
            keys.setdefault(line["remark"], []).append(f"{line['key']} ({line['run']['model']})")
    return [f"Read with care: {', '.join(some)}: {remark}." for remark, some in keys.items()]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _run_row(cells: str, line: Line) -> dict[str, str]:
    run, trained = line["run"], [line[phase]["steps"] for phase in (SELECT, RETRAIN) if phase in line]
    steps = " and ".join(f"{count:,}" for count in trained) + f" of {run['training']['batch_size']}"

    def shown(part: str) -> str:
        return f"{line[part][POPULAR]['ndcg@10']:.4f}" if part in line else "none"

    return {
        "run": line["key"],
        "data": title_of(run["dataset"]),
        "model": run["model"],
        "cells": cells,
        "seed": str(run["seed"]),
        "budget": _percent(line["budget"]),
        "steps": steps if any(trained) else "none",
        "validation": shown("validation"),
        "test": shown("test"),
        "wall time": format_clock(line["wall_seconds"]),
        "peak memory": f"{line['peak_memory'] / 1e6:,.0f} MB" if line["peak_memory"] else "unknown",
    }


def _budgets(found: Findings) -> list[str]:
    """Returns sentences: where runs had only a share of the steps, and which were left out for another share."""
    parts = [f"{title_of(data)} {_percent(found.budgets[data])}" for data in found.run_on() if found.budgets[data] != 1]
    others = [f"{count} on {title_of(data)} with {_percent(share)}" for (data, share), count in found.left_out.items()]
    return [
        *([f"Budget: these runs had only a part of their presets' steps: {', '.join(parts)}."] if parts else []),
        *([f"Runs left out, as they had another share of the steps: {', '.join(others)}."] if others else []),
    ]


def _narrow(found: Findings) -> list[str]:
    """Returns a sentence that compares BERT4Rec with Table 5, if it has d = 64 as there."""
    parts = []
    for data in found.run_on():
        runs, published = found.runs[data, "bert4rec"], read_paper()["table5"].get(data)
        if runs and published and runs[0][0].run.architecture.hidden_dim == 64:
            value, default = found.mean(data, "bert4rec", "ndcg@10"), published["default"]["ndcg@10"]
            parts.append(f"{title_of(data)} {value:.4f} (paper {default:.4f}, difference {difference(value, default)})")
    text = "BERT4Rec has d = 64 here, but its best width in the paper's Table 2. NDCG@10 beside Table 5 at d = 64"
    return [f"{text}: {'; '.join(parts)}."] if parts else []


def _mean_gains(found: Findings) -> list[str]:
    """Returns a sentence: section 4.4's mean gains over the strongest other model, on the complete data sets."""
    parts = []
    for metric, published in read_paper()["gains"].items():
        gains = [one for dataset in found.datasets() if (one := gain(found, dataset, metric)) is not None]
        mean = f"{np.mean(gains):+.2%} on {len(gains)}" if gains else NOT_RUN
        parts.append(f"{metric.upper()} {mean} (paper: {published:+.2%} on 4)")
    return [f"Mean gain over the best other model (section 4.4) on the data sets with all nine: {'; '.join(parts)}."]


def _about_correction(found: Findings) -> list[str]:
    """Returns what the correction for popularity means, if a run was measured with one."""
    if all(found.alpha(dataset, model) is None for dataset in found.run_on() for model in found.variants(dataset)):
        return []
    return [
        "Correction for popularity: items are ranked by score - alpha log(count + 1) without training again. Alpha is "
        "the best one for the validation items among popular candidates. A model whose “validation” is none in the "
        "last section was trained on these items, so its alpha may not be the best for new ones. Models that only "
        "count were counted again without them.",
        "Popular candidates reward a model that ranks popular items below their probability. If alpha gains there but "
        "loses among all items, the gain is due to the protocol. Models trained with negatives drawn by popularity "
        "have some of this gain without alpha.",
    ]


def _without_dropout(found: Findings) -> list[str]:
    """Returns a sentence: where “w/o dropout” changes nothing, because the preset has none."""
    runs = {place: jobs[0].run for place, jobs in found.plan.jobs(found.name).items()}
    same = [title_of(data) for data in found.datasets() if runs[data, "default"] == runs.get((data, "no_dropout"))]
    return [f"On {' and '.join(same)} the default has no dropout, so “w/o dropout” is the same run."] if same else []


DETAILS: dict[str, Sequence[Callable[[Findings], list[str]]]] = {
    "table2": (_narrow, _mean_gains, _about_correction),
    "table5": (_without_dropout,),
}
"""Table -> the functions that make its own paragraphs."""


def render(form: str, sections: Sequence[Section], title: str = TITLE) -> str:
    """Returns the report as "md" or "html". The page only needs the pictures beside it."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=form == "html", trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(f"report.{form}.j2").render(title=title, sections=sections) + "\n"


def write(
    findings: Mapping[str, Findings],
    sweep: Sweep,
    asked: Collection[str] | None = None,
    not_published: Sequence[str] = (),
) -> list[Path]:
    """Writes the report. First makes its comparisons, statistics and pictures, as far as ranks and data are here.

    `asked` and `not_published`: as in `Report`. Returns the paths of `report.md` and `report.html`.
    """
    results = sweep.results
    if "table2" in findings:
        found = findings["table2"]
        folders = {job.key: sweep.folder_of(job, line) for some in found.runs.values() for job, line in some}
        names = {*significance.pairs(found).values(), *answer.pairs(found).values()}
        significance.compare_all(sorted(names), folders, results)
    statistics = statistics_of(findings["table1"], sweep) if "table1" in findings else {}
    pictures = figures.draw(findings, results)
    comparisons = results.read_json(significance.FILE)
    made = Report(findings, comparisons, statistics, pictures, asked, not_published)
    sections, paths = made.sections(), []
    files.make_folder(results.folder)
    for form in ("md", "html"):
        paths.append(results.folder / f"report.{form}")
        files.write_text(paths[-1], render(form, sections))
    return paths


def statistics_of(found: Findings, sweep: Sweep) -> dict[str, dict[str, str]]:
    """Returns data set -> its row of Table 1, if the data are or were here, and keeps the rows beside the results."""
    kept, made = sweep.results.read_json(STATISTICS), {}
    for name in found.plan.datasets:
        file = sweep.data_file(name)
        is_there = file is not None or datasets.find_source(name) is None
        if is_there and kept.get(name, {}).get("data_file", ...) != file:
            try:
                columns = datasets.format_table1_columns(datasets.load(name, sweep.data_dir))
            except UserError as error:
                warn(str(error))
                continue
            made[name] = {"data_file": file, "columns": columns}
    if made:
        with sweep.results.lock():
            kept = {**sweep.results.read_json(STATISTICS), **made}
            files.write_json(sweep.results.folder / STATISTICS, kept)
    return {name: row["columns"] for name, row in kept.items()}
