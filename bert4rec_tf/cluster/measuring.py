"""What single tasks of a cluster do to measure a model, and to count which items stand near each other.

Knows no engine. A task measures with one thread. To count, tasks find the pairs of some users each; then others add up
the counts of a block of items and keep the strongest neighbours.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa

from bert4rec_tf.cluster.tasks import block_path, opened, part_of
from bert4rec_tf.config.model_settings import ItemCooccurrenceSettings
from bert4rec_tf.data.cooccurrence import Neighbors, pair_counts, strongest
from bert4rec_tf.data.parts import training_part
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation import popularity
from bert4rec_tf.evaluation.metrics import PROTOCOLS
from bert4rec_tf.evaluation.ranking import BATCH_SIZE, Ranked, RankingTask
from bert4rec_tf.foundation import npz
from bert4rec_tf.models import Recommender
from bert4rec_tf.runs.environment import set_threads
from bert4rec_tf.training import checkpoints


def keep_model(model: Recommender, path: Path) -> None:
    """Writes a model for the tasks."""
    checkpoints.save(path, {"model": model.variables}, keras.saving.serialize_keras_object(model))


@functools.lru_cache(maxsize=1)
def _kept_model(path: Path) -> Recommender:
    """Returns a model of `keep_model`. From now on, this process computes with one thread."""
    set_threads(1)
    model = keras.saving.deserialize_keras_object(checkpoints.read_state(path))
    checkpoints.restore(path, {"model": model.variables})
    return model


def blocks_of(split: LeaveOneOut, most: int) -> list[np.ndarray]:
    """Returns the blocks of users whose test items one task ranks, as rows of `LeaveOneOut.users`, about `most` each.

    A block has whole batches of `Ranker`, so histories are padded as on one machine, and ranks have the same bits.
    """
    size = max(most // BATCH_SIZE, 1) * BATCH_SIZE
    by_length = np.argsort(split.history_lengths("test"), kind="stable")
    return [np.sort(by_length[begin : begin + size]) for begin in range(0, len(by_length), size)]


def rank(
    number: int,
    rows: np.ndarray,
    data: Path,
    candidates: Path,
    model: Path,
    correction: tuple[np.ndarray, float] | None,
) -> None:
    """Ranks the test items of a block of users, these `rows` of `LeaveOneOut.users`. Writes the ranks beside the model.

    `data`, `candidates` and `model` are the files of the conversion, the negatives and `keep_model`. Give each model a
    path of its own, because a process keeps the model that it has read. `correction`: as for `popularity.ranker`.
    """
    everybody = opened(data)
    split = LeaveOneOut(everybody.only(LeaveOneOut(everybody).users[rows]))
    drawn = npz.mapped(candidates)
    negatives = {name: np.array(drawn[name][rows]) for name in PROTOCOLS if name in drawn}
    task = RankingTask.of(split, "test", negatives, all_items=True)
    found = popularity.ranker(_kept_model(model), correction).ranked(task)
    content = {}
    for name in found.ranks:
        items = np.flatnonzero(found.listed[name])
        content |= {f"{name}_ranks": found.ranks[name], f"{name}_candidates": found.num_candidates[name]}
        content |= {f"{name}_items": items, f"{name}_times": found.listed[name][items]}
    npz.write(block_path(model.parent, number), content)


def joined(blocks: Sequence[np.ndarray], num_items: int, folder: Path) -> Ranked:
    """Returns the ranks of all users, from the files of `rank`."""
    num_users = sum(map(len, blocks))
    ranks, candidates = ({name: np.zeros(num_users, np.int32) for name in PROTOCOLS} for _ in range(2))
    listed = {name: np.zeros(num_items + 1, np.int64) for name in PROTOCOLS}
    for number, rows in enumerate(blocks):
        found = npz.read(block_path(folder, number))
        for name in PROTOCOLS:
            ranks[name][rows], candidates[name][rows] = found[f"{name}_ranks"], found[f"{name}_candidates"]
            listed[name][found[f"{name}_items"]] += found[f"{name}_times"]
    return Ranked(ranks, candidates, listed)


COUNTS = "counts.npz"
"""How often each item occurs, int64 [n + 1], for the tasks."""

PAIRS = "block long, key long, count long"
"""Columns of `count_pairs`: the block of first items, and what `cooccurrence.pair_counts` found in it."""


def count_pairs(users: range, data: Path, phase: str, window: int, ends: np.ndarray) -> Iterator[pa.RecordBatch]:
    """Yields the pairs in what a training learns from some users. `ends`: the last item of each block."""
    part = training_part(part_of(data, users), phase)
    for keys, counts in pair_counts(part, window):
        blocks = np.searchsorted(ends, keys // (2 * window * (part.num_items + 1)))
        yield pa.RecordBatch.from_arrays([pa.array(one) for one in (blocks, keys, counts)], ["block", "key", "count"])


def keep_neighbors(table: pa.Table, settings: ItemCooccurrenceSettings, most: int, stage: Path) -> int:
    """Writes the strongest neighbours of a block's items, from all `PAIRS` of the block. Returns the block's number."""
    number, item_counts = table["block"][0].as_py(), npz.mapped(stage / COUNTS)["counts"]
    summed = table.group_by("key").aggregate([("count", "sum")]).sort_by("key")
    found = strongest(summed["key"].to_numpy(), summed["count_sum"].to_numpy(), item_counts, settings, most)
    npz.write(block_path(stage, number), found._asdict())
    return number


def kept_neighbors(numbers: Sequence[int], stage: Path) -> Iterator[Neighbors]:
    for number in numbers:
        yield Neighbors(**npz.read(block_path(stage, number)))
