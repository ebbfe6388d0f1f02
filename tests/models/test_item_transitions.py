"""Item transitions beside their definition in plain Python."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.evidence_oracle import histories_of, plain_counts, plain_evidence, plain_log_shares, plain_scores
from support.ranking_oracle import FEW, any_histories, make_sequences

from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data import transitions
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.evaluation.metrics import FULL, NDCG, compute_metrics
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.models.item_transitions import ItemTransitions
from bert4rec_tf.nn import evidence

EXACT = {"distance_power": 0.0, "distance_decay": 0.5}
"""Sums of powers of two have no rounding, so ties are ties."""


@st.composite
def settings_of(draw):
    return ItemTransitionsSettings(
        window=draw(st.integers(1, 12)),
        distance_power=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        distance_decay=draw(st.sampled_from([0.5, 0.9, 1.0])),
        backward=draw(st.sampled_from([0.0, 0.3, 1.0])),
        smoothing=draw(st.sampled_from([0.5, 20.0, 3_000.0])),
        history_power=draw(st.sampled_from([0.0, 0.7, 2.0])),
        history_decay=draw(st.sampled_from([0.4, 0.9, 1.0])),
        recent_items=draw(st.sampled_from([1, 3, 7, 1_000_000])),
        recent_share=draw(st.sampled_from([0.0, 0.8, 1.0])),
        popularity_weight=draw(st.sampled_from([-0.4, 0.0, 0.5])),
        max_history=draw(st.integers(1, 20)),
    )


def counted(sequences, settings=None, **fields):
    model = ItemTransitions(sequences.num_items, settings, **fields)
    model.adapt(sequences)
    return model


def make_batch(histories, width=None):
    """Returns a batch of histories, padded to `width` columns; None for the longest history."""
    width = max(map(len, histories)) if width is None else width
    rows = [[*history, *[0] * (width - len(history))] for history in histories]
    items = np.array(rows, np.int32).reshape(len(histories), width)
    return {"items": items, "lengths": np.array(list(map(len, histories)), np.int32)}


def draw_histories(num_items, seed):
    """Returns an empty history, and three of up to 30 items with repeats."""
    rng = np.random.default_rng(seed)
    return [[], *(rng.integers(1, num_items + 1, rng.integers(1, 31)).tolist() for _ in range(3))]


@FEW
@given(any_histories(), settings_of(), st.integers(0, 99))
def test_scores_are_those_of_the_formula(sequences, settings, seed):
    model, some = counted(sequences, settings), draw_histories(sequences.num_items, seed)
    candidates = np.random.default_rng(seed).integers(1, sequences.num_items + 1, (4, 6)).astype(np.int32)
    every, chosen = model.score(make_batch(some)).numpy(), model.score(make_batch(some), candidates).numpy()
    known = histories_of(sequences)
    for row, history in enumerate(some):
        expected = plain_scores(known, sequences.num_items, history, settings)
        np.testing.assert_allclose(every[row], expected, rtol=2e-5, atol=1e-6)
        np.testing.assert_array_equal(chosen[row], every[row, candidates[row] - 1])


@FEW
@given(any_histories(), st.integers(1, 6), st.sampled_from([0.0, 0.25, 1.0]), st.integers(1, 30))
def test_the_strongest_neighbors_are_kept(sequences, window, backward, num_neighbors):
    """The first of equal ones."""
    model = counted(sequences, window=window, backward=backward, num_neighbors=num_neighbors, **EXACT)
    splits, neighbors = model.evidence.splits.numpy(), model.evidence.neighbors.numpy()
    evidence = plain_evidence(histories_of(sequences), sequences.num_items, model.settings.resolve())
    for item in range(sequences.num_items + 1):
        begin, end = splits[item : item + 2]
        expected = evidence.get(item, {})
        assert neighbors[begin:end].tolist() == list(expected)
        strengths = model.evidence.strengths.numpy()[begin:end]
        np.testing.assert_allclose(strengths, list(expected.values()), rtol=1e-6)


@FEW
@given(any_histories(), st.integers(1, 5), st.sampled_from([0.0, 0.3]), st.integers(1, 100))
def test_blocks_of_any_size_count_the_same_bits(sequences, window, backward, block_actions):
    weights = transitions.weigh_distances(window, 0.7, 0.8)

    def count(*options):
        blocks = list(transitions.count_transitions(sequences, window, *options))
        sizes = [counts.pairs.shape[0] for _, counts in blocks]
        assert [first_item for first_item, _ in blocks] == [0, *np.cumsum(sizes)[:-1]]
        return np.concatenate([counts.combine(weights, backward).toarray() for _, counts in blocks]), len(blocks)

    whole, one = count()
    assert len(whole) == sequences.num_items + 1 and one == 1
    settings = ItemTransitionsSettings(window=window, distance_power=0.7, distance_decay=0.8, backward=backward)
    expected = np.zeros_like(whole)
    for pair, value in plain_counts(histories_of(sequences), settings).items():
        expected[pair] = value
    np.testing.assert_allclose(whole, expected, rtol=1e-12)
    parts, several = count(block_actions)
    np.testing.assert_array_equal(whole, parts)
    assert several > 1 or block_actions > sequences.num_actions / 2


@pytest.mark.parametrize("num_items", [2_000, 100_000])
def test_items_of_any_number_are_counted(num_items):
    """Their pairs and distances need 32 and 64 bits."""
    histories = [[num_items, 1, num_items - 1, num_items, 700], [700, num_items, num_items, 2]]
    settings = ItemTransitionsSettings(window=3, distance_power=1.0, distance_decay=1.0, backward=0.5)
    ((first, counts),) = transitions.count_transitions(make_sequences(histories, num_items), 3)
    found = counts.combine(transitions.weigh_distances(3, 1.0, 1.0), 0.5).tocoo()
    assert first == 0 and counts.pairs.shape == (num_items + 1, num_items + 1)
    pairs = zip(found.row.tolist(), found.col.tolist())
    assert dict(zip(pairs, found.data.tolist())) == pytest.approx(dict(plain_counts(histories, settings)))


@FEW
@given(any_histories(), settings_of(), st.randoms(use_true_random=False))
def test_the_order_of_the_users_does_not_change_a_bit(sequences, settings, random):
    histories = histories_of(sequences)
    random.shuffle(histories)
    first, second = (counted(one, settings) for one in (sequences, make_sequences(histories, sequences.num_items)))
    for one, other in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("popularity_weight", [-0.5, 0.5])
def test_an_item_without_neighbors_leaves_the_popular_ones(popularity_weight):
    sequences = make_sequences([[1, 2], [1, 3], [1, 2]], 4)
    model = counted(sequences, popularity_weight=popularity_weight, max_history=2, recent_items=1, recent_share=1.0)
    shares = plain_log_shares(histories_of(sequences), 4)
    batch = make_batch([[4], [], [1, 4, 4], [1, 4], [4, 1]])
    scores = model.score(batch).numpy()
    for row in range(4):  # of the third history, the model reads two items; of the fourth, the last one counts
        assert scores[row].tolist() == pytest.approx([shares[item] for item in (1, 2, 3, 4)])
    assert model.find_cold(batch["lengths"], model.user_vectors(batch)).numpy().tolist() == [
        True,
        True,
        True,
        True,
        False,
    ]


def test_settings_that_are_not_given_are_the_start_of_the_search():
    sequences = make_sequences([[1, 2, 3, 2], [3, 1]], 4)
    resolved = ItemTransitionsSettings(window=2).resolve()
    assert resolved.window == 2 and None not in {resolved.smoothing, resolved.recent_items, resolved.backward}
    for one, other in zip(counted(sequences, window=2).weights, counted(sequences, resolved).weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_graph_scores_as_the_model_does_whatever_the_shapes():
    model = counted(make_sequences([np.arange(1, 9), np.arange(8, 0, -1)], 9))
    ints = tf.TensorSpec([None, None], tf.int32)
    graph = tf.function(model.score_vectors, input_signature=[tf.TensorSpec([None, None], tf.float32), ints])
    vectors = model.user_vectors(make_batch([[3, 4], [9]]))
    assert vectors.shape == (2, 4)
    for candidates in (np.array([[5, 9, 5], [1, 1, 2]]), np.zeros((2, 0))):
        candidates = candidates.astype(np.int32)
        np.testing.assert_array_equal(graph(vectors, candidates), model.score_vectors(vectors, candidates))
    assert graph(vectors[:0], np.zeros((0, 3), np.int32)).shape == (0, 3)


@pytest.mark.long
@FEW
@given(any_histories(), settings_of(), st.integers(0, 99), st.sampled_from([1, 3, 1 << 20]))
def test_every_way_to_sum_evidence_gives_the_same(sequences, settings, seed, most_pairs):
    """Pairs in chunks of any size and rows of a table to the bit, also of a row alone; a product up to rounding."""
    model, some = counted(sequences, settings), draw_histories(sequences.num_items, seed)
    layer, batch = model.evidence, make_batch(some)
    encoded = model.user_vectors(batch)
    items, weights = tf.split(encoded, 2, axis=1)
    items = tf.cast(items, tf.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "MAX_PAIRS_AT_ONCE", most_pairs)
        sums = layer.sum_pairs(items, weights).numpy()
        for row in range(len(some)):
            np.testing.assert_array_equal(layer.sum_pairs(items[row : row + 1], weights[row : row + 1])[0], sums[row])
        open_shape = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.float32)]
        graph = tf.function(layer.sum_pairs, input_signature=open_shape)
        np.testing.assert_array_equal(graph(items, weights), sums)
        for way in (evidence.ROWS, evidence.PRODUCT):
            patch.setattr(evidence, "choose_sum", lambda num_items, way=way: way)
            with layer.read_table(layer.make_table()):
                by_table = layer.sum_pairs(items, weights).numpy()
            np.testing.assert_allclose(by_table, sums, rtol=1e-5 if way == evidence.PRODUCT else 0, atol=1e-6)


def test_xla_compiles_every_sum_that_it_can():
    model = counted(make_sequences([np.arange(1, 9), np.arange(8, 0, -1), [3, 3, 1]], 9))
    items, weights = tf.constant([[3, 4, 3], [9, 0, 0]]), tf.constant([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    expected = model.evidence.sum_pairs(items, weights)
    np.testing.assert_array_equal(tf.function(model.evidence.sum_pairs, jit_compile=True)(items, weights), expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "choose_sum", lambda num_items: evidence.PRODUCT)

        @tf.function(jit_compile=True)
        def multiply(items, weights):
            with model.evidence.read_table(table):
                return model.evidence.sum_pairs(items, weights)

        table = model.evidence.make_table()
        np.testing.assert_allclose(multiply(items, weights), expected, rtol=1e-6)


# Figures of a reference program, for the same counts and the same kernels.


def measure_test_items(sequences, settings):
    """Returns NDCG@10 of the test items of all users, among all items that are new to the user."""
    split = LeaveOneOut(sequences)
    model = counted(split.training(with_validation=True), settings)
    task = RankingTask.from_split(split, "test", {}, all_items=True)
    return compute_metrics(Ranker(model).rank(task)[FULL])[NDCG]


@pytest.mark.slow
def test_movielens_agrees_with_the_published_figure(real_data):
    settings = ItemTransitionsSettings(
        window=20,
        distance_power=1.0,
        distance_decay=1.0,
        backward=0.0,
        smoothing=150.0,
        history_power=0.0,
        history_decay=0.6,
        recent_items=7,
        recent_share=0.8,
        popularity_weight=-0.4,
    )
    assert measure_test_items(real_data("ml-1m"), settings) == pytest.approx(0.1819, abs=0.0005)


@pytest.mark.slow
def test_beauty_agrees_with_the_published_figure(real_file):
    settings = ItemTransitionsSettings(
        window=10,
        distance_power=0.5,
        distance_decay=1.0,
        backward=0.0,
        smoothing=11_250.0,
        history_power=0.0,
        history_decay=0.6,
        recent_items=1_000_000,
        recent_share=1.0,
        popularity_weight=-0.04,
    )
    sequences = inputs.load_any(real_file("amazon-5core-beauty.txt.gz"))[1]
    assert measure_test_items(sequences, settings) == pytest.approx(0.0633, abs=0.0005)
