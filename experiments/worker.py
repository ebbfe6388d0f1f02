"""A process that runs jobs, as itself (`serve`) and as the sweep sees it (`Process`).

    python -m experiments.worker

Requests come as lines of JSON, and one line goes back for each. A request has `run`, `data_dir`, `threads`, the files
and folders to work with, the id of its `sweep`, and `attention`: where to keep the mean attention, or null. An answer
has `status`, `peak_memory` in bytes and the `folder` that a finished job worked in, or the `error` of a failed one.
SIGTERM, and the end of the sweep, stop a job after its step, with a checkpoint. What a job prints goes to its log.
"""

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
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

COMMAND = (sys.executable, "-m", "experiments.worker")
STOPPED_CODE = 130
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""How long a stopped job may take to keep a checkpoint; what is killed then loses the steps since the last one."""


class Process:
    """A worker, in a session of its own: Ctrl-C in the terminal reaches the sweep alone, which stops its workers.

    Args:
        command: starts it.
        log: what it prints outside of any job is added there.

    Attributes:
        is_ending: whether it cannot be asked again.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        home = str(Path(__file__).parents[1])
        paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self.is_ending = False
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )

    def ask(self, request: dict[str, Any], should_stop: Callable[[], bool]) -> dict[str, Any]:
        """Sends a request and returns its answer, a failed one where the process dies of it.

        Args:
            request: as in the module's description.
            should_stop: asked now and then; the job is stopped once it is true.
        """
        with contextlib.suppress(BrokenPipeError):  # it is dead, which the answer tells
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        told = None
        while not select.select([self._process.stdout], [], [], POLL_SECONDS)[0]:
            if told is None and should_stop():
                told = time.monotonic()
                self._process.send_signal(signal.SIGTERM)
            elif told is not None and time.monotonic() - told > PATIENCE_SECONDS:
                self._process.kill()
        text = self._process.stdout.readline()
        is_dead = not text.endswith(b"\n")
        answer = self._death() if is_dead else json.loads(text)
        if is_dead and told is not None:
            answer = {"status": STOPPED}
        self.is_ending = is_dead or told is not None or answer["status"] == STOPPED
        return answer

    def _death(self) -> dict[str, Any]:
        code = self._process.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return {"status": FAILED, "error": f"its process ended {how}"}

    def close(self) -> None:
        """Ends the process, which has no job any more or loses the one that it has."""
        with contextlib.suppress(BrokenPipeError):  # it died before it read all
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def carry_out(request: dict[str, Any]) -> Path:
    """Does a request's run, and returns the folder that it was done in."""
    run = Run.from_dict(request["run"])
    sequences = _sequences(run.dataset, request["data_dir"])
    pipeline = _pipeline(request["threads"])
    folder = folder_of_data(Path(request["workdir"]), sequences.fingerprint)
    result = pipeline.execute(run, sequences=sequences, workdir=folder, prepared_dir=request["prepared_dir"])
    if request["attention"]:
        from experiments import attention

        attention.keep(Path(request["attention"]), run, result.model, sequences)
    return folder


def serve(carry_out: Callable[[dict[str, Any]], Path] = carry_out) -> int:
    """Answers until the requests end, or a job is stopped; returns the exit code."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    stopping = threading.Event()

    def stop(*_: Any) -> None:
        if not stopping.is_set():
            stopping.set()
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        for number, text in enumerate(sys.stdin):
            request = json.loads(text)
            if number == 0:
                threading.Thread(target=_end_with, args=(request["sweep"],), daemon=True).start()
            answer = _answer(request, carry_out)
            if answer["status"] == FAILED and stopping.is_set():
                answer = {"status": STOPPED}
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(json.dumps({**answer, "peak_memory": peak}), file=answers)
            if stopping.is_set():
                return STOPPED_CODE
    except KeyboardInterrupt:
        return STOPPED_CODE
    return 0


def _answer(request: dict[str, Any], carry_out: Callable[[dict[str, Any]], Path]) -> dict[str, Any]:
    with open(request["log"], "ab") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    with contextlib.suppress(OSError):  # forgets the peak of memory; elsewhere it is that of all jobs so far
        Path("/proc/self/clear_refs").write_text("5")
    try:
        with filelock.FileLock(request["lock"], timeout=0):
            return {"status": FINISHED, "folder": str(carry_out(request))}
    except filelock.Timeout:
        return {"status": BUSY}
    except KeyboardInterrupt:
        return {"status": STOPPED}
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        return {"status": FAILED, "error": in_one_line(error)}


def _end_with(sweep: int) -> None:
    """Stops this process once its parent, the sweep, is gone."""
    while os.getppid() == sweep:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


@lru_cache(maxsize=1)
def _sequences(dataset: str, data_dir: str | None) -> Sequences:
    sequences, report = datasets.load_with_report(dataset, data_dir)
    print(datasets.describe(dataset, sequences, report), flush=True)
    return sequences


def _pipeline(threads: int | None) -> Any:
    """Returns the pipeline without what an earlier job left in Keras."""
    pipeline = import_pipeline(threads)
    import keras

    keras.backend.clear_session()
    return pipeline


@lru_cache(maxsize=1)
def import_pipeline(threads: int | None) -> Any:
    """Imports TensorFlow, to compute with these threads (None: all), and returns `runs.pipeline`."""
    from bert4rec_tf.foundation.startup import import_tensorflow

    import_tensorflow()
    from bert4rec_tf.runs import pipeline

    if threads is not None:
        pipeline.set_threads(threads)
    return pipeline


if __name__ == "__main__":
    sys.exit(serve())
