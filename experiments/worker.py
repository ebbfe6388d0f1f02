"""The process that runs jobs: requests come as lines of JSON, and one answer goes back for each.

    python -m experiments.worker [threads]

A request has `run`, the folders and files to work with, and `attention`: where to keep the mean attention, or null. An
answer has `status`, `peak_memory` in bytes and, of a finished job, the `folder` that it worked in, of a failed one its
`error`. SIGTERM, and the end of the requests in the middle of a job, stop that job after its step, with a checkpoint.
What is printed on the way goes to the job's log.
"""

import contextlib
import json
import os
import queue
import resource
import signal
import sys
import threading
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import filelock

from bert4rec_tf.config.run import Run
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.errors import UserError, in_one_line
from experiments.results import BUSY, FAILED, FINISHED, STOPPED, folder_of_data

STOPPED_CODE = 130


class Worker:
    """Carries out requests one after the other.

    Args:
        threads: to compute with; None for all.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads
        self._requests: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_busy = threading.Event()
        self._is_stopping = threading.Event()

    def run(self) -> int:
        """Answers until the requests end, or a job is stopped; returns the exit code."""
        answers = os.fdopen(os.dup(1), "w", buffering=1)
        signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=self._listen, daemon=True).start()
        while (text := self._requests.get()) is not None:
            answer = self.answer(json.loads(text))
            print(json.dumps(answer), file=answers)
            if self._is_stopping.is_set():
                return STOPPED_CODE
        return 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carries out one request."""
        _log_to(request["log"])
        _forget_peak_memory()
        self._is_busy.set()
        try:
            with filelock.FileLock(request["claim"], timeout=0):
                folder = self.carry_out(request)
            answer = {"status": FINISHED, "folder": str(folder)}
        except filelock.Timeout:
            answer = {"status": BUSY}
        except KeyboardInterrupt:
            answer = {"status": STOPPED}
        except Exception as error:
            if not isinstance(error, UserError):
                traceback.print_exc()
            answer = {"status": FAILED, "error": in_one_line(error)}
        finally:
            self._is_busy.clear()
        if answer["status"] == FAILED and self._is_stopping.is_set():
            answer = {"status": STOPPED}
        return {**answer, "peak_memory": _peak_memory()}

    def carry_out(self, request: dict[str, Any]) -> Path:
        """Does a request's run, and returns the folder that it was done in."""
        run = Run.from_dict(request["run"])
        sequences = _sequences(run.dataset, request["data_dir"])
        pipeline = _pipeline(self.threads)
        folder = folder_of_data(Path(request["workdir"]), sequences.fingerprint)
        result = pipeline.execute(run, sequences=sequences, workdir=folder, prepared_dir=request["prepared_dir"])
        if request["attention"]:
            from experiments import attention

            attention.keep(Path(request["attention"]), run, result.model, sequences)
        return folder

    def _listen(self) -> None:
        for text in sys.stdin:
            self._requests.put(text)
        self._requests.put(None)
        if self._is_busy.is_set() and not self._is_stopping.is_set():
            os.kill(os.getpid(), signal.SIGTERM)  # whoever asked is gone

    def _stop(self, *_: Any) -> None:
        if not self._is_stopping.is_set():
            self._is_stopping.set()
            raise KeyboardInterrupt


@lru_cache(maxsize=1)
def _sequences(dataset: str, data_dir: str | None) -> Sequences:
    sequences, report = datasets.load_with_report(dataset, data_dir)
    print(datasets.describe(dataset, sequences, report), flush=True)
    return sequences


@lru_cache(maxsize=1)
def _import_pipeline(threads: int | None) -> Any:
    from bert4rec_tf.foundation.startup import import_tensorflow

    import_tensorflow()
    from bert4rec_tf.runs import pipeline

    if threads is not None:
        pipeline.set_threads(threads)
    return pipeline


def _pipeline(threads: int | None) -> Any:
    """Returns the pipeline without what an earlier job left in Keras."""
    pipeline = _import_pipeline(threads)
    import keras

    keras.backend.clear_session()
    return pipeline


def _log_to(path: str) -> None:
    with open(path, "ab") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)


def _forget_peak_memory() -> None:
    with contextlib.suppress(OSError):  # elsewhere the peak is that of all jobs of the process
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> int:
    """Returns the most bytes that this process had in memory."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(Worker(int(sys.argv[1]) if len(sys.argv) > 1 else None).run())
