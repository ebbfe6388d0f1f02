"""Runs that only sleep, and a command of the experiments that has such runs.

python fake_runs.py --quick --workdir=...
"""

import functools
import os
import signal
import sys
import time

from bert4rec_tf.evaluation.metrics import METRICS, PROTOCOLS
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

LOSES, DIES, RAISES, WAITS = 13, 14, 15, 16
"""Seeds of runs that end otherwise than the others, or wait at their tenth step for a file `go` in their folder."""

USERS = 40_226
"""Whose test items a run is measured on."""


def measured(run, value=0.5):
    """What a finished run has in `metrics.json`."""
    phase = {"steps": run.training.steps, "seconds": 2.0, "best_step": run.training.steps}
    return {
        "digest": run.digest,
        "data_fingerprint": "x",
        "users": USERS,
        "environment": {"versions": {"keras": "3"}, "threads": 1, "devices": ["CPU"]},
        "test": {protocol: {name: value for name in METRICS} for protocol in PROTOCOLS},
        "retrain": phase,
    }


def sleep(run, folder, prepared_dir, data_dir, attention, threads):
    """Writes down every step that it does, and resumes behind the last of them."""
    folder.mkdir(parents=True, exist_ok=True)
    if run.seed == LOSES:
        raise UserError("the loss is nan")
    if run.seed == RAISES:
        raise ValueError("a defect")
    if run.seed == DIES:
        os._exit(3)
    (folder / "process").write_text(str(os.getpid()))
    done = len((folder / "trace").read_text().split()) if (folder / "trace").exists() else 0
    for step in range(done, run.training.steps):
        time.sleep(0.02)
        while run.seed == WAITS and step == 10 and not (folder / "go").exists():
            time.sleep(0.02)
        with open(folder / "trace", "a") as trace:
            trace.write(f"{step}\n")
    files.write_json(folder / "metrics.json", measured(run))
    if attention:
        even = [[[[0.1] * 10] * 10] * 2] * 2
        files.write_json(attention, {"key": run.digest, "users": 3, "attention": even})
    return folder


def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from experiments import __main__ as program

    program.Sweep = functools.partial(program.Sweep, task=sleep)
    program.start_server = functools.partial(program.start_server, ["support.fake_runs"])
    program.command(sys.argv[1:])
