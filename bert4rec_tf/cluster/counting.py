"""What single tasks of a cluster do to count which items stand near each other. Knows no engine.

Tasks count the pairs of some users; others add up what all have counted of a block of items, and find the neighbours.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from bert4rec_tf.cluster.tasks import block_path, part_of
from bert4rec_tf.config.model_settings import ItemCooccurrenceSettings
from bert4rec_tf.data.cooccurrence import Neighbors, pair_counts, strongest
from bert4rec_tf.data.parts import training_part
from bert4rec_tf.foundation import npz

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
    """Writes the strongest neighbours of a block's items, from all of its `PAIRS`, and returns its number."""
    number, item_counts = table["block"][0].as_py(), npz.mapped(stage / COUNTS)["counts"]
    summed = table.group_by("key").aggregate([("count", "sum")]).sort_by("key")
    found = strongest(summed["key"].to_numpy(), summed["count_sum"].to_numpy(), item_counts, settings, most)
    npz.write(block_path(stage, number), found._asdict())
    return number


def kept_neighbors(numbers: Sequence[int], stage: Path) -> Iterator[Neighbors]:
    """Yields what `keep_neighbors` has written."""
    for number in numbers:
        yield Neighbors(**npz.read(block_path(stage, number)))
