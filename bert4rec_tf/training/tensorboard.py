"""Writes the curves of a training for TensorBoard."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

EVERY = 50
"""Each point of a training curve is the mean over this many steps."""

NEVER = 1 << 30
"""So many points, or milliseconds, are kept until `flush`: what a killed training had not flushed is written again."""


class TensorBoardWriter:
    """Writes the loss, learning rate, gradient norm and fraction of clipped steps, averaged over EVERY steps.

    Args:
        folder: for TensorBoard's files; each start or resume of the training writes a new one. None to write nothing.
        clip_norm: the norm at which gradients are clipped; 0 for never.

    Raises OSError if the file cannot be written; also in all methods.
    """

    def __init__(self, folder: Path | None, clip_norm: float) -> None:
        self._folder, self._clip_norm = folder, clip_norm or math.inf
        self._rows: list[Mapping[str, float]] = []
        self._step = 0
        with self._name_errors():
            make = tf.summary.create_file_writer if folder else lambda *_, **__: tf.summary.create_noop_writer()
            self._writer = make(str(folder), max_queue=NEVER, flush_millis=NEVER)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds the values of one training step."""
        self._rows.append({**values, "clipped": float(values["gradient_norm"] > self._clip_norm)})
        self._step = step
        if step % EVERY == 0:
            self._write_means()

    def write(self, step: int, group: str, scalars: Mapping[str, float]) -> None:
        """Writes a point of each curve of a group."""
        with self._name_errors(), self._writer.as_default(step):
            for name, value in scalars.items():
                tf.summary.scalar(f"{group}/{name}", value)

    def flush(self) -> None:
        """Flushes all points so far to the file."""
        with self._name_errors():
            self._writer.flush()

    def close(self) -> None:
        """Writes the mean of the remaining steps and closes the file."""
        if self._rows:
            self._write_means()
        with self._name_errors():
            self._writer.close()

    def _write_means(self) -> None:
        means = {name: sum(row[name] for row in self._rows) / len(self._rows) for name in self._rows[0]}
        self.write(self._step, "training", means)
        self._rows = []

    @contextlib.contextmanager
    def _name_errors(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            raise OSError(None, error.message, str(self._folder)) from error
