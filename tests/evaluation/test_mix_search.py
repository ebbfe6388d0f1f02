"""The search for how evidence joins a network's scores, beside plain Python."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from support import models
from support.evidence_oracle import histories_of, make_walks, plain_evidence, plain_log_shares, plain_sums, rank_by_hand
from support.ranking_oracle import make_sequences

from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation.metrics import NDCG, compute_metrics
from bert4rec_tf.evaluation.mix_search import GAINS, SHARES, MixSearch, find_best_scale
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import SASRec


def best_scale_by_hand(scores, targets):
    """The scale with which all items' softmax makes the targets most likely, of scales from exp(-10) on, .5 % apart."""
    scales = 1.005 ** np.arange(-2_005, 400)
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


def list_near_mixes(gain, share):
    """The mix, those with a gain of 1.4, 2 or 4 times as much or as little, and those with a share .1 or .3 away."""
    row, column = GAINS.index(gain), SHARES.index(share)
    rows = [(row + step, column) for step in (-1, 1, -2, 2, -4, 4)]
    near = [(row, column), *rows, *((row, column + step) for step in (-1, 1, -3, 3))]
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
    gains = [mix[0]]
    for _ in range(2):
        model.own_items.assign(8.0 * model.own_items.numpy())
        mix = assert_chooses_as_by_hand(search, model, PlainMix(model, task, settings), list_near_mixes(*mix))
        gains.append(mix[0])
    assert gains[1] == pytest.approx(4 * gains[2])  # further than to the next gain
    sound = model.own_items.numpy()
    for broken in (np.inf, np.nan):
        model.own_items.assign(np.full_like(sound, broken))
        with pytest.raises(UserError, match="Received: NaN; the training has diverged"):
            search.choose()
    model.own_items.assign(sound)
    model.evidence.log_shares.assign(np.full_like(model.evidence.log_shares, np.nan))
    with pytest.raises(UserError, match="Received: NaN; the training has diverged"):
        search.choose()
