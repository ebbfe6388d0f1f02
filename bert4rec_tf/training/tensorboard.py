"""Writes the curves of a training for TensorBoard."""

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
"""Each point of a training curve is the mean over this many steps."""


class TensorBoardWriter:
    """Writes the loss, learning rate, gradient norm and fraction of clipped steps, averaged over EVERY steps.

    Args:
        folder: for TensorBoard's files; each start or resume of the training writes a new one. None to write nothing.
        first_step: steps done before. TensorBoard discards points of earlier files after this step.
        clip_norm: the norm at which gradients are clipped; 0 for never.

    Raises OSError if the file cannot be written; also in all methods.
    """

    def __init__(self, folder: Path | None, first_step: int, clip_norm: float) -> None:
        self._path = Path(os.devnull)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._path = folder / f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(self._path, "xb" if folder else "wb")  # noqa: SIM115 (closed in `close`)
        self._records = RecordWriter(self._file)
        self._clip_norm = clip_norm or math.inf
        self._rows: list[Mapping[str, float]] = []
        self._step = first_step
        self._write_event(file_version="brain.Event:2")
        self._write_event(step=first_step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds the values of one training step."""
        self._rows.append({**values, "clipped": float(values["gradient_norm"] > self._clip_norm)})
        self._step = step
        if step % EVERY == 0:
            self._write_means()

    def write(self, step: int, group: str, scalars: Mapping[str, float]) -> None:
        """Writes a point of each curve of a group."""
        values = [Summary.Value(tag=f"{group}/{name}", simple_value=value) for name, value in scalars.items()]
        self._write_event(step=step, summary=Summary(value=values))

    def flush(self) -> None:
        """Flushes all points so far to the file."""
        with self._name_errors():
            self._file.flush()

    def close(self) -> None:
        """Writes the mean of the remaining steps and closes the file."""
        try:
            if self._rows:
                self._write_means()
        finally:
            with self._name_errors():
                self._file.close()

    def _write_means(self) -> None:
        means = {name: sum(row[name] for row in self._rows) / len(self._rows) for name in self._rows[0]}
        self.write(self._step, "training", means)
        self._rows = []

    def _write_event(self, **content: Any) -> None:
        with self._name_errors():
            self._records.write(Event(wall_time=time.time(), **content).SerializeToString())

    @contextlib.contextmanager
    def _name_errors(self) -> Iterator[None]:
        """Adds the file's name to an error that has none."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise
