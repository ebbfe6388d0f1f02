"""Candidates and their law, ranks with ties and NaN, metrics against plain Python and ir_measures, and the Ranker."""

import math
from collections import Counter

import ir_measures
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bert4rec_tf import evaluation
from bert4rec_tf.data import datasets
from bert4rec_tf.evaluation import Ranker, RankingTask, draw_popular, metrics, random_metrics, rank_targets
from bert4rec_tf.models.pop import Pop
from bert4rec_tf.sequences import LeaveOneOut, Sequences, Vocabulary

FEW = settings(deadline=None, max_examples=50)


def make_sequences(histories, num_items):
    items = np.concatenate(histories).astype(np.int32)
    splits = np.concatenate([[0], np.cumsum([len(history) for history in histories])]).astype(np.int64)
    names = np.array([f"item{item}" for item in range(1, num_items + 1)], object)
    users = np.array([f"user{user}" for user in range(len(histories))], object)
    counts = np.bincount(items, minlength=num_items + 1)[1:]
    return Sequences(items, splits, users, Vocabulary(names, counts))


def plain_metrics(ranks):
    total = Counter()
    for rank in ranks:
        for k in (1, 5, 10):
            total[f"hr@{k}"] += rank < k
        for k in (5, 10):
            total[f"ndcg@{k}"] += 1 / math.log2(rank + 2) if rank < k else 0
        total["mrr"] += 1 / (rank + 1)
    return {name: value / len(ranks) for name, value in total.items()}


def plain_rank(scores, candidates):
    pairs = zip(scores[1:], candidates[1:], strict=True)
    return sum(1 for score, candidate in pairs if candidate != 0 and score >= scores[0])


# Metrics


@FEW
@given(st.lists(st.integers(0, 120), min_size=1, max_size=60))
def test_metrics_are_those_of_a_plain_loop(ranks):
    expected = plain_metrics(ranks)
    assert metrics(np.array(ranks, np.int32)) == pytest.approx(expected)
    assert set(expected) == set(evaluation.METRICS)


def test_a_perfect_model_gets_one_everywhere():
    assert set(metrics(np.zeros(3, np.int32)).values()) == {1.0}


def test_metrics_agree_with_ir_measures():
    rng = np.random.default_rng(0)
    candidates = np.stack([rng.permutation(500)[:31] + 1 for _ in range(80)])
    scores = np.stack([rng.permutation(31) for _ in range(80)]).astype(np.float32)
    scores[:40, 0] += 25.5
    qrels = [ir_measures.Qrel(str(user), str(row[0]), 1) for user, row in enumerate(candidates)]
    run = [
        ir_measures.ScoredDoc(str(user), str(item), float(score))
        for user in range(80)
        for item, score in zip(candidates[user], scores[user], strict=True)
    ]
    names = {f"hr@{k}": ir_measures.Success @ k for k in (1, 5, 10)}
    names |= {f"ndcg@{k}": ir_measures.nDCG @ k for k in (5, 10)} | {"mrr": ir_measures.RR}
    judged = ir_measures.calc_aggregate(names.values(), qrels, run)
    ours = metrics(rank_targets(scores, candidates))
    assert ours == pytest.approx({name: judged[measure] for name, measure in names.items()}, abs=1e-6)
    assert 0.1 < ours["hr@10"] < 1


def test_random_level_with_100_negatives():
    expected = random_metrics(np.full(7, 100))
    assert expected["hr@10"] == pytest.approx(10 / 101)
    assert expected["hr@10"] == pytest.approx(0.099, abs=5e-4)
    assert expected["ndcg@10"] == pytest.approx(0.045, abs=5e-4)
    assert expected["mrr"] == pytest.approx(sum(1 / place for place in range(1, 102)) / 101)


def test_random_level_of_users_with_unequal_candidates_is_their_mean():
    one, three = random_metrics(np.array([1])), random_metrics(np.array([3]))
    mixed = random_metrics(np.array([3, 1, 3]))
    assert mixed == pytest.approx({name: (one[name] + 2 * three[name]) / 3 for name in one})
    assert one["hr@1"] == pytest.approx(1 / 2) and three["hr@1"] == pytest.approx(1 / 4)


