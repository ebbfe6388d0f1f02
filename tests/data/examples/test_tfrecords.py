"""Shards on disk and the stream of batches read from them."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.profiles import examples
from support.shards import MAX_LENGTH, as_rows, records, records_of

from bert4rec_tf.data.examples.tfrecords import BLOCK, Shards, write_shard


def random_columns(rng, rows):
    lengths = rng.integers(0, 5, rows)
    ragged = np.where(np.arange(4) < lengths[:, None], rng.integers(1, 1_000_000, (rows, 4)), 0)
    return {"number": rng.integers(0, 1_000_000, rows), "list": ragged}, {"list": lengths}


@pytest.mark.parametrize("rows", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_a_shard_of_any_number_of_blocks_reads_back_equal(tmp_path, rows):
    content, lengths = random_columns(np.random.default_rng(2), rows)
    shards = Shards(tmp_path, (rows,), {"number": None, "list": 4})
    path = tmp_path / shards.names[0]
    write_shard(path, content, lengths)
    assert sum(1 for _ in tf.data.TFRecordDataset(str(path))) == -(-rows // BLOCK)
    stored = records_of(path)
    assert [row["number"][0] for row in stored] == content["number"].tolist()
    read = as_rows(shards.read(rows, 3).take(1))
    assert sorted((number, row) for row, number in read) == sorted(
        (number, tuple(row)) for number, row in zip(content["number"].tolist(), content["list"].tolist())
    )


def stream(shards, batch_size, seed, epochs):
    """Returns the rows of each epoch."""
    size = shards.num_examples
    rows = as_rows(shards.read(batch_size, seed).take(-(-epochs * size // batch_size)))
    return [rows[epoch * size : (epoch + 1) * size] for epoch in range(epochs)]


@pytest.mark.parametrize("batch_size", [1, 10, 64, 1_000])
def test_every_epoch_holds_every_example_once(static, batch_size):
    every = Counter(
        (
            tuple(np.pad(example["items"], (0, MAX_LENGTH - len(example["items"]))).tolist()),
            *(
                tuple(np.pad(example[name], (0, 3 - len(example[name]))).tolist())
                for name in ("mask_positions", "mask_targets")
            ),
            example["user"][0],
        )
        for example in records(static)
    )
    for epoch in stream(static, batch_size, 1, 3):
        assert Counter(epoch) == every


def test_epochs_differ_in_the_order_of_shards_and_within_a_shard(tmp_path):
    numbered = Shards(tmp_path, (17,) * 4, {"number": None})
    for shard, name in enumerate(numbered.names):
        write_shard(tmp_path / name, {"number": np.arange(17 * shard, 17 * shard + 17)}, {})
    epochs = [[number for (number,) in epoch] for epoch in stream(numbered, 10, 1, 6)]
    assert len({tuple(dict.fromkeys(number // 17 for number in epoch)) for epoch in epochs}) > 1
    assert len({tuple(number for number in epoch if number < 17) for epoch in epochs}) == 6


def test_equal_seeds_give_equal_streams_and_others_other_ones(static):
    first, again, other = (as_rows(static.read(10, seed).take(12)) for seed in (4, 4, 5))
    assert first == again
    assert first != other


@settings(max_examples=examples(12))
@given(st.sampled_from([1, 7, 40, 500]), st.integers(0, 4), st.sampled_from([-1, 0, 1, 17, 34]))
def test_starting_at_a_step_skips_the_batches_before_it(static, batch_size, epoch, place):
    """Also exactly at an epoch or a shard, and beside them."""
    step = max(0, (epoch * static.num_examples + place) // batch_size)
    whole = static.read(batch_size, 9).skip(step).take(3)
    assert as_rows(static.read(batch_size, 9, step).take(3)) == as_rows(whole)


def test_starting_far_on_counts_the_epochs(static):
    far, size = 10**9 * static.num_examples, static.num_examples
    first = as_rows(static.read(size, 2, 10**9).take(1))
    assert as_rows(static.read(1, 2, far).take(2)) == first[:2]
    assert first != as_rows(static.read(size, 2).take(1))
