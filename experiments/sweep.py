"""Runs the cells of tables, each in a process of its own, and keeps what they end with."""

import hashlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from bert4rec_tf import files, presets
from bert4rec_tf.config import Run
from bert4rec_tf.data import datasets
from bert4rec_tf.errors import UserError
from bert4rec_tf.workdir import WorkDirectory
from experiments.results import FAILED, FINISHED, STOPPED, Results
from experiments.tables import Cell

QUICK = {"steps": 30, "warmup_steps": 5, "evaluate_every": 15, "retrain": False, "batch_size": 64}
"""What makes a run one of some seconds."""

POLL_SECONDS = 0.2
STOPPED_CODE = 130
"""What a run exits with that was stopped and can go on."""


@dataclass(frozen=True)
class Job:
    """One run, and how the command line asks for it.

    Attributes:
        run: the record, whose digest is the job's key.
        flags: of `python -m bert4rec_tf.run`.
    """

    run: Run
    flags: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.run.digest

    @property
    def title(self) -> str:
        return f"{self.run.model} on {self.run.dataset}, seed {self.run.seed}, run {self.key}"


def job_of(cell: Cell, preset: str, seed: int, quick: bool = False) -> Job:
    """Returns the job of a cell.

    Args:
        cell: what to run.
        preset: settings of BERT4Rec to start from; the other models have `fast` alone.
        seed: of the run.
        quick: with QUICK settings.
    """
    name = preset if cell.model == "bert4rec" else "fast"
    settings = {**(QUICK if quick else {}), **cell.changes}
    run = presets.make_run(cell.dataset, cell.model, name, seed, **settings)
    flags = {"dataset": cell.dataset, "model": cell.model, "preset": name, "seed": seed, **settings}
    return Job(run, tuple(f"--{flag}={value}" for flag, value in flags.items()))


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """Returns each run once: tables share some of theirs."""
    return list({job.key: job for job in jobs}.values())


