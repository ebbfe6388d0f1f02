"""What the runs of a sweep ended with: one JSON line per run in one file, which several sweeps may write to."""

import json
from pathlib import Path
from typing import Any

import filelock

from bert4rec_tf import files
from bert4rec_tf.errors import UserError

FILE = "results.jsonl"

FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"
"""The `status` of a line: measured; ended with an error; out of its time, to be gone on with."""

BUSY = "running elsewhere"
"""What a job is that another sweep works on; no line says so."""


class Results:
    """The file of results in a folder.

    A line has `key` (the run's digest), `status`, `run`, `budget` (the share of its preset's steps), `data_file`,
    `peak_memory` in bytes and `wall_seconds` of all sittings; a finished one what `metrics.json` holds too, a failed
    one its `error`.

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

    def held(self) -> filelock.FileLock:
        """Returns the lock of what is kept in the folder, to be held while a file there is changed."""
        files.make_folder(self.folder)
        return filelock.FileLock(self.folder / f".{FILE}{files.LOCK}")

    def put(self, line: dict[str, Any]) -> None:
        """Adds a line in place of an older one of its key; the file is whole at any time."""
        with self.held():
            found = {**self.read(), line["key"]: line}
            ordered = sorted(found.values(), key=lambda one: (one["run"]["dataset"], one["run"]["model"], one["key"]))
            files.write_text(self.path, "".join(f"{json.dumps(one, sort_keys=True)}\n" for one in ordered))
