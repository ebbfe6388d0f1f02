"""Sequences to prepared shards: made once for a fingerprint, the same bytes for any number of processes."""

import abc
import contextlib
import copy
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bert4rec_tf.config.run import MaskingSettings
from bert4rec_tf.data.examples import tfrecords
from bert4rec_tf.data.examples.cloze import Windows, cut_windows, mask_windows
from bert4rec_tf.data.examples.tfrecords import Column, Shards
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Progress

SHARD_SIZE = 8_192
"""Examples per shard; a part of what decides the bytes, the number of processes is not."""


def prepare(
    sequences: Sequences,
    masking: MaskingSettings,
    max_length: int,
    seed: int,
    folder: Path,
    processes: int = 1,
) -> Shards:
    """Returns the shards of Cloze examples of `sequences`, writing those that are not there yet.

    Static masks give `mask_copies` + 1 masked examples of each window, shuffled once; dynamic ones give the windows,
    and `masking.mask_dynamically` masks them when they are read.

    Args:
        sequences: what to train on.
        masking: how examples are made.
        max_length: N.
        seed: decides the masks and the order on disk.
        folder: the shards come into a folder of their own in it, named by their fingerprint.
        processes: how many processes write.

    A shard that is damaged or gone is written again. Another process in the same folder is waited for.

    Raises:
        UserError: where nothing can be masked, the folder cannot be made, or `processes` is below 1.
    """
    if processes < 1:
        raise UserError(f"`processes` must be at least 1. Received: processes={processes}")
    fingerprint = _fingerprint(sequences, masking, max_length, seed)
    lock, folder = files.FolderLock(folder), folder / fingerprint[:16]
    windows = cut_windows(sequences, max_length, masking.window_step)
    if not len(windows):
        raise UserError("No user has two items to train on, so no item can be masked with a context")
    if masking.masking == "static":
        maker: ShardMaker = StaticShards(windows, masking, max_length, sequences.num_items, seed, folder)
    else:
        maker = WindowShards(windows, max_length, seed, folder)
    shards = Shards(folder, tuple(maker.names()), tuple(maker.sizes()), maker.widths())
    with lock.lock():
        files.make_folder(folder)
        files.remove_partials(folder)
        missing = shards.missing(fingerprint)
        if missing:
            _write(maker, missing, processes)
            shards.write_manifest(fingerprint)
    return shards


class ShardMaker(abc.ABC):
    """Writes shard after shard, each a function of its number alone.

    Attributes:
        windows: what the examples are made of.
        num_examples: in all shards.
        seed: decides their order.
        folder: where the shards come.
    """

    windows: Windows
    num_examples: int
    seed: int
    folder: Path

    def names(self) -> list[str]:
        count = len(self.sizes())
        return [f"train-{number:05d}-of-{count:05d}.tfrecord" for number in range(count)]

    def sizes(self) -> list[int]:
        return [min(SHARD_SIZE, self.num_examples - start) for start in range(0, self.num_examples, SHARD_SIZE)]

    @cached_property
    def order(self) -> np.ndarray:
        """[num_examples] int64: the one permutation that decides which example lies where."""
        return np.random.default_rng([self.seed, 0]).permutation(self.num_examples)

    def examples_of(self, number: int) -> np.ndarray:
        """Returns the numbers of the examples in shard `number`."""
        return self.order[number * SHARD_SIZE : (number + 1) * SHARD_SIZE]

    @abc.abstractmethod
    def widths(self) -> dict[str, int | None]:
        """Returns the features and the widths they are padded to."""

    @abc.abstractmethod
    def columns(self, number: int) -> dict[str, Column]:
        """Returns the content of shard `number`."""

    def write(self, number: int) -> None:
        tfrecords.write_shard(self.folder / self.names()[number], self.columns(number))


