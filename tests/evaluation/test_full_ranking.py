"""Ranking by models, in one block of items and in several, against plain loops: ties, seen items, a last block."""

import dataclasses
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT
from support.ranking_oracle import FEW, make_sequences, plain_lists, plain_ranks

from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation import ranking
from bert4rec_tf.evaluation.candidates import SAMPLERS
from bert4rec_tf.evaluation.metrics import ANY, FULL, PROTOCOLS
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.foundation import devices
from bert4rec_tf.models import MODELS, BprMf
from bert4rec_tf.nn import evidence

NUM_ITEMS, WIDTH, MOST_USERS = 45, 2, 9
RNG = np.random.default_rng(6)
TABLE = RNG.integers(-1, 2, (NUM_ITEMS + 1, WIDTH)).astype(np.float32)
BIAS = RNG.choice(np.array([0, 0, 1, -math.inf], np.float32), NUM_ITEMS + 1)
"""Scores are products of small whole numbers, so that many are equal; some items have no score."""


@st.composite
def tasks(draw):
    history = st.lists(st.integers(1, NUM_ITEMS), min_size=3, max_size=12)
    histories = draw(st.lists(history, min_size=1, max_size=MOST_USERS - 1))
    split = LeaveOneOut(make_sequences([*map(np.array, histories), np.arange(1, NUM_ITEMS + 1)], NUM_ITEMS))
    negatives = {law: sample(split.sequences, split.users, 13, seed=0) for law, sample in SAMPLERS.items()}
    task = RankingTask.from_split(split, "test", negatives, all_items=True, with_seen=draw(st.booleans()))
    if draw(st.booleans()):
        return task
    others = [draw(st.lists(st.integers(1, NUM_ITEMS), max_size=5)) for _ in split.sequences.users]
    excluded = [np.append(task.histories[user], items).astype(int) for user, items in enumerate(others)]
    return dataclasses.replace(task, excluded=make_sequences(excluded, NUM_ITEMS))


@pytest.fixture(scope="module", params=[8, 64], ids=["six blocks", "one"])
def ranker(request):
    """A ranker whose targets' expected scores are sometimes wrong, as a product of another shape may round."""
    model = BprMf(NUM_ITEMS, num_users=MOST_USERS, hidden_dim=WIDTH)
    model.items.assign(TABLE)
    model.bias.assign(BIAS)
    expect = ranking.expect_scores
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "MAX_ITEMS", request.param)
        patch.setattr(ranking, "BLOCK_ITEMS", 8)
        patch.setattr(ranking, "expect_scores", lambda *inputs: expect(*inputs) + 1e-3 * (request.param == 8))
        yield Ranker(model, batch_size=4), model


@FEW
@given(tasks(), st.integers(0, 2**32))
def test_ranks_and_lists_are_those_of_plain_loops(ranker, task, seed):
    ranker, model = ranker
    users = np.random.default_rng(seed).integers(-1, 2, (MOST_USERS, WIDTH)).astype(np.float32)
    model.users.assign(users)
    scores = users @ TABLE[1:].T + BIAS[1:]
    found = ranker.rank_and_list(task)
    expected = plain_ranks(task, lambda user, history, item: scores[user, item - 1])
    assert {protocol: ranks.tolist() for protocol, ranks in found.ranks.items()} == expected
    np.testing.assert_equal(ranker.rank(task), found.ranks)
    for protocol in found.list_counts:
        listed = Counter(item for row in plain_lists(task, protocol, scores) for item in row)
        counts = {item: times for item, times in enumerate(found.list_counts[protocol].tolist()) if times and item}
        assert counts == listed, protocol


STRENGTHS = RNG.integers(0, 3, (NUM_ITEMS + 1, NUM_ITEMS + 1)) * RNG.integers(0, 2, (NUM_ITEMS + 1, NUM_ITEMS + 1))
STRENGTHS[0] = STRENGTHS[:, 0] = STRENGTHS[NUM_ITEMS - 5 :] = 0
SHARES = RNG.integers(-2, 3, NUM_ITEMS + 1)
"""Evidence of small whole numbers, so that sums are exact in every order; the last items point to none."""


