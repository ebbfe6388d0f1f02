"""TensorBoard's scalars of a training."""

import contextlib
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

EVERY = 50
"""Steps whose mean is one point of a curve."""


class Scalars:
    """Writes means over EVERY steps of the loss, the rate, the gradient's norm and the share of clipped steps.

    Args:
        folder: for TensorBoard's files, one per sitting.
        first_step: steps done before. What an earlier sitting wrote beyond it TensorBoard forgets, for it comes again.
        clip_norm: the norm at which gradients are clipped; 0 for never.

    Raises:
        OSError: here and in all methods, where the file cannot be written.
    """

    def __init__(self, folder: Path, first_step: int, clip_norm: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(self._path, "xb")  # noqa: SIM115 (closed in `close`)
        self._records = RecordWriter(self._file)
        self._clip_norm = clip_norm or math.inf
        self._rows: list[Mapping[str, float]] = []
        self._step = first_step
        self._write_event(file_version="brain.Event:2")
        self._write_event(step=first_step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, made: Mapping[str, float]) -> None:
        """Takes what training step number `step` gave."""
        self._rows.append({**made, "clipped": float(made["gradient_norm"] > self._clip_norm)})
        self._step = step
        if step % EVERY == 0:
            self._write_means()

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes a measurement on the validation item."""
        self._write(step, {f"validation/{name}": value for name, value in metrics.items()})

    def flush(self) -> None:
        """Waits until all points so far are in the file."""
        with self._named():
            self._file.flush()

    def close(self) -> None:
        """Writes the mean of the last steps too."""
        try:
            if self._rows:
                self._write_means()
        finally:
            with self._named():
                self._file.close()

    def _write_means(self) -> None:
        names = self._rows[0]
        means = {f"training/{name}": sum(row[name] for row in self._rows) / len(self._rows) for name in names}
        self._write(self._step, means)
        self._rows = []

    def _write(self, step: int, scalars: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write_event(step=step, summary=Summary(value=values))

    def _write_event(self, **content: Any) -> None:
        with self._named():
            self._records.write(Event(wall_time=time.time(), **content).SerializeToString())

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Puts the file's name into an error that has none."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise
