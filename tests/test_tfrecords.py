"""Shards on disk: their bytes, when they are written again, and the stream of batches read from them."""

import dataclasses
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from itertools import combinations

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bert4rec_tf.config import MaskingSettings
from bert4rec_tf.data import preparation
from bert4rec_tf.data.examples import cut_windows
from bert4rec_tf.data.masking import mask_dynamically
from bert4rec_tf.data.preparation import prepare
from bert4rec_tf.data.tfrecords import MANIFEST, Column, Shards, write_shard
from bert4rec_tf.errors import UserError
from bert4rec_tf.sequences import LeaveOneOut, Sequences

MAX_LENGTH = 6
STATIC = MaskingSettings(mask_proportion=0.5, max_predictions=3, mask_copies=2, window_step=0.5)
DYNAMIC = dataclasses.replace(STATIC, masking="dynamic")


def catalogue(num_users, longest=11, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, longest + 1, num_users)
    flat = rng.integers(0, 40, lengths.sum())
    _, first, codes = np.unique(flat, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    items = np.array([f"item{flat[place]}" for place in np.sort(first)], object)
    users = np.array([f"user{user}" for user in range(num_users)], object)
    return Sequences.from_codes(np.repeat(np.arange(num_users), lengths), order[codes], users, items)


SEQUENCES = catalogue(23)
NUM_ITEMS = SEQUENCES.num_items


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(preparation, "SHARD_SIZE", 17)


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "SHARD_SIZE", 17)
        return prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path_factory.mktemp("static"))


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "SHARD_SIZE", 17)
        return prepare(SEQUENCES, DYNAMIC, MAX_LENGTH, 5, tmp_path_factory.mktemp("dynamic"))


def contents(shards):
    return {path.name: path.read_bytes() for path in shards.folder.iterdir()}


def records(shards):
    return [
        tf.train.Example.FromString(record.numpy())
        for name in shards.names
        for record in tf.data.TFRecordDataset(str(shards.folder / name))
    ]


def values(example, name):
    return list(example.features.feature[name].int64_list.value)


def window_counts():
    windows = cut_windows(SEQUENCES, MAX_LENGTH, 0.5)
    rows = windows.rows(np.arange(len(windows)), MAX_LENGTH).tolist()
    return Counter(
        (user, tuple(row[:length])) for user, row, length in zip(windows.users.tolist(), rows, windows.lengths)
    )


def random_columns(rng, rows):
    lengths = rng.integers(0, 5, rows)
    ragged = np.where(np.arange(4) < lengths[:, None], rng.integers(1, 1_000_000, (rows, 4)), 0)
    return {"number": Column(rng.integers(0, 1_000_000, rows)), "list": Column(ragged, lengths)}


@pytest.fixture
def two_shards(tmp_path):
    rng = np.random.default_rng(1)
    columns = {"a": random_columns(rng, 9), "b": random_columns(rng, 4)}
    for name, content in columns.items():
        write_shard(tmp_path / name, content)
    return columns, Shards(tmp_path, ("a", "b"), (9, 4), {"number": None, "list": 4})


def test_written_shards_read_back_equal(two_shards):
    columns, shards = two_shards
    batch = next(iter(shards.read(13, 3)))
    read = Counter((number, tuple(row)) for number, row in zip(batch["number"].numpy(), batch["list"].numpy().tolist()))
    written = Counter(
        (number, tuple(row))
        for content in columns.values()
        for number, row in zip(content["number"].values, content["list"].values.tolist())
    )
    assert read == written
    assert batch["number"].dtype == batch["list"].dtype == tf.int32


def test_narrower_rows_are_padded_to_the_declared_width(two_shards):
    _, shards = two_shards
    wide = dataclasses.replace(shards, widths={"number": None, "list": 7})
    batch = next(iter(wide.read(13, 3)))
    assert batch["list"].shape == (13, 7)
    assert not batch["list"].numpy()[:, 4:].any()


def test_shards_hold_plain_examples_in_the_order_they_were_given(two_shards):
    columns, shards = two_shards
    spec = {"number": tf.io.FixedLenFeature([], tf.int64), "list": tf.io.VarLenFeature(tf.int64)}
    for name, content in columns.items():
        parsed = [tf.io.parse_single_example(row, spec) for row in tf.data.TFRecordDataset(str(shards.folder / name))]
        assert [row["number"].numpy() for row in parsed] == content["number"].values.tolist()
        lists = [row["list"].values.numpy().tolist() for row in parsed]
        whole = content["list"]
        assert lists == [row[:length] for row, length in zip(whole.values.tolist(), whole.lengths)]