def test_a_user_without_negatives_is_always_right():
    assert set(random_metrics(np.array([0])).values()) == {1.0}


@pytest.mark.parametrize("fewest", [100, 0])
def test_random_scores_reach_the_random_level(fewest):
    rng = np.random.default_rng(1)
    num_candidates = rng.integers(fewest, 101, size=40_000)
    candidates = np.where(np.arange(101) <= num_candidates[:, None], 1 + np.arange(101), 0)
    measured = metrics(rank_targets(rng.random(candidates.shape), candidates))
    expected = random_metrics(num_candidates)
    for name, value in expected.items():
        error = math.sqrt(value * (1 - value) / len(candidates))
        assert abs(measured[name] - value) < 4 * error, name


# Ranks


@FEW
@given(st.data())
def test_ranks_are_those_of_a_plain_loop(data):
    users, width = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 8))
    value = st.sampled_from([-math.inf, -1.5, 0.0, 0.25, 1.0, 3.0, math.inf])
    row = st.lists(value, min_size=width + 1, max_size=width + 1)
    scores = np.array(data.draw(st.lists(row, min_size=users, max_size=users)), np.float32)
    negatives = st.lists(st.integers(0, 9), min_size=width, max_size=width)
    candidates = np.array([[10, *data.draw(negatives)] for _ in range(users)], np.int32)
    expected = [plain_rank(*rows) for rows in zip(scores, candidates, strict=True)]
    assert rank_targets(scores, candidates).tolist() == expected


def test_a_constant_scorer_hits_nothing():
    candidates = np.tile(np.arange(1, 102, dtype=np.int32), (5, 1))
    ranks = rank_targets(np.full((5, 101), 0.5, np.float32), candidates)
    assert ranks.tolist() == [100] * 5
    assert metrics(ranks)["hr@10"] == 0


def test_a_constant_scorer_ranks_behind_every_real_candidate_only():
    candidates = np.array([[4, 1, 2, 0], [4, 0, 0, 0]], np.int32)
    assert rank_targets(np.zeros((2, 4), np.float32), candidates).tolist() == [2, 0]


def test_padded_candidates_never_count():
    candidates = np.array([[3, 1, 0, 0]], np.int32)
    assert rank_targets(np.array([[0.5, 0.1, 9.0, math.inf]]), candidates).tolist() == [0]


@pytest.mark.parametrize("column", [0, 1, 2])
def test_nan_of_a_real_candidate_is_an_error(column):
    scores = np.zeros((2, 4), np.float32)
    scores[1, column] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        rank_targets(scores, np.array([[3, 1, 2, 0], [3, 1, 2, 0]], np.int32))


def test_nan_of_a_padded_candidate_is_none():
    scores = np.array([[1.0, 2.0, math.nan]])
    assert rank_targets(scores, np.array([[3, 1, 0]], np.int32)).tolist() == [1]


# Candidates


@st.composite
def any_histories(draw):
    num_items = draw(st.integers(2, 25))
    item = st.integers(1, num_items)
    histories = draw(st.lists(st.lists(item, min_size=1, max_size=40), min_size=1, max_size=8))
    return make_sequences([*map(np.array, histories), np.arange(1, num_items + 1)], num_items)


@FEW
@given(any_histories(), st.integers(1, 30), st.integers(0, 3), st.sampled_from([1, 60, 1 << 25]))
def test_candidates_are_unseen_and_distinct_and_as_many_as_there_are(sequences, num_negatives, seed, block_elements):
    users = np.arange(sequences.num_users)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "BLOCK_ELEMENTS", block_elements)
        drawn = draw_popular(sequences, users, num_negatives, seed)
    assert drawn.shape == (len(users), num_negatives) and drawn.dtype == np.int32
    for user in users:
        unseen = set(range(1, sequences.num_items + 1)) - set(sequences[user].tolist())
        size = min(num_negatives, len(unseen))
        candidates = drawn[user, :size].tolist()
        assert len(set(candidates)) == size and set(candidates) <= unseen
        assert not drawn[user, size:].any()


