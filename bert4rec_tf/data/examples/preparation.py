"""Prepares the shards of a training, once per fingerprint. Any number of processes writes the same bytes."""

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
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples import tfrecords
from bert4rec_tf.data.examples.cloze import Numbering, Windows, cut_windows_and_prefixes, mask_rows
from bert4rec_tf.data.examples.tfrecords import Column, Shards
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.startup import redirect_stderr

SHARD_SIZE = 8_192
"""Examples per shard. It changes the bytes of the shards; the number of processes does not."""


def prepare_shards(
    sequences: Sequences, masking: MaskingSettings, max_length: int, seed: int, folder: Path, processes: int = 1
) -> Shards:
    """Returns the shards of Cloze examples of training sequences, shuffled. Writes those that are missing or damaged.

    They get their own folder in `folder`, named by their fingerprint. If another process works there, this one waits.
    The seed decides the masks and the order on disk. `max_length`: N. `processes`: how many processes write.

    Raises UserError if nothing can be masked, the folder cannot be created, or `processes` is below 1.
    """
    if processes < 1:
        raise UserError(f"`processes` must be at least 1. Received: processes={processes}")
    windows = cut_windows_and_prefixes(sequences, max_length, masking)
    numbering = Numbering(masking, windows.num_whole, windows.num_prefixes)
    if not numbering.num_examples:
        raise UserError("No user has two training items, so there is no item to mask with a context")
    facts = [tfrecords.FORMAT, SHARD_SIZE, sequences.fingerprint, masking.record(), max_length, seed]
    fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    begins = range(0, numbering.num_examples, SHARD_SIZE)
    sizes = tuple(min(SHARD_SIZE, numbering.num_examples - begin) for begin in begins)
    shards = Shards(folder / fingerprint[:16], sizes, _list_widths(masking, max_length))
    maker = ShardMaker(windows, numbering, max_length, sequences.num_items, seed, shards)
    with files.FolderLock(folder).lock():
        files.make_folder(shards.folder)
        files.remove_partials(shards.folder)
        missing = shards.find_missing(fingerprint)
        if missing:
            _write(maker, missing, processes)
            shards.write_manifest(fingerprint)
    return shards


def _list_widths(masking: MaskingSettings, max_length: int) -> dict[str, int | None]:
    """Returns the features of the shards, and the width to which each is padded (`Shards.widths`)."""
    if masking.masking == "dynamic":
        return {"user": None, "window": None, "items": max_length}
    predictions = min(masking.max_predictions, max_length)
    return {"user": None, "items": max_length, "mask_positions": predictions, "mask_targets": predictions}


@dataclass
class ShardMaker:
    """Makes each shard from its number alone, so shards can be written in any order.

    With static masks the examples are masked (`cloze.mask_rows`). With dynamic masks they are unmasked windows with
    their numbers, and `prefix_copies` of each prefix with the number -1 (`dynamic_masks.mask_dynamically`).

    `max_length` is N, and `num_items` n. The seed decides the masks and the order of the examples.
    """

    windows: Windows
    numbering: Numbering
    max_length: int
    num_items: int
    seed: int
    shards: Shards

    @cached_property
    def order(self) -> np.ndarray:
        """The order of the examples on disk, int64 [num_examples]."""
        return np.random.default_rng([self.seed, 0]).permutation(self.numbering.num_examples)

    def write(self, number: int) -> None:
        tfrecords.write_shard(self.shards.folder / self.shards.names[number], self.make_columns(number))

    def make_columns(self, number: int) -> dict[str, Column]:
        size = self.shards.sizes[0]  # of all but the last one
        examples = self.order[number * size : (number + 1) * size]
        masking = self.numbering.settings
        windows, special = self.numbering.locate_windows(examples)
        items = self.windows.rows(windows, self.max_length)
        lengths, users = self.windows.lengths[windows], self.windows.users[windows]
        if masking.masking == "dynamic":
            return {
                "user": Column(users),
                "window": Column(np.where(special, -1, windows)),
                "items": Column(items, lengths),
            }
        masked = mask_rows(items, lengths, special, masking, self.num_items, [self.seed, 1, number])
        num_masked = np.count_nonzero(masked["mask_targets"], axis=1)
        return {
            "user": Column(users),
            "items": Column(masked["items"], lengths),
            "mask_positions": Column(masked["mask_positions"], num_masked),
            "mask_targets": Column(masked["mask_targets"], num_masked),
        }


def _write(maker: ShardMaker, numbers: Sequence[int], processes: int) -> None:
    progress = Progress("preparing", len(numbers), examples_per_step=SHARD_SIZE)
    here = contextlib.nullcontext(map(maker.write, numbers))
    several = min(processes, len(numbers)) > 1
    with contextlib.closing(progress), _write_with_workers(maker, numbers, processes) if several else here as written:
        for _ in written:
            progress.advance()


@contextlib.contextmanager
def _write_with_workers(maker: ShardMaker, numbers: Sequence[int], processes: int) -> Iterator[Iterable[None]]:
    """Yields an iterable with one entry per written shard. The worker processes end when this process ends."""
    windows_file = maker.shards.folder / f".windows{files.PARTIAL}"
    npz.write(windows_file, vars(maker.windows))
    bare = copy.copy(maker)
    del bare.windows
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryFile() as messages:
        try:
            with ProcessPoolExecutor(processes, context, _start_worker, (bare, windows_file)) as pool:
                with redirect_stderr(messages), _ignore_ctrl_c():
                    written = pool.map(_write_shard, numbers)
                yield written
        except BrokenProcessPool as error:
            messages.seek(0)
            text = messages.read().decode(errors="replace")
            if "Traceback" in text:
                print(text, file=sys.stderr)
            raise UserError(
                f"{maker.shards.folder}: a process that wrote examples was killed, perhaps because memory ran out; "
                "run the same command again with fewer --processes"
            ) from error
        finally:
            windows_file.unlink(missing_ok=True)


@contextlib.contextmanager
def _ignore_ctrl_c() -> Iterator[None]:
    """Lets processes that are started inside the block ignore Ctrl-C."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_makers: list[ShardMaker] = []
"""The shard maker of a worker process, which receives it once."""


def _start_worker(bare: ShardMaker, windows_file: Path) -> None:
    """Reads the maker's windows from a file: if they were sent, the workers would start one after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    stored: dict[str, Any] = npz.read(windows_file)
    bare.windows = Windows(**{**stored, "num_prefixes": int(stored["num_prefixes"])})
    _makers[:] = [bare]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _write_shard(number: int) -> None:
    _makers[0].write(number)
