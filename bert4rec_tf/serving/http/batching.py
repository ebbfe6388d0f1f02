"""Calls of a model, several requests' rows in one, in a thread of their own."""

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
"""The input that may be padded to join one more wide: an answer does not depend on a history's padding. It may well
depend on the width of others: `score` has a column for each of its candidates."""

Outputs = dict[str, np.ndarray]


class Overloaded(Exception):
    """More rows wait already than may."""


@dataclass(frozen=True)
class Call:
    """What one request asks of a model.

    Attributes:
        model: of the version that was current when the request came.
        signature: its name.
        arrays: all inputs.
        rows: how many; 0 for a signature without any input of that many rows, which is called alone.
        shared: names of the inputs that all rows have in common.
    """

    model: LoadedModel
    signature: str
    arrays: Arrays
    rows: int
    shared: frozenset[str] = frozenset()

    @cached_property
    def group(self) -> Hashable:
        """Equal for calls that may join."""
        common = tuple((name, _content(self.arrays[name])) for name in sorted(self.shared))
        shapes = tuple(
            (name, array.shape[1:])
            for name, array in sorted(self.arrays.items())
            if name not in self.shared and name != PADDED
        )
        return (id(self.model), self.signature, common, shapes, *([] if self.rows else [id(self)]))

    def pieces(self, most: int) -> list["Call"]:
        """Returns calls of at most so many rows, in order."""
        if self.rows <= most:
            return [self]
        return [
            replace(
                self,
                rows=min(most, self.rows - begin),
                arrays={
                    name: array if name in self.shared else array[begin : begin + most]
                    for name, array in self.arrays.items()
                },
            )
            for begin in range(0, self.rows, most)
        ]


def _content(array: np.ndarray) -> Hashable:
    return array.shape, tuple(array.ravel().tolist())


def join(calls: Sequence[Call]) -> Arrays:
    """Returns the inputs of one call with the rows of all, which are of one group."""
    first = calls[0]
    if len(calls) == 1:
        return first.arrays
    return {
        name: array if name in first.shared else np.concatenate(_equally_wide([one.arrays[name] for one in calls]))
        for name, array in first.arrays.items()
    }


def _equally_wide(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Pads [b, w] arrays of bytes on the right to the widest."""
    if len({array.shape[1:] for array in arrays}) == 1:
        return arrays
    width = max(array.shape[1] for array in arrays)
    return [
        np.pad(array, [(0, 0), (0, width - array.shape[1])], constant_values=np.array(b"", object)) for array in arrays
    ]


def share_out(outputs: Outputs, calls: Sequence[Call]) -> list[Outputs]:
    """Returns each call's part of the outputs: its rows, and the whole of what the signature gives once for all.

    Raises:
        ModelError: where an output should have as many rows as the calls together, and has not.
    """
    if len(calls) == 1:
        return [outputs]
    infos = calls[0].model.signatures[calls[0].signature].outputs
    rows = sum(call.rows for call in calls)
    ends = np.cumsum([call.rows for call in calls]).tolist()
    split = {name: array for name, array in outputs.items() if infos[name].has_rows}
    if any(array.shape[:1] != (rows,) for array in split.values()):
        raise ModelError("it does not give a row for each row of its inputs", is_callers=True)
    return [
        {**outputs, **{name: array[end - call.rows : end] for name, array in split.items()}}
        for call, end in zip(calls, ends)
    ]


def compute(calls: Sequence[Call]) -> list[Outputs | Exception]:
    """Computes the calls of one group together; each alone where that fails, so that one cannot spoil the others."""
    model, signature = calls[0].model, calls[0].signature
    try:
        return list(share_out(model.call(signature, join(calls)), calls))
    except ModelError as error:
        return [error] if len(calls) == 1 else [outcome for call in calls for outcome in compute([call])]
    except Exception as error:
        return [error] * len(calls)


def put_together(parts: Sequence[Outputs], pieces: Sequence[Call]) -> Outputs:
    """Returns the outputs of a call from those of its pieces.

    Raises:
        ModelError: where an output should have as many rows as its piece, and has not.
    """
    if len(parts) == 1:
        return parts[0]
    infos = pieces[0].model.signatures[pieces[0].signature].outputs
    split = [name for name in parts[0] if infos[name].has_rows]
    if any(part[name].shape[:1] != (piece.rows,) for part, piece in zip(parts, pieces) for name in split):
        raise ModelError("it does not give a row for each row of its inputs: ask for fewer at once", is_callers=True)
    return {**parts[0], **{name: np.concatenate([part[name] for part in parts]) for name in split}}


@dataclass(eq=False)
class _Waiting:
    call: Call
    answer: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Joins the rows of calls that wait at the same time.

    While one batch is computed the next one gathers. Groups of calls that cannot join take turns.

    Args:
        max_batch_size: rows in one call of the model. A call of more rows is computed in pieces.
        wait_seconds: how long a batch that is not full waits for more.
        max_queue: rows that may wait. A single call of more rows is let in where nothing waits.

    Attributes:
        batches: how many calls of the model there were.
    """

    def __init__(self, max_batch_size: int, wait_seconds: float, max_queue: int) -> None:
        self.batches = 0
        self._max_batch_size = max_batch_size
        self._wait_seconds = wait_seconds
        self._max_queue = max_queue
        self._groups: OrderedDict[Hashable, deque[_Waiting]] = OrderedDict()
        self._rows = 0
        self._came = asyncio.Event()
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
            Overloaded: where too many rows wait.
            ModelError: where the model cannot compute them.
        """
        pieces = call.pieces(self._max_batch_size)
        if self._rows and self._rows + call.rows > self._max_queue:
            raise Overloaded(f"{self._rows} rows wait, and at most {self._max_queue} may; try again")
        waiting = [_Waiting(piece) for piece in pieces]
        for one in waiting:
            self._groups.setdefault(one.call.group, deque()).append(one)
            self._rows += one.call.rows
        self._came.set()
        try:
            return put_together([await one.answer for one in waiting], pieces)
        finally:
            for one in waiting:
                _forget(one.answer)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._enough()
            batch = self._next_batch()
            if not batch:
                continue
            self.batches += 1
            outcomes = await loop.run_in_executor(self._thread, compute, [one.call for one in batch])
            _deliver(batch, outcomes)

    async def _enough(self) -> None:
        """Waits for a call, and then for a batch full of rows, but not for long."""
        while not self._groups:
            self._came.clear()
            await self._came.wait()
        if self._wait_seconds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_seconds):
                    while self._rows < self._max_batch_size:
                        self._came.clear()
                        await self._came.wait()

    def _next_batch(self) -> list[_Waiting]:
        """Takes what fits into one call of the model out of the first group, which then goes to the end."""
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
    """Gives an answer up that is still to come, and passes over the error of one that has come."""
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
