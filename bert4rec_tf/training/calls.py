"""Several training steps in one call of TensorFlow: what is compiled, and where the batches come from.

FIXED compiles a loop of steps with XLA into one program of the accelerator. BY_LENGTH, for a CPU, calls one step after
the other. `step.take_step` is the step of both.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.config.execution import AUTO, XLA, ExecutionSettings
from bert4rec_tf.foundation import devices
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.nn import layouts
from bert4rec_tf.training.step import take_step

MAX_STEPS_PER_CALL = 512
"""The most steps of a call. One program serves calls of up to so many."""

MAX_COLUMN_BYTES = 1 << 27
"""The most bytes of the columns of a call."""

CALL_SECONDS = 0.5
"""About how long a call takes, unless `steps_per_call` is set."""

RESULTS = ("loss", "gradient_norm", "learning_rate")


class Feed(Protocol):
    """What a training reads its batches from: `data.examples.rows.Feed`."""

    @property
    def tables(self) -> Mapping[str, np.ndarray]: ...
    @property
    def batch_size(self) -> int: ...
    def read(self, first_step: int, count: int) -> dict[str, np.ndarray]: ...
    def lay_out(self, tables: Mapping[str, Tensor], columns: Mapping[str, Tensor]) -> Batch: ...


def choose_layout(execution: ExecutionSettings) -> str:
    """Returns the layout to compile: FIXED with an accelerator or where XLA is asked for."""
    wants_xla = execution.compile == XLA or (execution.compile == AUTO and devices.has_accelerator())
    return layouts.FIXED if wants_xla else layouts.BY_LENGTH


class TrainingCalls:
    """Trains a model by calls of some steps each.

    Args:
        model: created under the strategy that it is trained with, if any.
        optimizer: already built on the model's variables.
        feed: the batches.
        clip_norm: as of `step.take_step`.
        execution: how steps are compiled.
        first_step: the number of steps that were taken before. Its batch, which is read next, gives the sizes.
    """

    def __init__(
        self,
        model: Any,
        optimizer: keras.optimizers.Optimizer,
        feed: Feed,
        clip_norm: float,
        execution: ExecutionSettings,
        first_step: int = 0,
    ) -> None:
        self.model, self.optimizer, self.feed, self.clip_norm = model, optimizer, feed, clip_norm
        self.layout = choose_layout(execution)
        self.strategy = model.distribute_strategy
        self.is_one_program = self.layout == layouts.FIXED and self.strategy.num_replicas_in_sync == 1
        # TensorFlow keeps tensors of int32 on the host, and would copy them in each call. Those of uint32 it does not.
        try:
            self._tables = {
                name: tf.constant(table.view(np.uint32) if table.dtype == np.int32 and self.is_one_program else table)
                for name, table in feed.tables.items()
            }
        except (tf.errors.ResourceExhaustedError, tf.errors.InternalError) as error:  # a copy that fails is "internal"
            remedy = "a smaller --mask_copies, --prefix_copies or --max_length"
            raise devices.explain_exhausted(error, "The training examples do", remedy) from error
        self._step = tf_function(self._run_step)
        self._steps = tf_function(self._run_steps, jit_compile=True)
        bytes_per_step = sum(column.nbytes for column in feed.read(first_step, 1).values())
        self.max_steps = max(1, min(execution.steps_per_call or MAX_STEPS_PER_CALL, MAX_COLUMN_BYTES // bytes_per_step))

    def read(self, first_step: int, count: int) -> dict[str, Any]:
        """Returns what `run` takes for `count` steps, at most `max_steps`, after `first_step` others."""
        columns = self.feed.read(first_step, count)
        if not self.is_one_program:
            return columns
        padding = self.max_steps - count
        return {
            name: np.concatenate([column, np.repeat(column[-1:], padding, axis=0)]) for name, column in columns.items()
        }

    def run(self, columns: Mapping[str, Any], count: int) -> dict[str, np.ndarray]:
        """Takes `count` steps by what `read` returned for them. Returns each of RESULTS, float32 [count]."""
        try:
            if self.is_one_program:
                results = self._steps(self._tables, columns, tf.constant(count))
                return {name: results[name].numpy()[:count] for name in RESULTS}
            steps = [{name: column[index] for name, column in columns.items()} for index in range(count)]
            rows = [self._step(self._tables, step) for step in steps]
            return {name: np.array([row[name].numpy() for row in rows]) for name in RESULTS}
        except tf.errors.ResourceExhaustedError as error:
            raise devices.explain_exhausted(error, "A training step does", "a smaller --batch_size") from error

    def _run_step(self, tables: Mapping[str, Tensor], columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Takes one step on every replica. Each gets its part of the batch."""
        batch = self.feed.lay_out(tables, columns)

        def run_replica(batch: Batch) -> dict[str, Tensor]:
            with layouts.use_layout(self.layout):
                return take_step(self.model, self.optimizer, _take_part(batch), self.clip_norm)

        results = self.strategy.run(run_replica, args=(batch,))
        return {name: self.strategy.experimental_local_results(value)[0] for name, value in results.items()}

    def _run_steps(
        self, tables: Mapping[str, Tensor], columns: Mapping[str, Tensor], count: Tensor
    ) -> dict[str, Tensor]:
        """Takes the first `count` steps. The others are not taken: so one program serves calls of any length."""
        tables = {
            name: tf.bitcast(table, tf.int32) if table.dtype == tf.uint32 else table for name, table in tables.items()
        }

        def run_next(index: Tensor, results: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            step_columns = {name: column[index] for name, column in columns.items()}
            with layouts.use_layout(layouts.FIXED):
                row = take_step(self.model, self.optimizer, self.feed.lay_out(tables, step_columns), self.clip_norm)
            return index + 1, {
                name: tf.tensor_scatter_nd_update(results[name], [[index]], [tf.cast(row[name], tf.float32)])
                for name in RESULTS
            }

        zeros = {name: tf.zeros([self.max_steps]) for name in RESULTS}
        _, results = tf.while_loop(lambda index, _: index < count, run_next, (tf.constant(0), zeros))
        return results


def _take_part(batch: Batch) -> Batch:
    """Returns the rows that this replica gets. The sizes of the parts differ by at most one row."""
    context = tf.distribute.get_replica_context()
    number, count = context.replica_id_in_sync_group, context.num_replicas_in_sync
    if count == 1:
        return batch

    def cut(column: Tensor) -> Tensor:
        rows = tf.shape(column)[0]
        return column[number * rows // count : (number + 1) * rows // count]

    return {name: cut(column) for name, column in batch.items()}


class ReadAhead:
    """Reads the columns of the next call in a thread, while the present one computes."""

    def __init__(self, read: Callable[[int, int], dict[str, Any]]) -> None:
        self._read = read
        self._pool = ThreadPoolExecutor(1, "read-ahead")
        self._next: tuple[int, int, Future] | None = None

    def read(self, first_step: int, count: int, next_count: int) -> dict[str, Any]:
        """Returns the columns of `count` steps, and begins to read the `next_count` that follow (0: none)."""
        if self._next is None or self._next[:2] != (first_step, count):
            self._next = (first_step, count, self._pool.submit(self._read, first_step, count))
        columns = self._next[2].result()
        self._next = None
        if next_count:
            first_step += count
            self._next = (first_step, next_count, self._pool.submit(self._read, first_step, next_count))
        return columns

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
