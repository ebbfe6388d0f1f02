"""The files of a sharded item table: each worker's rows beside each checkpoint, and all rows in one file at the end."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.models.recommender import ITEMS, Recommender
from bert4rec_tf.models.sharded_table import BLOCK, ShardedTable
from bert4rec_tf.training.checkpoints import HEADER
from bert4rec_tf.training.workers import Team

VALUES, SUMS = ("vectors", "biases"), ("vector_sums", "bias_sums")
"""Names of the arrays in a worker's file. Without biases, it has only the first of each pair."""

WHOLE = "whole.npz"
"""A checkpoint, as of one machine, with the weights of a finished training and the whole item table."""


class ShardFiles:
    """One worker's rows on disk, a file for each saved step, in the checkpoints' folder, which all workers see.

    A checkpoint is complete once the chief has written its `step-*.npz`.
    """

    def __init__(self, folder: Path, table: ShardedTable, team: Team) -> None:
        self.folder, self.table, self.team = folder, table, team
        self._held = {**dict(zip(VALUES, table.values)), **dict(zip(SUMS, table.sums))}

    def path(self, step: int, index: int | None = None) -> Path:
        number = self.table.index if index is None else index
        return self.folder / f"shard-{number}-of-{self.table.count}-step-{step:09d}.npz"

    def save(self, step: int) -> None:
        """Writes this worker's rows, and waits until all workers have."""
        npz.write_pieces(
            self.path(step),
            {name: npz.Pieces("<f4", tuple(one.shape), self.table.blocks(one)) for name, one in self._held.items()},
        )
        self.team.sum(np.zeros(1, np.int64))

    def restore(self, step: int) -> None:
        """Reads this worker's rows. Raises CorruptFileError on all workers if the file of one is damaged."""
        failure: CorruptFileError | None = None
        try:
            found = npz.checked(self.path(step))
            if any(found[name].shape != tuple(one.shape) for name, one in self._held.items()):
                raise CorruptFileError(f"{self.path(step)}: has other rows")
        except CorruptFileError as error:
            failure = error
        if self.team.sum(np.array([failure is not None], np.int64))[0]:
            raise failure or CorruptFileError(f"{self.folder}: the rows of another worker at step {step} are damaged")
        for name, variable in self._held.items():
            for begin in range(0, len(found[name]), BLOCK):
                block = np.array(found[name][begin : begin + BLOCK])
                variable.scatter_update(tf.IndexedSlices(block, tf.range(begin, begin + len(block))))

    def keep(self, best_step: int) -> None:
        """Deletes this worker's files of steps without a checkpoint, except the best step's."""
        steps = {int(re.findall(r"\d+", path.name)[-1]) for path in self.folder.glob("step-*.npz")} | {best_step}
        kept = {self.path(step) for step in steps}
        for path in self.folder.glob(f"shard-{self.table.index}-of-*.npz"):
            if path not in kept:
                path.unlink()

    def write_whole(self, model: Recommender, step: int) -> None:
        """Writes WHOLE from the model's other weights and the rows that all workers saved at a step, block by block.

        Raises CorruptFileError if a file is damaged.
        """
        shards = [npz.checked(self.path(step, index)) for index in range(self.table.count)]
        others = {variable.path: variable for variable in model.variables}
        arrays: dict[str, np.ndarray | npz.Pieces] = {}
        rows, layout = self.table.num_rows, type(model)(1, model.settings, name=model.name)
        for number, variable in enumerate(layout.variables):
            if layout.rows_of(variable) != ITEMS:
                arrays[f"model/{number:03d}"] = np.asarray(others[variable.path])
                continue
            name = VALUES[0] if len(variable.shape) == 2 else VALUES[1]
            blocks = _in_turn([one[name] for one in shards], rows)
            arrays[f"model/{number:03d}"] = npz.Pieces("<f4", (rows, *variable.shape[1:]), blocks)
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        header = json.dumps({"shapes": shapes, "state": {"step": step}}).encode()
        npz.write_pieces(self.folder / WHOLE, {HEADER: np.frombuffer(header, np.uint8), **arrays})


def _in_turn(shards: list[np.ndarray], rows: int) -> Iterator[np.ndarray]:
    """Yields the rows of the whole table in order, about BLOCK at a time: row r is row r // W of shard r % W."""
    count = len(shards)
    size = max(BLOCK // count, 1) * count
    for begin in range(0, rows, size):
        block = np.empty((min(size, rows - begin), *shards[0].shape[1:]), np.float32)
        for index, shard in enumerate(shards):
            held = block[index::count]
            held[...] = shard[begin // count :][: len(held)]
        yield block
