"""Ranks with ties and NaN by all protocols against plain loops, ir_measures and random scores."""

import math
from collections import Counter
from dataclasses import replace

import ir_measures
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.ranking_oracle import (
    FEW,
    any_histories,
    is_repeat,
    make_sequences,
    opponents,
    plain_lists,
    plain_metrics_of,
    plain_ranks,
)

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation import ranking, ranking_task
from bert4rec_tf.evaluation.candidates import SAMPLERS, draw_popular
from bert4rec_tf.evaluation.metrics import ANY, FULL, NEW, POPULAR, PROTOCOLS, compute_metrics, compute_random_metrics
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.models.pop import Pop

# Tasks

NUM_ITEMS = 30


def random_task(all_items=False):
    rng = np.random.default_rng(4)
    histories = [rng.integers(1, NUM_ITEMS + 1, size=length) for length in rng.integers(1, 60, size=70)]
    split = LeaveOneOut(make_sequences([*histories, np.arange(1, NUM_ITEMS + 1)], NUM_ITEMS))
    negatives = {law: draw(split.sequences, split.users, 20, seed=1) for law, draw in SAMPLERS.items()}
    return RankingTask.from_split(split, "test", negatives, all_items)


def test_a_task_has_the_held_out_item_and_the_history_before_it():
    split = LeaveOneOut(make_sequences([np.array([1, 2, 3, 4]), np.array([5, 1])], 5))
    negatives = {POPULAR: np.array([[5, 0]], np.int32)}
    test, validation = (RankingTask.from_split(split, part, negatives) for part in ("test", "validation"))
    assert test.users.tolist() == [0]
    assert test.targets.tolist() == [4] and validation.targets.tolist() == [3]
    assert test.count_candidates(POPULAR).tolist() == [1]
    assert test.histories[0].tolist() == [1, 2, 3] and validation.histories[0].tolist() == [1, 2]
    assert test.protocols == (POPULAR,)
    assert RankingTask.from_split(split, "test", negatives, all_items=True).protocols == (POPULAR, FULL)


@FEW
@given(any_histories(shortest=3), st.sampled_from(["validation", "test"]))
def test_a_target_is_ranked_among_all_items_but_those_of_its_history(sequences, part):
    split = LeaveOneOut(sequences)
    negatives = {law: draw(sequences, split.users, 4, seed=0) for law, draw in SAMPLERS.items()}
    task = RankingTask.from_split(split, part, negatives, all_items=True)
    for protocol in PROTOCOLS:
        expected = [len(opponents(task, protocol, row)) for row in range(len(task.users))]
        assert task.count_candidates(protocol).tolist() == expected
    histories = [task.histories[user].tolist() for user in task.users]
    met = [len(set(history) - {target}) for history, target in zip(histories, task.targets.tolist(), strict=True)]
    assert task.count_candidates(FULL).tolist() == [sequences.num_items - 1 - count for count in met]


# One pass over all protocols


class Table:
    """Scores of every user and item from a table that can be exchanged, so that one ranker serves all examples."""

    def __init__(self):
        self.scores = tf.Variable(tf.zeros([1, 1]), shape=[None, None])

    def __call__(self, batch, candidates):
        rows = tf.gather(self.scores, batch["users"])
        return rows if candidates is None else tf.gather(rows, tf.maximum(candidates - 1, 0), batch_dims=1)


@pytest.fixture(scope="module")
def table():
    return Table()


@pytest.fixture(scope="module")
def table_ranker(table):
    return Ranker(table, batch_size=3)


