"""Examples made in memory: what they hold, what is never drawn, and that a batch depends on its number alone."""

import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.ranking_oracle import FEW, any_histories, make_sequences
from support.shards import (
    check_all_pairs_are_equally_likely,
    check_half_of_the_rest_is_random,
    predictions_by_hand,
    read_batches,
)

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.epochs import make_epochs
from bert4rec_tf.data.examples.in_memory import (
    EXAMPLE_KINDS,
    ContextTargetExamples,
    NextItemExamples,
    UnseenItems,
)
from bert4rec_tf.data.examples.masked import MaskedExamples
from bert4rec_tf.data.examples.rows import Feed
from bert4rec_tf.models import MODELS

HISTORIES = make_sequences([[1, 2, 3, 4, 5, 6, 7, 8, 9], [3, 1], [5, 6, 7], [2, 4, 6, 8]], 12)


def everything(examples):
    """Every example once, in order."""
    numbers = np.arange(examples.num_examples)
    columns = {"examples": numbers, "seed": np.array([0, 0]), **examples.draw(numbers, np.random.default_rng(0))}
    return {name: np.asarray(column) for name, column in examples.lay_out(examples.tables, columns).items()}


@FEW
@given(any_histories(), st.integers(1, 9), st.integers(0, 5), st.booleans())
def test_negatives_are_never_items_of_the_user_s_history(sequences, size, seed, popular):
    users = np.repeat(np.arange(sequences.num_users), 2)
    drawn = UnseenItems(sequences, popular).draw(users, size, np.random.default_rng(seed))
    assert drawn.shape == (len(users), size) and drawn.dtype == np.int32
    for user, row in zip(users, drawn):
        unseen = set(range(1, sequences.num_items + 1)) - set(sequences[user].tolist())
        assert set(row.tolist()) <= (unseen or {0})


def test_unseen_items_are_drawn_uniformly():
    drawn = UnseenItems(HISTORIES).draw(np.zeros(3_000, np.int64), 2, np.random.default_rng(1))
    counts = np.bincount(drawn.ravel(), minlength=13)
    assert counts[:10].sum() == 0
    assert stats.chisquare(counts[10:]).pvalue > 1e-4


@settings(FEW, max_examples=10)
@given(any_histories(longest=15), st.integers(0, 5))
def test_popular_negatives_are_drawn_in_proportion_to_their_counts_in_training(sequences, seed):
    """Without the last user's items, of whom every item would have a count."""
    counted = sequences.drop_last(np.append(np.zeros(sequences.num_users - 1, int), sequences.num_items - 1))
    drawn = UnseenItems(counted, popular=True).draw(np.zeros(400, int), 5, np.random.default_rng(seed))
    unseen = np.setdiff1d(np.arange(1, sequences.num_items + 1), counted[0])
    counts = counted.count_items()[unseen]
    expected = counts if counts.any() else np.ones(len(unseen))
    found = np.bincount(drawn.ravel(), minlength=sequences.num_items + 1)[unseen]
    assert found.sum() == (2_000 if len(unseen) else 0) and not found[expected == 0].any()
    if np.count_nonzero(expected) > 1:
        frequencies = 2_000 * expected[expected > 0] / expected.sum()
        assert stats.chisquare(found[expected > 0], frequencies).pvalue > 1e-6


@pytest.mark.parametrize("name", ["bpr_mf", "fpmc"])
def test_the_setting_of_the_pairwise_models_reaches_their_negatives(name):
    sequences = make_sequences([[1, 2], [2, 3], [3, 4]], 1_000)
    drawn = {}
    for negatives in ("uniform", "popular"):
        model = MODELS[name](1_000, num_users=3, negatives=negatives)
        drawn[negatives] = everything(EXAMPLE_KINDS[model.examples](sequences, **model.example_options))["negatives"]
    assert (drawn["popular"] <= 4).all() and (drawn["uniform"] > 4).any()


def test_pairs_are_all_actions():
    batch = everything(ContextTargetExamples(HISTORIES, context=0, num_negatives=4))
    assert batch["items"].shape == (18, 0) and batch["negatives"].shape == (18, 4)
    pairs = [(user, item) for user in range(4) for item in HISTORIES[user].tolist()]
    assert list(zip(batch["users"].tolist(), batch["targets"][:, 0].tolist())) == pairs


def test_transitions_are_all_successive_items():
    batch = everything(ContextTargetExamples(HISTORIES, context=1))
    found = [tuple(row) for row in np.column_stack([batch["users"], batch["items"], batch["targets"]]).tolist()]
    expected = [
        (user, before, after) for user in range(4) for before, after in zip(HISTORIES[user], HISTORIES[user][1:])
    ]
    assert found == expected and (batch["lengths"] == 1).all()


