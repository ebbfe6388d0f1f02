"""The search for how transitions are counted and how they join a network's scores, beside plain Python."""

import itertools
import math
from dataclasses import replace

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from support import models
from support.evidence_oracle import histories_of, plain_evidence, plain_log_shares, plain_sums
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
from bert4rec_tf.evaluation.evidence_search import (
    GAINS,
    HIDDEN,
    SHARES,
    MixSearch,
    find_best_scale,
    rank_dense,
    rank_sparse,
    search_settings,
)
from bert4rec_tf.evaluation.metrics import NDCG, compute_metrics
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.models import SASRec

TOLERANCE = 1e-6
"""Scores that differ by a smaller part are a tie."""


def rank_by_hand(scores, target, seen):
    """How many items but the target reach its score. `scores`: item -> score. Seen items are no rivals."""
    rivals = [item for item in scores if item != target and item not in seen]
    return sum(scores[item] >= scores[target] - TOLERANCE * abs(scores[target]) for item in rivals)


# The ranks of sparse scores.


@FEW
@given(st.integers(0, 10**6), st.integers(3, 12), st.sampled_from([-0.5, 0.0, 0.25]))
def test_sparse_scores_are_ranked_as_plain_loops_do(seed, num_items, weight):
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
    found = rank_sparse(sparse.csr_matrix(sums), added, targets)
    scores = (sums + added).tolist()
    expected = [
        rank_by_hand(dict(enumerate(row[1:], start=1)), target, set(np.flatnonzero(unseen).tolist()))
        for row, target, unseen in zip(scores, targets.tolist(), hidden)
    ]
    assert found.tolist() == rank_dense(sums, added, targets).tolist() == expected


# The settings of the counts.


def make_walks(seed, num_users=40, num_items=30):
    """Histories of steps to either side on a circle, with some jumps, so an item before says as much as one after."""
    rng = np.random.default_rng(seed)
    histories = []
    for _ in range(num_users):
        history = [int(rng.integers(num_items))]
        for _ in range(rng.integers(3, 8)):
            step = rng.choice([-1, 1]) if rng.random() < 0.8 else rng.integers(num_items)
            history.append(int((history[-1] + step) % num_items))
        histories.append([item + 1 for item in history])
    return make_sequences([*histories, [1, 2]], num_items)


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
    """NDCG@10 of the validation items among all that the user has not seen, by plain loops."""
    histories = split.histories("validation")
    known, num_items = histories_of(histories), histories.num_items
    evidence, shares = plain_evidence(known, num_items, settings), plain_log_shares(known, num_items)
    ranks = []
    for user, target in zip(split.users.tolist(), split.targets("validation").tolist()):
        sums = plain_sums(evidence, known[user], settings)
        scores = {item: sums[item] + settings.popularity_weight * shares[item] for item in shares}
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


@pytest.mark.parametrize("seed", [2, 3])
def test_a_search_never_ends_below_its_start_and_is_the_same_each_time(seed):
    split = LeaveOneOut(make_walks(seed))
    found, ndcg = search_settings(split, ItemTransitionsSettings())
    assert None not in {getattr(found, name) for name in SHORT_START}
    assert ndcg == pytest.approx(measure(split, found))
    assert ndcg >= measure(split, ItemTransitionsSettings().resolve())
    assert search_settings(LeaveOneOut(make_walks(seed)), ItemTransitionsSettings()) == (found, ndcg)


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
    bounds = [settings for settings, (_, is_exact) in search._measured.items() if not is_exact]
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


# How the evidence joins a network.


def best_scale_by_hand(scores, targets):
    """The scale with which all items' softmax makes the targets most likely, of scales .5 % apart."""
    scales = 1.005 ** np.arange(-1_300, 400)
    scores = scores - scores.max(axis=1, keepdims=True)
    own = scores[np.arange(len(scores)), targets]
    return min(scales, key=lambda scale: np.mean(np.log(np.exp(scale * scores).sum(axis=1)) - scale * own))


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 30.0])
def test_the_best_scale_is_that_of_a_fine_grid(sharpness):
    """Targets drawn by the softmax of scores, which are then `sharpness` times too large."""
    rng = np.random.default_rng(1)
    scores = 2 * rng.normal(size=(400, 12))
    targets = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    scores *= sharpness
    found = find_best_scale(scores.astype(np.float32), targets)
    assert found == pytest.approx(best_scale_by_hand(scores, targets), rel=0.01)
    assert found * sharpness == pytest.approx(1, rel=0.2)


