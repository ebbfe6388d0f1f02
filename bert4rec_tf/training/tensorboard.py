"""Writes the curves of a training for TensorBoard."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

EVERY = 50
"""Each point of a training curve is the mean over this many steps."""


class TensorBoardWriter:
    """Writes the loss, learning rate, gradient norm and fraction of clipped steps, averaged over EVERY steps.

    Points come into the file with `flush`, beside a checkpoint. So what a killed training loses is written only once.

    Args:
        folder: for TensorBoard's files; each start or resume of the training writes a new one. None to write nothing.
        clip_norm: the norm at which gradients are clipped; 0 for never.

    Raises OSError if the file cannot be written; also in all methods.
    """

    def __init__(self, folder: Path | None, clip_norm: float) -> None:
        self._folder, self._clip_norm = folder, clip_norm or math.inf
        self._rows: list[Mapping[str, float]] = []
        self._points: list[tuple[int, str, float]] = []
        self._step = 0
        with self._name_errors():
            self._writer = tf.summary.create_file_writer(str(folder)) if folder else tf.summary.create_noop_writer()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds the values of one training step."""
        self._rows.append({**values, "clipped": float(values["gradient_norm"] > self._clip_norm)})
        self._step = step
        if step % EVERY == 0:
            self._write_means()

    def write(self, step: int, group: str, scalars: Mapping[str, float]) -> None:
        """Adds a point to each curve of a group."""
        self._points += [(step, f"{group}/{name}", value) for name, value in scalars.items()]

    def flush(self, is_last: bool = False) -> None:
        """Writes all points so far to the file; at the last call, also the mean of the remaining steps."""
        if is_last and self._rows:
            self._write_means()
        with self._name_errors(), self._writer.as_default():
            for step, name, value in self._points:
                tf.summary.scalar(name, value, step)
        self._points = []

    def close(self) -> None:
        """Closes the file."""
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
