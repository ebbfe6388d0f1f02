"""Prepared examples that were damaged later: noticed at the next start and while they are read, and written again."""

import pytest
import tensorflow as tf
from support import whole_runs as runs
from support.shards import contents, cut_short, prepare, remove, stamps
from support.trainings import experiment, whole_run

from bert4rec_tf.data.examples.tfrecords import MANIFEST
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import FileWarning


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def rewrite(path, change):
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in change(records):
            writer.write(record)


def lose_the_last_record(path):
    rewrite(path, lambda records: records[:-1])


def double_all_records(path):
    rewrite(path, lambda records: records * 2)


DAMAGES = [flip_a_byte, cut_short, empty, remove, lose_the_last_record, double_all_records]


@pytest.mark.parametrize("damage", DAMAGES)
def test_only_the_damaged_shard_is_written_again_and_it_is_named(tmp_path, damage):
    shards = prepare(tmp_path)
    whole, before = contents(shards), stamps(shards.folder)
    victim = shards.names[1]
    damage(shards.folder / victim)
    with pytest.warns(FileWarning) as told:
        assert prepare(tmp_path).names == shards.names
    assert contents(shards) == whole
    touched = {name for name, stamp in stamps(shards.folder).items() if stamp != before[name]}
    assert touched == {victim, MANIFEST}
    assert [str(one.message) for one in told] == [f"{shards.folder / victim}: damaged; written again"]


@pytest.mark.parametrize("damage", [empty, lose_the_last_record, double_all_records])
def test_a_shard_with_more_or_fewer_examples_is_never_read_as_if_it_was_whole(tmp_path, damage):
    shards = prepare(tmp_path)
    damage(shards.folder / shards.names[1])
    with pytest.raises(tf.errors.OpError, match="expected to contain 1 element"):
        list(shards.read(["mask_positions"]))


@pytest.fixture(scope="module")
def whole(quick, tmp_path_factory):
    return whole_run(tmp_path_factory.mktemp("whole"), "static")


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_while_training_ends_in_one_line_and_the_same_command_mends_it(tmp_path, quick, whole, damage):
    made = experiment(tmp_path, "static")
    made.prepare()
    for shard in made.workdir.prepared.rglob("*.tfrecord"):
        damage(shard)
    with pytest.raises(UserError, match="examples were damaged while they were read; run the same command again"):
        made.train()
    runs.assert_same_runs(whole, whole_run(tmp_path, "static"))