@st.composite
def any_scores(draw, sequences):
    """Few values, so that most targets are tied with something."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = np.array([-math.inf, -1.0, 0.0, 0.5, 2.0, math.inf], np.float32)[: draw(st.integers(1, 6))]
    return rng.choice(values, (sequences.num_users, sequences.num_items))


@FEW
@given(st.data())
def test_ranks_by_all_protocols_are_those_of_a_plain_loop(table, table_ranker, data):
    sequences = data.draw(any_histories(most_items=9, shortest=3, longest=12))
    split = LeaveOneOut(sequences)
    num_negatives = data.draw(st.integers(1, 10))
    negatives = {law: draw(sequences, split.users, num_negatives, seed=0) for law, draw in SAMPLERS.items()}
    part = data.draw(st.sampled_from(["validation", "test"]))
    scores = data.draw(any_scores(sequences))
    table.scores.assign(scores)
    task = RankingTask.from_split(split, part, negatives, all_items=True, with_seen=True)
    ranks = table_ranker.rank(task)
    assert {protocol: found.tolist() for protocol, found in ranks.items()} == plain_ranks(
        task, lambda user, history, item: scores[user, item - 1]
    )
    assert tuple(ranks) == (*PROTOCOLS, ANY) and {found.dtype for found in ranks.values()} == {np.dtype(np.int32)}
    unseen = table_ranker.rank(RankingTask.from_split(split, part, negatives, all_items=True))
    assert tuple(unseen) == PROTOCOLS
    np.testing.assert_array_equal(unseen[FULL], ranks[FULL])
    sampled = table_ranker.rank(RankingTask.from_split(split, part, negatives))
    assert tuple(sampled) == tuple(SAMPLERS)
    for protocol, found in sampled.items():
        np.testing.assert_array_equal(found, ranks[protocol])


@FEW
@given(st.data())
def test_list_metrics_are_those_of_a_plain_loop(table, table_ranker, data):
    sequences = data.draw(any_histories(most_items=16, shortest=3, longest=12))
    split = LeaveOneOut(sequences)
    negatives = {law: draw(sequences, split.users, 13, seed=0) for law, draw in SAMPLERS.items()}
    scores = data.draw(any_scores(sequences))
    table.scores.assign(scores)
    task = RankingTask.from_split(split, "test", negatives, all_items=True, with_seen=data.draw(st.booleans()))
    ranked, measured = table_ranker.rank_and_list(task), table_ranker.measure(task)
    actions = Counter(item for user in range(sequences.num_users) for item in task.histories[user].tolist())
    ranks = table_ranker.rank(task)
    expected_metrics = plain_metrics_of(task, {protocol: found.tolist() for protocol, found in ranks.items()})
    assert set(measured) == set(expected_metrics) and (ANY in measured) == task.with_seen
    for protocol, of_ranks in expected_metrics.items():
        listed = [item for row in plain_lists(task, protocol, scores) for item in row]
        expected = {
            **of_ranks,
            "coverage@10": len(set(listed)) / sequences.num_items,
            "popularity@10": sum(actions[item] for item in listed) / max(len(listed), 1) / sequences.num_users,
            "novelty@10": sum(math.log2(sequences.num_users / max(actions[item], 1)) for item in listed)
            / max(len(listed), 1),
        }
        assert measured[protocol] == pytest.approx(expected)
        if protocol != NEW:
            np.testing.assert_array_equal(ranked.ranks[protocol], ranks[protocol])


@FEW
@given(any_histories(shortest=3), st.sampled_from(["validation", "test"]), st.data())
def test_a_repeat_is_a_target_of_its_own_history(sequences, part, data):
    """Each user's last action is held out, or those from a time on."""
    later = [data.draw(st.integers(0, length)) for length in sequences.lengths.tolist()]
    by_time = replace(sequences, num_later=np.array(later, np.int64))
    for one in (sequences, by_time):
        task = RankingTask.from_split(LeaveOneOut(one), part, {})
        assert task.is_repeat.tolist() == [is_repeat(task, row) for row in range(len(task.users))]


@pytest.mark.parametrize("item", range(1, 6))
def test_nan_of_a_candidate_is_an_error(item, table, table_ranker):
    task = RankingTask.from_split(
        LeaveOneOut(make_sequences([np.array([1, 2, 3])], 5)), "test", {POPULAR: np.array([[4, 0]])}
    )
    table.scores.assign(np.where(np.arange(1, 6) == item, math.nan, 0.0)[None])
    if item in (3, 4):  # the target, and the only candidate
        with pytest.raises(ValueError, match="NaN"):
            table_ranker.rank(task)
    else:
        assert table_ranker.rank(task)[POPULAR].tolist() == [1]


def test_full_ranking_agrees_with_ir_measures(table, table_ranker):
    task = random_task(all_items=True)
    rng = np.random.default_rng(11)
    scores = np.stack([rng.permutation(NUM_ITEMS) for _ in range(task.histories.num_users)]).astype(np.float32)
    scores[task.users[::2], task.targets[::2] - 1] += 20.5
    table.scores.assign(scores)
    qrels = [ir_measures.Qrel(str(row), str(target), 1) for row, target in enumerate(task.targets)]
    run = [
        ir_measures.ScoredDoc(str(row), str(item), float(scores[user, item - 1]))
        for row, user in enumerate(task.users)
        for item in {*opponents(task, FULL, row), int(task.targets[row])}
    ]
    names = {f"hr@{k}": ir_measures.Success @ k for k in (1, 5, 10)}
    names |= {f"ndcg@{k}": ir_measures.nDCG @ k for k in (5, 10)} | {"mrr": ir_measures.RR}
    judged = ir_measures.calc_aggregate(names.values(), qrels, run)
    ours = compute_metrics(table_ranker.rank(task)[FULL])
    assert ours == pytest.approx({name: judged[measure] for name, measure in names.items()}, abs=1e-6)
    assert 0.1 < ours["hr@1"] < ours["hr@10"] < 1


