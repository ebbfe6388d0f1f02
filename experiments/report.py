"""The report: every table and figure beside the paper's, made from the results that are there."""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.config.run_record import RETRAIN, SELECT
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import POPULAR
from bert4rec_tf.foundation import files, plots
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import format_clock
from bert4rec_tf.foundation.warning import FileWarning, warn
from experiments import answer, claims, figures, significance
from experiments.findings import ALPHA, Findings, find_runs_on_other_files
from experiments.grids import (
    NOT_RUN,
    Cell,
    Grid,
    compute_gain,
    describe_statistics,
    find_title,
    format_difference,
    make_all_grids,
)
from experiments.line_fields import FAILED, FINISHED, STOPPED
from experiments.plan import QUICK, QUICK_WIDTH, Job
from experiments.results import CPU, Line, name_device
from experiments.sweep import Sweep
from experiments.tables import TABLES, make_cell_label, make_label

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
    "Each metric is a mean over users, and over the seeds that were run: one seed where no ± is shown. “Here” tells in "
    "how many cases what the paper says is true of these means, significant or not. A case is a comparison of results, "
    "or the shape of a curve, among popular items: by NDCG@10 for Tables 4 and 5 and Figure 4 (speed: by samples/s), "
    "else by each metric."
)


AS_PUBLISHED = {
    None: ". Whether it is the authors' own file is unknown.",
    True: ", the authors' own file.",
    False: ". This is not the file that the authors published: actions at equal times may be in another order, and so "
    "other items may be held out.",
}


class Section(NamedTuple):
    """A part of the report: paragraphs of plain text, tables, and pictures."""

    title: str
    paragraphs: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    pictures: Sequence[figures.Picture] = ()


def make_sections(
    findings: Mapping[str, Findings],
    comparisons: Mapping[str, Any],
    statistics: Mapping[str, Mapping[str, Any]],
    pictures: Mapping[str, Sequence[figures.Picture]],
) -> list[Section]:
    """Returns the sections: the answer, about the results, the tables in the paper's order, and the runs.

    Args:
        findings: table -> its runs and results.
        comparisons: as `significance.write_sentences` takes them.
        statistics: data set -> its row of Table 1, if its file is or was there.
        pictures: figure -> file names and what the pictures show.
    """
    cells: dict[str, list[str]] = {}
    for name, table in findings.items():
        for (_, variant), runs in table.runs.items():
            for line in runs:
                cells.setdefault(line["key"], []).append(make_cell_label(name, variant))
    lines = next(iter(findings.values())).lines
    shown_lines = [{**lines[key], "cells": "; ".join(texts)} for key, texts in cells.items()]
    jobs = {name: table.plan.make_all_jobs([name]) for name, table in findings.items()}
    sections = [_make_about_section(findings, jobs, lines, shown_lines)]
    if "table2" in findings:
        grid = answer.make_grid(findings["table2"], comparisons)
        sentences = [*_count_known(jobs, lines, shown_lines), *answer.write_sentences(findings["table2"], grid.rows)]
        sections.insert(0, Section("Which model ranks best?", sentences, [grid]))
    for name in TABLES:
        title = f"{make_label(name)}: {TABLES[name].title}"
        if name == "table1" and name in findings:
            sections.append(Section(title, *describe_statistics(statistics)))
        elif name in findings:
            table_pictures = pictures.get(name, ())
            paragraphs = _write_paragraphs(findings[name], comparisons, bool(table_pictures))
            sections.append(Section(title, paragraphs, make_all_grids(findings[name]), table_pictures))
    return [*sections, _make_runs_section(shown_lines)]


