"""A worker's process, as a sweep sees it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.results import FAILED, STOPPED

WORKER = (sys.executable, "-m", "experiments.worker")
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""How long a stopped job may take to keep a checkpoint; what is killed then loses the steps since the last one."""


class Process:
    """A worker, apart from the terminal's Ctrl-C, which is the sweep's to pass on.

    Args:
        command: starts it.
        log: what it says outside of any job is added there.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        home = str(Path(__file__).parents[1])
        paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self._is_ending = False
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
            request: as `worker` understands it.
            should_stop: asked now and then; the job is stopped once it is true.
        """
        told = None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._death(stopped=False)
        while not select.select([self._process.stdout], [], [], POLL_SECONDS)[0]:
            if told is None and should_stop():
                told = time.monotonic()
                self._is_ending = True
                self._process.send_signal(signal.SIGTERM)
            elif told is not None and time.monotonic() - told > PATIENCE_SECONDS:
                self._process.kill()
        text = self._process.stdout.readline()
        answer = json.loads(text) if text.endswith(b"\n") else self._death(stopped=told is not None)
        self._is_ending |= answer["status"] == STOPPED
        return answer

    def _death(self, stopped: bool) -> dict[str, Any]:
        code = self._process.wait()
        if stopped:
            return {"status": STOPPED}
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return {"status": FAILED, "error": f"its process ended {how}"}

    def takes_more(self) -> bool:
        """Tells whether it can be asked again. A worker ends after a job that is stopped, though not at once."""
        return not self._is_ending and self._process.poll() is None

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