@pytest.fixture(scope="module", params=[evidence.PAIRS, evidence.ROWS, evidence.PRODUCT])
def counting_ranker(request):
    model = MODELS["item_transitions"](NUM_ITEMS, max_history=5)
    first, second = np.nonzero(STRENGTHS)
    splits = np.searchsorted(first, np.arange(NUM_ITEMS + 2))
    model.evidence.assign(splits, second, STRENGTHS[first, second], SHARES, np.tri(6, 5, -1))
    model.evidence.mix.assign([1.0, 1.0, 1.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "choose_sum", lambda num_items: request.param)
        yield Ranker(model, batch_size=4)


@FEW
@given(tasks())
def test_every_sum_of_evidence_ranks_as_plain_loops_do(counting_ranker, task):
    def score(user, history, item):
        return sum(int(STRENGTHS[seen, item]) for seen in history[-5:]) + int(SHARES[item])

    found = counting_ranker.rank(task)
    assert {protocol: ranks.tolist() for protocol, ranks in found.items()} == plain_ranks(task, score)


@pytest.mark.gpu
def test_the_same_holds_on_a_gpu():
    """Sums of logarithms are left out: there, their last bits depend on the order of the terms."""
    if not devices.has_accelerator():
        pytest.skip("TensorFlow sees no GPU")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-k", "not item_transitions", __file__]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


@pytest.mark.parametrize("histories", [[[1, 2, 1]], [[1, 1, 1]], [[2, 1, 3]], [[3, 2, 1, 2, 3, 1], [1, 2, 3]]])
def test_the_smallest_data_are_ranked(histories):
    """One user, one item, a user who has seen everything, repeats, and items that training never sees."""
    num_items = max(map(max, histories))
    split = LeaveOneOut(make_sequences([*map(np.array, histories)], num_items))
    negatives = {law: sample(split.sequences, split.users, 2, seed=0) for law, sample in SAMPLERS.items()}
    task = RankingTask.from_split(split, "test", negatives, all_items=True, with_seen=True)
    for name in ("pop", "item_transitions"):
        model = MODELS[name](num_items)
        model.adapt(split.training(with_validation=True))
        items, lengths = task.histories.take_last(task.users, 10)
        scores = model.score({"users": task.users.astype(np.int32), "items": items, "lengths": lengths}).numpy()
        rows = {user: row for row, user in enumerate(task.users.tolist())}
        expected = plain_ranks(task, lambda user, history, item: scores[rows[user], item - 1])  # noqa: B023
        assert {name: ranks.tolist() for name, ranks in Ranker(model).rank(task).items()} == expected


@pytest.mark.parametrize("whose", ["target", "seen", "unseen"])
@pytest.mark.parametrize("block_items", [3, 64])
def test_nan_of_any_item_is_an_error(whose, block_items, monkeypatch):
    monkeypatch.setattr(ranking, "MAX_ITEMS", block_items)
    monkeypatch.setattr(ranking, "BLOCK_ITEMS", 3)
    split = LeaveOneOut(make_sequences([np.array([1, 2, 3, 4])], 6))
    task = RankingTask.from_split(split, "test", {"popular": np.array([[5]], np.int32)}, all_items=True)
    model = BprMf(6, num_users=1, hidden_dim=1)
    table = np.ones((7, 1), np.float32)
    table[{"target": 4, "seen": 1, "unseen": 6}[whose]] = math.nan
    model.items.assign(table)
    with pytest.raises(ValueError, match="NaN"):
        Ranker(model).rank(task)


@pytest.mark.parametrize("way", [evidence.PAIRS, evidence.ROWS, evidence.PRODUCT])
@pytest.mark.parametrize("name", ["bpr_mf", "fpmc", "pop", "item_transitions"])
def test_a_model_ranks_as_its_scores_do(name, way, monkeypatch):
    if name != "item_transitions" and way != evidence.PAIRS:
        pytest.skip("has no evidence")
    monkeypatch.setattr(ranking, "MAX_ITEMS", 16)
    monkeypatch.setattr(ranking, "BLOCK_ITEMS", 16)
    monkeypatch.setattr(evidence, "choose_sum", lambda num_items: way)
    rng = np.random.default_rng(8)
    histories = [rng.integers(1, NUM_ITEMS + 1, length) for length in rng.integers(3, 9, 40)]
    split = LeaveOneOut(make_sequences([*histories, np.arange(1, NUM_ITEMS + 1)], NUM_ITEMS))
    negatives = {law: sample(split.sequences, split.users, 10, seed=0) for law, sample in SAMPLERS.items()}
    task = RankingTask.from_split(split, "test", negatives, all_items=True, with_seen=True)
    if name in ("pop", "item_transitions"):
        exact = {"distance_power": 0.0, "distance_decay": 0.5} if name == "item_transitions" else {}
        model = MODELS[name](NUM_ITEMS, **exact)
        model.adapt(split.training(with_validation=True))
    else:
        model = MODELS[name](NUM_ITEMS, num_users=split.sequences.num_users, hidden_dim=4)
        for weight in model.trainable_variables:
            weight.assign(rng.integers(-2, 3, weight.shape))

    def score(batch, candidates):
        assert candidates is None
        return model.score(batch)

    found, expected = (one.rank_and_list(task, with_lists=True) for one in (Ranker(model), Ranker(score)))
    for protocol in (*PROTOCOLS, ANY):
        np.testing.assert_array_equal(found.ranks[protocol], expected.ranks[protocol])
        np.testing.assert_array_equal(found.lists[protocol], expected.lists[protocol])
        np.testing.assert_array_equal(found.list_counts[protocol], expected.list_counts[protocol])
    assert len(set(found.ranks[FULL].tolist())) > 10