def _count_known(jobs: Mapping[str, Sequence[Job]], lines: Mapping[str, Line], rows: Sequence[Line]) -> list[str]:
    """Returns the report's first sentences: how many of the runs are finished, and what that leaves open."""
    keys_by_table = {make_label(name): {job.key for job in group} for name, group in jobs.items() if group}
    keys_by_data: dict[str, set[str]] = {}
    for job in itertools.chain(*jobs.values()):
        keys_by_data.setdefault(find_title(job.run.dataset), set()).add(job.key)
    keys = set().union(*keys_by_table.values())
    finished = {key for key in keys if lines.get(key, {}).get("status") == FINISHED} - find_runs_on_other_files(lines)
    extras = {line["key"] for line in rows} - keys
    titles = {find_title(line["run"]["dataset"]) for line in rows}
    open_data = [title for title in keys_by_data if title not in titles]

    num_seeds = len({job.run.seed for job in itertools.chain(*jobs.values())})
    seeds = "one" if num_seeds == 1 else f"{num_seeds} seeds"

    def count(keys_by_title: Mapping[str, set[str]]) -> str:
        return "; ".join(f"{title} {len(group & finished)} of {len(group)}" for title, group in keys_by_title.items())

    return [
        f"Known: {len(finished)} of {len(keys)} runs that the tables and figures need are finished, {seeds} for each "
        f"cell: {count(keys_by_data)}. By table: {count(keys_by_table)}. {len(extras)} more are shown, with another "
        "seed or another share of the steps.",
        f"Not known: {len(keys - finished)} runs are missing. Their cells say “{NOT_RUN}” or show a run "
        "with a share of the steps, and what the paper says about them is neither confirmed nor refuted."
        + (f" Nothing was run on {', '.join(open_data)}." if open_data else ""),
    ]


def _write_paragraphs(findings: Findings, comparisons: Mapping[str, Any], has_pictures: bool) -> list[str]:
    """Returns the paragraphs above the grids of a table or figure."""
    name, note = findings.name, TABLES[findings.name].note
    paragraphs = [*([note] if note else []), *claims.write_sentences(findings)]
    if name == "table2":
        paragraphs += significance.write_sentences(findings, comparisons)
        paragraphs += [*_compare_narrow(findings), _describe_mean_gains(findings), *_explain_correction(findings)]
    if name == "table5":
        paragraphs += _note_missing_dropout(findings)
    paragraphs += _list_remarks(itertools.chain(*findings.runs.values()))
    paragraphs += [*_describe_devices(findings), *_describe_budgets(findings)]
    datasets = findings.list_measured_datasets()
    missing_titles = [find_title(data) for data in findings.list_datasets() if data not in datasets]
    if missing_titles:
        paragraphs.append(f"{', '.join(missing_titles)}: {NOT_RUN}.")
    if name.startswith("figure") and datasets and not has_pictures:
        reason = "no line has two points" if plots.is_available() else "it needs the extra [plots]"
        paragraphs.append(f"No picture: {reason}.")
    return paragraphs


def _make_about_section(
    findings: Mapping[str, Findings],
    jobs: Mapping[str, Sequence[Job]],
    lines: Mapping[str, Line],
    shown_lines: Sequence[Line],
) -> Section:
    """Returns the section about the results: data files, versions, and the number of runs."""
    keys = {job.key for job in itertools.chain(*jobs.values())}
    counts = Counter(lines[key]["status"] if key in lines else "missing" for key in keys)
    states = ", ".join(f"{status}: {counts[status]}" for status in (FINISHED, FAILED, STOPPED, "missing"))
    paragraphs = [f"Runs shown here: {len(shown_lines)}. Runs asked for: {len(keys)} ({states}).", READING]
    preset = next(iter(findings.values())).plan.preset
    if preset != "fast":
        paragraphs.append(f"BERT4Rec has the settings of the preset {preset}; its runs by other presets are not shown.")
    if any(table.plan.quick for table in findings.values()):
        paragraphs.append(
            f"These are quick runs: {QUICK['steps']} steps, no model wider than d = {QUICK_WIDTH} and BERT4Rec of "
            "one block, whatever a title says. They show that everything works, and nothing about the models."
        )
    data_files = {line["run"]["dataset"]: line["data_file"] for line in shown_lines}
    paragraphs += [describe_file(dataset, file) for dataset, file in sorted(data_files.items())]
    other_lines = [lines[key] for key in sorted(find_runs_on_other_files(lines))]
    places = [(find_title(line["run"]["dataset"]), _name_file(line["data_file"])) for line in other_lines]
    paragraphs += [
        f"Left out, as they used another data file than most runs on {title}: {names}. The other file is {file}."
        for (title, file), names in _name_runs(zip(places, other_lines)).items()
    ]
    paragraphs += sorted({f"Versions: {_describe_versions(line['environment'])}." for line in shown_lines})
    paragraphs += [
        f"Failed: {line['run']['model']} on {line['run']['dataset']}, run {key} ({line['error']})."
        for key, line in sorted(lines.items())
        if line["status"] == FAILED
    ]
    return Section("About these results", paragraphs)


