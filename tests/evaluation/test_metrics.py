"""Metrics against plain Python, the level of random scores, and the comparison of two models."""

import itertools

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import AP, RR, P, R, Success, nDCG
from scipy import stats
from support.ranking_oracle import FEW, plain_metrics

from bert4rec_tf.evaluation.metrics import (
    METRICS,
    MIN_USERS,
    Difference,
    compute_difference,
    compute_distances_per_user,
    compute_metrics,
    compute_per_user,
    compute_random_metrics,
    name_metrics,
)
from bert4rec_tf.foundation.errors import UserError

# Metrics


@FEW
@given(st.lists(st.integers(0, 120), min_size=1, max_size=60))
def test_metrics_are_those_of_a_plain_loop(ranks):
    expected = plain_metrics(ranks)
    assert compute_metrics(np.array(ranks, np.int32)) == pytest.approx(expected)
    assert set(expected) == set(METRICS)


@FEW
@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.lists(st.integers(1, 25), min_size=1, max_size=3))
def test_metrics_at_any_cutoff_agree_with_ir_measures(ranks, cutoffs):
    """Each user has one relevant item, so its rank decides everything."""
    measures = {"hr": Success, "ndcg": nDCG, "map": AP, "precision": P, "recall": R}
    names = {f"{kind}@{cutoff}": measure @ cutoff for kind, measure in measures.items() for cutoff in cutoffs}
    names["mrr"] = RR
    qrels = [ir_measures.Qrel(str(user), "target", 1) for user in range(len(ranks))]
    run = [
        ir_measures.ScoredDoc(str(user), "target" if place == rank else str(place), -float(place))
        for user, rank in enumerate(ranks)
        for place in range(31)
    ]
    judged = ir_measures.calc_aggregate(names.values(), qrels, run)
    found = compute_metrics(np.array(ranks), name_metrics(cutoffs))
    assert found == pytest.approx({name: judged[measure] for name, measure in names.items()}, abs=1e-6)


@pytest.mark.parametrize("cutoffs", [0, [], [5, 0], [2.5], "10", True])
def test_a_cutoff_is_a_positive_integer(cutoffs):
    with pytest.raises(UserError, match="`k` must be integers of at least 1"):
        name_metrics(cutoffs)


def test_distances_are_those_of_a_plain_loop():
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(9, 4))
    vectors[8] = 0
    lists = np.array([[1, 2, 3, 8], [4, 5, 0, 0], [6, 0, 0, 0], [7, 1, 2, 0]])
    targets, histories = (
        np.array([3, 6, 6, 7]),
        [np.array([4, 5]), np.array([1]), np.array([1, 1, 8]), np.empty(0, int)],
    )

    def distance(one, other):
        lengths = np.linalg.norm(vectors[one]) * np.linalg.norm(vectors[other])
        return 1 - (vectors[one] @ vectors[other] / lengths if lengths else 0)

    for row, target, history, found in zip(
        lists.tolist(), targets, histories, compute_distances_per_user(lists, targets, histories, vectors)
    ):
        pairs = [distance(*pair) for pair in itertools.combinations([item for item in row if item], 2)]
        surprises = [distance(target, item) for item in history] if target in row else []
        assert found.tolist() == pytest.approx([np.mean(values) if values else 0 for values in (pairs, surprises)])


# Random scores


@FEW
@given(st.lists(st.integers(0, 40), min_size=1, max_size=10))
def test_random_level_is_the_mean_over_all_ranks_of_each_user(num_candidates):
    levels = [plain_metrics(range(count + 1)) for count in num_candidates]
    expected = {name: sum(level[name] for level in levels) / len(levels) for name in METRICS}
    assert compute_random_metrics(np.array(num_candidates)) == pytest.approx(expected)


# Two models


def two_models(gain, users=5_000, seed=6):
    """A metric that goes up and down with the user, and by how much the second model has more of it."""
    rng = np.random.default_rng(seed)
    common = rng.random(users)
    return common + 0.3 * rng.normal(size=users), common + gain + 0.4 * rng.normal(size=users)


@pytest.mark.parametrize("gain", [0.0, 0.01, -0.02, 0.05])
def test_a_difference_is_that_of_a_paired_test(gain):
    first, second = two_models(gain)
    found = compute_difference(first, second)
    judged = stats.ttest_rel(second, first)
    assert found.p_value == pytest.approx(judged.pvalue, rel=0.05, abs=1e-4)
    interval = judged.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-5)
    assert (found.first, found.second) == pytest.approx((first.mean(), second.mean()))
    assert found.mean == pytest.approx(second.mean() - first.mean())


def resample_mean(values, users, draws=4_000):
    """The standard deviation of the mean over cases when whole users are drawn with replacement."""
    rng, sums, counts = np.random.default_rng(8), np.bincount(users, values), np.bincount(users)
    samples = rng.integers(len(sums), size=(draws, len(sums)))
    return (sums[samples].sum(axis=1) / counts[samples].sum(axis=1)).std()


def test_cases_of_one_user_are_not_taken_as_independent():
    """Each user has one to four cases, whose gains are alike."""
    rng = np.random.default_rng(7)
    users = np.repeat(np.arange(400), rng.integers(1, 5, size=400))
    first = rng.random(len(users))
    second = first + 0.1 + rng.normal(size=400)[users] + 0.1 * rng.normal(size=len(users))
    names = np.array([f"u{user}" for user in range(400)], object)[users]
    clustered, naive = compute_difference(first, second, names), compute_difference(first, second)
    assert (clustered.first, clustered.second, clustered.mean) == (naive.first, naive.second, naive.mean)
    error = (clustered.high - clustered.low) / 2 / 1.96
    assert error == pytest.approx(resample_mean(second - first, users), rel=0.05)
    assert error > 1.4 * (naive.high - naive.low) / 2 / 1.96
    assert clustered.p_value == pytest.approx(2 * stats.norm.sf(abs(clustered.mean) / error))


def test_one_case_of_each_user_is_as_without_users():
    first, second = two_models(0.01)
    alone, expected = compute_difference(first, second, np.arange(len(first))), compute_difference(first, second)
    assert (alone.low, alone.high) == pytest.approx((expected.low, expected.high))
    with pytest.raises(UserError, match=r"At least 30 users .* Received: 29"):
        compute_difference(first[:58], second[:58], np.arange(58) % 29)


def test_a_run_does_not_differ_from_itself():
    ranks = compute_per_user("ndcg@10", np.random.default_rng(10).integers(40, size=100))
    mean = float(ranks.mean())
    assert compute_difference(ranks, ranks.copy()) == Difference(mean, mean, 0.0, 0.0, 0.0, 1.0)


def test_a_gain_that_is_the_same_for_everybody_is_certain():
    first = np.tile([0.0, 0.25, 0.5], 20)
    assert compute_difference(first, first + 0.5) == Difference(0.25, 0.75, 0.5, 0.5, 0.5, 0.0)
    assert compute_difference(first + 0.5, first) == Difference(0.75, 0.25, -0.5, -0.5, -0.5, 0.0)


def test_too_few_users_are_refused():
    first, second = two_models(0.1, MIN_USERS)
    assert MIN_USERS == 30
    assert compute_difference(first, second).high > 0
    with pytest.raises(UserError, match=r"At least 30 users .* Received: 29"):
        compute_difference(first[1:], second[1:])
