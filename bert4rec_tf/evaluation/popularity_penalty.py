"""Ranking with a correction for popularity: by score - alpha log(count + 1).

Candidates drawn with probability q(i) make the ranking by p(i | history) / q(i) the best one, so the popular protocol
rewards a model that ranks popular items lower than their probability (Krichene & Rendle, KDD 2020; Dallmann et al.,
RecSys 2021). With alpha, a trained model can be compared with and without that.
"""

import numpy as np

from bert4rec_tf.config.popularity_option import check_correction
from bert4rec_tf.evaluation.metrics import NDCG, compute_metrics
from bert4rec_tf.evaluation.ranking import Ranker, rank_targets
from bert4rec_tf.evaluation.ranking_task import RankingTask

ALPHAS = tuple(step / 10 for step in range(16))
"""The values of alpha that `measure_alphas` tries, 0 to 1.5."""


def compute_penalties(counts: np.ndarray, alpha: float) -> np.ndarray:
    """Returns what is subtracted from each item's score, float32 [n + 1]. Raises UserError for a negative alpha.

    `counts`: int [n + 1], how often each item occurs; entry 0 is for padding.
    """
    return (check_correction(alpha) * np.log1p(counts).astype(np.float32)).astype(np.float32)


def measure_alphas(ranker: Ranker, task: RankingTask, counts: np.ndarray) -> dict[float, float]:
    """Returns NDCG@10 for each of ALPHAS. The model scores the candidates only once.

    `ranker`: of the model without a correction. The task has popular candidates only, and not all items. `counts`: as
    for `compute_penalties`.
    """
    scores, candidates = ranker.score_candidates(task)
    return {
        alpha: compute_metrics(rank_targets(scores - compute_penalties(counts, alpha)[candidates], candidates))[NDCG]
        for alpha in ALPHAS
    }
