"""Ranking with a correction for popularity: by score - alpha log(count + 1).

Candidates drawn with probability q(i) make the ranking by p(i | history) / q(i) the best one, so the popular protocol
rewards a model that ranks popular items lower than their probability (Krichene & Rendle, KDD 2020; Dallmann et al.,
RecSys 2021). With alpha, a trained model can be compared with and without that.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.popularity_option import check_correction
from bert4rec_tf.evaluation import full_ranking
from bert4rec_tf.evaluation.metrics import NDCG, compute_metrics
from bert4rec_tf.evaluation.ranker import BATCH_SIZE, Ranker, RankingTask, rank_targets
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models import Recommender
from bert4rec_tf.models.item_transitions import ItemTransitions
from bert4rec_tf.models.pop import Pop

Score = Callable[[Batch, Tensor | None], Tensor]
"""(batch, candidates) -> scores, like `Recommender.score`."""

ALPHAS = tuple(step / 10 for step in range(16))
"""The values of alpha that `measure_alphas` tries, 0 to 1.5."""


def compute_log_counts(counts: np.ndarray) -> np.ndarray:
    """Returns log(count + 1) of each item, float32 [n + 1]; entry 0, for padding, is 0. `counts`: int [n]."""
    return np.log1p(np.r_[0, counts]).astype(np.float32)


def compute_penalties(log_counts: np.ndarray, alpha: float) -> np.ndarray:
    """Returns what is subtracted from each item's score, float32 [n + 1]. Raises UserError for a negative alpha."""
    return (check_correction(alpha) * log_counts).astype(np.float32)


def correct_scores(score: Score, log_counts: np.ndarray, alpha: float) -> Score:
    """Returns `score` less the penalties of `log_counts` and `alpha`."""
    penalty = tf.constant(compute_penalties(log_counts, alpha))

    def score_and_correct(batch: Batch, candidates: Tensor | None = None) -> Tensor:
        scores = score(batch, candidates)
        return scores - (penalty[1:] if candidates is None else tf.gather(penalty, candidates))

    return score_and_correct


def make_ranker(model: Recommender, correction: tuple[np.ndarray, float] | None = None) -> Ranker:
    """Returns the ranker of a model as it is now; later changes of its weights do not count.

    `correction`: `log_counts` and `alpha` of `correct_scores`.
    """
    score = model.score if correction is None else correct_scores(model.score, *correction)
    biases = [] if correction is None else [-compute_penalties(*correction)]
    blocks: Any = None
    batch_size = BATCH_SIZE
    if isinstance(model, Pop):
        blocks = full_ranking.SharedRanking(sum(biases, np.asarray(model.counts)))
    elif isinstance(model, ItemTransitions) and model.num_items <= full_ranking.DENSE_ITEMS:
        blocks, batch_size = full_ranking.EvidenceScores.from_model(model, biases), full_ranking.EVIDENCE_USERS
    elif (products := model.score_products()) is not None:
        table, bias = products
        biases = biases if bias is None else [bias, *biases]
        blocks = full_ranking.ProductScores(model.user_vectors, table, biases, model.num_items)
    return Ranker(score, model.max_history, batch_size, blocks)


def measure_alphas(ranker: Ranker, task: RankingTask, log_counts: np.ndarray) -> dict[float, float]:
    """Returns NDCG@10 for each of ALPHAS. The model scores the candidates only once.

    `ranker`: of the model without a correction. The task has popular candidates only, and not all items.
    """
    scores, candidates = ranker.score_candidates(task)
    return {
        alpha: compute_metrics(rank_targets(scores - compute_penalties(log_counts, alpha)[candidates], candidates))[
            NDCG
        ]
        for alpha in ALPHAS
    }
