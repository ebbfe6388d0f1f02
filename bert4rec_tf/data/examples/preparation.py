"""Prepares the shards of a training, once per fingerprint. Any number of processes writes the same bytes."""

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
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bert4rec_tf.config.run import MaskingSettings
from bert4rec_tf.data.examples import tfrecords
from bert4rec_tf.data.examples.cloze import Windows, cut, mask_windows, num_examples
from bert4rec_tf.data.examples.tfrecords import Column, Shards
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Progress

SHARD_SIZE = 8_192
"""Examples per shard. It changes the bytes of the shards; the number of processes does not."""


def prepare(
    sequences: Sequences,
    masking: MaskingSettings,
    max_length: int,
    seed: int,
    folder: Path,
    processes: int = 1,
) -> Shards:
    """Returns the shards of Cloze examples of `sequences`. Writes those that are missing or damaged.

    With static masks the shards hold `mask_copies` + 1 masked examples of each window, shuffled. With dynamic masks
    they hold the windows, which `masking.mask_dynamically` masks when they are read.

    If another process works in the same folder, this one waits.

    Args:
        sequences: the training sequences.
        masking: settings of the masks.
        max_length: N.
        seed: decides the masks and the order on disk.
        folder: the shards get their own folder in it, named by their fingerprint.
        processes: number of processes that write.

    Raises:
        UserError: if nothing can be masked, the folder cannot be created, or `processes` is below 1.
    """
    if processes < 1:
        raise UserError(f"`processes` must be at least 1. Received: processes={processes}")
    fingerprint = _fingerprint(sequences, masking, max_length, seed)
    lock, folder = files.FolderLock(folder), folder / fingerprint[:16]
    windows = cut(sequences, max_length, masking)
    if not len(windows):
        raise UserError("No user has two training items, so there is no item to mask with a context")
    if masking.masking == "static":
        maker: ShardMaker = StaticShards(windows, masking, max_length, sequences.num_items, seed, folder)
    else:
        maker = WindowShards(windows, masking.prefix_copies, max_length, seed, folder)
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
    """Writes shards; each depends only on its number, so processes can write them in any order.

    Attributes:
        windows: the windows that the examples come from.
        num_examples: in all shards together.
        seed: decides their order.
        folder: for the shards.
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
        """The order of the examples on disk, int64 [num_examples]."""
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
    """Shards of masked examples (see `cloze.mask_windows`)."""

    def __init__(
        self, windows: Windows, masking: MaskingSettings, max_length: int, num_items: int, seed: int, folder: Path
    ) -> None:
        self.windows = windows
        self.masking = masking
        self.max_length = max_length
        self.num_items = num_items
        self.seed = seed
        self.folder = folder
        self.num_examples = num_examples(windows, masking)

    def widths(self) -> dict[str, int | None]:
        predictions = min(self.masking.max_predictions, self.max_length)
        return {"user": None, "items": self.max_length, "mask_positions": predictions, "mask_targets": predictions}

    def columns(self, number: int) -> dict[str, Column]:
        chosen, seed = self.examples_of(number), [self.seed, 1, number]
        examples = mask_windows(self.windows, chosen, self.masking, self.max_length, self.num_items, seed)
        return {
            "user": Column(examples.users),
            "items": Column(examples.items, examples.lengths),
            "mask_positions": Column(examples.mask_positions, examples.num_masked),
            "mask_targets": Column(examples.mask_targets, examples.num_masked),
        }


class WindowShards(ShardMaker):
    """Shards of unmasked windows with their numbers, and `prefix_copies` of each prefix with the number -1."""

    def __init__(self, windows: Windows, prefix_copies: int, max_length: int, seed: int, folder: Path) -> None:
        self.windows = windows
        self.max_length = max_length
        self.seed = seed
        self.folder = folder
        self.num_examples = windows.num_whole + windows.num_prefixes * prefix_copies

    def widths(self) -> dict[str, int | None]:
        return {"user": None, "window": None, "items": self.max_length}

    def columns(self, number: int) -> dict[str, Column]:
        chosen, is_prefix = self.windows.numbered(self.examples_of(number), copies=1)
        return {
            "user": Column(self.windows.users[chosen]),
            "window": Column(np.where(is_prefix, -1, chosen)),
            "items": Column(self.windows.rows(chosen, self.max_length), self.windows.lengths[chosen]),
        }


def _fingerprint(sequences: Sequences, masking: MaskingSettings, max_length: int, seed: int) -> str:
    content = [tfrecords.FORMAT, SHARD_SIZE, sequences.fingerprint, masking.record(), max_length, seed]
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
    """Yields an iterable with one entry per written shard. The worker processes end when this process ends."""
    windows_file = maker.folder / f".windows{files.PARTIAL}"
    npz.write(windows_file, vars(maker.windows))
    bare = copy.copy(maker)
    del bare.windows
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryFile() as messages:
        try:
            with ProcessPoolExecutor(processes, context, _start_worker, (bare, windows_file)) as pool:
                with _quiet_children(messages):
                    written = pool.map(_write_shard, numbers)
                yield written
        except BrokenProcessPool as error:
            messages.seek(0)
            text = messages.read().decode(errors="replace")
            if "Traceback" in text:
                print(text, file=sys.stderr)
            raise UserError(
                f"{maker.folder}: a process that wrote examples was killed, perhaps because memory ran out; "
                "run the same command again with fewer --processes"
            ) from error
        finally:
            windows_file.unlink(missing_ok=True)


@contextlib.contextmanager
def _quiet_children(messages: BinaryIO) -> Iterator[None]:
    """Processes started inside the block ignore Ctrl-C, and TensorFlow's start-up messages go to a file."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    stderr = os.dup(2)
    os.dup2(messages.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_makers: list[ShardMaker] = []
"""The shard maker of a worker process, sent once and not with every shard."""


def _start_worker(bare: ShardMaker, windows_file: Path) -> None:
    """Loads the windows, which may be too large to send, from a file into the maker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    stored = npz.read(windows_file)
    items, starts, lengths, users = (stored[name] for name in ("items", "starts", "lengths", "users"))
    bare.windows = Windows(items, starts, lengths, users, int(stored["num_prefixes"]))
    _makers[:] = [bare]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _write_shard(number: int) -> None:
    _makers[0].write(number)
