"""Batches the rows of several requests into one call of the model, in a separate thread."""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from bert4rec_tf.serving.signatures import Arrays, LoadedModel, ModelError

PADDED = "histories"
"""The only input that may be padded so that requests of different widths share a batch. The padding of a history does
not change the result; the width of other inputs does (`score` returns a column for each candidate)."""

Outputs = dict[str, np.ndarray]


class Overloaded(Exception):
    """The queue is full."""


@dataclass(frozen=True)
class Call:
    """A call of a model, for one request.

    Attributes:
        model: of the version that was current when the request arrived.
        signature: name of the signature.
        arrays: all inputs.
        rows: number of rows; 0 if no input has rows. Such a call cannot join others.
        shared: names of the inputs that are the same for all rows.
    """

    model: LoadedModel
    signature: str
    arrays: Arrays
    rows: int
    shared: frozenset[str] = frozenset()

    @cached_property
    def group(self) -> Hashable:
        """Equal for calls that can share a batch."""
        common = tuple((name, _content(self.arrays[name])) for name in sorted(self.shared))
        shapes = tuple(
            (name, array.shape[1:])
            for name, array in sorted(self.arrays.items())
            if name not in self.shared and name != PADDED
        )
        return (id(self.model), self.signature, common, shapes, *([] if self.rows else [id(self)]))

    def pieces(self, max_rows: int) -> list["Call"]:
        """Splits the call into calls of at most `max_rows` rows, in order."""
        if self.rows <= max_rows:
            return [self]
        return [
            replace(
                self,
                rows=min(max_rows, self.rows - begin),
                arrays={
                    name: array if name in self.shared else array[begin : begin + max_rows]
                    for name, array in self.arrays.items()
                },
            )
            for begin in range(0, self.rows, max_rows)
        ]


def _content(array: np.ndarray) -> Hashable:
    return array.shape, tuple(array.ravel().tolist())


def join(calls: Sequence[Call]) -> Arrays:
    """Returns the inputs of one call with the rows of all `calls`, which belong to one group."""
    first = calls[0]
    if len(calls) == 1:
        return first.arrays
    return {
        name: array if name in first.shared else np.concatenate(_pad_to_widest([one.arrays[name] for one in calls]))
        for name, array in first.arrays.items()
    }


