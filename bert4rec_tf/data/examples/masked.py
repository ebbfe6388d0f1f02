"""The Cloze examples of BERT4Rec: those that were masked once and stored, and those that are masked anew each time."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.cloze import Windows, count_predictions, cut_last_windows, cut_windows_and_prefixes
from bert4rec_tf.data.examples.rows import Examples, Tables, choose_index_type, gather_ragged, gather_windows
from bert4rec_tf.data.examples.tfrecords import Shards
from bert4rec_tf.data.sequences import Sequences, make_splits, mask_token
from bert4rec_tf.foundation.types import Batch, Tensor

LAST_SEED, PLACE_SEED, KIND_SEED, ITEM_SEED = (number << 34 for number in range(2, 6))
"""Added to the run's seed for what dynamic masks draw: which examples have only their last item masked, which places
are masked, what becomes of their items, and random items."""


MAX_INT32 = 2**31 - 1
"""Drawn numbers are below it."""


class StoredExamples(Examples):
    """Examples that were masked once and stored in shards, the same in every epoch.

    A row is a part of a history, some of whose items are replaced. So from the shards only these places and items are
    read; the history is in memory anyway. Only masks with random items (`mask_prob` below 1) need the stored rows.

    Args:
        shards: from `preparation.prepare_examples`.
        windows: the window of each example, in the order of the shards.
        num_items: n.
        only_mask_tokens: whether masks replace items by the mask token alone.
    """

    def __init__(self, shards: Shards, windows: Windows, num_items: int, only_mask_tokens: bool) -> None:
        self.shards, self.windows, self.num_items = shards, windows, num_items
        self.only_mask_tokens = only_mask_tokens
        self.num_examples = len(windows)
        self.width = int(windows.lengths.max(initial=1))

    @cached_property
    def tables(self) -> Mapping[str, np.ndarray]:
        """What `lay_out` gathers from. Reads the shards once; raises `tf.errors.OpError` if one is damaged."""
        positions, targets, shown_items, lengths = [], [], [], []
        names = ("mask_positions", "mask_targets", *(() if self.only_mask_tokens else ("items",)))
        for columns in self.shards.read(names):
            flat_positions, num_masked = columns["mask_positions"]
            positions.append(flat_positions.astype(np.uint8 if self.width <= 256 else np.uint16))
            targets.append(columns["mask_targets"][0].astype(np.int32))
            lengths.append(num_masked)
            if not self.only_mask_tokens:
                items, widths = columns["items"]
                begins = make_splits(widths)[:-1]
                shown_items.append(items[np.repeat(begins, num_masked) + flat_positions].astype(np.int32))
        num_masked = np.concatenate(lengths)
        return {
            **self.windows.make_tables(),
            "num_masked": num_masked.astype(np.int32),
            "mask_begins": make_splits(num_masked)[:-1].astype(choose_index_type(int(num_masked.sum()))),
            "mask_positions": np.concatenate(positions),
            "mask_targets": np.concatenate(targets),
            **({"shown": np.concatenate(shown_items)} if shown_items else {}),
        }

    @cached_property
    def num_slots(self) -> int:
        """The most masked places of an example."""
        return int(self.tables["num_masked"].max(initial=1))

    def order_epoch(self, seed: int, epoch: int) -> np.ndarray:
        """Shuffles the shards, and the examples of each shard."""
        sizes = list(self.shards.sizes)
        begins, parts = make_splits(sizes), []
        with tf.device("CPU:0"):  # another device may shuffle otherwise
            for shard in _shuffle(len(sizes), seed, epoch):
                parts.append(begins[shard] + _shuffle(sizes[shard], seed + 1, epoch * len(sizes) + int(shard)))
        return np.concatenate(parts)

    def lay_out(self, tables: Tables, columns: dict[str, Tensor]) -> Batch:
        """Returns `users [b]`, `lengths [b]`, masked `items [b, n]`, `mask_positions [b, p]` and `mask_targets [b, p]`.

        n is the longest row of all, and p the most masked places. Unused slots have position and target 0.
        """
        begins, num_masked = (tf.gather(tables[name], columns["examples"]) for name in ("mask_begins", "num_masked"))
        positions, targets = (
            gather_ragged(tables[name], begins, num_masked, self.num_slots)
            for name in ("mask_positions", "mask_targets")
        )
        shown = None if self.only_mask_tokens else gather_ragged(tables["shown"], begins, num_masked, self.num_slots)
        row = gather_windows(tables, columns["examples"], self.width)
        items = replace_items(row["items"], positions, targets, mask_token(self.num_items) if shown is None else shown)
        return {**row, "items": items, "mask_positions": positions, "mask_targets": targets}


class MaskedExamples(Examples):
    """Examples that are masked anew in every epoch, on the device, from the run's seed and the step alone.

    With whole windows alone, one example in `mask_copies` + 1 has only its last item masked, on average, which is the
    original's share. Prefixes have always only their last item masked.

    Args:
        sequences: the histories; those with one item are skipped.
        max_length: N.
        masking: how windows are cut and masked.
        last_only: take the last N items of each history, and mask only the last of them.
    """

    def __init__(
        self, sequences: Sequences, max_length: int, masking: MaskingSettings, last_only: bool = False
    ) -> None:
        if last_only:
            windows = cut_last_windows(sequences, max_length)
        else:
            windows = cut_windows_and_prefixes(sequences, max_length, masking)
        numbers = np.arange(len(windows))
        copies = np.where(numbers < windows.num_whole, 1, masking.prefix_copies)
        is_last_only = np.repeat(last_only | (numbers >= windows.num_whole), copies)
        self.last_share = 0.0 if windows.num_prefixes else 1 / (masking.mask_copies + 1)
        windows = windows.take(np.repeat(numbers, copies))
        self.num_items, self.masking = sequences.num_items, masking
        self.num_examples, self.width = len(windows), int(windows.lengths.max(initial=1))
        all_lengths = np.arange(max_length + 1)
        counts = np.where(all_lengths, count_predictions(all_lengths, masking), 0)
        self.num_slots = 1 if last_only else int(counts[: self.width + 1].max(initial=1))
        self._tables = {
            **windows.make_tables(),
            "last_only": is_last_only,
            "counts": counts.astype(np.int32),
        }

    def lay_out(self, tables: Tables, columns: dict[str, Tensor]) -> Batch:
        """Returns the columns that `StoredExamples.lay_out` returns."""
        row = gather_windows(tables, columns["examples"], self.width)
        rows = tf.size(columns["examples"])

        def draw(offset: int, shape: list[Tensor | int], minimum: int = 0, limit: int = MAX_INT32) -> tf.Tensor:
            seed = columns["seed"] + tf.constant([offset, 0], tf.int64)
            # Whole numbers are the same on every device; floats are not.
            return tf.random.stateless_uniform(shape, seed, minimum, limit, tf.int32, alg="philox")

        last_only = draw(LAST_SEED, [rows]) < int(self.last_share * MAX_INT32)
        last_only |= tf.gather(tables["last_only"], columns["examples"])
        num_masked = tf.where(last_only, 1, tf.gather(tables["counts"], row["lengths"]))
        places = tf.range(self.width)[None, :]
        keys = tf.where(places < row["lengths"][:, None], draw(PLACE_SEED, [rows, self.width], 1, MAX_INT32), 0)
        keys = tf.where(last_only[:, None] & (places == row["lengths"][:, None] - 1), MAX_INT32, keys)
        _, indices = tf.math.top_k(keys, self.num_slots)
        is_used = tf.range(self.num_slots)[None, :] < num_masked[:, None]
        positions = tf.sort(tf.where(is_used, indices, self.width), axis=1)
        positions = tf.where(is_used, positions, 0)
        targets = tf.where(is_used, tf.gather(row["items"], positions, batch_dims=1), 0)
        shown_items: Tensor = mask_token(self.num_items)
        if self.masking.mask_prob < 1:
            shape, share = tf.shape(targets), self.masking.mask_prob
            kind = draw(KIND_SEED, shape)
            random_items = draw(ITEM_SEED, shape, 1, self.num_items + 1)
            other_items = tf.where(kind < int((1 + share) / 2 * MAX_INT32), targets, random_items)
            shown_items = tf.where((kind < int(share * MAX_INT32)) | last_only[:, None], shown_items, other_items)
        items = replace_items(row["items"], positions, targets, shown_items)
        return {**row, "items": items, "mask_positions": positions, "mask_targets": targets}


def _shuffle(size: int, *seed: int) -> np.ndarray:
    rows = tf.range(tf.constant(size, tf.int64))
    return tf.random.experimental.stateless_shuffle(rows, tf.constant(seed, tf.int64)).numpy()


def replace_items(items: Tensor, positions: Tensor, targets: Tensor, shown_items: Tensor | int) -> tf.Tensor:
    """Returns `items [b, n]` with `shown_items` at the `positions [b, p]`, except those whose target is 0."""
    rows, width = tf.unstack(tf.shape(items))
    columns = tf.where(targets > 0, positions, width)  # unused slots write to a column that is cut off
    places = tf.stack([tf.broadcast_to(tf.range(rows)[:, None], tf.shape(columns)), columns], axis=2)
    values = tf.broadcast_to(tf.cast(shown_items, tf.int32), tf.shape(columns))
    return tf.tensor_scatter_nd_update(tf.pad(items, [[0, 0], [0, 1]]), places, values)[:, :-1]
