"""Shards on disk and the batches made of them."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.profiles import examples
from support.shards import MAX_LENGTH, STATIC, as_rows, prepare_stored, read_batches, records, records_of

from bert4rec_tf.data.examples.rows import Feed
from bert4rec_tf.data.examples.tfrecords import ROWS_PER_RECORD, Shards, write_shard


def random_columns(rng, rows):
    lengths = rng.integers(0, 5, rows)
    ragged = np.where(np.arange(4) < lengths[:, None], rng.integers(1, 1_000_000, (rows, 4)), 0)
    return {"number": rng.integers(0, 1_000_000, rows), "list": ragged}, {"list": lengths}


@pytest.mark.parametrize(
    "rows", [1, ROWS_PER_RECORD - 1, ROWS_PER_RECORD, ROWS_PER_RECORD + 1, 3 * ROWS_PER_RECORD + 7]
)
def test_a_shard_of_any_number_of_blocks_reads_back_equal(tmp_path, rows):
    content, lengths = random_columns(np.random.default_rng(2), rows)
    shards = Shards(tmp_path, (rows,), {"number": None, "list": 4})
    path = tmp_path / shards.names[0]
    write_shard(path, content, lengths)
    assert sum(1 for _ in tf.data.TFRecordDataset(str(path))) == -(-rows // ROWS_PER_RECORD)
    stored = records_of(path)
    assert [row["number"][0] for row in stored] == content["number"].tolist()
    (columns,) = shards.read(["number", "list"])
    assert columns["number"][0].tolist() == content["number"].tolist() and (columns["number"][1] == 1).all()
    values, sizes = columns["list"]
    assert sizes.tolist() == lengths["list"].tolist()
    assert values.tolist() == [item for row in stored for item in row["list"]]


def stream(examples, batch_size, seed, epochs):
    """Returns the rows of each epoch."""
    size = examples.num_examples
    rows = as_rows(read_batches(Feed(examples, batch_size, seed), 0, -(-epochs * size // batch_size)))
    return [rows[epoch * size : (epoch + 1) * size] for epoch in range(epochs)]


@pytest.mark.parametrize("batch_size", [1, 10, 64, 1_000])
def test_every_epoch_holds_every_example_once(stored, batch_size):
    slots = stored.num_slots
    every = Counter(
        (
            tuple(np.pad(example["items"], (0, MAX_LENGTH - len(example["items"]))).tolist()),
            len(example["items"]),
            *(
                tuple(np.pad(example[name], (0, slots - len(example[name]))).tolist())
                for name in ("mask_positions", "mask_targets")
            ),
            example["user"][0],
        )
        for example in records(stored.shards)
    )
    for epoch in stream(stored, batch_size, 1, 3):
        assert Counter(epoch) == every


def test_random_items_of_masks_are_those_on_disk(tmp_path):
    masking = dataclasses.replace(STATIC, mask_prob=0.4)
    examples = prepare_stored(tmp_path, masking=masking)
    on_disk = Counter(tuple(row["items"]) for row in records(examples.shards))
    (batch,) = read_batches(Feed(examples, examples.num_examples, 1), 0, 1)
    rows = (tuple(row[:length].tolist()) for row, length in zip(batch["items"], batch["lengths"]))
    assert Counter(rows) == on_disk


def test_the_order_is_that_of_earlier_versions(stored):
    """Shards are shuffled by (seed, epoch), and the examples in a shard by (seed + 1, epoch x shards + shard)."""
    sizes = stored.shards.sizes
    shards = tf.random.experimental.stateless_shuffle(tf.range(len(sizes)), seed=[4, 2]).numpy()
    expected = []
    for shard in shards:
        rows = tf.range(sum(sizes[:shard]), sum(sizes[: shard + 1]))
        seed = [5, 2 * len(sizes) + shard]
        expected += tf.random.experimental.stateless_shuffle(tf.cast(rows, tf.int64), seed=seed).numpy().tolist()
    assert stored.order_epoch(4, 2).tolist() == expected


def test_epochs_differ_in_the_order_of_shards_and_within_a_shard(stored):
    first, size = stored.order_epoch(1, 0), stored.num_examples
    orders = [stored.order_epoch(1, epoch).tolist() for epoch in range(6)]
    assert sorted(first.tolist()) == list(range(size))
    assert len({tuple(dict.fromkeys(number // 17 for number in order)) for order in orders}) > 1
    assert len({tuple(number for number in order if number < 17) for order in orders}) == 6


def test_equal_seeds_give_equal_streams_and_others_other_ones(stored):
    first, again, other = (as_rows(read_batches(Feed(stored, 10, seed), 0, 12)) for seed in (4, 4, 5))
    assert first == again
    assert first != other


@settings(max_examples=examples(12))
@given(st.sampled_from([1, 7, 40, 500]), st.integers(0, 4), st.sampled_from([-1, 0, 1, 17, 34]))
def test_starting_at_a_step_skips_the_batches_before_it(stored, batch_size, epoch, place):
    """Also exactly at an epoch or a shard, and beside them."""
    step = max(0, (epoch * stored.num_examples + place) // batch_size)
    feed = Feed(stored, batch_size, 9)
    whole = read_batches(feed, 0, step + 3)[step:]
    assert as_rows(read_batches(feed, step, 3)) == as_rows(whole)


def test_starting_far_on_counts_the_epochs(stored):
    size = stored.num_examples
    far, near = (as_rows(read_batches(Feed(stored, size, 2), step, 1)) for step in (10**9, 0))
    assert as_rows(read_batches(Feed(stored, 1, 2), 10**9 * size, 2)) == far[:2]
    assert far != near
