"""The report's sections about the runs themselves: on which files, with which settings, at which budget and cost."""

from collections.abc import Mapping
from typing import Any

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import POPULAR
from bert4rec_tf.foundation.progress import clock
from experiments import provenance
from experiments.findings import Findings, Line
from experiments.jobs import QUICK, QUICK_WIDTH, EncodedRequest
from experiments.markup import Grid, Section, percent
from experiments.results import FAILED, STOPPED, newest

QUICK_REMARK = (
    f"These are quick runs: {QUICK['steps']} steps, no model wider than d = {QUICK_WIDTH} and BERT4Rec of one "
    "block, whatever a title says. They show that everything works, and nothing about the models."
)


def about(findings: Mapping[str, Findings], asked: EncodedRequest | None = None) -> Section:
    """What the results were made with: data files, versions, and how many runs there are.

    Args:
        findings: all that the report shows.
        asked: the part that was asked for; None for all that is shown.
    """
    lines = _lines(findings)
    every = {key for found in findings.values() for key in found.asked()}
    part = every if asked is None else set(asked.keys)
    shown = {line["key"]: line for _, line in _shown(findings)}
    known = every | part | set(shown)
    paragraphs = [f"Runs shown here: {len(shown)}. Of those asked for, which are {len(part)}, {_states(part, lines)}."]
    if asked is not None and asked.unknown:
        paragraphs.append(f"The paper has no {' and no '.join(asked.unknown)}.")
    if any(found.plan.quick for found in findings.values()):
        paragraphs.append(QUICK_REMARK)
    used = {(line["run"]["dataset"], str(line["data_file"])): line["data_file"] for line in shown.values()}
    paragraphs += [provenance.sentence(name, file) for (name, _), file in sorted(used.items())]
    paragraphs += _left_out(findings)
    for versions in sorted({_versions(line) for line in shown.values()}):
        paragraphs.append(f"Versions: {versions}.")
    ended = [newest(line) for key, line in sorted(lines.items()) if key in known]
    failed = [line for line in ended if line["status"] == FAILED]
    paragraphs += [
        f"Failed: {line['run']['model']} on {line['run']['dataset']}, run {line['key']} ({line['error']})."
        for line in failed
    ]
    return Section("About these results", paragraphs)


def _left_out(findings: Mapping[str, Findings]) -> list[str]:
    """Says which finished runs are of another data file than the others of their data set."""
    lines = {key: line for found in findings.values() for key, line in found.left_out.items()}
    places: dict[tuple[str, str], list[str]] = {}
    for key, line in sorted(lines.items()):
        place = datasets.find(line["run"]["dataset"]).title, provenance.named(line["data_file"])
        places.setdefault(place, []).append(key)
    return [
        f"Left out, for most runs on {title} are of another file: those on {file}, which are {', '.join(keys)}."
        for (title, file), keys in sorted(places.items())
    ]


def _states(asked: set[str], lines: Mapping[str, Line]) -> str:
    statuses = [lines.get(key, {}).get("status") for key in asked]
    finished, failed, stopped = (statuses.count(status) for status in ("finished", FAILED, STOPPED))
    rest = len(statuses) - finished - failed - stopped
    return f"finished: {finished}, failed: {failed}, stopped: {stopped}, not begun: {rest}"


def _lines(findings: Mapping[str, Findings]) -> Mapping[str, Line]:
    return next(iter(findings.values())).lines if findings else {}


def _versions(line: Line) -> str:
    environment = line["environment"]
    told = ", ".join(f"{name} {version}" for name, version in sorted(environment["versions"].items()))
    threads = "1 thread" if environment["threads"] == 1 else f"{environment['threads']} threads"
    return f"{told}; {threads} on {', '.join(environment['devices'])}"


def _shown(findings: Mapping[str, Findings]) -> list[tuple[str, Line]]:
    """Returns each finished run that stands in a cell, with the cells where it stands."""
    places: dict[str, list[str]] = {}
    lines: dict[str, Line] = {}
    for found in findings.values():
        for some in found.runs.values():
            for job, line in some:
                places.setdefault(job.key, []).extend(job.cells)
                lines[job.key] = line
    return [("; ".join(cells), lines[key]) for key, cells in places.items()]


def all_runs(findings: Mapping[str, Findings]) -> Section:
    """A row per finished run: where it stands, its budget, and what it took."""
    rows = [
        [
            line["key"],
            datasets.find(line["run"]["dataset"]).title,
            line["run"]["model"],
            cells,
            str(line["run"]["seed"]),
            percent(line["budget"]),
            _steps(line),
            *(_ndcg(line, part) for part in ("validation", "test")),
            clock(line["wall_seconds"]),
            f"{line['peak_memory'] / 1e6:,.0f} MB" if line["peak_memory"] else "unknown",
        ]
        for cells, line in _shown(findings)
    ]
    header = [
        "run",
        "data",
        "model",
        "cells",
        "seed",
        "budget",
        "steps",
        "validation",
        "test",
        "wall time",
        "peak memory",
    ]
    said = (
        "The budget is the share of the preset's steps; “steps” are those of each training, of which "
        "the first of two has the validation item held out, with the examples of a step. “validation” and “test” "
        "are NDCG@10 on those items; the former is of the first of two trainings, and none where there is only one."
    )
    paragraphs = [said, *_capped(findings)] if rows else ["No run is finished."]
    return Section("Runs", paragraphs, [Grid(header, rows)] if rows else [])


def _ndcg(line: Mapping[str, Any], part: str) -> str:
    return f"{line[part][POPULAR]['ndcg@10']:.4f}" if part in line else "none"


def _capped(findings: Mapping[str, Findings]) -> list[str]:
    """Says which runs chose the last step that they were allowed."""
    keys = [
        line["key"]
        for _, line in _shown(findings)
        if line.get("select", {}).get("best_step") == line["run"]["training"]["steps"]
    ]
    return [f"Best at the last step that was allowed, so more steps may do better: {', '.join(keys)}."] if keys else []


def _steps(line: Mapping[str, Any]) -> str:
    trainings = [line[phase]["steps"] for phase in ("select", "retrain") if phase in line]
    if not any(trainings):
        return "none"
    return " and ".join(f"{steps:,}" for steps in trainings) + f" of {line['run']['training']['batch_size']}"
