"""Runs jobs in worker processes, several at once where asked, and keeps what they end with."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import POPULAR
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.progress import clock
from bert4rec_tf.runs.workdir import WorkDirectory
from experiments import provenance
from experiments.jobs import Job
from experiments.processes import WORKER, Process
from experiments.results import BUSY, FAILED, FINISHED, STOPPED, Results, folder_of_data, same_file


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
        shared: whether runs follow each other in one process, which saves TensorFlow's start where they are short.
        worker: the command of a process that answers requests.
    """

    results: Results
    workdir: Path
    data_dir: Path | None = None
    jobs: int = 1
    time_budget: float | None = None
    threads: int | None = None
    shared: bool = False
    worker: Sequence[str] = WORKER

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._files: dict[str, dict[str, Any] | None] = {}
        self._done, self._total = 0, 0

    def run(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Runs what is not finished and returns the status of every job by its key.

        A job that another sweep works on is passed over, and asked for once more at the end. Ctrl-C stops all runs,
        which keep a checkpoint, and is raised again.
        """
        statuses = {job.key: FINISHED for job in jobs if self.is_finished(job)}
        waiting = [job for job in jobs if job.key not in statuses]
        self._done, self._total = 0, len(waiting)
        if statuses:
            print(f"{len(statuses)} of {len(jobs)} runs are finished already.", flush=True)
        for _ in range(2):
            statuses |= self._run_lanes(waiting)
            waiting = [job for job in waiting if statuses.get(job.key) == BUSY]
        for job in waiting:
            print(f"{job.title}: another sweep runs it", flush=True)
        return statuses

    def is_finished(self, job: Job) -> bool:
        """Tells whether the job's result is there, of the data file that is there now (or where there is none)."""
        line = self.results.read().get(job.key)
        if line is None or line["status"] != FINISHED:
            return False
        if job.attention and not self.results.attention_path(job.key).exists():
            return False
        return same_file(line["data_file"], self.data_file(job.run.dataset))

    def is_running(self, job: Job) -> bool:
        """Tells whether a process works on the job."""
        try:
            with filelock.FileLock(self.initialize(job), timeout=0):
                return False
        except filelock.Timeout:
            return True

    def data_file(self, dataset: str) -> dict[str, Any] | None:
        """Returns `provenance.data_file`, read once."""
        if self._files.get(dataset) is None:
            self._files[dataset] = provenance.data_file(dataset, self.data_dir)
        return self._files[dataset]

    def folder(self, job: Job) -> Path:
        """The work directory of a job, on the data that it was begun with first."""
        return self.workdir / f"{job.run.dataset}-{job.run.model}-{job.key}"

    def folder_of(self, job: Job, line: Mapping[str, Any]) -> Path:
        """The work directory that a finished line of the job was measured in, if that was here."""
        return folder_of_data(self.folder(job), line["data_fingerprint"])

    def initialize(self, job: Job) -> Path:
        """The lock of a job, which its process holds; the system frees that of a dead one."""
        files.make_folder(self.workdir / "claims")
        return self.workdir / "claims" / job.key

    def _run_lanes(self, jobs: Sequence[Job]) -> dict[str, str]:
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        statuses: dict[str, str] = {}
        files.make_folder(self.workdir)
        with ThreadPoolExecutor(self.jobs) as pool:
            lanes = [pool.submit(self._lane, waiting, statuses) for _ in range(min(self.jobs, len(jobs)))]
            try:
                for lane in as_completed(lanes):
                    lane.result()
            except BaseException:
                self._stop.set()
                raise
        return statuses

    def _lane(self, waiting: "queue.SimpleQueue[Job]", statuses: dict[str, str]) -> None:
        """Runs jobs one after the other until none waits."""
        with self._processes() as fresh:
            while not self._stop.is_set():
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                statuses[job.key] = self._run_one(job, fresh)

    @contextmanager
    def _processes(self) -> Iterator[Any]:
        """Yields a function that returns a process for the next job: the last one's, where they are shared."""
        held: list[Process] = []

        def fresh() -> Process:
            if held and not (self.shared and held[-1].takes_more()):
                held.pop().close()
            if not held:
                command = (*self.worker, *([] if self.threads is None else [str(self.threads)]))
                held.append(Process(command, self.workdir / "workers.log"))
            return held[-1]

        try:
            yield fresh
        finally:
            for process in held:
                process.close()

    def _run_one(self, job: Job, fresh: Any) -> str:
        if self.is_finished(job):
            return FINISHED
        begin = time.monotonic()
        answer = fresh().ask(self._request(job), lambda: self._is_due(begin))
        if answer["status"] == BUSY:
            return BUSY
        line = self.results.put(self._sitting(job, answer, time.monotonic() - begin))
        self._tell(job, line)
        return line["status"]

    def _sitting(self, job: Job, answer: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Returns the line of one sitting, a failed one where nobody could tell which data it is of."""
        file = self.data_file(job.run.dataset)
        if answer["status"] == FINISHED and file is None and datasets.source_of(job.run.dataset) is not None:
            gone = f"the file of {job.run.dataset} is gone, so the result is not kept; with it the same command goes on"
            answer = {"status": FAILED, "error": gone}
        found = {
            "key": job.key,
            "run": job.run.to_dict(),
            "budget": job.budget,
            "data_file": file,
            "commit": provenance.commit(),
            "wall_seconds": round(seconds, 1),
            "peak_memory": None,
            **answer,
        }
        folder = found.pop("folder", None)
        return {**files.read_json(WorkDirectory(Path(folder)).metrics), **found} if folder else found

    def _is_due(self, begin: float) -> bool:
        late = self.time_budget is not None and time.monotonic() - begin > self.time_budget
        return late or self._stop.is_set()

    def _request(self, job: Job) -> dict[str, Any]:
        files.make_folder(self.workdir / "logs")
        return {
            "run": job.run.to_dict(),
            "claim": str(self.initialize(job)),
            "log": str(self.log(job)),
            "workdir": str(self.folder(job)),
            "prepared_dir": str(self.workdir / "prepared"),
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "attention": str(self.results.attention_path(job.key)) if job.attention else None,
        }

    def log(self, job: Job) -> Path:
        """What a run printed."""
        return self.workdir / "logs" / f"{job.key}.txt"

    def _tell(self, job: Job, line: dict[str, Any]) -> None:
        self._done += 1
        found = {
            FINISHED: lambda: f"NDCG@10 {line['test'][POPULAR]['ndcg@10']:.4f}",
            FAILED: lambda: f"{line['error']} (its log: {self.log(job)})",
            STOPPED: lambda: "the next sweep goes on with it",
        }[line["status"]]()
        spent = clock(line["wall_seconds"])
        print(f"{self._done} of {self._total}: {job.title}: {line['status']} after {spent}, {found}", flush=True)
