"""Batches the rows of several requests into one call of the model, in a separate thread."""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bert4rec_tf.serving.signatures import Arrays, LoadedModel, ModelError

PADDED = "histories"
"""The only input that is padded, so that requests of different widths can share a batch. Padding a history does not
change the result. The width of other inputs does: `score` returns a column for each candidate."""

LONG_LIST = 1_000
"""Shared lists of more items are equal only if they are the same: comparing them would take milliseconds."""

LONG_HISTORY = 1_024
"""Calls whose longest histories have about as many times this many items share a batch: others would wait for them."""

Outputs = dict[str, np.ndarray]


class Overloaded(Exception):
    """The queue is full."""


@dataclass(frozen=True)
class Call:
    """A call of a model, for one request. `shared`: inputs that are the same for all rows."""

    model: LoadedModel
    signature: str
    arrays: Arrays
    rows: int
    shared: frozenset[str] = frozenset()

    @cached_property
    def group(self) -> Hashable:
        """A key that is equal for calls that can share a batch. It holds as long as one of them waits.

        Long lists that all rows share are compared by identity: a server has one list of blocked items.
        """
        arrays = sorted(self.arrays.items())
        shared_parts = tuple(
            (name, id(part) if part.size > LONG_LIST else (part.shape, *part.ravel().tolist()))
            for name, part in arrays
            if name in self.shared
        )
        shapes = tuple((name, part.shape[1:]) for name, part in arrays if name not in self.shared and name != PADDED)
        length = self.arrays[PADDED].shape[1] // LONG_HISTORY if PADDED in self.arrays else 0
        return (id(self.model), self.signature, shared_parts, shapes, length)

    def split(self, max_rows: int) -> list["Call"]:
        """Splits the call into calls of at most `max_rows` rows, in order."""
        if self.rows <= max_rows:
            return [self]

        def piece(begin: int) -> Call:
            end = min(begin + max_rows, self.rows)
            arrays = {name: part if name in self.shared else part[begin:end] for name, part in self.arrays.items()}
            return replace(self, rows=end - begin, arrays=arrays)

        return [piece(begin) for begin in range(0, self.rows, max_rows)]


def join_calls(calls: Sequence[Call]) -> Arrays:
    """Returns the inputs of one call with the rows of all `calls`, which belong to one group."""
    return {
        name: part if name in calls[0].shared else np.concatenate(_pad_to_widest([call.arrays[name] for call in calls]))
        for name, part in calls[0].arrays.items()
    }


def _pad_to_widest(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Pads [b, w] arrays of bytes on the right to the widest one."""
    if len({array.shape[1:] for array in arrays}) == 1:
        return arrays
    width, blank = max(array.shape[1] for array in arrays), np.array(b"", object)
    return [np.pad(array, [(0, 0), (0, width - array.shape[1])], constant_values=blank) for array in arrays]


def compute(calls: Sequence[Call]) -> list[Outputs | Exception]:
    """Computes the calls of one group together; after a ModelError each alone, so that only the bad ones fail."""
    model, signature = calls[0].model, calls[0].signature
    try:
        outputs, ends = model.call(signature, join_calls(calls)), np.cumsum([call.rows for call in calls]).tolist()
        rows = [slice(end - call.rows, end) for call, end in zip(calls, ends)]
        return [{name: array[part] for name, array in outputs.items()} for part in rows]
    except ModelError as error:
        return [error] if len(calls) == 1 else [outcome for call in calls for outcome in compute([call])]
    except Exception as error:
        return [error] * len(calls)


class Batcher:
    """Computes calls that wait at the same time as one batch.

    While one batch is computed, the next one fills. Groups of calls that cannot share a batch take turns.

    Args:
        max_batch_size: maximum rows per call of the model. A call with more rows is split.
        max_queue: maximum number of waiting rows. A single call with more rows is accepted if the queue is empty.
    """

    _task: asyncio.Task

    def __init__(self, max_batch_size: int, max_queue: int) -> None:
        self._max_batch_size = max_batch_size
        self._max_queue = max_queue
        self._groups: OrderedDict[Hashable, deque[tuple[Call, asyncio.Future]]] = OrderedDict()
        self._rows = 0
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")

    async def __aenter__(self) -> "Batcher":
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._thread.shutdown(wait=True)

    async def submit(self, call: Call) -> Outputs:
        """Returns the outputs of a call.

        Raises:
            Overloaded: if too many rows wait.
            ModelError: if the model cannot compute them.
        """
        if self._rows and self._rows + call.rows > self._max_queue:
            raise Overloaded(
                f"The queue is full: {self._rows} rows wait, and the limit is {self._max_queue}; try again"
            )
        pieces = call.split(self._max_batch_size)
        futures = [asyncio.get_running_loop().create_future() for _ in pieces]
        for piece, future in zip(pieces, futures):
            self._groups.setdefault(piece.group, deque()).append((piece, future))
            self._rows += piece.rows
        self._arrival.set()
        try:
            parts = await asyncio.gather(*futures)
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        finally:
            for future in futures:
                future.cancel()

    async def _work(self) -> None:
        while True:
            while not self._groups:
                self._arrival.clear()
                await self._arrival.wait()
            batch = self._next_batch()
            if not batch:
                continue
            work = asyncio.get_running_loop().run_in_executor(self._thread, compute, [call for call, _ in batch])
            for (_, future), outcome in zip(batch, await work):
                if future.done():
                    continue
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    def _next_batch(self) -> list[tuple[Call, asyncio.Future]]:
        """Takes one batch from the first group, and moves that group to the end."""
        group, queue = next(iter(self._groups.items()))
        batch: list[tuple[Call, asyncio.Future]] = []
        rows = 0
        while queue and (not batch or rows + queue[0][0].rows <= self._max_batch_size):
            call, future = queue.popleft()
            self._rows -= call.rows
            if not future.done():
                batch.append((call, future))
                rows += call.rows
        if queue:
            self._groups.move_to_end(group)
        else:
            del self._groups[group]
        return batch
