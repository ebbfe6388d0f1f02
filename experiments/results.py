"""What the runs of a sweep ended with: one JSON line per run in one file, which several sweeps may write to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock

from bert4rec_tf.config.run import RETRAIN, SELECT
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.workdir import WorkDirectory

FILE = "results.jsonl"
ATTENTION = "attention-"
BEGUN = "begun"

FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"
"""The `status` of a line: measured; ended with an error; out of its time, to be gone on with."""

BUSY = "running elsewhere"
"""What a job is that another sweep works on; no line says so."""


def same_file(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> bool:
    """Tells whether two `data_file`s have the same content; what is not known counts as that."""
    return first is None or second is None or first["sha256"] == second["sha256"]


def folder_of_data(folder: Path, fingerprint: str) -> Path:
    """Returns the work directory of a run on data of this fingerprint.

    That is `folder` where it is new or made from these data. Where it was made from others, which stay there, it is one
    beside it, whose name ends in the fingerprint's first digits.
    """
    work = WorkDirectory(folder)
    if not work.config.exists() or work.read_config()["data_fingerprint"] == fingerprint:
        return folder
    return folder.with_name(f"{folder.name}-{fingerprint[:8]}")


class Results:
    """The file of results in a folder.

    A line has `key` (the run's digest), `status`, `run`, `budget` (the share of its preset's steps), `data_file`,
    `commit` (of the code of its last sitting), `peak_memory` in bytes and `wall_seconds` of all sittings on that file,
    but at least of its trainings, for one that was killed left no line; a finished one what `metrics.json` holds too, a
    failed one its `error`. A finished line has in `begun` the line of the same run on another data file, where that is
    stopped or failed.

    Attributes:
        folder: where the file lies, with whatever else a report is made of.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE

    def read(self) -> dict[str, dict[str, Any]]:
        """Returns the newest line of each key. Raises UserError where a line cannot be read."""
        if not self.path.exists():
            return {}
        found = {}
        for number, text in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                line = json.loads(text)
                found[line["key"]] = line
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{self.path}, line {number}: not the result of a run ({error})") from error
        return found

    def attention_path(self, key: str) -> Path:
        """Returns where the mean attention of a run is kept."""
        return self.folder / f"{ATTENTION}{key}.json"

    def attentions(self) -> set[str]:
        """Returns the keys of the runs whose mean attention is kept."""
        return {path.stem.removeprefix(ATTENTION) for path in self.folder.glob(f"{ATTENTION}*.json")}

    def lock(self) -> filelock.FileLock:
        """Returns the lock of what is kept in the folder, to be held while a file there is changed."""
        files.make_folder(self.folder)
        return filelock.FileLock(self.folder / f".{FILE}{files.LOCK}")

    def put(self, sitting: dict[str, Any]) -> dict[str, Any]:
        """Adds what a sitting of a run ended with; the file is whole at any time.

        It takes the place of the older line of its key, and has the time of both where that is of the same data file. A
        finished line stays until a finished one of another data file comes; until then it holds what is begun there.

        Args:
            sitting: a line whose `wall_seconds` and `peak_memory` are those of this sitting alone.

        Returns:
            The finished line that stays, where it is of the same data file; else the new line.
        """
        with self.lock():
            found = self.read()
            older = found.get(sitting["key"], {})
            is_finished = older.get("status") == FINISHED
            if is_finished and _of_same_file(older, sitting):
                return older
            begun = older.get(BEGUN) if is_finished else older
            line = _with_lost_time(_together(begun, sitting) if begun and _of_same_file(begun, sitting) else sitting)
            stays = is_finished and line["status"] != FINISHED
            self._write({**found, line["key"]: {**older, BEGUN: line} if stays else line})
            return line

    def _write(self, found: Mapping[str, dict[str, Any]]) -> None:
        ordered = sorted(found.values(), key=lambda one: (one["run"]["dataset"], one["run"]["model"], one["key"]))
        files.write_text(self.path, "".join(f"{json.dumps(one, sort_keys=True)}\n" for one in ordered))


def newest(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what a run ended with last, be it on another data file than its finished line."""
    return line.get(BEGUN, line)


def trainings(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns what a line says of its trainings that took steps."""
    return [line[phase] for phase in (SELECT, RETRAIN) if phase in line and line[phase]["steps"]]


def _with_lost_time(line: dict[str, Any]) -> dict[str, Any]:
    """Returns a line with at least the time of its trainings: checkpoints know of sittings that nobody wrote down."""
    spent = sum(training["seconds"] for training in trainings(line))
    return {**line, "wall_seconds": max(line["wall_seconds"], round(spent, 1))}


def _of_same_file(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return same_file(first.get("data_file"), second.get("data_file"))


def _together(older: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the newer line of a run, with the time and the memory of both."""
    return {
        **newer,
        "wall_seconds": round(older.get("wall_seconds", 0.0) + newer["wall_seconds"], 1),
        "peak_memory": max(older.get("peak_memory") or 0, newer.get("peak_memory") or 0) or None,
    }
