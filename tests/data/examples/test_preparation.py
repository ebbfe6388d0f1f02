"""Prepared shards: what they hold, their bytes, and when they are written again."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from support.shards import (
    MAX_LENGTH,
    NUM_ITEMS,
    SEQUENCES,
    STATIC,
    contents,
    cut_short,
    prepare,
    records,
    records_of,
    remove,
    stamps,
)

from bert4rec_tf.data.examples import preparation
from bert4rec_tf.data.examples.cloze import cut_windows
from bert4rec_tf.data.examples.tfrecords import MANIFEST


def window_counts():
    windows = cut_windows(SEQUENCES, MAX_LENGTH, 0.5)
    rows = windows.rows(np.arange(len(windows)), MAX_LENGTH).tolist()
    return Counter(
        (user, tuple(row[:length])) for user, row, length in zip(windows.users.tolist(), rows, windows.lengths)
    )


def test_records_are_written_in_the_one_byte_order_of_every_machine(static):
    for name in static.names:
        for record in tf.data.TFRecordDataset(str(static.folder / name)):
            example = tf.train.Example.FromString(record.numpy())
            assert record.numpy() == example.SerializeToString(deterministic=True)


def test_prepared_shards_hold_every_copy_of_every_window(static):
    restored, last_only = Counter(), Counter()
    for example in records(static):
        items, places = example["items"], example["mask_positions"]
        assert {items[place] for place in places} == {NUM_ITEMS + 1}
        for place, target in zip(places, example["mask_targets"], strict=True):
            items[place] = target
        key = (example["user"][0], tuple(items))
        restored[key] += 1
        last_only[key] += places == [len(items) - 1]
    windows = window_counts()
    assert restored == Counter({key: 3 * count for key, count in windows.items()})
    assert last_only == windows


def test_shards_are_as_large_as_they_may_be_and_the_last_holds_the_rest(static):
    assert len(static.names) > 2
    assert set(static.sizes[:-1]) == {17}
    assert 0 < static.sizes[-1] <= 17
    for name, size in zip(static.names, static.sizes):
        assert len(records_of(static.folder / name)) == size


def test_prepared_twice_writes_nothing_the_second_time(tmp_path):
    first = prepare(tmp_path)
    before = stamps(tmp_path)
    second = prepare(tmp_path)
    assert stamps(tmp_path) == before
    assert (second.folder, second.names, second.sizes) == (first.folder, first.names, first.sizes)
    assert dict(second.widths) == dict(first.widths)


@pytest.mark.parametrize("damage", [cut_short, remove])
def test_a_folder_without_a_whole_manifest_is_prepared_again(tmp_path, damage):
    shards = prepare(tmp_path)
    before = contents(shards)
    damage(shards.folder / MANIFEST)
    assert contents(prepare(tmp_path)) == before


def test_an_interrupted_preparation_is_not_taken_for_a_whole_one(tmp_path, monkeypatch):
    write, done = preparation.tfrecords.write_shard, []

    def stop_at_the_third(path, columns, lengths):
        if len(done) == 2:
            raise KeyboardInterrupt
        write(path, columns, lengths)
        done.append(path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(preparation.tfrecords, "write_shard", stop_at_the_third)
        prepare(tmp_path / "again")
    assert len(done) == 2
    again = prepare(tmp_path / "again")
    assert contents(again) == contents(prepare(tmp_path / "at once"))


CHANGES = [
    {"seed": 6},
    {"max_length": 5},
    {"shard_size": 16},
    {"sequences": SEQUENCES.drop_last(np.eye(1, 23, dtype=np.int64)[0])},
    {"masking": dataclasses.replace(STATIC, mask_proportion=0.4)},
    {"masking": dataclasses.replace(STATIC, max_predictions=2)},
    {"masking": dataclasses.replace(STATIC, mask_prob=0.8)},
    {"masking": dataclasses.replace(STATIC, mask_copies=1)},
    {"masking": dataclasses.replace(STATIC, window_step=-1)},
]


def test_changed_settings_have_a_folder_of_their_own(tmp_path):
    first = prepare(tmp_path)
    before = stamps(first.folder)
    folders = {prepare(tmp_path, **changes).folder for changes in CHANGES}
    assert first.folder not in folders and len(folders) == len(CHANGES)
    assert all(folder.parent == tmp_path for folder in folders)
    assert stamps(first.folder) == before
