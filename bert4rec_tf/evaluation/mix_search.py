"""Chooses, on the validation items, how evidence joins the scores of networks."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.transition_settings import CompleteSettings
from bert4rec_tf.evaluation.metrics import compute_ndcg
from bert4rec_tf.evaluation.ranking import (
    BATCH,
    MAX_SCORES,
    MAX_USERS_OF_BATCH,
    ROWS_SPEC,
    SINGLES,
    rank_unseen,
)
from bert4rec_tf.evaluation.ranking_task import RankingTask, make_batch, sample_rows
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.evidence_recommender import EvidenceRecommender
from bert4rec_tf.nn.top_items import DIVERGED

BATCH_SCORES = 1 << 21
"""The scores of a batch at most. Each mix is computed from them anew, and more would leave a CPU's cache: 2^24 take a
half longer."""

SCALED_USERS = 1_000
"""The scale of scores is found on the scores of so many users at most."""

GAINS = tuple(2.0 ** (power / 2) for power in range(-6, 17))
"""The factors of the evidence that are tried, .125 to 256."""

SHARES = tuple(step / 10 for step in range(-8, 5))
"""The weights of popularity that are tried, as multiples of the factor of the evidence."""

NETWORK_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The weights of the first of two networks that are tried."""

STRIDES = (1, 2, 4), (1, 3), (1,)
"""How many places from the last choice a later call tries, in GAINS, SHARES and NETWORK_SHARES. The network learns
quickly at first, so the best gain can fall to a fourth from one measurement to the next."""


def find_best_scale(scores: np.ndarray, targets: np.ndarray) -> float:
    """Returns the factor of scores with which their softmax makes targets most likely: 1 / temperature.

    `scores`: float32 [k, n], of all items. `targets`: int [k], columns of `scores`.
    """
    from scipy import optimize  # here, because its import would delay the first result

    scores = scores - scores.max(axis=1, keepdims=True)
    target_scores = scores[np.arange(len(targets)), targets]

    def compute_loss(log_scale: float) -> float:
        scale = np.float32(np.exp(log_scale))
        sums = np.exp(scale * scores).sum(axis=1, dtype=np.float64)
        return float(np.mean(np.log(sums) - scale * target_scores))

    best = optimize.minimize_scalar(compute_loss, bounds=(-10, 2), method="bounded", options={"xatol": 1e-3})
    return float(np.exp(best.x))


class Mix(NamedTuple):
    """How evidence and networks are joined.

    Attributes:
        gain: factor of the evidence.
        popularity: weight of popularity, as a multiple of the gain.
        network: weight of the first of two networks; the second has the rest to 1.
    """

    gain: np.float32
    popularity: np.float32
    network: np.float32


