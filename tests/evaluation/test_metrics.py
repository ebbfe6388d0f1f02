"""Metrics against plain Python and ir_measures, the level of random scores, and the comparison of two models."""

import math

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.ranking_oracle import FEW, plain_metrics

from bert4rec_tf.evaluation.metrics import (
    METRICS,
    MIN_USERS,
    Difference,
    compute_difference,
    compute_metrics,
    compute_per_user,
    compute_random_metrics,
)
from bert4rec_tf.evaluation.ranker import rank_targets
from bert4rec_tf.foundation.errors import UserError

# Metrics


@FEW
@given(st.lists(st.integers(0, 120), min_size=1, max_size=60))
def test_metrics_are_those_of_a_plain_loop(ranks):
    expected = plain_metrics(ranks)
    assert compute_metrics(np.array(ranks, np.int32)) == pytest.approx(expected)
    assert set(expected) == set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_one_metric_of_every_user_comes_in_their_order(name):
    ranks = np.array([3, 0, 100, 9, 10, 4, 5, 1], np.int32)
    found = compute_per_user(name, ranks)
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx([plain_metrics([rank])[name] for rank in ranks.tolist()])


def test_ndcg_at_one_is_the_hit_rate_at_one():
    ranks = np.arange(4)
    np.testing.assert_array_equal(compute_per_user("ndcg@1", ranks), compute_per_user("hr@1", ranks))


def test_a_perfect_model_gets_one_everywhere():
    assert set(compute_metrics(np.zeros(3, np.int32)).values()) == {1.0}


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
    ours = compute_metrics(rank_targets(scores, candidates))
    assert ours == pytest.approx({name: judged[measure] for name, measure in names.items()}, abs=1e-6)
    assert 0.1 < ours["hr@10"] < 1


# Random scores


def test_random_level_with_100_negatives():
    expected = compute_random_metrics(np.full(7, 100))
    assert expected["hr@10"] == pytest.approx(10 / 101)
    assert expected["hr@10"] == pytest.approx(0.099, abs=5e-4)
    assert expected["ndcg@10"] == pytest.approx(0.045, abs=5e-4)
    assert expected["mrr"] == pytest.approx(sum(1 / place for place in range(1, 102)) / 101)


@FEW
@given(st.lists(st.integers(0, 40), min_size=1, max_size=10))
def test_random_level_is_the_mean_over_all_ranks_of_each_user(num_candidates):
    levels = [plain_metrics(range(count + 1)) for count in num_candidates]
    expected = {name: sum(level[name] for level in levels) / len(levels) for name in METRICS}
    assert compute_random_metrics(np.array(num_candidates)) == pytest.approx(expected)


def test_random_level_of_users_with_unequal_candidates_is_their_mean():
    one, three = compute_random_metrics(np.array([1])), compute_random_metrics(np.array([3]))
    mixed = compute_random_metrics(np.array([3, 1, 3]))
    assert mixed == pytest.approx({name: (one[name] + 2 * three[name]) / 3 for name in one})
    assert one["hr@1"] == pytest.approx(1 / 2) and three["hr@1"] == pytest.approx(1 / 4)


def test_a_user_without_negatives_is_always_right():
    assert set(compute_random_metrics(np.array([0])).values()) == {1.0}


@pytest.mark.parametrize("fewest", [100, 0])
def test_random_scores_reach_the_random_level(fewest):
    rng = np.random.default_rng(1)
    num_candidates = rng.integers(fewest, 101, size=40_000)
    candidates = np.where(np.arange(101) <= num_candidates[:, None], 1 + np.arange(101), 0)
    measured = compute_metrics(rank_targets(rng.random(candidates.shape), candidates))
    expected = compute_random_metrics(num_candidates)
    for name, value in expected.items():
        error = math.sqrt(value * (1 - value) / len(candidates))
        assert abs(measured[name] - value) < 4 * error, name


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


@FEW
@given(st.integers(30, 60), st.floats(-1, 1), st.integers(0, 99))
def test_a_difference_is_judged_by_the_normal_law(users, gain, seed):
    first, second = two_models(gain, users, seed)
    found = compute_difference(first, second)
    law = stats.norm(0, stats.sem(second - first))
    assert found.p_value == pytest.approx(2 * law.sf(abs(found.mean)), rel=1e-6)
    assert (found.low, found.high) == pytest.approx(stats.norm.interval(0.95, found.mean, law.std()), abs=1e-4)


def test_pairing_finds_what_two_separate_means_would_not():
    rng = np.random.default_rng(7)
    first = rng.random(200)
    second = first + 0.01 + 0.01 * rng.normal(size=200)
    assert compute_difference(first, second).p_value < 1e-6
    assert compute_difference(first, rng.permutation(second)).p_value > 0.05


def test_the_other_way_round_is_the_opposite():
    there, back = compute_difference(*two_models(0.02)), compute_difference(*two_models(0.02)[::-1])
    assert (back.first, back.second, back.p_value) == (there.second, there.first, there.p_value)
    assert (back.mean, back.low, back.high) == pytest.approx((-there.mean, -there.high, -there.low))


def test_users_in_another_order_make_no_difference():
    first, second = two_models(0.02)
    order = np.random.default_rng(8).permutation(len(first))
    shuffled, straight = compute_difference(first[order], second[order]), compute_difference(first, second)
    assert vars(shuffled) == pytest.approx(vars(straight), rel=1e-9)


@pytest.mark.parametrize("gain", ["none", "half the rank"])
def test_the_interval_holds_the_truth_in_95_of_100_cases(gain):
    """The metric is NDCG@10 of ranks from 0 to 19; two draws in three are the same user's rank for both models."""
    rng, repetitions, users = np.random.default_rng(9), 2_000, 300
    divisor = 1 if gain == "none" else 2
    all_ranks = np.arange(20)
    truth = (compute_per_user("ndcg@10", all_ranks // divisor) - compute_per_user("ndcg@10", all_ranks)).mean()
    covered = significant = 0
    for _ in range(repetitions):
        ranks, others = rng.integers(20, size=(2, users))
        second = np.where(rng.random(users) < 2 / 3, ranks, others)
        found = compute_difference(compute_per_user("ndcg@10", ranks), compute_per_user("ndcg@10", second // divisor))
        covered += found.low <= truth <= found.high
        significant += found.p_value < 0.05
    error = math.sqrt(0.95 * 0.05 / repetitions)
    assert abs(covered / repetitions - 0.95) < 4 * error
    if truth == 0:
        assert abs(significant / repetitions - 0.05) < 4 * error
    else:
        assert significant > 0.99 * repetitions


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