def test_windows_slide_over_long_histories_and_short_ones_have_one():
    batch = everything(ContextTargetExamples(HISTORIES, context=4, num_targets=2, num_negatives=3))
    rows = list(zip(batch["users"].tolist(), batch["items"].tolist(), batch["targets"].tolist()))
    assert rows == [
        (0, [1, 2, 3, 4], [5, 6]),
        (0, [2, 3, 4, 5], [6, 7]),
        (0, [3, 4, 5, 6], [7, 8]),
        (0, [4, 5, 6, 7], [8, 9]),
        (1, [3, 0, 0, 0], [1, 0]),
        (2, [5, 0, 0, 0], [6, 7]),
        (3, [2, 4, 0, 0], [6, 8]),
    ]


def test_shifted_histories_are_their_own_answers():
    batch = everything(NextItemExamples(HISTORIES, max_length=4, num_negatives=2))
    assert batch["items"].tolist() == [[5, 6, 7, 8], [3, 0, 0, 0], [5, 6, 0, 0], [2, 4, 6, 0]]
    assert batch["targets"].tolist() == [[6, 7, 8, 9], [1, 0, 0, 0], [6, 7, 0, 0], [4, 6, 8, 0]]
    assert batch["lengths"].tolist() == [4, 1, 2, 3] and batch["negatives"].shape == (4, 4, 2)


@FEW
@given(any_histories(), st.integers(1, 6))
def test_whole_histories_have_every_target_once(sequences, max_length):
    examples = NextItemExamples(sequences, max_length, whole=True)
    batch = everything(examples) if examples.num_examples else {"users": [], "items": [], "targets": [], "lengths": []}
    found = [
        (user, items[place], targets[place])
        for user, items, targets, length in zip(*(batch[name] for name in ("users", "items", "targets", "lengths")))
        for place in range(length)
    ]
    histories = [sequences[user].tolist() for user in range(sequences.num_users)]
    pairs = [(user, *pair) for user, history in enumerate(histories) for pair in pairwise(history)]
    assert sorted(found) == sorted(pairs)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_shared_negatives_follow_the_power_of_their_counts(alpha):
    examples = NextItemExamples(HISTORIES, 4, num_shared=2_000, alpha=alpha)
    drawn = np.bincount(everything(examples)["shared"].ravel(), minlength=13)[1:]
    counts = HISTORIES.count_items()[1:]
    weights = np.where(counts > 0, np.maximum(counts, 1) ** alpha, 0.0)
    assert not drawn[counts == 0].any()
    expected = 8_000 * weights[counts > 0] / weights.sum()
    assert stats.chisquare(drawn[counts > 0], expected).pvalue > 1e-4


MADE = {
    "pairs": ContextTargetExamples(HISTORIES, 0, num_negatives=2),
    "popular pairs": ContextTargetExamples(HISTORIES, 0, num_negatives=2, popular=True),
    "windows": ContextTargetExamples(HISTORIES, 3, 2),
    "shifted": NextItemExamples(HISTORIES, 4, 1, num_shared=3, whole=True),
    "masked": MaskedExamples(HISTORIES, 6, MaskingSettings(mask_proportion=0.5, mask_prob=0.5)),
}


@pytest.mark.parametrize("examples", MADE.values(), ids=MADE)
@pytest.mark.parametrize("batch_size", [1, 4, 5, 50])
def test_a_batch_is_a_function_of_its_number(examples, batch_size):
    straight = read_batches(Feed(examples, batch_size, seed=3), 0, 9)
    for start in (0, 1, 4, 8):
        (resumed,) = read_batches(Feed(examples, batch_size, seed=3), start, 1)
        for name, column in straight[start].items():
            np.testing.assert_array_equal(resumed[name], column)


@pytest.mark.parametrize("examples", MADE.values(), ids=MADE)
def test_a_compiled_batch_is_the_same_to_the_bit(examples):
    feed = Feed(examples, 5, seed=3)
    columns = {name: column[0] for name, column in feed.read(7, 1).items()}
    compiled = tf.function(feed.lay_out, jit_compile=True, autograph=False)(dict(feed.tables), columns)
    for name, column in feed.lay_out(feed.tables, columns).items():
        np.testing.assert_array_equal(compiled[name], column, name)