def _make_runs_section(lines: Sequence[Line]) -> Section:
    """Returns the section with a row per finished run: its cells, its budget, and the time and memory it took."""
    if not lines:
        return Section("All runs", ["No run is finished."])
    paragraphs = [RUNS]
    keys = [line["key"] for line in lines if line.get(SELECT, {}).get("best_step") == line["run"]["training"]["steps"]]
    if keys:
        paragraphs.append(f"Best at the last step that was allowed, so more steps may do better: {', '.join(keys)}.")
    rows = list(map(_make_run_row, lines))
    texts = [list(map(Cell, row.values())) for row in rows]
    grid = Grid(list(rows[0]), texts, "Finished runs, with NDCG@10 among 100 popular items")
    return Section("All runs", [*paragraphs, *_list_remarks(lines)], [grid])


def _name_file(file: Mapping[str, Any]) -> str:
    return f"{file['name']}, SHA-256 of its content {file['sha256']}"


def describe_file(dataset: str, file: Mapping[str, Any] | None) -> str:
    """Returns a sentence: on which file the results of a data set were measured; None if it is built in."""
    text = f"{_name_file(file)}{AS_PUBLISHED[file['as_published']]}" if file else "built in."
    return f"{find_title(dataset)}: {text}"


def _describe_versions(environment: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(environment["versions"].items()))
    threads = "1 thread" if environment["threads"] == 1 else f"{environment['threads']} threads"
    return f"{versions}; {threads} on {', '.join(environment['devices'])}"


def _name_runs(lines: Iterable[tuple[Hashable, Line]]) -> dict[Any, str]:
    """Returns what is said of some lines -> the runs of which it is said."""
    names: dict[Hashable, list[str]] = {}
    for remark, line in lines:
        names.setdefault(remark, []).append(f"{line['key']} ({line['run']['model']})")
    return {remark: ", ".join(runs) for remark, runs in names.items()}


def _list_remarks(lines: Iterable[Line]) -> list[str]:
    """Returns sentences: what is known to be wrong with runs, from the `remark` of their lines."""
    names = _name_runs((line["remark"], line) for line in lines if "remark" in line)
    return [f"Read with care: {runs}: {remark}." for remark, runs in names.items()]


def _format_percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _make_run_row(line: Line) -> dict[str, str]:
    run, step_counts = line["run"], [line[phase]["steps"] for phase in (SELECT, RETRAIN) if phase in line]
    steps = " and ".join(f"{count:,}" for count in step_counts) + f" of {run['training']['batch_size']}"

    def format_part(part: str) -> str:
        return f"{line[part][POPULAR]['ndcg@10']:.4f}" if part in line else "none"

    return {
        "run": line["key"],
        "data": find_title(run["dataset"]),
        "model": run["model"],
        "cells": line["cells"],
        "seed": str(run["seed"]),
        "budget": _format_percent(line["budget"]),
        "steps": steps if any(step_counts) else "none",
        "device": name_device(line),
        "validation": format_part("validation"),
        "test": format_part("test"),
        "wall time": format_clock(line["wall_seconds"]),
        "peak memory": f"{line['peak_memory'] / 1e6:,.0f} MB" if line["peak_memory"] else "unknown",
    }


def _describe_devices(findings: Findings) -> list[str]:
    """Returns sentences: which cells were computed on a GPU."""
    cells: dict[str, list[str]] = {}
    for (data, variant), lines in findings.runs.items():
        for device in sorted({name_device(line) for line in lines} - {CPU}):
            title = TABLES[findings.name].variants[variant].title
            cells.setdefault(device, []).append(f"{find_title(data)} {title}")
    return [f"Computed on {device}: {', '.join(names)}." for device, names in sorted(cells.items())]


def _describe_budgets(findings: Findings) -> list[str]:
    """Returns sentences: where runs had only a share of the steps, and which were left out for another share."""
    parts = [
        f"{find_title(data)} {_format_percent(findings.budgets[data])}"
        for data in findings.list_measured_datasets()
        if findings.budgets[data] != 1
    ]
    keys = [
        f"{count} on {find_title(data)} with {_format_percent(share)}"
        for (share, data), count in sorted(findings.left_out.items())
    ]
    return [
        *([f"Budget: these runs had only a part of their presets' steps: {', '.join(parts)}."] if parts else []),
        *([f"Runs left out, as they had another share of the steps: {', '.join(keys)}."] if keys else []),
    ]


