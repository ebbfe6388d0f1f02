"""Masks drawn while reading: the same law as those on disk, and new ones in every epoch."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from support.shards import (
    DYNAMIC,
    MAX_LENGTH,
    NUM_ITEMS,
    SEQUENCES,
    as_rows,
    check_all_pairs_are_equally_likely,
    check_half_of_the_rest_is_random,
    predictions_by_hand,
)

from bert4rec_tf.data.examples.cloze import cut_windows
from bert4rec_tf.data.examples.dynamic_masks import mask_dynamically
from bert4rec_tf.data.examples.preparation import prepare_shards


def masked(shards, masking=DYNAMIC, batch_size=10, seed=3, start_step=0):
    return mask_dynamically(shards.read(batch_size, seed, start_step), masking, NUM_ITEMS, seed, start_step)


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


def test_equal_seeds_give_equal_dynamic_masks_and_others_other_ones(dynamic):
    plain = dynamic.read(10, 3)
    first, again, other = (as_rows(mask_dynamically(plain, DYNAMIC, NUM_ITEMS, seed).take(8)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("start_step", [1, 30])
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
    check_all_pairs_are_equally_likely(batch["mask_positions"].numpy(), 6)


@pytest.mark.parametrize("mask_prob", [0.0, 0.5, 0.8])
def test_half_of_what_is_not_shown_as_the_mask_stays_and_half_is_random_in_dynamic_masks(mask_prob):
    num_items, rows = 50, 2_000
    masking = dataclasses.replace(DYNAMIC, mask_proportion=0.2, max_predictions=10, mask_prob=mask_prob)
    batch = one_batch(rows, list(range(1, num_items + 1)), masking, num_items)
    targets = batch["mask_targets"].numpy()
    shown = np.take_along_axis(batch["items"].numpy(), batch["mask_positions"].numpy(), axis=1)
    assert targets.size == 10 * rows
    check_half_of_the_rest_is_random(shown, targets, num_items, mask_prob)


def test_prefixes_are_never_masked_elsewhere_and_windows_never_at_the_last_item_alone(tmp_path):
    masking = dataclasses.replace(DYNAMIC, mask_proportion=0.5, mask_copies=2, prefix_copies=2)
    shards = prepare_shards(SEQUENCES, masking, MAX_LENGTH, 0, tmp_path)
    prefixes = int((SEQUENCES.lengths - 1).sum())
    windows = shards.num_examples - 2 * prefixes
    assert windows == len(cut_windows(SEQUENCES, MAX_LENGTH, masking.window_step))
    rows = dynamic_rows(shards, 3, masking=masking)
    assert Counter(window < 0 for window, *_ in rows) == {True: 6 * prefixes, False: 3 * windows}
    for window, _, original, _, places, targets in rows:
        length, asked = MAX_LENGTH - original.count(0), [target for target in targets if target]
        if window < 0:
            assert (places[0], asked) == (length - 1, [original[length - 1]])
        else:
            assert len(asked) == predictions_by_hand(length, masking)
