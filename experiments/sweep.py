"""Runs jobs in processes, keeps a line of each one's result, and lists what is left."""

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import filelock

from bert4rec_tf.config.run_record import TRAININGS, Run
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import POPULAR
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import format_clock
from bert4rec_tf.foundation.warning import FileWarning, warn
from bert4rec_tf.runs.folder import WorkDirectory
from experiments import processes, results
from experiments.line_fields import FAILED, FINISHED, STOPPED
from experiments.plan import Job
from experiments.results import BUSY, CPU, Line, Results, is_same_file, list_trainings, name_device

MISSING, RUNNING = "missing", "running"
"""States in a listing, besides the statuses of lines."""


@dataclass
class Sweep:
    """Runs jobs and keeps their results.

    Attributes:
        results: the file of results. Jobs that are finished there are not run again.
        workdir: folder of the runs' own folders. Stopped runs resume from theirs.
        data_dir: folder of the data files.
        jobs: how many runs are done at once.
        time_budget: seconds after which a run is stopped; the next sweep resumes it. None for no limit.
        threads: threads of each run; None for all.
        task: the function that the process of a run calls, with the arguments of `running.carry_out`.
    """

    results: Results
    workdir: Path
    data_dir: Path | None = None
    jobs: int = 1
    time_budget: float | None = None
    threads: int | None = None
    task: Callable[..., Path] = processes.carry_out

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._files: dict[str, dict[str, Any] | None] = {}
        self._damaged_keys = set[str]()
        self._done, self._total = 0, 0

    def run(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Runs the jobs that are not finished. Returns key -> status of every job.

        A job that another sweep works on is skipped, and tried once more at the end. Ctrl-C stops all runs, which write
        a checkpoint, and is raised again.
        """
        statuses = {job.key: FINISHED for job in jobs if self.is_finished(job)}
        waiting_jobs = [job for job in jobs if job.key not in statuses]
        self._done, self._total = 0, len(waiting_jobs)
        if statuses:
            print(f"{len(statuses)} of {len(jobs)} runs are finished already.", flush=True)
        for _ in range(2):
            self._run_all(waiting_jobs, statuses)
            waiting_jobs = [job for job in waiting_jobs if statuses.get(job.key) == BUSY]
        for job in waiting_jobs:
            print(f"{job.title}: another sweep runs it", flush=True)
        return statuses

    def is_finished(self, job: Job) -> bool:
        """Returns whether the job's result is there, of the present data file. Without a file, any result counts."""
        line = self.results.read().get(job.key)
        if line is None or line["status"] != FINISHED:
            return False
        if job.attention and not self.results.attention_path(job.key).exists():
            return False
        return is_same_file(line["data_file"], self.find_data_file(job.run.dataset))

    def is_running(self, job: Job) -> bool:
        """Returns whether a process works on the job."""
        try:
            with filelock.FileLock(self.lock_path(job), timeout=0):
                return False
        except filelock.Timeout:
            return True

    def find_data_file(self, dataset: str) -> dict[str, Any] | None:
        """Returns `results.describe_data_file`, whose answer is kept; None, with one warning, for a damaged file."""
        if self._files.get(dataset) is None and dataset not in self._damaged_keys:
            try:
                self._files[dataset] = results.describe_data_file(dataset, self.data_dir)
            except UserError as error:
                self._damaged_keys.add(dataset)
                warn(str(error), FileWarning)
        return self._files.get(dataset)

    def folder(self, job: Job) -> Path:
        """Returns a job's work directory for the first data that it was run on."""
        return self.workdir / f"{job.run.dataset}-{job.run.model}-{job.key}"

    def find_folder_of(self, line: Line) -> Path:
        """Returns the work directory in which a finished line was measured, if that was on this machine."""
        folder = self.folder(Job(Run.from_dict(line["run"])))
        return results.find_folder_of_data(folder, line["data_fingerprint"])

    def lock_path(self, job: Job) -> Path:
        """Returns the lock that a job's process holds. The system frees it when the process dies."""
        files.make_folder(self.workdir / "claims")
        return self.workdir / "claims" / job.key

    def log(self, job: Job) -> Path:
        """Returns the file with a run's output."""
        files.make_folder(self.workdir / "logs")
        return self.workdir / "logs" / f"{job.key}.txt"

    def _run_all(self, jobs: Sequence[Job], statuses: dict[str, str]) -> None:
        files.make_folder(self.workdir)
        with ThreadPoolExecutor(self.jobs) as pool:
            keys = {pool.submit(self._run_one, job): job.key for job in jobs}
            try:
                for future in as_completed(keys):
                    statuses[keys[future]] = future.result()
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _run_one(self, job: Job) -> str:
        if self.is_finished(job):
            return FINISHED
        begin = time.monotonic()
        attention = self.results.attention_path(job.key) if job.attention else None
        folders = self.folder(job), self.workdir / "prepared", self.data_dir
        task = functools.partial(self.task, job.run, *folders, attention, self.threads)

        def should_stop() -> bool:
            is_late = self.time_budget is not None and time.monotonic() - begin > self.time_budget
            return is_late or self._stop.is_set()

        answer = processes.call(task, self.lock_path(job), self.log(job), should_stop)
        if answer["status"] == BUSY:
            return BUSY
        sitting = self._make_line(job, answer, time.monotonic() - begin)
        old_line = self.results.read().get(job.key, {"data_file": None})
        if (
            sitting["status"] == FINISHED
            and not attention
            and not is_same_file(old_line["data_file"], sitting["data_file"])
        ):
            self.results.attention_path(job.key).unlink(missing_ok=True)  # it is of the other data
        saved_line = self.results.put(sitting)
        line = saved_line if sitting["status"] == FINISHED else sitting  # a finished one may only lack its attention
        self._report(job, line)
        return line["status"]

    def _make_line(self, job: Job, answer: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Returns the line of one sitting; a failed one if the data file is gone, so that its data are unknown."""
        file = self.find_data_file(job.run.dataset)
        if answer["status"] == FINISHED and file is None and datasets.find_source(job.run.dataset) is not None:
            error = f"the file of {job.run.dataset} is gone, so the result is not kept; put it back and run this again"
            answer = {"status": FAILED, "error": error}
        line = {
            "key": job.key,
            "run": job.run.to_dict(),
            "budget": job.budget,
            "data_file": file,
            "commit": results.read_commit(),
            "wall_seconds": round(seconds, 1),
            "peak_memory": None,
            **answer,
        }
        folder = line.pop("folder", None)
        return {**files.read_json(WorkDirectory(folder).metrics), **line} if folder else line

    def _report(self, job: Job, line: Line) -> None:
        self._done += 1
        if line["status"] == FINISHED:
            result = f"NDCG@10 {line['test'][POPULAR]['ndcg@10']:.4f}"
        elif line["status"] == FAILED:
            result = f"{line['error']} (its log: {self.log(job)})"
        else:
            result = "the next sweep resumes it"
        clock = format_clock(line["wall_seconds"])
        print(f"{self._done} of {self._total}: {job.title}: {line['status']} after {clock}, {result}", flush=True)


def show(jobs: Sequence[Job], sweep: Sweep) -> None:
    """Prints every job's state, and how long the rest may take on each device that has finished runs."""
    lines = [line for line in sweep.results.read().values() if line["status"] == FINISHED]
    devices = sorted({name_device(line) for line in lines}) or [CPU]
    states = {device: list_states(jobs, sweep, device) for device in devices}
    for job_states in zip(*states.values()):
        job, state, _ = job_states[0]
        rests = ["" if state == FINISHED else _format_rest(seconds) for *_, seconds in job_states]
        print(f"{state:<9} {' '.join(f'{text:>9}' for text in rests)}  {job.title}")
    for device, rows in states.items():
        durations = [seconds or 0.0 for *_, seconds in rows]
        num_unknown = sum(seconds is None for *_, seconds in rows)
        rest = f", and {num_unknown} runs of unknown length" if num_unknown else ""
        clock = format_clock(max(sum(durations) / sweep.jobs, *durations, 0.0))
        print(f"About {clock} left on {device}, estimated from the finished runs{rest}.")


def _format_rest(seconds: float | None) -> str:
    return "unknown" if seconds is None else format_clock(seconds)


def list_states(jobs: Sequence[Job], sweep: Sweep, device: str = CPU) -> list[tuple[Job, str, float | None]]:
    """Returns each job, its state (finished, running, stopped, failed or missing), and the seconds it may still take
    on a device (`results.name_device`); None if unknown. For a running job, only earlier sittings count as done."""
    lines = sweep.results.read()
    on_device = [line for line in lines.values() if line["status"] == FINISHED and name_device(line) == device]
    rows: list[tuple[Job, str, float | None]] = []
    for job in jobs:
        if sweep.is_finished(job):
            rows.append((job, FINISHED, 0.0))
            continue
        line = lines.get(job.key, {})
        state = line.get("status", MISSING)
        seconds = estimate_seconds(job.run, on_device)
        if seconds is not None and state == STOPPED and sweep.folder(job).exists():
            seconds = max(0.0, seconds - line["wall_seconds"])
        rows.append((job, RUNNING if sweep.is_running(job) else MISSING if state == FINISHED else state, seconds))
    return rows


def estimate_seconds(run: Run, lines: Iterable[Line]) -> float | None:
    """Returns the seconds that a whole run may take: the mean of the runs with the most equal settings.

    `lines`: of finished runs. Only those of the same model on the same data set count, each at the pace of its
    trainings, plus its time outside them. None if there are none.
    """
    settings, steps = run.to_dict(), run.training.steps * len(TRAININGS[run.training.protocol])
    estimates: dict[int, list[float]] = {}
    for line in lines:
        record = line["run"]
        if (record["model"], record["dataset"]) == (run.model, run.dataset):
            groups = ("architecture", "masking", "training")
            count = sum(record[group].get(name) == value for group in groups for name, value in settings[group].items())
            num_steps, seconds = (sum(entry[key] for entry in list_trainings(line)) for key in ("steps", "seconds"))
            overhead = max(0.0, line["wall_seconds"] - seconds)
            estimates.setdefault(count, []).append(overhead + seconds / max(1, num_steps) * steps)
    return fmean(estimates[max(estimates)]) if estimates else None