# What a model is shown


def plain_toy_score(user, history, item):
    """Depends on the user, on every item that is kept and on its place; not on the padding."""
    read = sum(place * item for place, item in enumerate(history, start=1)) + len(history)
    return (item * (1 + read) + 7 * user) % 41


def toy_score(batch, candidates):
    places = 1 + tf.range(tf.shape(batch["items"])[1])
    read = tf.reduce_sum(batch["items"] * places, axis=1) + batch["lengths"]
    items = tf.range(1, NUM_ITEMS + 1)[None] if candidates is None else candidates
    return tf.cast((items * (1 + read)[:, None] + 7 * batch["users"][:, None]) % 41, tf.float32)


@pytest.mark.parametrize("all_items", [False, True], ids=["candidates", "all items"])
@pytest.mark.parametrize("max_history", [None, 5])
def test_ranker_agrees_with_a_loop_over_users(max_history, all_items):
    task = random_task(all_items=all_items)
    expected = plain_ranks(
        task, lambda user, history, item: plain_toy_score(user, history[-(max_history or 0) :], item)
    )
    np.testing.assert_equal(Ranker(toy_score, max_history, batch_size=16).rank(task), expected)
    assert all(len(set(ranks)) > 5 for ranks in expected.values())


@pytest.mark.parametrize("most_scores", [5 * NUM_ITEMS, 1 << 25])
def test_ranks_do_not_depend_on_how_many_scores_are_held_at_a_time(most_scores, monkeypatch):
    monkeypatch.setattr(ranking, "MAX_SCORES", most_scores)
    task = random_task(all_items=True)
    expected = Ranker(toy_score, 9).rank(task)
    sizes = []

    def score(batch, candidates):
        tf.py_function(lambda users: sizes.append(len(users)), [batch["users"]], [])
        return toy_score(batch, candidates)

    np.testing.assert_equal(Ranker(score, 9, batch_size=16).rank(task), expected)
    assert sum(sizes) == len(task.users)
    assert max(sizes) == max(1, min(16, most_scores // NUM_ITEMS))


def test_candidates_are_counted_without_a_table_of_all_users_by_the_longest_history(monkeypatch):
    long, short = np.arange(1, 60_001), np.arange(1, 4)
    split = LeaveOneOut(make_sequences([long, *[short] * 6_400], len(long)))
    task, sizes, list_seen = RankingTask.from_split(split, "test", {}), [], RankingTask.list_seen

    def list_and_note(self, rows):
        sizes.append(list_seen(self, rows).size)
        return list_seen(self, rows)

    monkeypatch.setattr(RankingTask, "list_seen", list_and_note)
    assert task.count_candidates(FULL).tolist() == [0, *[len(long) - 3] * 6_400]
    assert max(sizes) <= ranking_task.MAX_CELLS


# POP


def test_pop_is_below_random_on_beauty_with_popular_negatives(real_data):
    split = LeaveOneOut(real_data("beauty"))
    drawn = draw_popular(split.sequences, split.users, 100, seed=0)
    task = RankingTask.from_split(split, "test", {POPULAR: drawn})
    assert (task.count_candidates(POPULAR) == 100).all()
    model = Pop(split.sequences.num_items)
    model.adapt(split.training(with_validation=True))
    measured = compute_metrics(Ranker(model.score).rank(task)[POPULAR])
    published = read_paper()["table2"]["beauty"]["pop"]["hr@10"]
    assert published == 0.0762
    assert measured["hr@10"] < compute_random_metrics(task.count_candidates(POPULAR))["hr@10"]
    assert measured["hr@10"] == pytest.approx(published, abs=0.015)


@given(any_histories(), st.integers(1, 9), st.integers(1, 60))
def test_batches_hold_every_user_once_and_few_long_histories(sequences, size, most_cells):
    task = RankingTask.from_split(LeaveOneOut(sequences), "test", {})
    parts = task.cut_by_length(size, most_cells)
    lengths = task.histories.lengths[task.users]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(task.users)))
    assert (np.diff(lengths[np.concatenate(parts)]) >= 0).all()
    for rows in parts:
        assert len(rows) <= size and (len(rows) == 1 or len(rows) * lengths[rows].max() <= most_cells)
    if most_cells >= size * lengths.max():
        assert len(parts) == math.ceil(len(task.users) / size)