def test_a_shard_that_fails_half_way_leaves_no_file(tmp_path):
    with pytest.raises(IndexError):
        write_shard(tmp_path / "shard", {"number": Column(np.arange(5)), "short": Column(np.arange(3))})
    assert list(tmp_path.iterdir()) == []


def test_records_are_written_in_the_one_byte_order_all_processes_share(static):
    for name in static.names:
        for record in tf.data.TFRecordDataset(str(static.folder / name)):
            example = tf.train.Example.FromString(record.numpy())
            assert record.numpy() == example.SerializeToString(deterministic=True)


def test_prepared_shards_hold_every_copy_of_every_window(static):
    restored, last_only = Counter(), Counter()
    for example in records(static):
        items, places = values(example, "items"), values(example, "mask_positions")
        assert {items[place] for place in places} == {NUM_ITEMS + 1}
        for place, target in zip(places, values(example, "mask_targets"), strict=True):
            items[place] = target
        key = (values(example, "user")[0], tuple(items))
        restored[key] += 1
        last_only[key] += places == [len(items) - 1]
    windows = window_counts()
    assert restored == Counter({key: 3 * count for key, count in windows.items()})
    assert last_only == windows


def test_prepared_windows_are_whole_and_numbered(dynamic):
    found = records(dynamic)
    assert Counter((values(example, "user")[0], tuple(values(example, "items"))) for example in found) == (
        window_counts()
    )
    assert sorted(values(example, "window")[0] for example in found) == list(range(len(found)))


def test_shards_are_as_large_as_they_may_be_and_the_last_holds_the_rest(static):
    assert len(static.names) > 2
    assert set(static.sizes[:-1]) == {17}
    assert 0 < static.sizes[-1] <= 17
    for name, size in zip(static.names, static.sizes):
        assert sum(1 for _ in tf.data.TFRecordDataset(str(static.folder / name))) == size


def test_copies_of_a_window_are_spread_over_the_shards(static):
    users = [values(example, "user")[0] for example in records(static)]
    assert users != sorted(users)
    assert len(set(users[: static.sizes[0]])) > 5


def test_any_number_of_processes_gives_the_same_bytes(tmp_path):
    sequences = catalogue(800, longest=6)
    masking = dataclasses.replace(STATIC, mask_copies=10)
    one = prepare(sequences, masking, MAX_LENGTH, 5, tmp_path / "one", processes=1)
    two = prepare(sequences, masking, MAX_LENGTH, 5, tmp_path / "two", processes=2)
    assert len(one.names) == 2
    assert contents(one) == contents(two)


def test_more_processes_than_shards_are_no_trouble(tmp_path):
    one = prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path / "one", processes=1)
    many = prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path / "many", processes=4)
    assert len(one.names) == 1
    assert contents(one) == contents(many)


def stamps(folder):
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*")}


@pytest.mark.parametrize("masking", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_prepared_twice_writes_nothing_the_second_time(tmp_path, small_shards, masking):
    first = prepare(SEQUENCES, masking, MAX_LENGTH, 5, tmp_path)
    before = stamps(tmp_path)
    second = prepare(SEQUENCES, masking, MAX_LENGTH, 5, tmp_path)
    assert stamps(tmp_path) == before
    assert (second.folder, second.names, second.sizes) == (first.folder, first.names, first.sizes)
    assert dict(second.widths) == dict(first.widths)


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-5])


def remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flip_a_byte, cut_short, remove])
@pytest.mark.parametrize("victim", ["the first shard", "the last shard"])
def test_a_damaged_shard_is_noticed_and_written_again_the_same(tmp_path, small_shards, damage, victim):
    shards = prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path)
    before = contents(shards)
    damage(shards.folder / shards.names[0 if victim == "the first shard" else -1])
    assert contents(shards) != before
    assert contents(prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path)) == before


@pytest.mark.parametrize("damage", [cut_short, remove])
def test_a_folder_without_a_whole_manifest_is_prepared_again(tmp_path, small_shards, damage):
    shards = prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path)
    before = contents(shards)
    damage(shards.folder / MANIFEST)
    assert contents(prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path)) == before


def test_an_interrupted_preparation_is_not_taken_for_a_whole_one(tmp_path, small_shards, monkeypatch):
    write, done = preparation.StaticShards.write, []

    def stop_at_the_third(maker, number):
        if number == 2:
            raise KeyboardInterrupt
        write(maker, number)
        done.append(number)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(preparation.StaticShards, "write", stop_at_the_third)
        prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path / "again")
    assert done == [0, 1]
    again = prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path / "again")
    assert contents(again) == contents(prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path / "at once"))


