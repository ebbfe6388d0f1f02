"""The search for how transitions are counted, beside plain Python."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from support.evidence_oracle import histories_of, make_walks, plain_evidence, plain_log_shares, plain_sums, rank_by_hand
from support.ranking_oracle import FEW, make_sequences, plain_metrics

from bert4rec_tf.config.transition_settings import (
    LONG_START,
    RARE_FIRST,
    SHORT_START,
    TIES_BROKEN,
    ItemTransitionsSettings,
)
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation import evidence_search
from bert4rec_tf.evaluation.evidence_search import HIDDEN, rank_sums, search_settings
from bert4rec_tf.evaluation.metrics import NDCG

# The ranks of sparse scores.


@FEW
@given(st.integers(0, 10**6), st.integers(3, 12), st.sampled_from([-0.5, 0.0, 0.25]))
def test_sums_are_ranked_as_plain_loops_do(seed, num_items, weight):
    """Few different values, so many tie; some targets have no evidence."""
    rng = np.random.default_rng(seed)
    size, users = num_items + 1, 5
    sums = rng.integers(0, 4, (users, size)).astype(np.float32)
    sums[:, 0] = 0
    targets = rng.integers(1, size, users).astype(np.int32)
    sums[0, targets[0]] = 0
    hidden = rng.random((users, size)) < 0.2
    hidden[:, 0], hidden[np.arange(users), targets] = False, False
    added = np.float32(weight) * rng.integers(-4, 0, size).astype(np.float32)
    added[0] = 0
    sums += np.float32(HIDDEN) * hidden
    found = rank_sums(sparse.csr_matrix(sums), added, targets)
    scores = (sums + added).tolist()
    expected = [
        rank_by_hand(dict(enumerate(row[1:], start=1)), target, set(np.flatnonzero(unseen).tolist()))
        for row, target, unseen in zip(scores, targets.tolist(), hidden)
    ]
    assert found.tolist() == expected


# The settings of the counts.


SMALL_GRID = {
    "smoothing": [{"smoothing": 5.0}, {"smoothing": 5_000.0}],
    "ages": [
        {"history_power": power, "history_decay": decay, "recent_items": 1_000_000, "recent_share": 1.0}
        for power, decay in ((1.0, 1.0), (0.0, 0.3))
    ],
    "distances": [{"distance_power": power, "distance_decay": 1.0} for power in (1.0, 2.0)],
    "backward": [{"backward": 0.25}, {"backward": 1.0}],
    "window": [{"window": 2}, {"window": 20}],
    "popularity": [{"popularity_weight": weight} for weight in (-0.2, TIES_BROKEN, 0.2)],
}


@pytest.fixture
def small_grid(monkeypatch):
    monkeypatch.setattr(evidence_search, "GRID", SMALL_GRID)
    monkeypatch.setattr(evidence_search, "RARE_FIRST", {"smoothing": 5.0, "popularity_weight": -0.2})


def measure(split, settings):
    """NDCG@10 of the validation items among all that the user has not seen, by plain loops.

    After a history without any pair, what is popular comes first, as by the model.
    """
    histories = split.histories("validation")
    known, num_items = histories_of(histories), histories.num_items
    evidence, shares = plain_evidence(known, num_items, settings), plain_log_shares(known, num_items)
    ranks = []
    for user, target in zip(split.users.tolist(), split.targets("validation").tolist()):
        sums = plain_sums(evidence, known[user], settings)
        weight = settings.popularity_weight if any(evidence.get(item) for item in known[user]) else 1.0
        scores = {item: sums[item] + weight * shares[item] for item in shares}
        ranks.append(rank_by_hand(scores, target, set(known[user])))
    return plain_metrics(ranks)[NDCG]


def test_the_best_settings_of_a_grid_are_found(small_grid):
    split = LeaveOneOut(make_walks(1))
    found, ndcg = search_settings(split, ItemTransitionsSettings())
    changes = [dict(itertools.chain(*map(dict.items, some))) for some in itertools.product(*SMALL_GRID.values())]
    every = [measure(split, ItemTransitionsSettings(**one)) for one in changes]
    assert ndcg == pytest.approx(max(every)) == pytest.approx(measure(split, found))
    assert found.backward == 1.0, "steps to both sides are as likely"
    assert ndcg > measure(split, ItemTransitionsSettings().resolve())


@pytest.mark.parametrize("weight", [-0.4, 0.0, 0.2])
def test_users_whose_items_were_never_followed_get_what_is_popular(small_grid, weight):
    """Half of the users begin with an item of their own; then all take popular items, which nobody takes before."""
    walks = [[1 + user % 5, 6 + user % 3, 9 + user % 4, 13] for user in range(40)]
    lone = [[20 + user, 6 + user % 3, 9 + user % 4] for user in range(40)]
    split = LeaveOneOut(make_sequences(walks + lone, 60))
    found, ndcg = search_settings(split, ItemTransitionsSettings(popularity_weight=weight))
    assert ndcg == pytest.approx(measure(split, found)) and ndcg > 0.3


@pytest.mark.parametrize(("seed", "num_neighbors"), [(2, None), (3, None), (2, 1), (3, 4)])
def test_a_search_never_ends_below_its_start_and_is_the_same_each_time(seed, num_neighbors):
    split, given = LeaveOneOut(make_walks(seed)), ItemTransitionsSettings(num_neighbors=num_neighbors)
    found, ndcg = search_settings(split, given)
    assert None not in {getattr(found, name) for name in SHORT_START}
    assert found.num_neighbors == num_neighbors
    assert ndcg == pytest.approx(measure(split, found))
    assert ndcg >= measure(split, given.resolve())
    assert search_settings(LeaveOneOut(make_walks(seed)), given) == (found, ndcg)


def test_the_search_begins_where_the_histories_that_it_counts_say(monkeypatch):
    """A history of 51 has 49 items before its two held-out ones."""
    starts = []
    monkeypatch.setattr(
        evidence_search._Search, "search", lambda search, start: starts.append(start) or search.measure(start)
    )
    for length in (51, 52):
        histories = [[1 + (user + 3 * place) % 20 for place in range(length)] for user in range(4)]
        search_settings(LeaveOneOut(make_sequences(histories, 60)), ItemTransitionsSettings())
    assert starts == [SHORT_START, {**SHORT_START, **RARE_FIRST}, LONG_START, {**LONG_START, **RARE_FIRST}]


@pytest.mark.parametrize(("second_start", "wins"), [(RARE_FIRST, False), ({"backward": 1.0}, True)])
def test_the_better_of_two_starts_wins(monkeypatch, second_start, wins):
    monkeypatch.setattr(evidence_search._Search, "search", evidence_search._Search.measure)
    monkeypatch.setattr(evidence_search, "RARE_FIRST", second_start)
    split = LeaveOneOut(make_walks(1))
    first, second = (ItemTransitionsSettings(**start) for start in (SHORT_START, {**SHORT_START, **second_start}))
    assert (measure(split, second) > measure(split, first)) == wins
    found, ndcg = search_settings(split, ItemTransitionsSettings())
    assert found == (second if wins else first)
    assert ndcg == pytest.approx(measure(split, found))


def test_a_bound_that_lost_once_does_not_count_as_a_measurement():
    """The first search stops early at settings that cannot win; the second one may need their exact NDCG@10."""
    split = LeaveOneOut(make_walks(6))
    search = evidence_search._Search(split, ItemTransitionsSettings())
    best = search.search(SHORT_START)
    bounds = [settings for settings, (_, is_exact) in search._results.items() if not is_exact]
    assert bounds
    for settings in bounds:
        exact = search.measure(vars(settings)).ndcg
        assert exact == pytest.approx(measure(split, settings)) and exact < best.ndcg


def test_given_settings_stay(small_grid):
    split = LeaveOneOut(make_walks(4))
    given = ItemTransitionsSettings(window=3, backward=0.7, popularity_weight=-1.0, max_history=2)
    found, ndcg = search_settings(split, given)
    assert replace(found, **{name: getattr(given, name) for name in SHORT_START}) == given
    assert (found.window, found.backward, found.popularity_weight, found.max_history) == (3, 0.7, -1.0, 2)
    assert ndcg == pytest.approx(measure(split, found))
    assert search_settings(split, found) == (found, ndcg)


def test_of_large_data_the_actions_of_every_kth_user_are_counted():
    histories = make_walks(5, num_users=300)
    for most, step in ((histories.num_actions // 3 + 1, 3), (histories.num_actions, 1)):
        counted = evidence_search._every_kth_user(histories, most)
        assert histories_of(counted) == histories_of(histories)[::step]