def _compare_narrow(findings: Findings) -> list[str]:
    """Returns a sentence that compares BERT4Rec with Table 5, if it has d = 64 as there."""
    parts = []
    for data in findings.list_measured_datasets():
        runs, paper_row = findings.runs[data, "bert4rec"], read_paper()["table5"].get(data)
        if runs and paper_row and runs[0]["run"]["architecture"]["hidden_dim"] == 64:
            value, default = findings.compute_mean(data, "bert4rec", "ndcg@10"), paper_row["default"]["ndcg@10"]
            parts.append(
                f"{find_title(data)} {value:.4f} (paper {default:.4f}, difference {format_difference(value, default)})"
            )
    text = "BERT4Rec has d = 64 here, but its best width in the paper's Table 2. NDCG@10 beside Table 5 at d = 64"
    return [f"{text}: {'; '.join(parts)}."] if parts else []


def _describe_mean_gains(findings: Findings) -> str:
    """Returns a sentence: section 4.4's mean gains over the strongest other model, on the complete data sets."""
    parts = []
    for metric, paper_gain in read_paper()["gains"].items():
        gains = [compute_gain(findings, dataset, metric) for dataset in findings.list_datasets()]
        values = [gain for gain in gains if not math.isnan(gain)]
        mean = f"{np.mean(values):+.2%} on {len(values)}" if values else NOT_RUN
        parts.append(f"{metric.upper()} {mean} (paper: {paper_gain:+.2%} on 4)")
    return f"Mean gain over the best other model (section 4.4) on the data sets with all nine: {'; '.join(parts)}."


def _explain_correction(findings: Findings) -> list[str]:
    """Returns what the correction for popularity means, if a run was measured with one."""
    if not any(findings.list_values(*place, ALPHA) for place in findings.runs):
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


def _note_missing_dropout(findings: Findings) -> list[str]:
    """Returns a sentence: where “w/o dropout” changes nothing, because the preset has none."""
    runs = {place: jobs[0].run for place, jobs in findings.plan.make_jobs(findings.name).items()}
    data = [
        find_title(data) for data in findings.list_datasets() if runs[data, "default"] == runs.get((data, "no_dropout"))
    ]
    return [f"On {' and '.join(data)} the default has no dropout, so “w/o dropout” is the same run."] if data else []


def render(form: str, sections: Sequence[Section]) -> str:
    """Returns the report as "md" or "html". The page only needs the pictures beside it."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=form == "html", trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(f"report.{form}.j2").render(title=TITLE, sections=sections) + "\n"


def write(findings: Mapping[str, Findings], sweep: Sweep) -> list[Path]:
    """Writes the report. First makes its comparisons, statistics and pictures, as far as ranks and data are here.

    Returns the paths of `report.md` and `report.html`; `report-table2.md` and so on for BERT4Rec by another preset than
    `fast`, so that the report of the others stays.
    """
    results = sweep.results
    if "table2" in findings:
        table2 = findings["table2"]
        folders = {line["key"]: sweep.find_folder_of(line) for line in itertools.chain(*table2.runs.values())}
        names = {*significance.name_pairs(table2).values(), *answer.name_pairs(table2).values()}
        significance.compare_all(sorted(names), folders, results)
    statistics = load_statistics(findings["table1"], sweep) if "table1" in findings else {}
    pictures = figures.draw(findings, results)
    sections = make_sections(findings, results.read_json(significance.FILE), statistics, pictures)
    files.make_folder(results.folder)
    first = next(iter(findings.values()))
    paths = {form: figures.locate(results, first, "report", form) for form in ("md", "html")}
    for form, path in paths.items():
        files.write_text(path, render(form, sections))
    return list(paths.values())


def load_statistics(findings: Findings, sweep: Sweep) -> dict[str, dict[str, str]]:
    """Returns data set -> its row of Table 1, if the data are or were here, and keeps the rows beside the results."""
    rows, new_rows = sweep.results.read_json(STATISTICS), {}
    for name in findings.plan.datasets:
        file = sweep.find_data_file(name)
        is_there = file is not None or datasets.find_source(name) is None
        if is_there and rows.get(name, {}).get("data_file", ...) != file:
            try:
                columns = datasets.format_table1_columns(datasets.load(name, sweep.data_dir))
                new_rows[name] = {"data_file": file, "columns": columns}
            except UserError as error:
                warn(str(error), FileWarning)
    if new_rows:
        with sweep.results.lock():
            rows = {**sweep.results.read_json(STATISTICS), **new_rows}
            files.write_json(sweep.results.folder / STATISTICS, rows)
    return {name: row["columns"] for name, row in rows.items()}
