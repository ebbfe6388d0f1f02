"""`run_all.sh --merge=FILE`: takes in the results of runs that were made on another machine."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import bert4rec_tf
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.evaluation.metrics import PROTOCOLS
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from experiments.results import FINISHED, Line, Results, is_same_file, list_trainings, read_lines

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
    for key, line in read_lines(path).items():
        own_line = lines.get(key, {})
        if damage := find_damage(line):
            report.refusals[key] = damage
            continue
        if own_line.get("status") == FINISHED and is_same_file(own_line["data_file"], line.get("data_file")):
            report.known_keys.append(key)
        elif reason := find_fault(key, line, find_file):
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


def find_damage(line: Line) -> str | None:
    """Returns that a line has what `Results.put` does not write; None if it has not."""
    try:
        file = line.get("data_file")
        is_sound = file is None or isinstance(file["sha256"], str)
        if line.get("status") != FINISHED:
            return None if is_sound else "it is damaged"
        environment = line["environment"]
        names = [*environment["devices"], *environment.get("accelerators", []), *environment["versions"].values()]
        numbers = [training[name] for training in list_trainings(line) for name in ("steps", "seconds")]
        numbers += [line["peak_memory"]] if line.get("peak_memory") is not None else []
        is_sound = is_sound and all(isinstance(name, str) for name in names)
        is_sound = is_sound and all(isinstance(number, int | float) for number in numbers)
    except (KeyError, TypeError, AttributeError) as error:
        return f"it is damaged ({error})"
    return None if is_sound else "it is damaged"


def find_fault(key: str, line: Line, find_file: FindFile) -> str | None:
    """Returns why a line cannot be taken; None if it can."""
    if line.get("status") != FINISHED:
        return f"it is not finished, but {line.get('status')}"
    try:
        run = Run.from_dict(line["run"])
        versions, file = line["environment"]["versions"], line["data_file"]
        values = [line["test"][protocol]["ndcg@10"] for protocol in PROTOCOLS]
        is_whole = all(isinstance(value, float) for value in values) and bool(line["environment"]["devices"])
        is_whole = is_whole and line["wall_seconds"] >= 0 and 0 < line["budget"] <= 1
    except (KeyError, TypeError, UserError) as error:
        return f"it is not the result of a run of this version ({error})"
    if not is_whole:
        return "it is not the whole result of a run"
    if run.digest != key or line.get("digest") != key:
        return f"its settings have the digest {run.digest}: they were changed, or made by another version"
    if (version := versions.get("bert4rec_tf")) != bert4rec_tf.__version__:
        return f"it was made by version {version}, and this is {bert4rec_tf.__version__}"
    own_file = find_file(run.dataset)
    if own_file is not None and not is_same_file(file, own_file):
        return f"it was measured on another file than {own_file['name']} here"
    return None


def describe(report: MergeReport) -> list[str]:
    """Returns lines that say what was done."""
    counts = f"{len(report.taken_keys)} taken, {len(report.known_keys)} already here, {len(report.refusals)} refused."
    return [*(f"refused {key}: {reason}" for key, reason in report.refusals.items()), counts]
