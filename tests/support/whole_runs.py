"""Whole runs, here or as processes of their own: started, killed at chosen moments, and compared with each other.

As a program it is the command line of the package, which sends itself a signal at a moment:

    python whole_runs.py SIGKILL after '*/manifest.json' 2 --dataset=beauty ...
"""

import fnmatch
import json
import os
import re
import resource
import runpy
import signal
import subprocess
import sys
from dataclasses import dataclass

import numpy as np

DATA = "".join(
    f"{user} {10**15 + (13 * user * user + step) % 120}\n" for user in range(1, 61) for step in range(6 + user % 7)
)
"""A ratings file of 60 users who each go on through a circle of 120 items. The long ids make the vocabulary a file
larger than config.json, and the many masked copies below make two shards of each training."""

TINY = (
    *("--dataset=beauty", "--steps=12", "--warmup_steps=2", "--evaluate_every=4", "--learning_rate=0.03"),
    *("--batch_size=128", "--hidden_dim=16", "--num_heads=2", "--num_layers=1", "--max_length=8"),
    *("--window_step=0.5", "--num_negatives=20", "--protocol=select_and_retrain"),
)
FLAGS = {
    "static": (*TINY, "--mask_copies=150", "--checkpoint_seconds=0"),
    "dynamic": (*TINY, "--masking=dynamic", "--checkpoint_seconds=1000"),
    "one training": (*TINY, "--masking=dynamic", "--checkpoint_seconds=0", "--protocol=select", "--mode=train"),
    "one thread": (*TINY, "--masking=dynamic", "--threads=1", "--checkpoint_seconds=0"),
}
TABLES = ("curve.csv",)


@dataclass(frozen=True)
class Moment:
    """An instant of a run: a file is about to get its name (half of it written, or all), or has just got it.

    Attributes:
        when: "half", "before" or "after".
        pattern: of the file's path.
        count: at which of the files that fit.
    """

    when: str
    pattern: str
    count: int = 1

    def __str__(self):
        return f"{self.when} {self.pattern} {self.count}"


def _write_data(cwd):
    (cwd / "data").mkdir(parents=True, exist_ok=True)
    (cwd / "data" / "beauty.txt").write_text(DATA)


def here(cwd, *flags):
    """Runs to the end in this process and returns the work directory."""
    from support import commands

    _write_data(cwd)
    commands.finished(*flags, "--workdir=work", "--data_dir=data", cwd=cwd)
    return cwd / "work"


def start(cwd, *flags, moment=None, sends="SIGKILL", hash_seed=0, limit=None, **options):
    """Starts the program in a folder with data. `limit`: the most bytes that it may write to one file."""
    _write_data(cwd)
    (cwd / "temporary").mkdir(exist_ok=True)
    own = {"TMPDIR": str(cwd / "temporary"), "PYTHONHASHSEED": str(hash_seed)}
    program = (sys.executable, "-m", "bert4rec_tf.run")
    if moment is not None:
        program = (sys.executable, __file__, sends, moment.when, moment.pattern, str(moment.count))
    return subprocess.Popen(
        [*program, *flags, "--data_dir=data"],
        cwd=cwd,
        env={name: value for name, value in {**os.environ, **own}.items() if name not in ("BERT4REC_DATA", "COLUMNS")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        **options,
    )


def finish(process):
    """Waits for a process and returns it with what it wrote."""
    stdout, stderr = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run(cwd, *flags, **options):
    return finish(start(cwd, *flags, **options))


def finished(cwd, *flags, **options):
    """Runs to the end and returns the work directory."""
    process = run(cwd, *flags, "--workdir=work", **options)
    assert process.returncode == 0, process.stderr
    return cwd / "work"


def killed(cwd, *flags, moment, **options):
    """Runs until a moment, at which it is killed."""
    process = run(cwd, *flags, "--workdir=work", moment=moment, **options)
    assert process.returncode == -signal.SIGKILL, f"{moment}: not reached\n{process.stderr}"


def partials(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.partial"))


def differences(one, other, older_checkpoints=True):
    """Names every file, and in a file of arrays every array, that is not the same in two work directories.

    Seconds do not count, nor TensorBoard's files, nor the names that TensorFlow gives the parts of an exported graph.

    Args:
        one, other: the folders.
        older_checkpoints: whether to compare the one before the newest of each series too. Still older ones never
            count: a kill between writing a checkpoint and deleting an old one leaves one more.
    """
    first, second = (_contents(folder, 1 + older_checkpoints) for folder in (one, other))
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def _contents(folder, newest):
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "tensorboard")
    steps = [path for path in paths if path.match("step-*.npz")]
    kept = {path for path in steps if sum(path < other for other in steps if other.parent == path.parent) < newest}
    content = {}
    for path in paths:
        name = str(path.relative_to(folder))
        if path in steps and path not in kept:
            continue
        if path.suffix == ".npz":
            content.update((f"{name}: {array}", value) for array, value in arrays(path).items())
        elif path.name in ("metrics.json", "saved_model.pb", "fingerprint.pb"):
            content[name] = _without_seconds(json.loads(path.read_text())) if path.suffix == ".json" else True
        elif path.name in TABLES:
            content[name] = re.sub(r"(?m)^([^,]*),[^,]*", r"\1", path.read_text())
        else:
            content[name] = path.read_bytes()
    return content


def contents_of(folder):
    """The bytes of every file."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def arrays(path):
    """Name -> content of each array in a file, comparable bit for bit; the header of a checkpoint as its JSON."""
    with np.load(path, allow_pickle=False) as file:
        content = {name: (file[name].dtype.str, file[name].shape, file[name].tobytes()) for name in file.files}
    if "header" in content:
        content["header"] = _without_seconds(json.loads(content["header"][2]))
    return content


def _without_seconds(content):
    if isinstance(content, dict):
        return {name: _without_seconds(value) for name, value in content.items() if name != "seconds"}
    return [_without_seconds(value) for value in content] if isinstance(content, list) else content


def assert_same_runs(one, other, **options):
    found = differences(one, other, **options)
    assert not found, "these differ:\n" + "\n".join(found)


def _signal_at(number, moment):
    """Has this process send itself a signal at a moment."""
    replace, left = os.replace, moment.count

    def watched(source, target):
        nonlocal left
        fits = fnmatch.fnmatch(str(target), moment.pattern)
        left -= fits
        if fits and left == 0 and moment.when != "after":
            if moment.when == "half":
                os.truncate(source, os.path.getsize(source) // 2)
            os.kill(os.getpid(), number)
        replace(source, target)
        if fits and left == 0 and moment.when == "after":
            os.kill(os.getpid(), number)

    os.replace = watched


if __name__ == "__main__":
    name, when, pattern, count, *arguments = sys.argv[1:]
    _signal_at(signal.Signals[name], Moment(when, pattern, int(count)))
    sys.argv[1:] = arguments
    sys.path.pop(0)
    runpy.run_module("bert4rec_tf.run", run_name="__main__", alter_sys=True)
