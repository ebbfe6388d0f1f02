"""Chooses, on the validation items, how evidence joins a network's scores."""

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.transition_settings import CompleteSettings
from bert4rec_tf.evaluation.metrics import NDCG, compute_metrics
from bert4rec_tf.evaluation.ranking import BATCH, MAX_SCORES, MAX_USERS_OF_BATCH, ROWS_SPEC, SINGLES, rank_unseen
from bert4rec_tf.evaluation.ranking_task import RankingTask, make_batch, sample_rows
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.feature_recommender import FeatureRecommender

SCALED_USERS = 1_000
"""The scale of scores is found on the scores of so many users at most."""

GAINS = tuple(2.0 ** (power / 2) for power in range(-6, 13))
"""The factors of the evidence that are tried, .125 to 64."""

SHARES = tuple(step / 10 for step in range(-8, 5))
"""The weights of popularity that are tried, as multiples of the factor of the evidence."""


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

    best = optimize.minimize_scalar(compute_loss, bounds=(-7, 2), method="bounded", options={"xatol": 1e-3})
    return float(np.exp(best.x))


class MixSearch:
    """Chooses how evidence joins a network's scores, by NDCG@10 among all items on validation items.

    The choice is stored in `model.evidence.mix`. The first call tries all GAINS; a later one, the neighbours of the
    last choice. Then the sum of both is scaled (`find_best_scale`), which leaves the ranks as they are.

    Args:
        model: a model with evidence that has counted the training sequences.
        task: the validation items.
        settings: how the evidence was counted.
    """

    def __init__(self, model: FeatureRecommender, task: RankingTask, settings: CompleteSettings) -> None:
        self._model, self._task = model, task
        self._table = model.evidence.make_table()
        most = min(SCALED_USERS, 2 * MAX_SCORES // (model.num_items + 1) + 1)
        self._is_scaled = np.isin(np.arange(len(task.users)), sample_rows(len(task.users), most))
        self._batch_size = max(1, min(MAX_USERS_OF_BATCH, MAX_SCORES // model.num_items))
        self._start = float(min(SHARES, key=lambda share: abs(share - settings.popularity_weight / 2)))
        mixes = tf.TensorSpec([None, 2])
        self._rank = tf_function(self._rank_batch, input_signature=[BATCH, SINGLES, ROWS_SPEC, mixes])
        self._score = tf_function(self._score_batch, input_signature=[BATCH])

    def choose(self) -> np.ndarray:
        """Chooses the mix, sets it in the model, and returns the ranks with it, int64 [k]."""
        task, mixes = self._task, self._propose_mixes()
        ranks = np.zeros([len(mixes), len(task.users)], np.int64)
        for rows in task.cut_by_length(self._batch_size):
            batch = make_batch(task, rows, self._model.max_history)
            ranks[:, rows] = self._rank(batch, task.targets[rows], task.list_seen(rows), np.array(mixes))
        best = max(range(len(mixes)), key=lambda place: compute_metrics(ranks[place])[NDCG])
        gain, share = mixes[best]
        blocks, targets = [], []
        for rows in task.cut_by_length(self._batch_size, rows=np.flatnonzero(self._is_scaled)):
            scores, sums = self._score(make_batch(task, rows, self._model.max_history))
            blocks.append(self._join_scores(scores, sums, gain, share).numpy())
            targets.append(task.targets[rows] - 1)
        scale = find_best_scale(np.concatenate(blocks), np.concatenate(targets))
        self._model.evidence.mix.assign([gain, gain * share, scale])
        return ranks[best]

    def _score_batch(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the scores of the network, and the evidence of the histories, each float32 [b, n]."""
        model = self._model
        scores = model.network_scores(model.network_vectors(batch))
        with model.evidence.read_table(self._table):
            weights = model.evidence.weigh(batch["lengths"], tf.shape(batch["items"])[1])
            sums = model.evidence.sum_pairs(batch["items"], weights)
        return tf.ensure_shape(scores, [None, model.num_items]), sums[:, 1:]

    def _join_scores(self, scores: Tensor, sums: Tensor, gain: Tensor, share: Tensor) -> tf.Tensor:
        """Returns scores of the network plus gain x (sums of evidence + share x log p), float32 [b, n]."""
        log_shares = tf.convert_to_tensor(self._model.evidence.log_shares)[1:]
        return scores + gain * sums + (gain * share) * log_shares

    def _rank_batch(self, batch: Batch, targets: Tensor, seen: Tensor, mixes: Tensor) -> tf.Tensor:
        """Returns the ranks with each of the mixes, int32 [m, b]."""
        scores, sums = self._score_batch(batch)

        def rank(mix: Tensor) -> tf.Tensor:
            return rank_unseen(self._join_scores(scores, sums, mix[0], mix[1]), targets, seen)

        return tf.map_fn(rank, mixes, fn_output_signature=SINGLES, parallel_iterations=1)

    def _propose_mixes(self) -> list[tuple[np.float32, np.float32]]:
        gain, popularity, _ = np.asarray(self._model.evidence.mix).tolist()
        if not gain:
            mixes = [(gain, self._start) for gain in GAINS]
        else:
            row = int(np.argmin(np.abs(np.log(np.array(GAINS) / gain))))
            column = int(np.argmin(np.abs(np.array(SHARES) - popularity / gain)))
            near = [(row, column), (row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
            mixes = [(GAINS[i], SHARES[j]) for i, j in near if 0 <= i < len(GAINS) and 0 <= j < len(SHARES)]
        return [(np.float32(gain), np.float32(share)) for gain, share in mixes]
