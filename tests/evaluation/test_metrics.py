"""Metrics against plain Python, ranx and RecTools, the level of random scores, and the comparison of two models."""

import numpy as np
import pandas as pd
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
from bert4rec_tf.foundation.errors import UserError

# Metrics


@FEW
@given(st.lists(st.integers(0, 120), min_size=1, max_size=60))
def test_metrics_are_those_of_a_plain_loop(ranks):
    expected = plain_metrics(ranks)
    assert compute_metrics(np.array(ranks, np.int32)) == pytest.approx(expected)
    assert set(expected) == set(METRICS)


# Other packages

LISTED = 40
CUTOFFS = (1, 3, 5, 10, 20)
NAMES = [f"{kind}@{cutoff}" for kind in ("hr", "ndcg") for cutoff in CUTOFFS]


def judge_with_ranx(ranks):
    ranx = pytest.importorskip("ranx")
    truth = ranx.Qrels({f"user {user}": {"target": 1} for user in range(len(ranks))})
    lists = {
        f"user {user}": {"target" if place == rank else f"item {place}": LISTED - place for place in range(LISTED)}
        for user, rank in enumerate(ranks.tolist())
    }
    names = {name: name.replace("hr", "hit_rate") for name in NAMES} | {"mrr": "mrr"}
    judged = ranx.evaluate(truth, ranx.Run(lists), list(names.values()))
    return {name: judged[theirs] for name, theirs in names.items()}


def judge_with_rectools(ranks):
    metrics = pytest.importorskip("rectools.metrics")
    users, places = np.repeat(np.arange(len(ranks)), LISTED), np.tile(np.arange(LISTED), len(ranks))
    items = np.where(places == ranks[users], 0, 1 + places)
    lists = pd.DataFrame({"user_id": users, "item_id": items, "rank": 1 + places})
    truth = pd.DataFrame({"user_id": np.arange(len(ranks)), "item_id": 0})
    theirs = {f"hr@{cutoff}": metrics.HitRate(cutoff) for cutoff in CUTOFFS} | {"mrr": metrics.MRR(LISTED)}
    theirs |= {f"ndcg@{cutoff}": metrics.NDCG(cutoff, divide_by_achievable=True) for cutoff in CUTOFFS}
    return metrics.calc_metrics(theirs, lists, truth)


@pytest.mark.slow
@pytest.mark.parametrize("judge", [judge_with_ranx, judge_with_rectools])
def test_metrics_are_those_of_another_package(judge):
    ranks = np.minimum(np.random.default_rng(5).geometric(0.08, 3_000) - 1, LISTED - 1)
    ours = {name: compute_per_user(name, ranks).mean() for name in [*NAMES, "mrr"]}
    assert judge(ranks) == pytest.approx(ours, rel=0, abs=1e-12)
    assert 0.05 < ours["hr@1"] < ours["ndcg@20"] < ours["hr@20"] < 1


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