def test_fewer_unseen_items_than_wanted_gives_all_of_them_then_zeros():
    sequences = make_sequences([np.array([1, 2, 3]), np.arange(1, 7), np.array([6, 6])], 6)
    drawn = draw_popular(sequences, np.arange(3), 5, seed=0)
    assert sorted(drawn[0, :3].tolist()) == [4, 5, 6] and drawn[0, 3:].tolist() == [0, 0]
    assert drawn[1].tolist() == [0] * 5
    assert sorted(drawn[2].tolist()) == [1, 2, 3, 4, 5]


def test_held_out_items_are_never_candidates():
    sequences = make_sequences([np.array([1, 2, 3, 4]), np.arange(1, 9)], 8)
    split = LeaveOneOut(sequences)
    drawn = draw_popular(sequences, np.zeros(300, np.int64), 4, seed=0)
    assert split.targets("validation")[0] == 3 and split.targets("test")[0] == 4
    assert not np.isin(drawn, [1, 2, 3, 4]).any()


def test_the_same_seed_gives_the_same_candidates_and_another_seed_others():
    rng = np.random.default_rng(2)
    sequences = make_sequences([rng.integers(1, 101, size=20) for _ in range(30)] + [np.arange(1, 101)], 100)
    users = np.arange(30)
    first, again, other = (draw_popular(sequences, users, 10, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()


def test_candidates_follow_the_order_of_the_users_asked_for():
    sequences = make_sequences([np.arange(1, 6), np.arange(6, 11), np.arange(1, 11)], 10)
    drawn = draw_popular(sequences, np.array([1, 0, 1]), 5, seed=0)
    assert [sorted(row) for row in drawn.tolist()] == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [1, 2, 3, 4, 5]]


NUM_USERS = 6_000
HISTORY = [2, 3, 11]


def crowd(weights, repeats=1):
    """Many users with one and the same history, and one whose actions give every item its weight."""
    shared = np.tile(HISTORY, repeats)
    rest = np.repeat(np.arange(1, len(weights) + 1), weights)
    return make_sequences([shared] * NUM_USERS + [rest], len(weights))


def ordered_law(weights, size):
    """The probability of every ordered draw, one at a time, each in proportion to its weight among what is left."""
    if size == 0:
        return {(): 1.0}
    total = sum(weights.values())
    law = {}
    for item, weight in weights.items():
        others = {other: value for other, value in weights.items() if other != item}
        for tail, probability in ordered_law(others, size - 1).items():
            law[(item, *tail)] = probability * weight / total
    return law


def p_value(drawn, law, columns):
    """Chi-square of what was drawn at `columns`, cells that expect fewer than five put together."""
    expected, observed = Counter(), Counter(map(tuple, drawn[:, columns].tolist()))
    for draws, probability in law.items():
        expected[tuple(draws[column] for column in columns)] += probability * len(drawn)
    assert set(observed) <= set(expected)
    large = [cell for cell, value in expected.items() if value >= 5]
    assert len(large) > 10
    pairs = [(observed[cell], expected[cell]) for cell in large]
    if len(large) < len(expected):
        pairs.append(tuple(len(drawn) - sum(column) for column in zip(*pairs, strict=True)))
    return stats.chisquare(*zip(*pairs, strict=True), sum_check=False).pvalue


SKEWED = {
    "rejection": np.rint(60_000 / np.arange(1, 21) ** 1.1).astype(int),
    "rejection and race": np.rint(300 / np.arange(1, 21) ** 1.1).astype(int),
    "race": np.arange(20, 0, -1),
}


@pytest.fixture(scope="module", params=SKEWED)
def popular_draws(request):
    weights = SKEWED[request.param]
    raced = []

    def spy(counts, free, size, rng):
        raced.append(size)
        return original(counts, free, size, rng)

    original = evaluation._race
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_race", spy)
        drawn = draw_popular(crowd(weights, repeats=50 if request.param == "race" else 1), np.arange(NUM_USERS), 3, 7)
    free = {item: int(weight) for item, weight in enumerate(weights, start=1) if item not in HISTORY}
    return request.param, drawn, ordered_law(free, 3), Counter(raced)


@pytest.mark.parametrize("columns", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]], ids=str)
def test_candidates_obey_the_law_of_draws_one_by_one(popular_draws, columns):
    _, drawn, law, _ = popular_draws
    assert sum(law.values()) == pytest.approx(1)
    assert p_value(drawn, law, columns) > 1e-4


