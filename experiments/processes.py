"""Runs each job in its own process, forked from a server that has already imported TensorFlow."""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import filelock

from bert4rec_tf.foundation.errors import UserError, format_error
from experiments.line_fields import FAILED, FINISHED, STOPPED
from experiments.results import BUSY

CONTEXT = multiprocessing.get_context("forkserver")
GPU_FILES = ("nvidiactl", "dxg", "kfd")
"""Names in /dev on a machine with a GPU: of Nvidia, within Windows, and of AMD."""

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""How long a stopped job may take to write a checkpoint. Then it is killed, and loses the steps since the last one."""


def carry_out(*arguments: Any) -> Path:
    """Does what `running.carry_out` does, which imports TensorFlow."""
    from experiments import running

    return running.carry_out(*arguments)


def choose_preload(devices: Path = Path("/dev")) -> Sequence[str]:
    """Returns what the server imports before it forks: TensorFlow, unless that opens a GPU, which no fork can use."""
    has_gpu = any((devices / name).exists() for name in GPU_FILES)
    return ("experiments.running",) if sys.platform == "linux" and not has_gpu else ()


def start_server(preload: Sequence[str] | None = None) -> None:
    """Starts the server that forks the processes. All ignore Ctrl-C: the sweep receives it and stops them.

    `preload`: the modules that it imports first; None for `choose_preload`.
    """
    preload = choose_preload() if preload is None else preload
    CONTEXT.set_forkserver_preload(list(preload))
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    multiprocessing.forkserver.ensure_running()
    signal.signal(signal.SIGINT, handler)


def call(task: Callable[[], Path], lock: Path, log: Path, should_stop: Callable[[], bool]) -> dict[str, Any]:
    """Does a run in a new process and returns its answer.

    Args:
        task: does the run and returns its folder. It is sent to the process, so it must be pickled.
        lock: the lock that the process holds.
        log: the file to which its output is appended.
        should_stop: asked now and then. Once it returns True, the job stops after its step and writes a checkpoint.

    Returns:
        `status`; `folder` if the job finished, `error` if it failed; `peak_memory` in bytes, unless the process died.
    """
    answers, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_work, args=(task, lock, log, sender))
    process.start()
    sender.close()
    stop_time = None
    while process.is_alive():
        process.join(POLL_SECONDS)
        if stop_time is None and should_stop():
            stop_time = time.monotonic()
            process.terminate()
        elif stop_time is not None and time.monotonic() - stop_time > PATIENCE_SECONDS:
            process.kill()
    with contextlib.suppress(EOFError):
        return answers.recv()
    if stop_time is not None:
        return {"status": STOPPED}
    code = process.exitcode or 0
    reason = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return {"status": FAILED, "error": f"its process ended {reason}"}


def _work(task: Callable[[], Path], lock: Path, log: Path, answers: Connection) -> None:
    stopping = threading.Event()

    def stop(*_: Any) -> None:
        if not stopping.is_set():
            stopping.set()
            raise KeyboardInterrupt

    with open(log, "ab") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=_end_with_sweep, daemon=True).start()
    answer = _answer(task, lock)
    if answer["status"] == FAILED and stopping.is_set():
        answer = {"status": STOPPED}
    unit = 1 if sys.platform == "darwin" else 1024
    answers.send({**answer, "peak_memory": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss})


def _answer(task: Callable[[], Path], lock: Path) -> dict[str, Any]:
    try:
        with filelock.FileLock(lock, timeout=0):
            return {"status": FINISHED, "folder": task()}
    except filelock.Timeout:
        return {"status": BUSY}
    except KeyboardInterrupt:
        return {"status": STOPPED}
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        return {"status": FAILED, "error": format_error(error)}


def _end_with_sweep() -> None:
    """Stops this process once the process of the sweep has ended."""
    if (sweep := multiprocessing.parent_process()) is not None:
        sweep.join()
        os.kill(os.getpid(), signal.SIGTERM)
