"""Item co-occurrence beside its definition in plain Python."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.ranking_oracle import FEW, any_histories, make_sequences

from bert4rec_tf.data import cooccurrence
from bert4rec_tf.models.item_cooccurrence import ItemCooccurrence

EXACT = {"decay": 0.5, "backward": 0.25}
"""Sums of powers of two have no rounding, so ties are ties."""


def plain_strengths(sequences, settings):
    """The totals of all pairs, before they are divided, by two loops over every history."""
    totals = Counter()
    for user in range(sequences.num_users):
        history = sequences[user].tolist()
        for b in range(len(history)):
            for a in range(max(0, b - settings.window), b):
                strength = settings.decay ** (b - a - 1)
                totals[history[a], history[b]] += strength
                totals[history[b], history[a]] += settings.backward * strength
    return totals


def plain_neighbors(sequences, settings):
    """Item -> its strongest neighbours and their strengths, the strongest first."""
    totals, counts, found = plain_strengths(sequences, settings), sequences.counts(), {}
    for item in range(1, sequences.num_items + 1):
        some = sorted((-total, other) for (first, other), total in totals.items() if first == item and total)
        scale = float(counts[item]) ** settings.count_power
        found[item] = {other: -total / scale for total, other in some[: settings.num_neighbors]}
    return found


@st.composite
def settings_of(draw):
    return {
        **EXACT,
        "window": draw(st.integers(1, 12)),
        "backward": draw(st.sampled_from([0.0, 0.25, 1.0])),
        "count_power": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "num_neighbors": draw(st.integers(1, 30)),
    }


def counted(sequences, block=1 << 17, **settings):
    model = ItemCooccurrence(sequences.num_items, **settings)
    with mock.patch.object(cooccurrence, "BLOCK_ACTIONS", block):
        model.adapt(sequences)
    return model


@FEW
@given(any_histories(), settings_of(), st.integers(1, 100))
def test_the_tables_hold_the_strongest_neighbours(sequences, settings, block):
    model = counted(sequences, block, **settings)
    neighbors, strengths = np.asarray(model.neighbors), np.asarray(model.strengths)
    most = min(settings["num_neighbors"], sequences.num_items)
    assert neighbors.shape == strengths.shape == (sequences.num_items + 1, most)
    assert not neighbors[0].any() and not strengths[0].any()
    for item, expected in plain_neighbors(sequences, model.settings).items():
        kept = len(expected)
        assert neighbors[item, :kept].tolist() == list(expected)
        np.testing.assert_allclose(strengths[item, :kept], list(expected.values()), rtol=1e-6)
        assert not neighbors[item, kept:].any() and not strengths[item, kept:].any()


@FEW
@given(any_histories(), settings_of(), st.integers(0, 99))
def test_scores_are_sums_over_the_last_items(sequences, settings, seed):
    model, rng = counted(sequences, **settings), np.random.default_rng(seed)
    size, window, decay = sequences.num_items, settings["window"], settings["decay"]
    lengths = rng.integers(0, 15, 4).astype(np.int32)
    items = rng.integers(1, size + 1, (4, 15)).astype(np.int32)
    candidates = rng.integers(1, size + 1, (4, 6)).astype(np.int32)
    batch = {"users": np.zeros(4, np.int32), "items": items, "lengths": lengths}
    every, some = np.asarray(model.score(batch)), np.asarray(model.score(batch, candidates))
    known, counts = plain_neighbors(sequences, model.settings), sequences.counts()
    for row, length in enumerate(lengths):
        last = items[row, :length][::-1][:window].tolist()
        sums = Counter()
        for age, item in enumerate(last):
            for other, strength in known[item].items():
                sums[other] += decay**age * strength
        expected = [sums.get(item, -1 / (1 + counts[item])) for item in range(1, size + 1)]
        np.testing.assert_allclose(every[row], expected, rtol=1e-5)
        np.testing.assert_array_equal(some[row], every[row, candidates[row] - 1])


@FEW
@given(any_histories(), st.randoms(use_true_random=False))
def test_the_order_of_the_users_does_not_change_a_bit(sequences, random):
    """Equal terms of two pairs must stay a tie, in whichever order they come."""
    histories = [sequences[user] for user in range(sequences.num_users)]
    random.shuffle(histories)
    first, second = counted(sequences), counted(make_sequences(histories, sequences.num_items))
    for one, other in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_graph_scores_as_the_model_does_whatever_the_shapes():
    model = counted(make_sequences([np.arange(1, 9), np.arange(8, 0, -1)], 9))
    ints = tf.TensorSpec([None, None], tf.int32)
    graph = tf.function(model.score_vectors, input_signature=[tf.TensorSpec([None, 20], tf.float32), ints])
    batch = {"items": np.array([[3, 4, 0], [9, 0, 0]], np.int32), "lengths": np.array([2, 1], np.int32)}
    vectors = model.user_vectors(batch)
    assert vectors.shape == (2, 20)
    for candidates in (np.array([[5, 9, 5], [0, 1, 2]]), np.zeros((2, 0))):
        candidates = candidates.astype(np.int32)
        np.testing.assert_array_equal(graph(vectors, candidates), model.score_vectors(vectors, candidates))
    assert graph(vectors[:0], np.zeros((0, 3), np.int32)).shape == (0, 3)


def test_an_item_without_neighbours_leaves_the_popular_ones():
    sequences = make_sequences([[1, 2], [1, 3], [1, 2]], 4)
    model = counted(sequences)
    batch = {"items": np.array([[4]], np.int32), "lengths": np.array([1], np.int32)}
    assert np.asarray(model.score(batch))[0].tolist() == pytest.approx([-1 / 4, -1 / 3, -1 / 2, -1])