class MixSearch:
    """Chooses how evidence joins the scores of one or two networks, by NDCG@10 among all items on validation items.

    The choice is stored in the model. The first call tries all GAINS; a later one, what is near the last choice
    (STRIDES).
    Then the sum of all is scaled (`find_best_scale`), which leaves the ranks as they are.

    Args:
        model: a model with evidence that has counted the training sequences.
        task: the validation items.
        settings: how the evidence was counted.
    """

    def __init__(self, model: EvidenceRecommender, task: RankingTask, settings: CompleteSettings) -> None:
        self._model, self._task = model, task
        self._table = model.evidence.make_table()
        num_users = min(SCALED_USERS, 2 * MAX_SCORES // (model.num_items + 1) + 1)
        self._scaled_rows = sample_rows(len(task.users), num_users)
        self._batch_size = max(1, min(MAX_USERS_OF_BATCH, BATCH_SCORES // model.num_items))
        self._start = float(min(SHARES, key=lambda share: abs(share - settings.popularity_weight / 2)))
        is_chosen = bool(model.networks) and model.settings.network_share is None
        self._networks = NETWORK_SHARES if is_chosen else (model.get_network_share(),)
        mixes = tf.TensorSpec([None, len(Mix._fields)])
        self._rank = tf_function(self._rank_batch, input_signature=[BATCH, SINGLES, ROWS_SPEC, mixes])
        self._score = tf_function(self._score_batch, input_signature=[BATCH])

    def choose(self) -> np.ndarray:
        """Chooses the mix, sets it in the model, and returns the ranks with it, int64 [k]."""
        mixes = self._propose_mixes()
        all_ranks = self._rank_all(mixes)
        best = int(np.argmax([compute_ndcg(ranks) for ranks in all_ranks]))  # the first of equal ones
        mix = mixes[best]
        blocks, targets = [], []
        for rows in self._task.cut_by_length(self._batch_size, rows=self._scaled_rows):
            scores, sums = self._score(make_batch(self._task, rows, self._model.max_history))
            blocks.append(self._join_scores(scores, sums, *mix).numpy())
            targets.append(self._task.targets[rows] - 1)
        scale = find_best_scale(np.concatenate(blocks), np.concatenate(targets))
        self._model.set_mix([mix.gain, mix.gain * mix.popularity, scale], float(mix.network))
        return all_ranks[best]

    def compare_networks(self) -> tuple[float, dict[str, float]]:
        """Returns NDCG@10 with the model's mix, and the best of each network without the other, beside evidence."""
        model = self._model
        gain, popularity, _ = np.asarray(model.evidence.mix)
        share = popularity / gain if gain else self._start
        own_mix = Mix(gain, np.float32(share), np.float32(model.get_network_share()))
        single_mixes = [_combine(GAINS, [share], [network]) for network in (1.0, 0.0)]
        joint_ndcg, *values = map(compute_ndcg, self._rank_all([own_mix, *itertools.chain(*single_mixes)]))
        first, second = max(values[: len(GAINS)]), max(values[len(GAINS) :])
        return joint_ndcg, dict(zip(model.networks, (first, second)))

    def _rank_all(self, mixes: list[Mix]) -> np.ndarray:
        """Returns the ranks with each of the mixes, int64 [m, k]. Raises UserError for a network that has diverged."""
        task = self._task
        ranks = np.zeros([len(mixes), len(task.users)], np.int64)
        for rows in task.cut_by_length(self._batch_size):
            batch = make_batch(task, rows, self._model.max_history)
            ranks[:, rows], has_nan = self._rank(batch, task.targets[rows], task.list_seen(rows), np.array(mixes))
            if has_nan or (ranks[:, rows] < 0).any():  # below 0 if a mix made the target's score NaN
                raise UserError(DIVERGED)
        return ranks

    def _score_batch(self, batch: Batch) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the scores of each network, and the evidence of the histories, each float32 [b, n]."""
        model = self._model
        scores = model.score_networks(model.network_vectors(batch))
        with model.evidence.read_table(self._table):
            weights = model.evidence.weigh(batch["lengths"], tf.shape(batch["items"])[1])
            sums = model.evidence.sum_pairs(batch["items"], weights)
        return [tf.ensure_shape(part, [None, model.num_items]) for part in scores], sums[:, 1:]

    def _join_scores(
        self, scores: list[Tensor], sums: Tensor, gain: Tensor, popularity: Tensor, network: Tensor
    ) -> tf.Tensor:
        """Returns scores of the networks plus gain x (sums of evidence + popularity x log p), float32 [b, n]."""
        log_shares = tf.convert_to_tensor(self._model.evidence.log_shares)[1:]
        return self._model.join_networks(scores, network) + gain * sums + (gain * popularity) * log_shares

    def _rank_batch(self, batch: Batch, targets: Tensor, seen: Tensor, mixes: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ranks with each of the mixes, int32 [m, b], and whether a network's score is NaN."""
        scores, sums = self._score_batch(batch)
        has_nan = tf.reduce_any([tf.reduce_any(tf.math.is_nan(part)) for part in scores])

        def rank(mix: Tensor) -> tf.Tensor:
            return rank_unseen(self._join_scores(scores, sums, *tf.unstack(mix)), targets, seen)

        return tf.map_fn(rank, mixes, fn_output_signature=SINGLES, parallel_iterations=1), has_nan

    def _propose_mixes(self) -> list[Mix]:
        gain, popularity, _ = np.asarray(self._model.evidence.mix).tolist()
        network = _find_nearest(self._networks, self._model.get_network_share())
        if not gain:
            return _combine(GAINS, [self._start], [self._networks[network]])
        position = [
            int(np.argmin(np.abs(np.log(np.array(GAINS) / gain)))),
            _find_nearest(SHARES, popularity / gain),
            network,
        ]
        axes, neighbors = (GAINS, SHARES, self._networks), [position]
        for axis, (values, strides) in enumerate(zip(axes, STRIDES)):
            for place in (position[axis] + sign * stride for stride in strides for sign in (-1, 1)):
                if 0 <= place < len(values):
                    neighbors.append([*position[:axis], place, *position[axis + 1 :]])
        return [Mix(*(np.float32(values[place]) for values, place in zip(axes, places))) for places in neighbors]


def _combine(*axes: Sequence[float]) -> list[Mix]:
    return [Mix(*map(np.float32, values)) for values in itertools.product(*axes)]


def _find_nearest(values: Sequence[float], value: float) -> int:
    return int(np.argmin(np.abs(np.array(values) - value)))
