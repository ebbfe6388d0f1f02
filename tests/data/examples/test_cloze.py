"""Windows and Cloze examples, against plain Python written from a description of the original program."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.profiles import examples
from support.ranking_oracle import group_histories
from support.shards import (
    check_all_pairs_are_equally_likely,
    check_half_of_the_rest_is_random,
    mask_windows,
    predictions_by_hand,
)

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.cloze import ClozeExamples, count_predictions, cut_windows, cut_windows_and_prefixes
from bert4rec_tf.data.sequences import LeaveOneOut

QUICK = settings(max_examples=examples(80))
HISTORIES = st.lists(st.lists(st.integers(0, 30), min_size=2, max_size=25), min_size=1, max_size=5)
STEPS = st.just(-1.0) | st.floats(0.05, 1.0)
MASKINGS = st.builds(
    MaskingSettings,
    mask_proportion=st.floats(0.01, 1.0) | st.sampled_from([0.1, 0.25, 0.5, 1.0]),
    max_predictions=st.integers(1, 12),
    mask_prob=st.sampled_from([0.0, 0.4, 0.8, 1.0]),
    mask_copies=st.integers(0, 3),
)


def from_histories(histories):
    return group_histories(
        {f"user{user}": [f"item{item}" for item in history] for user, history in enumerate(histories)}
    )


def window_lists(windows):
    return [
        (user, windows.items[start : start + length].tolist())
        for user, start, length in zip(windows.users.tolist(), windows.starts, windows.lengths)
    ]


def windows_by_hand(history, max_length, step):
    if len(history) <= max_length:
        return [history]
    found, end = [], len(history)
    while end > max_length:
        found.append(history[end - max_length : end])
        end -= step
    return [*found, history[:max_length]]


@QUICK
@given(HISTORIES, st.integers(2, 12), STEPS)
def test_windows_slide_from_the_end_and_the_first_items_are_one_more(histories, max_length, window_step):
    step = max_length if window_step == -1 else int(window_step * max_length)
    assume(step >= 1)
    sequences = from_histories(histories)
    expected = [
        (user, window)
        for user in range(sequences.num_users)
        for window in windows_by_hand(sequences[user].tolist(), max_length, step)
    ]
    assert sorted(window_lists(cut_windows(sequences, max_length, window_step))) == sorted(expected)


def test_histories_of_one_training_item_are_skipped():
    split = LeaveOneOut(from_histories([[1, 2, 3], [1, 2, 3, 4], [2, 1]]))
    assert cut_windows(split.training(False), 5, 0.5).users.tolist() == [1, 2]
    assert cut_windows(split.training(True), 5, 0.5).users.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "max_length", "window_step", "with_validation", "count"),
    [
        ("beauty", 50, 0.1, True, 41_738),
        ("beauty", 50, 0.1, False, 41_689),
        ("ml-1m", 200, 0.5, True, 10_272),
        ("ml-1m", 200, 0.5, False, 10_253),
    ],
)
def test_number_of_windows_of_the_real_data(real_data, name, max_length, window_step, with_validation, count):
    assert len(cut_windows(LeaveOneOut(real_data(name)).training(with_validation), max_length, window_step)) == count


@pytest.mark.parametrize(
    ("name", "max_length", "window_step", "count"), [("beauty", 50, 0.1, 459_118), ("ml-1m", 200, 0.5, 112_992)]
)
def test_number_of_examples_of_the_real_data(real_data, name, max_length, window_step, count):
    training = LeaveOneOut(real_data(name)).training(True)
    windows = cut_windows(training, max_length, window_step)
    assert ClozeExamples(windows, MaskingSettings(), max_length, training.num_items).num_examples == count


@QUICK
@given(st.integers(1, 300), MASKINGS)
def test_number_of_predictions_is_rounded_half_away_from_zero_and_limited(length, masking):
    assert count_predictions(np.array([length]), masking).tolist() == [predictions_by_hand(length, masking)]


def mask_all(histories, masking, max_length, seed=0, chosen=None):
    sequences = from_histories(histories)
    windows = cut_windows(sequences, max_length, 1.0)
    if chosen is None:
        chosen = np.arange(len(windows) * (masking.mask_copies + 1))
    made = mask_windows(windows, chosen, masking, max_length, sequences.num_items, [seed])
    return sequences, windows, made


@QUICK
@given(HISTORIES, st.integers(2, 12), MASKINGS)
def test_masks_are_distinct_ascending_places_inside_the_window(histories, max_length, masking):
    _, windows, made = mask_all(histories, masking, max_length)
    lengths = windows.lengths.tolist() * (masking.mask_copies + 1)
    assert made.lengths.tolist() == lengths
    assert made.mask_positions.shape[1] == made.mask_targets.shape[1] == min(masking.max_predictions, max_length)
    for row, length in enumerate(lengths):
        last_only = row // len(windows) == masking.mask_copies
        count = made.num_masked[row]
        used = made.mask_positions[row, :count].tolist()
        assert count == (1 if last_only else predictions_by_hand(length, masking))
        assert used == sorted(set(used))
        assert 0 <= used[0] <= used[-1] < length
        assert not made.mask_positions[row, count:].any()
        assert not made.mask_targets[row, count:].any()


@QUICK
@given(HISTORIES, st.integers(2, 12), MASKINGS)
def test_targets_are_the_masked_items_and_no_other_item_changes(histories, max_length, masking):
    sequences, windows, made = mask_all(histories, masking, max_length)
    originals = window_lists(windows) * (masking.mask_copies + 1)
    for row, (user, window) in enumerate(originals):
        shown = made.items[row].tolist()
        used = made.mask_positions[row, : made.num_masked[row]].tolist()
        assert made.users[row] == user
        assert made.mask_targets[row, : made.num_masked[row]].tolist() == [window[place] for place in used]
        rest = [place for place in range(len(window)) if place not in used]
        assert [shown[place] for place in rest] == [window[place] for place in rest]
        assert shown[len(window) :] == [0] * (max_length - len(window))
        if masking.mask_prob == 1:
            assert {shown[place] for place in used} == {sequences.num_items + 1}
        assert {shown[place] for place in used} <= set(range(1, sequences.num_items + 2))


@QUICK
@given(HISTORIES, st.integers(2, 12), MASKINGS)
def test_the_last_copy_of_each_window_masks_its_last_item_and_no_other(histories, max_length, masking):
    sequences, windows, made = mask_all(histories, masking, max_length)
    first = len(windows) * masking.mask_copies
    for row, (_, window) in enumerate(window_lists(windows), start=first):
        shown = [*window[:-1], sequences.num_items + 1]
        assert made.items[row, : len(window)].tolist() == shown
        assert made.mask_positions[row, 0] == len(window) - 1
        assert (made.num_masked[row], made.mask_targets[row, 0]) == (1, window[-1])


@QUICK
@given(HISTORIES, st.integers(2, 12), MASKINGS, st.integers(1, 3))
def test_prefix_examples_ask_for_every_item_after_those_before_it(histories, max_length, masking, copies):
    sequences = from_histories(histories)
    masking = dataclasses.replace(masking, prefix_copies=copies)
    windows = cut_windows_and_prefixes(sequences, max_length, masking)
    examples = np.arange(ClozeExamples(windows, masking, max_length, sequences.num_items).num_examples)
    made = mask_windows(windows, examples, masking, max_length, sequences.num_items, [0])
    questions = Counter()
    for user in range(sequences.num_users):
        history = sequences[user].tolist()
        for end in range(1, len(history)):
            before = history[max(0, end + 1 - max_length) : end]
            questions[user, (*before, sequences.num_items + 1), history[end]] += copies
    first = len(cut_windows(sequences, max_length, masking.window_step)) * masking.mask_copies
    asked = Counter(
        (made.users[row], tuple(made.items[row, : made.lengths[row]].tolist()), made.mask_targets[row, 0])
        for row in range(first, len(made.users))
    )
    assert asked == questions
    assert (made.mask_positions[first:, 0] == made.lengths[first:] - 1).all()
    assert (made.num_masked[first:] == 1).all() and not made.mask_targets[first:, 1:].any()
    expected = [predictions_by_hand(length, masking) for length in made.lengths[:first].tolist()]
    assert made.num_masked[:first].tolist() == expected


def many(length, copies, **others):
    masking = MaskingSettings(mask_copies=copies, **others)
    sequences = from_histories([list(range(length))])
    windows = cut_windows(sequences, length + 3, 1.0)
    return mask_windows(windows, np.arange(copies), masking, length + 3, sequences.num_items, [2019])


@pytest.mark.parametrize("max_predictions", [2, 20], ids=["as many as allowed", "fewer than allowed"])
def test_every_set_of_positions_is_equally_likely(max_predictions):
    made = many(6, 6_000, mask_proportion=0.34, max_predictions=max_predictions)
    check_all_pairs_are_equally_likely(made.mask_positions, 6)


def shown_and_targets(made):
    rows, slots = np.nonzero(np.arange(made.mask_positions.shape[1]) < made.num_masked[:, None])
    return made.items[rows, made.mask_positions[rows, slots]], made.mask_targets[rows, slots]


@pytest.mark.parametrize("mask_prob", [0.0, 0.5, 0.8])
def test_half_of_what_is_not_shown_as_the_mask_stays_and_half_is_random(mask_prob):
    num_items, rows = 50, 2_000
    made = many(num_items, rows, mask_proportion=0.2, max_predictions=10, mask_prob=mask_prob)
    shown, targets = shown_and_targets(made)
    assert len(shown) == 10 * rows
    check_half_of_the_rest_is_random(shown, targets, num_items, mask_prob)


LONG = [list(range(20)), list(range(5, 22)), list(range(9))]


def test_equal_seeds_give_equal_masks_and_others_other_ones():
    masking = MaskingSettings(mask_proportion=0.4, mask_prob=0.5, mask_copies=5)
    first, again, other = (mask_all(LONG, masking, 20, seed)[2] for seed in (7, 7, 8))
    for name in ("users", "items", "lengths", "mask_positions", "mask_targets", "num_masked"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert (first.mask_positions != other.mask_positions).any()
    assert (first.items != other.items).any()