def data_file(dataset: str, folder: Path | None) -> dict[str, str] | None:
    """Returns `name` and `sha256` of a data set's file; None for a built-in one. Raises UserError without it."""
    path = datasets.locate(dataset, folder)
    if path is None:
        return None
    with open(path, "rb") as file:
        return {"name": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


@dataclass
class Sweep:
    """Runs jobs and keeps their results.

    Attributes:
        results: where they are kept; what is finished there is not run again.
        workdir: folder of the runs' own folders, from which stopped ones go on.
        data_dir: where the data files lie.
        jobs: runs at once.
        time_budget: seconds after which a run is stopped, to be gone on with by the next sweep; None for no limit.
        threads: of each run; None for all.
    """

    results: Results
    workdir: Path
    data_dir: Path | None = None
    jobs: int = 1
    time_budget: float | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._checksums: dict[str, dict[str, str] | None] = {}

    def run(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Runs what is not finished and returns the status of every job by its key.

        Ctrl-C stops all runs, which keep a checkpoint, and is raised again.
        """
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = {job.key: pool.submit(self._run_one, job) for job in jobs}
            try:
                return {key: future.result() for key, future in futures.items()}
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def is_finished(self, job: Job) -> bool:
        """Tells whether the job's result is there, of the data file that is there now (or where there is none)."""
        line = self.results.read().get(job.key)
        if line is None or line["status"] != FINISHED:
            return False
        try:
            return line["data_file"] == self.checksum(job.run.dataset)
        except UserError:
            return True

    def checksum(self, dataset: str) -> dict[str, str] | None:
        """Returns `data_file` of a data set, computed once."""
        if dataset not in self._checksums:
            self._checksums[dataset] = data_file(dataset, self.data_dir)
        return self._checksums[dataset]

    def claim(self, job: Job) -> filelock.FileLock:
        """Returns the lock of a job, which the sweep that runs it holds; the system frees that of a dead process."""
        files.make_folder(self.workdir / "claims")
        return filelock.FileLock(self.workdir / "claims" / job.key, blocking=False)

    def is_running(self, job: Job) -> bool:
        """Tells whether another sweep runs the job."""
        lock = self.claim(job)
        try:
            with lock:
                return False
        except filelock.Timeout:
            return True

    def _run_one(self, job: Job) -> str:
        try:
            with self.claim(job):
                if self.is_finished(job):
                    return FINISHED
                line = self._line_of(job)
        except filelock.Timeout:
            print(f"{job.title}: another sweep runs it", flush=True)
            return STOPPED
        if self._stop.is_set():
            return STOPPED
        self.results.put(line)
        print(f"{job.title}: {line['status']} after {line['wall_seconds']:,.0f} s" + _why(line), flush=True)
        return line["status"]

    def _line_of(self, job: Job) -> dict[str, Any]:
        """Runs a job in a process and returns its line of the results."""
        before = self.results.read().get(job.key, {})
        line = {"key": job.key, "run": job.run.to_dict(), "wall_seconds": before.get("wall_seconds", 0.0)}
        try:
            line["data_file"] = self.checksum(job.run.dataset)
        except UserError as error:
            return {**line, "status": FAILED, "error": str(error)}
        begin = time.monotonic()
        code, memory = self._process(job)
        line["wall_seconds"] += time.monotonic() - begin
        line["peak_memory"] = max(memory, before.get("peak_memory") or 0) or None
        if code == STOPPED_CODE:
            return {**line, "status": STOPPED}
        if code != 0:
            return {**line, "status": FAILED, "error": self._last_words(job, code)}
        content = files.read_json(WorkDirectory(self.folder(job)).metrics)
        return {**content, **line, "status": FINISHED}

    def folder(self, job: Job) -> Path:
        """The work directory of a job."""
        return self.workdir / f"{job.run.dataset}-{job.run.model}-{job.key}"

    def _command(self, job: Job) -> list[str]:
        flags = [*job.flags, f"--workdir={self.folder(job)}", f"--prepared_dir={self.workdir / 'prepared'}"]
        if self.data_dir is not None:
            flags.append(f"--data_dir={self.data_dir}")
        if self.threads is not None:
            flags.append(f"--threads={self.threads}")
        return [sys.executable, "-m", "bert4rec_tf.run", *flags]

    def _log(self, job: Job) -> Path:
        return self.workdir / f"{job.key}.log"

    def _process(self, job: Job) -> tuple[int, int]:
        """Returns the exit code of a job's process, and the most memory that it had, in bytes (0 where unknown)."""
        begin, memory, told = time.monotonic(), 0, False
        with open(self._log(job), "ab") as log:
            process = subprocess.Popen(self._command(job), stdout=log, stderr=log, start_new_session=True)
            try:
                while process.poll() is None:
                    memory = max(memory, _peak_memory(process.pid))
                    spent = time.monotonic() - begin
                    late = self.time_budget is not None and spent > self.time_budget
                    if (late or self._stop.is_set()) and not told:
                        process.send_signal(signal.SIGTERM)
                        told = True
                    time.sleep(POLL_SECONDS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        return process.returncode, memory

    def _last_words(self, job: Job, code: int) -> str:
        lines = self._log(job).read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else f"exit code {code}: {lines[-1] if lines else 'no words'}"


def _why(line: dict[str, Any]) -> str:
    return f" ({line['error']})" if line["status"] == FAILED else ""


def _peak_memory(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def estimate(job: Job, results: Results) -> float | None:
    """Returns the seconds that a job may take, from finished ones of its model and data set; None without any."""
    lines = [
        line
        for line in results.read().values()
        if line["status"] == FINISHED
        and (line["run"]["model"], line["run"]["dataset"]) == (job.run.model, job.run.dataset)
    ]
    if not lines:
        return None
    rates = [line["wall_seconds"] / line["run"]["training"]["steps"] for line in lines]
    return sum(rates) / len(rates) * job.run.training.steps


def states(jobs: Sequence[Job], sweep: Sweep) -> list[tuple[Job, str, float | None]]:
    """Returns each job with what it is in (finished, running, stopped, failed, missing) and the seconds it may take."""
    lines = sweep.results.read()
    rows = []
    for job in jobs:
        if sweep.is_finished(job):
            rows.append((job, FINISHED, 0.0))
        elif sweep.is_running(job):
            rows.append((job, "running", None))
        else:
            status = lines.get(job.key, {}).get("status", "missing")
            rows.append((job, "missing" if status == FINISHED else status, estimate(job, sweep.results)))
    return rows
