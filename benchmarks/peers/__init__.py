"""Times the training step of this project and those of RecBole and RecTools in turns.

All take the same windows of histories, with the same batch size, d, L, h, N, dropout and share of masks. Each masks in
its own way, before the timing. A peer has its own environment: the given interpreter runs its script, which takes steps
on request.
"""

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import lines, measuring, shapes
from bert4rec_tf.data.examples.cloze import cut_windows, mask_rows
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.foundation.types import Batch
from bert4rec_tf.models import BERT4Rec

SCRIPTS = {name: Path(__file__).parent / f"{name}_step.py" for name in ("recbole", "rectools")}

BATCH_SIZE = 64
"""As in Beauty's preset `fast`. RecTools scores all items at every position, padding included, which takes over 10 GB
for 256 rows of Beauty."""

BATCHES = 4
ROUNDS = 3
OUR_STEPS = 10
"""Our steps per turn; a peer takes one, because it is slower."""

DROPOUT = 0.2


class PeerError(Exception):
    """A peer cannot be measured."""


class Peer:
    """A peer's process, ready to take steps.

    Args:
        name: of the peer.
        interpreter: a Python that has the peer installed.
        task: the file of `write_task`.

    Attributes:
        about: its versions, threads and matrix rate.
        processor: seconds of processor time of each turn.

    Raises:
        PeerError: if it does not start; in `take`, if it has stopped.
    """

    def __init__(self, name: str, interpreter: str, task: Path) -> None:
        self.name, self._messages = name, task.with_name(f"{name}.txt")
        command = [interpreter, str(SCRIPTS[name]), str(task)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        try:
            with self._messages.open("w") as messages:
                self._process = subprocess.Popen(command, **pipes, stderr=messages, text=True, cwd=task.parent)
        except OSError as error:
            raise PeerError(f"{name}: cannot be run: {error}") from None
        self.about, self.processor = self._answer(), []

    def take(self, steps: int) -> None:
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        self.processor.append(self._answer()["processor"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._process.wait()
        last = (self._messages.read_text().strip() or "no message").splitlines()[-1]
        raise PeerError(f"{self.name}: cannot be run: {last}")


def measure(interpreters: Mapping[str, str | None]) -> Iterator[lines.Row]:
    """Times a training step on every shape, ours and those of the peers that can run, in samples per second.

    Args:
        interpreters: peer -> a Python that has it; None leaves it out, and prints so.
    """
    for name, interpreter in interpreters.items():
        if interpreter is None:
            print(f"{name}: not measured; --{name}=/path/to/python names an interpreter that has it")
    for shape_name in shapes.SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            yield from _rows(shape_name, Path(folder) / "task.npz", interpreters)


def _rows(shape_name: str, task: Path, interpreters: Mapping[str, str | None]) -> Iterator[lines.Row]:
    shape, sequences = shapes.load_shape(shape_name)
    histories = draw_histories(shape, LeaveOneOut(sequences))
    write_task(task, shape, sequences.num_items, histories)
    peers = []
    try:
        for name, interpreter in interpreters.items():
            if interpreter is not None:
                try:
                    peers.append(Peer(name, interpreter, task))
                except PeerError as error:
                    print(error)
        calls = {"ours": partial(_our_steps(shape, sequences.num_items, histories), OUR_STEPS)}
        calls |= {peer.name: partial(peer.take, 1) for peer in peers}
        timings = measuring.alternate(calls, ROUNDS) if peers else {}
        matrix_rate = measuring.matrix_rate()
        for peer in peers:
            print(f"{peer.name} {peer.about['version']}, torch {peer.about['torch']}, {peer.about['threads']} threads")
            ours, theirs = timings["ours"], statistics.median(peer.processor[-ROUNDS:])
            notes = {
                "processor ratio": OUR_STEPS * theirs / ours.processor,
                "matrix rate GFLOP/s": matrix_rate / 1e9,
                "torch's": peer.about["rate"] / 1e9,
            }
            rates = OUR_STEPS * BATCH_SIZE / ours.median, BATCH_SIZE / timings[peer.name].median
            yield lines.Row(f"{peer.name}, {shape_name}", "samples/s", *rates, notes)
    finally:
        for peer in peers:
            peer.close()


def draw_histories(shape: shapes.Shape, split: LeaveOneOut) -> np.ndarray:
    """Returns random windows of histories, int32 [BATCHES * BATCH_SIZE, N], right-padded with 0."""
    windows = cut_windows(split.training(with_validation=True), shape.max_length, shape.masking.window_step)
    drawn = np.random.default_rng(2).integers(len(windows), size=BATCHES * BATCH_SIZE)
    return windows.rows(drawn, shape.max_length)


def write_task(path: Path, shape: shapes.Shape, num_items: int, histories: np.ndarray) -> None:
    """Writes a peer's task: `histories`, and `settings` as JSON."""
    settings = BERT4Rec.settings_type(max_length=shape.max_length, hidden_dim=lines.WIDTH)
    sizes = {name: getattr(settings, name) for name in ("hidden_dim", "num_layers", "num_heads", "intermediate_dim")}
    content = {
        **sizes,
        "max_length": shape.max_length,
        "num_items": num_items,
        "batch_size": BATCH_SIZE,
        "dropout": DROPOUT,
        "mask_proportion": shape.masking.mask_proportion,
        "threads": tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0)),
    }
    np.savez(path, histories=histories, settings=json.dumps(content))


def _our_steps(shape: shapes.Shape, num_items: int, histories: np.ndarray) -> Any:
    step = lines.step_of(shape, num_items, "ours")
    batches = cycle(_make_masked_batch(shape, num_items, rows) for rows in np.split(histories, BATCHES))
    return lambda times: lines.make_steps(step, batches, times)


def _make_masked_batch(shape: shapes.Shape, num_items: int, histories: np.ndarray) -> Batch:
    number, lengths = len(histories), np.count_nonzero(histories, axis=1)
    last_only = np.zeros(number, bool)
    return lines.to_batch(mask_rows(histories, lengths, np.arange(number), last_only, shape.masking, num_items, [3]))
