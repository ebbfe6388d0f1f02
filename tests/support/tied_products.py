"""Scores by products of small whole numbers, so that many are equal, and what to rank by them."""

import math

import numpy as np
from hypothesis import strategies as st

from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation.candidates import SAMPLERS
from bert4rec_tf.evaluation.ranking import RankingTask
from support.ranking_oracle import make_sequences

NUM_ITEMS, WIDTH, MOST_USERS = 45, 2, 9
RNG = np.random.default_rng(6)
TABLE = RNG.integers(-1, 2, (NUM_ITEMS + 3, WIDTH)).astype(np.float32)
BIAS = RNG.choice(np.array([0, 0, 1, -math.inf], np.float32), NUM_ITEMS + 3)


def no_scores(batch, candidates):
    raise AssertionError("only products are asked for")


@st.composite
def tasks(draw):
    history = st.lists(st.integers(1, NUM_ITEMS), min_size=3, max_size=12)
    histories = draw(st.lists(history, min_size=1, max_size=MOST_USERS - 1))
    split = LeaveOneOut(make_sequences([*map(np.array, histories), np.arange(1, NUM_ITEMS + 1)], NUM_ITEMS))
    negatives = {law: sample(split.sequences, split.users, 13, seed=0) for law, sample in SAMPLERS.items()}
    return RankingTask.of(split, "test", negatives, all_items=True)
