"""The correction for popularity, against sums written out by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf
from support.ranking_oracle import make_sequences, plain_ranks

from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation import popularity_penalty
from bert4rec_tf.evaluation.candidates import SAMPLERS
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.foundation.errors import UserError

NUM_ITEMS = 30
RNG = np.random.default_rng(4)
WEIGHTS = 1 / np.arange(1, NUM_ITEMS + 1)
HISTORIES = [RNG.choice(NUM_ITEMS, size, p=WEIGHTS / WEIGHTS.sum()) + 1 for size in RNG.integers(3, 12, 60)]
SPLIT = LeaveOneOut(make_sequences([*HISTORIES, np.arange(1, NUM_ITEMS + 1)], NUM_ITEMS))
SCORES = RNG.normal(size=(SPLIT.sequences.num_users, NUM_ITEMS)).astype(np.float32)
COUNTS = SPLIT.training(with_validation=True).count_items().tolist()


def score(batch, candidates=None):
    rows = tf.gather(SCORES, batch["users"])
    return rows if candidates is None else tf.gather(rows, tf.maximum(candidates - 1, 0), batch_dims=1)


def by_hand(alpha):
    return lambda user, history, item: np.float32(
        SCORES[user, item - 1] - np.float32(alpha * np.float32(math.log(COUNTS[item] + 1)))
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3, 40.0])
def test_items_are_ranked_by_score_less_alpha_times_the_logarithm_of_their_count(alpha):
    penalties = popularity_penalty.compute_penalties(np.array(COUNTS), alpha)
    negatives = {name: draw(SPLIT.sequences, SPLIT.users, 10, seed=1) for name, draw in SAMPLERS.items()}
    task = RankingTask.from_split(SPLIT, "test", negatives, all_items=True)
    ranks = Ranker(score, penalties=penalties).rank(task)
    for protocol, expected in plain_ranks(task, by_hand(alpha)).items():
        assert ranks[protocol].tolist() == expected, protocol


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf])
def test_a_correction_is_not_negative(alpha):
    with pytest.raises(UserError, match="`popularity_correction` must be at least 0 and finite"):
        popularity_penalty.compute_penalties(np.zeros(3, int), alpha)