def _pad_to_widest(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Pads [b, w] arrays of bytes on the right to the widest one."""
    if len({array.shape[1:] for array in arrays}) == 1:
        return arrays
    width = max(array.shape[1] for array in arrays)
    return [
        np.pad(array, [(0, 0), (0, width - array.shape[1])], constant_values=np.array(b"", object)) for array in arrays
    ]


def split_outputs(outputs: Outputs, calls: Sequence[Call]) -> list[Outputs]:
    """Splits the outputs of a joined call: each call gets its rows, and all of the outputs that have no rows.

    Raises:
        ModelError: if an output does not have one row for each row of the inputs.
    """
    if len(calls) == 1:
        return [outputs]
    infos = calls[0].model.signatures[calls[0].signature].outputs
    rows = sum(call.rows for call in calls)
    ends = np.cumsum([call.rows for call in calls]).tolist()
    split = {name: array for name, array in outputs.items() if infos[name].has_rows}
    if any(array.shape[:1] != (rows,) for array in split.values()):
        raise ModelError("it does not return one row for each row of its inputs", is_client_error=True)
    return [
        {**outputs, **{name: array[end - call.rows : end] for name, array in split.items()}}
        for call, end in zip(calls, ends)
    ]


def compute(calls: Sequence[Call]) -> list[Outputs | Exception]:
    """Computes the calls of one group together; if that fails, each alone, so that only the bad one fails."""
    model, signature = calls[0].model, calls[0].signature
    try:
        return list(split_outputs(model.call(signature, join(calls)), calls))
    except ModelError as error:
        return [error] if len(calls) == 1 else [outcome for call in calls for outcome in compute([call])]
    except Exception as error:
        return [error] * len(calls)


def join_outputs(parts: Sequence[Outputs], pieces: Sequence[Call]) -> Outputs:
    """Joins the outputs of a call's pieces.

    Raises:
        ModelError: if an output does not have one row for each row of its piece.
    """
    if len(parts) == 1:
        return parts[0]
    infos = pieces[0].model.signatures[pieces[0].signature].outputs
    split = [name for name in parts[0] if infos[name].has_rows]
    if any(part[name].shape[:1] != (piece.rows,) for part, piece in zip(parts, pieces) for name in split):
        message = "it does not return one row for each row of its inputs: send fewer rows per request"
        raise ModelError(message, is_client_error=True)
    return {**parts[0], **{name: np.concatenate([part[name] for part in parts]) for name in split}}


@dataclass(eq=False)
class _Waiting:
    call: Call
    answer: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Computes calls that wait at the same time as one batch.

    While one batch is computed, the next one fills. Groups of calls that cannot share a batch take turns.

    Args:
        max_batch_size: maximum rows per call of the model. A call with more rows is split.
        wait_seconds: how long a batch that is not full waits for more rows.
        max_queue: maximum number of waiting rows. A single call with more rows is accepted if the queue is empty.

    Attributes:
        batches: number of batches computed so far.
    """

    def __init__(self, max_batch_size: int, wait_seconds: float, max_queue: int) -> None:
        self.batches = 0
        self._max_batch_size = max_batch_size
        self._wait_seconds = wait_seconds
        self._max_queue = max_queue
        self._groups: OrderedDict[Hashable, deque[_Waiting]] = OrderedDict()
        self._rows = 0
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")
        self._task: asyncio.Task | None = None

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
        pieces = call.pieces(self._max_batch_size)
        if self._rows and self._rows + call.rows > self._max_queue:
            raise Overloaded(
                f"The queue is full: {self._rows} rows wait, and the limit is {self._max_queue}; try again"
            )
        waiting = [_Waiting(piece) for piece in pieces]
        for one in waiting:
            self._groups.setdefault(one.call.group, deque()).append(one)
            self._rows += one.call.rows
        self._arrived.set()
        try:
            return join_outputs([await one.answer for one in waiting], pieces)
        finally:
            for one in waiting:
                _forget(one.answer)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_rows()
            batch = self._next_batch()
            if not batch:
                continue
            self.batches += 1
            outcomes = await loop.run_in_executor(self._thread, compute, [one.call for one in batch])
            _deliver(batch, outcomes)

    async def _wait_for_rows(self) -> None:
        """Waits for a call, and then at most `wait_seconds` until the batch is full."""
        while not self._groups:
            self._arrived.clear()
            await self._arrived.wait()
        if self._wait_seconds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_seconds):
                    while self._rows < self._max_batch_size:
                        self._arrived.clear()
                        await self._arrived.wait()

    def _next_batch(self) -> list[_Waiting]:
        """Takes one batch from the first group, and moves that group to the end."""
        group, waiting = next(iter(self._groups.items()))
        batch: list[_Waiting] = []
        rows = 0
        while waiting and (not batch or rows + waiting[0].call.rows <= self._max_batch_size):
            one = waiting.popleft()
            self._rows -= one.call.rows
            if not one.answer.done():
                batch.append(one)
                rows += one.call.rows
        if waiting:
            self._groups.move_to_end(group)
        else:
            del self._groups[group]
        return batch


def _forget(answer: asyncio.Future) -> None:
    """Cancels a pending answer. If it already failed, reads the error so that asyncio does not log it."""
    if not answer.cancel() and not answer.cancelled():
        answer.exception()


def _deliver(batch: Iterable[_Waiting], outcomes: Iterable[Outputs | Exception]) -> None:
    for one, outcome in zip(batch, outcomes):
        if one.answer.done():
            continue
        if isinstance(outcome, Exception):
            one.answer.set_exception(outcome)
        else:
            one.answer.set_result(outcome)