def test_shards_of_another_fingerprint_are_not_opened(static):
    assert not static.intact("another")
    assert not dataclasses.replace(static, folder=static.folder / "nowhere").intact("another")


CHANGED = {
    "seed": {"seed": 6},
    "longest window": {"max_length": 5},
    "data": {"sequences": SEQUENCES.without_last(np.eye(1, 23, dtype=np.int64)[0])},
    "proportion": {"masking": dataclasses.replace(STATIC, mask_proportion=0.4)},
    "most predictions": {"masking": dataclasses.replace(STATIC, max_predictions=2)},
    "mask probability": {"masking": dataclasses.replace(STATIC, mask_prob=0.8)},
    "copies": {"masking": dataclasses.replace(STATIC, mask_copies=1)},
    "step of windows": {"masking": dataclasses.replace(STATIC, window_step=-1)},
    "dynamic masks": {"masking": DYNAMIC},
}


@pytest.mark.parametrize("change", CHANGED)
def test_changed_settings_have_a_folder_of_their_own(tmp_path, change):
    settings = {"sequences": SEQUENCES, "masking": STATIC, "max_length": MAX_LENGTH, "seed": 5, "folder": tmp_path}
    first = prepare(**settings)
    before = stamps(first.folder)
    second = prepare(**{**settings, **CHANGED[change]})
    assert second.folder.parent == first.folder.parent == tmp_path
    assert second.folder != first.folder
    assert stamps(first.folder) == before


def test_nothing_to_mask_is_an_error(tmp_path):
    single = Sequences.from_codes(
        np.array([0, 0, 0, 1, 1, 1]),
        np.array([0, 1, 2, 0, 1, 2]),
        np.array(["a", "b"], object),
        np.array(["x", "y", "z"]),
    )
    with pytest.raises(UserError, match="two items"):
        prepare(LeaveOneOut(single).training(False), STATIC, MAX_LENGTH, 5, tmp_path)


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="taken"):
        prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path / "taken")


def as_rows(batches):
    found = []
    for batch in batches:
        columns = {name: tensor.numpy().tolist() for name, tensor in batch.items()}
        found += [
            tuple(tuple(value) if isinstance(value, list) else value for value in row)
            for row in zip(*(columns[name] for name in sorted(columns)))
        ]
    return found


