"""`run_all.sh --merge=FILE`: takes in the results of runs that were made on another machine."""

import functools
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import bert4rec_tf
from bert4rec_tf.config import presets
from bert4rec_tf.config.model_settings import PAPERS_MODEL
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from experiments.line_fields import FINISHED, find_damage
from experiments.plan import PRESETS, Plan
from experiments.results import Line, Results, is_same_file, parse_lines
from experiments.tables import QUICK_DATASETS, TABLES

FindFile = Callable[[str], dict[str, Any] | None]
"""Returns the facts about the present file of a data set (`results.describe_data_file`)."""


class MergeReport(NamedTuple):
    """What was done with the lines of a file: the keys of those taken and of those already there, and why one was not.

    `refusals`: key -> the reason.
    """

    taken_keys: list[str]
    known_keys: list[str]
    refusals: dict[str, str]


def merge(path: Path, results: Results, find_file: FindFile) -> MergeReport:
    """Adds the finished runs of another file of results, and the attention files beside it.

    Raises UserError if the file is missing or damaged; then nothing is taken.
    """
    if not path.is_file():
        raise UserError(f"`merge` must be a file of results ({results.path.name}). Received: merge={path}")
    report, other_results, lines = MergeReport([], [], {}), Results(path.parent), results.read()
    for key, line in {str(line["key"]): line for _, line in parse_lines(path)}.items():
        own_line = lines.get(key, {})
        if damage := find_damage(line):
            report.refusals[key] = damage
            continue
        if own_line.get("status") == FINISHED and is_same_file(own_line["data_file"], line["data_file"]):
            report.known_keys.append(key)
        elif reason := find_fault(key, line, find_file) or find_other_data(line, lines.values()):
            report.refusals[key] = reason
        elif own_line.get("status") == FINISHED and find_file(line["run"]["dataset"]) is None:
            report.refusals[key] = "the run is here, of another data file, and neither file is here to decide"
        else:
            results.attention_path(key).unlink(missing_ok=True)  # of other data, or of none
            results.put(line, is_whole=True)
            report.taken_keys.append(key)
        attention = other_results.attention_path(key)
        is_lacking = key in report.known_keys and not results.attention_path(key).exists()
        is_taken = key in report.taken_keys or (is_lacking and find_fault(key, line, find_file) is None)
        if is_taken and attention.exists():
            with results.lock(), files.atomic_write(results.attention_path(key)) as temp_path:
                shutil.copyfile(attention, temp_path)
    return report


def find_fault(key: str, line: Line, find_file: FindFile) -> str | None:
    """Returns why a sound line cannot be taken; None if it can."""
    if line["status"] != FINISHED:
        return f"it is not finished, but {line['status']}"
    try:
        run = Run.from_dict(line["run"])
    except (KeyError, TypeError, UserError) as error:
        return f"it is not the result of a run of this version ({error})"
    if run.digest != key or line["digest"] != key:
        return f"its settings have the digest {run.digest}: they were changed, or made by another version"
    if (version := line["environment"]["versions"].get("bert4rec_tf")) != bert4rec_tf.__version__:
        return f"it was made by version {version}, and this is {bert4rec_tf.__version__}"
    own_file = find_file(run.dataset)
    if own_file is not None and not is_same_file(line["data_file"], own_file):
        return f"it was measured on another file than {own_file['name']} here"
    names = [name for name in PRESETS if (name, run.dataset, PAPERS_MODEL) in presets.PRESETS]
    if not any(key in list_keys(run.dataset, run.seed, line["budget"], name) for name in names):
        return f"no table or figure has this run with the budget {line['budget']}"
    return None


@functools.cache
def list_keys(dataset: str, seed: int, budget: float, preset: str) -> frozenset[str]:
    """Returns the keys of the runs of all tables and figures on a data set."""
    plan = Plan((dataset,), preset, (seed,), budget, quick=dataset in QUICK_DATASETS)
    return frozenset(job.key for job in plan.make_all_jobs(TABLES))


def find_other_data(line: Line, own_lines: Iterable[Line]) -> str | None:
    """Returns that a line's data differ from those of a run here on the same file; None if they do not."""
    for own_line in own_lines:
        is_comparable = own_line["status"] == FINISHED and own_line["run"]["dataset"] == line["run"]["dataset"]
        if not is_comparable or not is_same_file(own_line["data_file"], line["data_file"]):
            continue
        if own_line["data_fingerprint"] != line["data_fingerprint"]:
            return f"its data have another fingerprint than those of {own_line['key']} here, of the same file"
    return None


def describe(report: MergeReport) -> list[str]:
    """Returns lines that say what was done."""
    counts = f"{len(report.taken_keys)} taken, {len(report.known_keys)} already here, {len(report.refusals)} refused."
    return [*(f"refused {key}: {reason}" for key, reason in report.refusals.items()), counts]
