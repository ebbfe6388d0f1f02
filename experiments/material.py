"""What a report is made of beside the results: comparisons, statistics of the data and pictures; and the report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation import files, plots
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn
from experiments import significance
from experiments.findings import Findings
from experiments.jobs import EncodedRequest
from experiments.report import Report
from experiments.results import Results
from experiments.sweep import Sweep

TITLE = "BERT4Rec: every table and figure, beside the paper"
STATISTICS = "statistics.json"


def write_report(findings: Mapping[str, Findings], sweep: Sweep, asked: EncodedRequest | None = None) -> list[Path]:
    """Makes what is missing of a report's material, as far as data and ranks are at hand, and writes it.

    Args:
        findings: of what the report shows.
        sweep: knows where everything lies.
        asked: the part that was asked for; None for all of it.
    """
    results = sweep.results
    if "table2" in findings:
        found = findings["table2"]
        folders = {job.key: sweep.folder_of(job, line) for some in found.runs.values() for job, line in some}
        significance.compare_all(found, folders, results)
    statistics = statistics_of(findings["table1"], sweep) if "table1" in findings else {}
    pictures = draw(findings, results)
    report = Report(findings, significance.read(results), statistics, pictures, plots.available(), asked)
    return report.write(results.folder, TITLE)


def fetch(names: Sequence[str], sweep: Sweep) -> bool:
    """Fetches the data that are not at hand, and tells of those that cannot be had; returns whether all are there."""
    are_there = True
    for name in names:
        try:
            if datasets.present(name, sweep.data_dir) is None:
                datasets.obtain(name, sweep.data_dir)
        except UserError as error:
            warn(str(error))
            are_there = False
    return are_there


def statistics_of(found: Findings, sweep: Sweep) -> dict[str, dict[str, str]]:
    """Returns the rows of Table 1 of the data sets that are or were at hand, and keeps them beside the results."""
    path = sweep.results.folder / STATISTICS
    kept: dict[str, Any] = files.read_json(path) if path.exists() else {}
    made = {}
    for name in found.plan.datasets:
        file = sweep.data_file(name)
        is_built_in = datasets.source_of(name) is None
        if (file or is_built_in) and kept.get(name, {}).get("data_file", ...) != file:
            try:
                columns = datasets.table1_columns(datasets.load(name, sweep.data_dir))
            except UserError as error:
                warn(str(error))
                continue
            made[name] = {"data_file": file, "columns": columns}
    if made:
        with sweep.results.lock():
            now = files.read_json(path) if path.exists() else {}
            kept = {**now, **made}
            files.write_json(path, kept)
    return {name: row["columns"] for name, row in kept.items()}


def draw(findings: Mapping[str, Findings], results: Results) -> dict[str, list[tuple[str, str]]]:
    """Draws the figures that were asked for and have anything to show."""
    if not plots.available():
        warn("The figures need matplotlib: pip install '.[plots]'")
        return {}
    from experiments import figures

    drawn = {}
    if "figure2" in findings:
        drawn["figure2"] = _attention(findings["figure2"], results)
    for name, make in (("figure3", figures.draw_widths), ("figure4", figures.draw_proportions)):
        if name in findings and any(findings[name].runs.values()):
            drawn[name] = make(findings[name], results.folder)
    return drawn


def _attention(found: Findings, results: Results) -> list[tuple[str, str]]:
    """Draws Figure 2 of the first seed whose attention is kept."""
    from experiments import figures

    drawn = []
    for (dataset, _), some in found.runs.items():
        paths = [results.attention_path(job.key) for job, _ in some]
        path = next((path for path in paths if path.exists()), None)
        if path is not None:
            content = files.read_json(path)
            title = f"{datasets.find(dataset).title}, {content['users']:,} users"
            drawn += figures.draw_attention(content["attention"], results.folder / f"figure2-{dataset}.png", title)
    return drawn