class StaticShards(ShardMaker):
    """Masked examples (see `examples.mask_windows`)."""

    def __init__(
        self, windows: Windows, masking: MaskingSettings, max_length: int, num_items: int, seed: int, folder: Path
    ) -> None:
        self.windows = windows
        self.masking = masking
        self.max_length = max_length
        self.num_items = num_items
        self.seed = seed
        self.folder = folder
        self.num_examples = len(windows) * (masking.mask_copies + 1)

    def widths(self) -> dict[str, int | None]:
        predictions = min(self.masking.max_predictions, self.max_length)
        return {"user": None, "items": self.max_length, "mask_positions": predictions, "mask_targets": predictions}

    def columns(self, number: int) -> dict[str, Column]:
        chosen, seed = self.examples_of(number), [self.seed, 1, number]
        made = mask_windows(self.windows, chosen, self.masking, self.max_length, self.num_items, seed)
        return {
            "user": Column(made.users),
            "items": Column(made.items, made.lengths),
            "mask_positions": Column(made.mask_positions, made.num_masked),
            "mask_targets": Column(made.mask_targets, made.num_masked),
        }


class WindowShards(ShardMaker):
    """Windows as they are, with their numbers."""

    def __init__(self, windows: Windows, max_length: int, seed: int, folder: Path) -> None:
        self.windows = windows
        self.max_length = max_length
        self.seed = seed
        self.folder = folder
        self.num_examples = len(windows)

    def widths(self) -> dict[str, int | None]:
        return {"user": None, "window": None, "items": self.max_length}

    def columns(self, number: int) -> dict[str, Column]:
        chosen = self.examples_of(number)
        return {
            "user": Column(self.windows.users[chosen]),
            "window": Column(chosen),
            "items": Column(self.windows.rows(chosen, self.max_length), self.windows.lengths[chosen]),
        }


def _fingerprint(sequences: Sequences, masking: MaskingSettings, max_length: int, seed: int) -> str:
    content = [tfrecords.FORMAT, SHARD_SIZE, sequences.fingerprint, asdict(masking), max_length, seed]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write(maker: ShardMaker, numbers: Sequence[int], processes: int) -> None:
    progress = Progress("preparing", len(numbers), examples_per_step=SHARD_SIZE)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.close)
        written: Iterable[None] = map(maker.write, numbers)
        if min(processes, len(numbers)) > 1:
            written = stack.enter_context(_written_by_workers(maker, numbers, processes))
        for _ in written:
            progress.advance()


@contextlib.contextmanager
def _written_by_workers(maker: ShardMaker, numbers: Sequence[int], processes: int) -> Iterator[Iterable[None]]:
    """Yields what is done when a shard is written, by processes that end with this one, however it ends."""
    given = maker.folder / f".windows{files.PARTIAL}"
    npz.write(given, vars(maker.windows))
    bare = copy.copy(maker)
    bare.windows = None
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryFile() as notes:
        try:
            with ProcessPoolExecutor(processes, context, _receive, (bare, given)) as pool:
                with _born_quietly(notes):
                    written = pool.map(_write_received, numbers)
                yield written
        except BrokenProcessPool as error:
            notes.seek(0)
            said = notes.read().decode(errors="replace")
            if "Traceback" in said:
                print(said, file=sys.stderr)
            raise UserError(
                f"{maker.folder}: a process that wrote examples was ended from outside, perhaps for want of memory; "
                "start the same command again, with fewer --processes"
            ) from error
        finally:
            given.unlink(missing_ok=True)


@contextlib.contextmanager
def _born_quietly(notes: BinaryIO) -> Iterator[None]:
    """Processes begun inside the block never hear Ctrl-C, and put what TensorFlow says at its start into a file."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    stderr = os.dup(2)
    os.dup2(notes.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


_received: list[ShardMaker] = []
"""What a worker process was given to write from, read once and not with every shard."""


def _receive(bare: ShardMaker, given: Path) -> None:
    """Puts the windows, which are in a file for they may be large, back into the maker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    bare.windows = Windows(**npz.read(given))
    _received[:] = [bare]


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)


def _write_received(number: int) -> None:
    _received[0].write(number)