def test_items_are_included_as_often_as_the_law_says(popular_draws):
    _, drawn, law, _ = popular_draws
    included = np.bincount(drawn.ravel(), minlength=21)[1:] / NUM_USERS
    expected = np.zeros(20)
    for draws, probability in law.items():
        expected[np.array(draws) - 1] += probability
    assert not included[np.array(HISTORY) - 1].any()
    error = np.sqrt(expected * (1 - expected) / NUM_USERS)
    assert (np.abs(included - expected) <= 4 * error).all()


def test_the_law_is_tested_on_both_paths(popular_draws):
    name, _, _, raced = popular_draws
    if name == "rejection":
        assert sum(raced.values()) < 0.01 * NUM_USERS
    elif name == "race":
        assert raced[3] > 0.9 * NUM_USERS
    else:
        assert all(raced[size] > 0.03 * NUM_USERS for size in (1, 2, 3))


def test_the_law_s_test_tells_it_from_uniform_draws():
    rng = np.random.default_rng(3)
    weights = {item: 20 - item for item in range(1, 15)}
    uniform = np.stack([rng.permutation(14)[:3] + 1 for _ in range(NUM_USERS)])
    assert p_value(uniform, ordered_law(weights, 3), [0]) < 1e-6


def test_candidates_end_where_one_item_has_nearly_all_actions():
    sequences = make_sequences([np.ones(50_000), np.arange(1, 41)], 40)
    drawn = draw_popular(sequences, np.array([0]), 39, seed=0)
    assert sorted(drawn[0].tolist()) == list(range(2, 41))


# Ranker


def toy_score(batch, candidates):
    """Depends on the user, on every item that is kept and on its place; not on the padding."""
    places = 1 + tf.range(tf.shape(batch["items"])[1])
    read = tf.reduce_sum(batch["items"] * places, axis=1) + batch["lengths"]
    return tf.cast((candidates * (1 + read)[:, None] + 7 * batch["users"][:, None]) % 41, tf.float32)


def plain_toy_rank(user, history, candidates):
    read = sum(place * item for place, item in enumerate(history, start=1)) + len(history)
    return plain_rank([(candidate * (1 + read) + 7 * user) % 41 for candidate in candidates], candidates)


def random_task(part="test", num_negatives=20):
    rng = np.random.default_rng(4)
    histories = [rng.permutation(30)[:length] + 1 for length in rng.integers(1, 28, size=70)]
    split = LeaveOneOut(make_sequences([*histories, np.arange(1, 31)], 30))
    return RankingTask.of(split, part, draw_popular(split.sequences, split.users, num_negatives, seed=1))


@pytest.mark.parametrize("part", ["validation", "test"])
@pytest.mark.parametrize("max_history", [None, 1, 5, 100])
def test_ranker_does_what_a_loop_over_users_does(part, max_history):
    task = random_task(part)
    ranks = Ranker(toy_score, max_history, batch_size=16).ranks(task)
    expected = []
    for user, candidates in zip(task.users.tolist(), task.candidates.tolist(), strict=True):
        history = task.histories[user].tolist()
        expected.append(plain_toy_rank(user, history[-max_history:] if max_history else history, candidates))
    assert ranks.tolist() == expected
    assert len(set(expected)) > 5


def test_max_history_changes_what_is_read():
    task = random_task()
    assert (Ranker(toy_score, 2).ranks(task) != Ranker(toy_score).ranks(task)).any()