def stream(shards, batch_size, seed, epochs):
    """Returns the rows of each epoch, its number taken off."""
    batches = shards.read(batch_size, seed)
    size = shards.num_examples
    rows = as_rows(batches.take(-(-epochs * size // batch_size)))[: epochs * size]
    place = sorted(batches.element_spec).index("epoch")
    assert [row[place] for row in rows] == [number // size for number in range(epochs * size)]
    bare = [row[:place] + row[place + 1 :] for row in rows]
    return [bare[epoch * size : (epoch + 1) * size] for epoch in range(epochs)]


@pytest.mark.parametrize("batch_size", [1, 10, 64, 1_000])
def test_every_epoch_holds_every_example_once(static, batch_size):
    every = Counter(
        (
            tuple(np.pad(values(example, "items"), (0, MAX_LENGTH - len(values(example, "items")))).tolist()),
            *(
                tuple(np.pad(values(example, name), (0, 3 - len(values(example, name)))).tolist())
                for name in ("mask_positions", "mask_targets")
            ),
            values(example, "user")[0],
        )
        for example in records(static)
    )
    for epoch in stream(static, batch_size, 1, 3):
        assert Counter(epoch) == every


def test_batches_are_full_and_of_known_width(static):
    spec = static.read(10, 1).element_spec
    assert {name: tuple(part.shape) for name, part in spec.items()} == {
        "epoch": (10,),
        "user": (10,),
        "items": (10, MAX_LENGTH),
        "mask_positions": (10, 3),
        "mask_targets": (10, 3),
    }
    assert all(part.dtype == tf.int32 for name, part in spec.items() if name != "epoch")


def test_epochs_differ_in_order(static):
    first, second, third = stream(static, 10, 1, 3)
    assert first != second != third != first


def shard_order(dynamic, epoch):
    home = {}
    for name in dynamic.names:
        for record in tf.data.TFRecordDataset(str(dynamic.folder / name)):
            home[values(tf.train.Example.FromString(record.numpy()), "window")[0]] = name
    return list(dict.fromkeys(home[row[-1]] for row in epoch))


def test_epochs_differ_in_the_order_of_shards_and_within_a_shard(dynamic):
    epochs = stream(dynamic, 10, 1, 6)
    assert len({tuple(shard_order(dynamic, epoch)) for epoch in epochs}) > 1
    home = set(values(example, "window")[0] for example in records(dynamic)[:17])
    assert len({tuple(row[-1] for row in epoch if row[-1] in home) for epoch in epochs}) == 6


def test_equal_seeds_give_equal_streams_and_others_other_ones(static):
    first, again, other = (as_rows(static.read(10, seed).take(12)) for seed in (4, 4, 5))
    assert first == again
    assert first != other


@pytest.mark.parametrize("batch_size", [1, 7, 40, 500])
@pytest.mark.parametrize("start_step", [0, 1, 2, 5, 16, 33, 100])
def test_starting_at_a_step_is_passing_over_the_batches_before_it(static, batch_size, start_step):
    whole = static.read(batch_size, 9).skip(start_step).take(3)
    assert as_rows(static.read(batch_size, 9, start_step).take(3)) == as_rows(whole)


def test_starting_exactly_at_an_epoch_or_a_shard(static):
    size = static.num_examples
    whole = as_rows(static.read(1, 2).take(2 * size + 3))
    for start in (17, 34, size - 1, size, size + 1, size + 17, 2 * size):
        assert as_rows(static.read(1, 2, start).take(3)) == whole[start : start + 3]


def test_starting_far_on_counts_the_epochs(static):
    far = 10**9 * static.num_examples
    assert [row[0] for row in as_rows(static.read(1, 2, far).take(2))] == [10**9, 10**9]


def test_nothing_of_a_passed_shard_is_read(two_shards):
    columns, shards = two_shards
    whole = as_rows(shards.read(1, 2).take(13))
    first = "a" if whole[0][-1] in columns["a"]["number"].values else "b"
    passed = shards.sizes[shards.names.index(first)]
    (shards.folder / first).unlink()
    assert as_rows(shards.read(1, 2, passed).take(13 - passed)) == whole[passed:]


def masked(shards, masking=DYNAMIC, batch_size=10, seed=3, start_step=0):
    return mask_dynamically(shards.read(batch_size, seed, start_step), masking, NUM_ITEMS, seed, start_step)


def predictions_by_hand(length, masking):
    exact = Decimal(length * masking.mask_proportion)
    return min(masking.max_predictions, max(1, int(exact.quantize(Decimal(1), ROUND_HALF_UP))))


def dynamic_rows(shards, epochs, **settings):
    """Returns (window, epoch, length, original, shown, places, targets) of each example of whole epochs."""
    steps = -(-epochs * shards.num_examples // 10)
    rows = []
    for plain, after in zip(shards.read(10, 3).take(steps), masked(shards, **settings).take(steps), strict=True):
        assert plain["user"].numpy().tolist() == after["user"].numpy().tolist()
        parts = (plain["window"], plain["epoch"], plain["items"], after["items"])
        parts += (after["mask_positions"], after["mask_targets"])
        rows += zip(*(part.numpy().tolist() for part in parts))
    return rows[: epochs * shards.num_examples]


ANY_MASKING = [
    dataclasses.replace(DYNAMIC, mask_proportion=0.25, max_predictions=6),
    dataclasses.replace(DYNAMIC, mask_proportion=0.5, max_predictions=2, mask_prob=0.6),
    dataclasses.replace(DYNAMIC, mask_proportion=1.0, max_predictions=20, mask_prob=0.0, mask_copies=3),
    dataclasses.replace(DYNAMIC, mask_proportion=0.1, max_predictions=3, mask_copies=0),
]


@pytest.mark.parametrize("masking", ANY_MASKING)
def test_dynamic_masks_have_the_properties_of_static_ones(dynamic, masking):
    copies = masking.mask_copies + 1
    for window, epoch, original, shown, places, targets in dynamic_rows(dynamic, copies, masking=masking):
        length = MAX_LENGTH - original.count(0)
        last_only = (window + epoch) % copies == masking.mask_copies
        count = 1 if last_only else predictions_by_hand(length, masking)
        used = places[:count]
        assert len(places) == len(targets) == min(masking.max_predictions, MAX_LENGTH)
        assert used == sorted(set(used))
        assert 0 <= used[0] <= used[-1] < length
        assert not any(places[count:]) and not any(targets[count:])
        assert targets[:count] == [original[place] for place in used]
        untouched = [place for place in range(MAX_LENGTH) if place not in used]
        assert [shown[place] for place in untouched] == [original[place] for place in untouched]
        allowed = {NUM_ITEMS + 1} if masking.mask_prob == 1 or last_only else set(range(1, NUM_ITEMS + 2))
        assert {shown[place] for place in used} <= allowed


def test_in_as_many_epochs_as_copies_each_window_is_masked_once_at_its_last_item_only(dynamic):
    last_only, seen = Counter(), Counter()
    for window, _, original, _, places, targets in dynamic_rows(dynamic, 3):
        length = MAX_LENGTH - original.count(0)
        seen[window] += 1
        last_only[window] += places == [length - 1, 0, 0] and targets[1:] == [0, 0]
    assert set(seen.values()) == {3}
    assert set(last_only.values()) == {1}
    assert len(last_only) == dynamic.num_examples


def test_dynamic_masks_of_a_window_differ_between_epochs(dynamic):
    masking = dataclasses.replace(DYNAMIC, mask_copies=9)
    places_of = {}
    for window, _, _, _, places, _ in dynamic_rows(dynamic, 10, masking=masking):
        places_of.setdefault(window, []).append(tuple(places))
    assert all(len(set(places)) >= 4 for places in places_of.values())


def test_equal_seeds_give_equal_dynamic_masks_and_others_other_ones(dynamic):
    plain = dynamic.read(10, 3)
    first, again, other = (as_rows(mask_dynamically(plain, DYNAMIC, NUM_ITEMS, seed).take(8)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("start_step", [1, 4, 9, 30])
def test_dynamic_masks_are_the_same_from_any_step_on(dynamic, start_step):
    masking = dataclasses.replace(DYNAMIC, mask_prob=0.5)
    whole = masked(dynamic, masking).skip(start_step).take(3)
    assert as_rows(masked(dynamic, masking, start_step=start_step).take(3)) == as_rows(whole)


def one_batch(rows, items, masking, num_items, seed=11):
    zeros = tf.zeros([rows], tf.int64)
    batch = {"user": zeros, "window": zeros, "epoch": zeros, "items": tf.constant([items] * rows, tf.int32)}
    return next(iter(mask_dynamically(tf.data.Dataset.from_tensors(batch), masking, num_items, seed)))


@pytest.mark.parametrize("max_predictions", [2, 20], ids=["as many as allowed", "fewer than allowed"])
def test_every_set_of_positions_is_equally_likely_in_dynamic_masks(max_predictions):
    masking = dataclasses.replace(DYNAMIC, mask_proportion=0.34, max_predictions=max_predictions)
    batch = one_batch(6_000, [1, 2, 3, 4, 5, 6, 0, 0], masking, 6)
    drawn = Counter(map(tuple, batch["mask_positions"].numpy()[:, :2].tolist()))
    sets = list(combinations(range(6), 2))
    assert set(drawn) <= set(sets)
    assert stats.chisquare([drawn[places] for places in sets]).pvalue > 1e-3


@pytest.mark.parametrize("mask_prob", [0.0, 0.5, 0.8])
def test_half_of_what_is_not_shown_as_the_mask_stays_and_half_is_random_in_dynamic_masks(mask_prob):
    num_items, rows = 50, 2_000
    masking = dataclasses.replace(DYNAMIC, mask_proportion=0.2, max_predictions=10, mask_prob=mask_prob)
    batch = one_batch(rows, list(range(1, num_items + 1)), masking, num_items)
    targets = batch["mask_targets"].numpy()
    shown = np.take_along_axis(batch["items"].numpy(), batch["mask_positions"].numpy(), axis=1)
    half = (1 - mask_prob) / 2
    changed = half * (1 - 1 / num_items)
    expected = {"mask": mask_prob, "changed": changed, "kept": 1 - mask_prob - changed}
    is_mask = shown == num_items + 1
    found = {"mask": is_mask.sum(), "changed": (~is_mask & (shown != targets)).sum(), "kept": (shown == targets).sum()}
    assert targets.size == sum(found.values()) == 10 * rows
    for kind, share in expected.items():
        assert abs(found[kind] - 10 * rows * share) <= 5 * np.sqrt(10 * rows * share * (1 - share)), kind


def test_random_items_are_uniform_over_the_items_in_dynamic_masks():
    masking = dataclasses.replace(DYNAMIC, mask_proportion=1.0, max_predictions=20, mask_prob=0.0)
    counts = np.bincount(one_batch(1_000, [1] * 20, masking, 12)["items"].numpy().ravel(), minlength=14)
    assert counts[0] == counts[13] == 0
    assert stats.chisquare(counts[2:13]).pvalue > 1e-3
