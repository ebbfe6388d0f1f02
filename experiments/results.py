"""The results: one JSON line per run, in a file that several sweeps may write to, and facts about the data files."""

import functools
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from bert4rec_tf.config.run_record import RETRAIN, SELECT
from bert4rec_tf.data.reading import blocks
from bert4rec_tf.data.sources import datasets, download
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.folder import WorkDirectory
from experiments.line_fields import FINISHED, find_damage

Line = Mapping[str, Any]

FILE = "results.jsonl"
ATTENTION = "attention-"

BUSY = "running elsewhere"
"""The status of a job that another sweep works on. No line has it."""

CPU = "CPU"

REPOSITORY = Path(__file__).parents[1]


class Results:
    """The file of results in a folder, which also has the other files that a report is made from.

    A sitting is one process that worked on a run. A line has `key` (the run's digest), `status`, `run`, `budget` (the
    share of its preset's steps), `data_file` and `commit` (of the last sitting's code). Its `peak_memory` in bytes and
    `wall_seconds` are of all sittings on that data file; killed sittings leave no line, so `wall_seconds` is at least
    the time of the trainings. A failed line has its `error`, a finished one the content of `metrics.json`.
    `line_fields` has what readers need of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE

    def read(self) -> dict[str, dict[str, Any]]:
        """Returns key -> its newest line. Raises UserError if a line cannot be read."""
        return read_lines(self.path) if self.path.exists() else {}

    def read_json(self, name: str) -> dict[str, Any]:
        """Returns the content of a JSON file in the folder; empty if there is none."""
        path = self.folder / name
        return files.read_json(path) if path.exists() else {}

    def attention_path(self, key: str) -> Path:
        """Returns the file of a run's mean attention."""
        return self.folder / f"{ATTENTION}{key}.json"

    def list_attentions(self) -> set[str]:
        """Returns the keys of the runs whose mean attention is kept."""
        return {path.stem.removeprefix(ATTENTION) for path in self.folder.glob(f"{ATTENTION}*.json")}

    def lock(self) -> filelock.FileLock:
        """Returns the folder's lock. Hold it while you change a file there."""
        files.make_folder(self.folder)
        return filelock.FileLock(self.folder / f".{FILE}{files.LOCK}")

    def put(self, sitting: dict[str, Any], is_whole: bool = False) -> dict[str, Any]:
        """Adds the line of a sitting, whose `wall_seconds` and `peak_memory` are its own. The file is always complete.

        The new line replaces the older one of its key, whose time and memory it includes if both are of the same data
        file, unless the sitting `is_whole`: it did the run from its start. A finished line is only replaced by a
        finished one of another data file.

        Returns:
            The new line; or the finished line of the same data file, if there was one.
        """
        with self.lock():
            lines = self.read()
            old_line = lines.get(sitting["key"], {})
            line = dict(sitting)
            if old_line and is_same_file(old_line["data_file"], sitting["data_file"]):
                if old_line["status"] == FINISHED:
                    return old_line
                if not is_whole:
                    line["wall_seconds"] += old_line["wall_seconds"]
                    line["peak_memory"] = max(line["peak_memory"] or 0, old_line["peak_memory"] or 0) or None
            training_seconds = sum(training["seconds"] for training in list_trainings(line))
            line["wall_seconds"] = round(max(line["wall_seconds"], training_seconds), 1)
            if old_line.get("status") != FINISHED or line["status"] == FINISHED:
                lines[line["key"]] = line
                sorted_lines = sorted(
                    lines.values(), key=lambda row: (row["run"]["dataset"], row["run"]["model"], row["key"])
                )
                files.write_text(self.path, "".join(f"{json.dumps(row, sort_keys=True)}\n" for row in sorted_lines))
            return line


def read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Returns key -> its newest line in a file of results. Raises UserError for a line that a reader cannot use."""
    lines = {}
    for number, line in parse_lines(path):
        if damage := find_damage(line):
            raise UserError(f"{path}, line {number}: {damage}")
        lines[line["key"]] = line
    return lines


def parse_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the number and the content of each line of a file of results. Raises UserError for what is not one."""
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be results as text in UTF-8 ({error.reason})") from error
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            if not {"key", "run", "status", "data_file"} <= line.keys():
                raise ValueError("it has no key, run, status or data_file")
        except (ValueError, AttributeError) as error:
            raise UserError(f"{path}, line {number}: not the result of a run ({error})") from error
        yield number, line


def name_device(line: Line) -> str:
    """Returns the device that a finished run was computed on: CPU, or the GPU's name."""
    environment = line["environment"]
    gpus = environment.get("accelerators") or [name for name in environment["devices"] if name != CPU]
    return " and ".join(sorted({*gpus})) or CPU


def list_trainings(line: Line) -> list[Line]:
    """Returns a line's entries of the trainings that took steps."""
    return [line[phase] for phase in (SELECT, RETRAIN) if phase in line and line[phase]["steps"]]


def is_same_file(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> bool:
    """Returns whether two `data_file`s have the same content. An unknown one counts as the same."""
    return first is None or second is None or first["sha256"] == second["sha256"]


def find_folder_of_data(folder: Path, fingerprint: str) -> Path:
    """Returns the work directory of a run on data of this fingerprint.

    It is `folder` if that is new or was made from these data. Else it is a folder beside it, whose name ends in the
    fingerprint's first digits.
    """
    work = WorkDirectory(folder)
    if not work.config.exists() or files.read_json(work.config)["data_fingerprint"] == fingerprint:
        return folder
    return folder.with_name(f"{folder.name}-{fingerprint[:8]}")


def describe_data_file(dataset: str, folder: Path | None) -> dict[str, Any] | None:
    """Returns facts about a data set's file; None if the data are built in or the file is missing.

    Returns:
        `name`; `sha256` of its unpacked content; `as_published`, whether it is the authors' file. None if that is
        unknown: the known checksum is of the file they published, which may be an archive.

    Raises:
        UserError: if the file cannot be read.
    """
    path = datasets.find_file(dataset, folder)
    if path is None:
        return None
    source = datasets.find_source(dataset)
    remote = None if source is None else source.remote
    with blocks.open_unpacked(path) as content:
        digest = download.checksum_as(content, "sha256:").removeprefix("sha256:")
    if remote is None or remote.member is not None:
        return {"name": path.name, "sha256": digest, "as_published": None}
    with blocks.open_unpacked(path) as content:
        is_published = download.checksum_as(content, remote.checksum) == remote.checksum
    return {"name": path.name, "sha256": digest, "as_published": is_published}


@functools.cache
def read_commit(repository: Path = REPOSITORY) -> str | None:
    """Returns a checkout's commit, with "+" if the package has changed since; None if there is no checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout

    try:
        root, head = git("rev-parse", "--show-toplevel", "HEAD").splitlines()
        changes = git("status", "--porcelain", "--", "bert4rec_tf")
    except (OSError, subprocess.CalledProcessError):
        return None
    if not repository.samefile(root):
        return None
    return f"{head}+" if changes else head