class PlainMix:
    """The ranks with a mix, by plain loops over users and items."""

    def __init__(self, model, task, settings):
        self._task = task
        known, size = histories_of(task.histories), model.num_items
        self._histories = [known[user] for user in task.users.tolist()]
        evidence = plain_evidence(known, size, settings)
        kernel = replace(settings, max_history=model.max_history)
        self._sums = [plain_sums(evidence, history, kernel) for history in self._histories]
        self._shares = plain_log_shares(known, size)
        width = max(map(len, self._histories))
        items = np.array([[*row, *[0] * (width - len(row))] for row in self._histories], np.int32)
        lengths = np.array(list(map(len, self._histories)), np.int32)
        batch = {"users": task.users.astype(np.int32), "items": items, "lengths": lengths}
        self._network = model.network_scores(model.network_vectors(batch)).numpy().tolist()

    def join(self, gain, share):
        """Each user's item -> score."""
        return [
            {
                item: own + gain * sums[item] + gain * share * self._shares[item]
                for item, own in enumerate(scores, start=1)
            }
            for scores, sums in zip(self._network, self._sums)
        ]

    def ranks(self, gain, share):
        rows = zip(self.join(gain, share), self._task.targets.tolist(), self._histories)
        return [rank_by_hand(scores, target, set(history)) for scores, target, history in rows]

    def best_scale(self, gain, share):
        return best_scale_by_hand(
            np.array([list(scores.values()) for scores in self.join(gain, share)]), self._task.targets - 1
        )

    def best(self, mixes):
        """The first mix with the best NDCG@10, and its ranks."""
        found = [(self.ranks(*mix), mix) for mix in mixes]
        return max(found, key=lambda one: compute_metrics(np.array(one[0]))[NDCG])


def list_neighbors(gain, share):
    row, column = GAINS.index(gain), SHARES.index(share)
    near = [(row, column), (row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return [(GAINS[i], SHARES[j]) for i, j in near if 0 <= i < len(GAINS) and 0 <= j < len(SHARES)]


def assert_chooses_as_by_hand(search, model, plain, mixes):
    ranks, (gain, share) = plain.best(mixes)
    assert search.choose().tolist() == ranks
    assert model.evidence.mix.numpy()[:2].tolist() == pytest.approx([gain, gain * share])
    assert model.evidence.mix.numpy()[2] == pytest.approx(plain.best_scale(gain, share), rel=0.01)
    return gain, share


def test_the_mix_with_the_best_ranks_is_chosen():
    split = LeaveOneOut(make_sequences(histories_of(make_walks(7, num_items=models.NUM_ITEMS)), models.NUM_ITEMS))
    task = RankingTask.from_split(split, "validation", {}, all_items=True)
    exact = {"distance_power": 0.0, "distance_decay": 0.5}  # sums of powers of two have no rounding, so ties are ties
    settings = ItemTransitionsSettings(popularity_weight=-0.41, **exact).resolve()
    keras.utils.set_random_seed(1)
    options = {"evidence": "transitions", "evidence_popularity_power": 0.0}  # other powers are rounded
    model = SASRec(models.NUM_ITEMS, **options, hidden_dim=16, max_length=5)
    model.adapt(split.training(with_validation=False), settings)
    model.own_items.assign(8.0 * model.own_items.numpy())
    search = MixSearch(model, task, settings)
    first = [(gain, -0.2) for gain in GAINS]  # half of the popularity weight, in steps of a tenth
    mix = assert_chooses_as_by_hand(search, model, PlainMix(model, task, settings), first)
    for _ in range(2):
        model.own_items.assign(1.5 * model.own_items.numpy())
        mix = assert_chooses_as_by_hand(search, model, PlainMix(model, task, settings), list_neighbors(*mix))
    assert math.isfinite(mix[0])