@pytest.mark.parametrize("batch_size", [1, 7, 1_000])
def test_ranks_do_not_depend_on_the_batch_size(batch_size):
    task = random_task()
    np.testing.assert_array_equal(Ranker(toy_score, 9, batch_size).ranks(task), Ranker(toy_score, 9, 16).ranks(task))


def test_ranks_come_in_the_order_of_the_users():
    task = random_task()
    order = np.random.default_rng(5).permutation(len(task.users))
    shuffled = RankingTask(task.histories, task.users[order], task.targets[order], task.negatives[order])
    ranker = Ranker(toy_score, batch_size=8)
    np.testing.assert_array_equal(ranker.ranks(shuffled), ranker.ranks(task)[order])


def test_one_ranker_measures_several_tasks():
    ranker = Ranker(toy_score, 5)
    for task in (random_task("test", 20), random_task("validation", 3)):
        np.testing.assert_array_equal(ranker.ranks(task), Ranker(toy_score, 5).ranks(task))


def test_ranker_refuses_nan():
    with pytest.raises(ValueError, match="NaN"):
        Ranker(lambda batch, candidates: tf.fill(tf.shape(candidates), math.nan)).ranks(random_task())


def test_ranker_takes_nan_for_no_candidate():
    task = random_task(num_negatives=29)
    assert (task.negatives == 0).any()

    def score(batch, candidates):
        return tf.where(candidates > 0, toy_score(batch, candidates), math.nan)

    np.testing.assert_array_equal(Ranker(score).ranks(task), Ranker(toy_score).ranks(task))


def test_a_task_puts_the_target_first_and_counts_the_others():
    split = LeaveOneOut(make_sequences([np.array([1, 2, 3, 4]), np.array([5, 1])], 5))
    negatives = np.array([[5, 0]], np.int32)
    test, validation = (RankingTask.of(split, part, negatives) for part in ("test", "validation"))
    assert test.users.tolist() == [0]
    assert test.candidates.tolist() == [[4, 5, 0]] and validation.candidates.tolist() == [[3, 5, 0]]
    assert test.num_candidates.tolist() == [1]
    assert test.histories[0].tolist() == [1, 2, 3] and validation.histories[0].tolist() == [1, 2]


# POP


def test_pop_ranks_by_training_counts():
    split = LeaveOneOut(make_sequences([np.array(row) for row in ([1, 2, 3], [1, 3, 2], [2, 1, 4], [1, 5])], 5))
    model = Pop(5)
    model.adapt(split.training(with_validation=True))
    assert model.counts.numpy().tolist() == [0, 4, 2, 1, 0, 1]
    negatives = np.array([[4, 5, 0], [4, 5, 0], [3, 5, 0]], np.int32)
    ranks = Ranker(model.score).ranks(RankingTask.of(split, "test", negatives))
    assert ranks.tolist() == [1, 0, 2]


def test_pop_scores_all_items_as_it_scores_candidates():
    model = Pop(4)
    model.adapt(make_sequences([np.array([1, 1, 1, 2, 2, 4])], 4))
    batch = {"users": np.zeros(2, np.int32), "items": np.ones((2, 3), np.int32), "lengths": np.ones(2, np.int32)}
    assert np.asarray(model.score(batch)).tolist() == [[3, 2, 0, 1]] * 2
    assert np.asarray(model.score(batch, np.array([[4, 1], [3, 2]]))).tolist() == [[1, 3], [0, 2]]


def test_pop_is_below_random_on_beauty_with_popular_negatives(real_data):
    split = LeaveOneOut(real_data("beauty"))
    task = RankingTask.of(split, "test", draw_popular(split.sequences, split.users, 100, seed=0))
    assert (task.num_candidates == 100).all()
    model = Pop(split.sequences.num_items)
    model.adapt(split.training(with_validation=True))
    measured = metrics(Ranker(model.score).ranks(task))
    published = datasets.paper()["table2"]["beauty"]["pop"]["hr@10"]
    assert published == 0.0762
    assert measured["hr@10"] < random_metrics(task.num_candidates)["hr@10"]
    assert measured["hr@10"] == pytest.approx(published, abs=0.015)