def test_every_epoch_holds_each_example_once_in_another_order_with_other_negatives():
    examples, size = MADE["pairs"], MADE["pairs"].num_examples
    batches = read_batches(Feed(examples, 5, seed=1), 0, 2 * size // 5 + 1)
    users, targets, negatives = (
        np.concatenate([batch[name] for batch in batches])[: 2 * size] for name in ("users", "targets", "negatives")
    )
    pairs = list(zip(users.tolist(), targets[:, 0].tolist()))
    first, second = pairs[:size], pairs[size:]
    assert sorted(first) == sorted(second) and len(set(first)) == size and first != second
    drawn = [dict(zip(pairs[epoch], negatives[epoch].tolist())) for epoch in (slice(None, size), slice(size, None))]
    others = [pair for pair in drawn[0] if drawn[0][pair] != drawn[1][pair]]
    assert len(others) > size / 2
    first, other = (read_batches(Feed(examples, 18, seed), 0, 1)[0]["targets"] for seed in (1, 2))
    assert (other != first).any()


@pytest.mark.parametrize("prefix_copies", [0, 2])
def test_dynamic_masks_are_as_many_as_static_ones_and_some_are_of_the_last_item_alone(prefix_copies):
    masking = MaskingSettings(mask_proportion=0.5, max_predictions=3, mask_copies=2, prefix_copies=prefix_copies)
    examples = MaskedExamples(HISTORIES, 6, masking)
    batches = read_batches(Feed(examples, examples.num_examples, seed=1), 0, 60)
    last_only = 0
    for batch in batches:
        for length, positions, targets in zip(batch["lengths"], batch["mask_positions"], batch["mask_targets"]):
            is_last_only = (positions[0], np.count_nonzero(targets)) == (length - 1, 1)
            last_only += is_last_only
            assert is_last_only or np.count_nonzero(targets) == predictions_by_hand(length, masking)
    rows, longer = 60 * examples.num_examples, examples.tables["lengths"] > 2
    if prefix_copies:
        num_prefixes = sum(len(HISTORIES[user]) - 1 for user in range(4))
        assert examples.tables["last_only"].sum() == 2 * num_prefixes and last_only >= 60 * 2 * num_prefixes
    else:
        chance = np.where(longer, 1 / 3, 1 / 3 + 2 / 3 / 2).mean()  # of two items, one is masked
        assert abs(last_only - rows * chance) < 5 * np.sqrt(rows * chance * (1 - chance))


def test_dynamic_masks_hide_all_pairs_of_places_equally_often():
    sequences = make_sequences([list(range(1, 6))] * 300, 5)
    examples = MaskedExamples(sequences, 5, MaskingSettings(mask_proportion=0.4, mask_copies=10_000))
    batches = read_batches(Feed(examples, 300, seed=2), 0, 5)
    positions = np.concatenate([batch["mask_positions"] for batch in batches])
    check_all_pairs_are_equally_likely(positions[positions[:, 1] > 0], 5)


def test_half_of_the_items_that_dynamic_masks_do_not_hide_are_random():
    sequences = make_sequences([list(range(1, 31))] * 200, 30)
    masking = MaskingSettings(mask_proportion=0.5, mask_prob=0.4, mask_copies=10_000)
    (batch,) = read_batches(Feed(MaskedExamples(sequences, 30, masking), 200, seed=2), 3, 1)
    is_used = batch["mask_targets"] > 0
    shown = np.take_along_axis(batch["items"], batch["mask_positions"], axis=1)
    check_half_of_the_rest_is_random(shown[is_used], batch["mask_targets"][is_used], 30, 0.4)


def test_examples_of_the_last_item_alone_hide_nothing_else():
    (batch,) = read_batches(Feed(MaskedExamples(HISTORIES, 3, MaskingSettings(), last_only=True), 4, seed=1), 0, 1)
    by_user = dict(zip(batch["users"].tolist(), batch["items"].tolist()))
    assert by_user == {0: [7, 8, 13], 1: [3, 13, 0], 2: [5, 6, 13], 3: [4, 6, 13]}
    assert sorted(batch["mask_targets"].tolist()) == [[1], [7], [8], [9]]


@pytest.mark.parametrize("name", EXAMPLE_KINDS)
def test_tensorflow_reads_the_same_batches(name):
    feed = Feed({"contexts": MADE["windows"], "shifted": MADE["shifted"]}[name], 3, 1)
    dataset = make_epochs(feed)
    for read, made in zip(dataset.repeat(2).take(4), read_batches(feed, 0, 4), strict=True):
        assert set(read) == set(made) == set(dataset.element_spec)
        for column in made:
            np.testing.assert_array_equal(read[column], made[column])


def test_examples_are_freed_with_the_last_iterator_of_their_dataset():
    examples = ContextTargetExamples(HISTORIES, 0)
    reference = weakref.ref(examples)
    batches = iter(make_epochs(Feed(examples, 4, seed=1)).prefetch(2))
    del examples
    gc.collect()
    for _ in range(3):
        next(batches)
    assert reference() is not None
    del batches
    gc.collect()
    assert reference() is None
