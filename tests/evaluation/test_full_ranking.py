"""Ranking by products, block by block, against plain loops: ties, seen items, and a last block that is short."""

import math
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.ranking_oracle import FEW, make_sequences, plain_lists, plain_ranks

from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation import full_ranking, popularity_penalty
from bert4rec_tf.evaluation.candidates import SAMPLERS
from bert4rec_tf.evaluation.full_ranking import ProductScores
from bert4rec_tf.evaluation.metrics import COUNT_BASELINES, FULL, PROTOCOLS
from bert4rec_tf.evaluation.ranker import Ranker, RankingTask
from bert4rec_tf.models import MODELS

NUM_ITEMS, WIDTH, MOST_USERS = 45, 2, 9
RNG = np.random.default_rng(6)
TABLE = RNG.integers(-1, 2, (NUM_ITEMS + 3, WIDTH)).astype(np.float32)
BIAS = RNG.choice(np.array([0, 0, 1, -math.inf], np.float32), NUM_ITEMS + 3)
"""Scores are products of small whole numbers, so that many are equal."""


def no_scores(batch, candidates):
    raise AssertionError("only products are asked for")


@st.composite
def tasks(draw):
    history = st.lists(st.integers(1, NUM_ITEMS), min_size=3, max_size=12)
    histories = draw(st.lists(history, min_size=1, max_size=MOST_USERS - 1))
    split = LeaveOneOut(make_sequences([*map(np.array, histories), np.arange(1, NUM_ITEMS + 1)], NUM_ITEMS))
    negatives = {law: sample(split.sequences, split.users, 13, seed=0) for law, sample in SAMPLERS.items()}
    return RankingTask.from_split(split, "test", negatives, all_items=True, with_seen=True)


class Vectors:
    """Users' vectors that can be exchanged, so that one ranker serves all examples."""

    def __init__(self):
        self.table = tf.Variable(tf.zeros([MOST_USERS, WIDTH]))

    def __call__(self, batch):
        return tf.gather(self.table, batch["users"])


class Rounded(ProductScores):
    """The product of a single target rounds otherwise than that of a block."""

    def score_targets(self, vectors, targets):
        return np.nextafter(super().score_targets(vectors, targets), np.float32(1e9))


@pytest.fixture(scope="module")
def vectors():
    return Vectors()


@pytest.fixture(
    scope="module", params=[(8, ProductScores), (64, ProductScores), (8, Rounded)], ids=["six blocks", "one", "rounded"]
)
def ranker(request, vectors):
    block, kind = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(full_ranking, "BLOCK", block)
        patch.setattr(full_ranking, "PART", 20)
        yield Ranker(no_scores, batch_size=4, products=kind(vectors, TABLE, [BIAS], NUM_ITEMS))


@FEW
@given(tasks(), st.integers(0, 2**32))
def test_ranks_and_lists_are_those_of_plain_loops(ranker, vectors, task, seed):
    users = np.random.default_rng(seed).integers(-1, 2, (MOST_USERS, WIDTH)).astype(np.float32)
    vectors.table.assign(users)
    scores = users @ TABLE[1 : NUM_ITEMS + 1].T + BIAS[1 : NUM_ITEMS + 1]
    found = ranker.rank_and_list(task)
    expected = plain_ranks(task, lambda user, history, item: scores[user, item - 1])
    assert {protocol: ranks.tolist() for protocol, ranks in found.ranks.items()} == expected
    for protocol in found.list_counts:
        listed = Counter(item for row in plain_lists(task, protocol, scores) for item in row)
        counts = {item: times for item, times in enumerate(found.list_counts[protocol].tolist()) if times and item}
        assert counts == listed, protocol


@pytest.mark.parametrize("whose", ["target", "seen", "unseen"])
def test_nan_of_any_item_is_an_error(whose):
    split = LeaveOneOut(make_sequences([np.array([1, 2, 3, 4])], 6))
    task = RankingTask.from_split(split, "test", {"popular": np.array([[5]], np.int32)}, all_items=True)
    table = np.ones((7, 1), np.float32)
    table[{"target": 4, "seen": 1, "unseen": 6}[whose]] = math.nan
    products = ProductScores(lambda batch: tf.ones([tf.size(batch["users"]), 1]), table, [], 6)
    with pytest.raises(ValueError, match="NaN"):
        Ranker(no_scores, products=products).rank(task)


@pytest.mark.parametrize(
    ("name", "alpha"),
    [("bpr_mf", None), ("fpmc", 0.5), ("pop", None), ("item_transitions", None), ("item_transitions", 0.5)],
)
def test_a_models_products_rank_as_its_scores_do(name, alpha, monkeypatch):
    monkeypatch.setattr(full_ranking, "BLOCK", 16)
    monkeypatch.setattr(full_ranking, "STRIP", 8)
    monkeypatch.setattr(full_ranking, "PART", 64)
    rng = np.random.default_rng(8)
    histories = [rng.integers(1, NUM_ITEMS + 1, length) for length in rng.integers(3, 9, 40)]
    split = LeaveOneOut(make_sequences([*histories, np.arange(1, NUM_ITEMS + 1)], NUM_ITEMS))
    negatives = {law: sample(split.sequences, split.users, 10, seed=0) for law, sample in SAMPLERS.items()}
    task = RankingTask.from_split(split, "test", negatives, all_items=True)
    if name in COUNT_BASELINES:
        model = MODELS[name](NUM_ITEMS)
        model.adapt(split.training(with_validation=True))
    else:
        model = MODELS[name](NUM_ITEMS, num_users=split.sequences.num_users, hidden_dim=4)
        for weight in model.trainable_variables:
            weight.assign(rng.integers(-2, 3, weight.shape))
    correction = (
        None if alpha is None else (popularity_penalty.compute_log_counts(split.sequences.count_items()[1:]), alpha)
    )
    score = model.score if alpha is None else popularity_penalty.correct_scores(model.score, *correction)
    rankers = popularity_penalty.make_ranker(model, correction), Ranker(score, model.max_history)
    found, expected = (ranker.rank_and_list(task) for ranker in rankers)
    if name == "item_transitions" and alpha is None:  # as a baseline, without a model
        training, settings = split.training(with_validation=True), model.settings.resolve()
        scores = full_ranking.EvidenceScores.from_sequences(training, settings, model.max_history)
        found = Ranker(no_scores, model.max_history, products=scores).rank_and_list(task)
    for protocol in PROTOCOLS:
        np.testing.assert_array_equal(found.ranks[protocol], expected.ranks[protocol])
        np.testing.assert_array_equal(found.list_counts[protocol], expected.list_counts[protocol])
    assert len(set(found.ranks[FULL].tolist())) > 10
