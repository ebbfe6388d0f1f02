"""The best items block by block, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.export import products, top_items
from bert4rec_tf.models import BprMf

NUMBER, WIDTH = 50, 3


@pytest.fixture(params=[(1, 1), (7, 7), (1, 1 << 16)])
def blocks(request, monkeypatch):
    """Limits of the items in a block: many blocks of one, some with a rest, a single one."""
    monkeypatch.setattr(products, "FEWEST_ROWS", request.param[0])
    monkeypatch.setattr(products, "MOST_ROWS", request.param[1])
    monkeypatch.setattr(top_items, "GROUP", 4)  # few enough to search groups


@pytest.mark.parametrize("k", [0, 1, 6, NUMBER])
def test_best_of_all_blocks_with_ties_and_hidden_items(blocks, k):
    rng = np.random.default_rng(2)
    model = BprMf(NUMBER, num_users=1, hidden_dim=WIDTH)
    rows, vectors = rng.integers(-2, 3, [NUMBER + 1, WIDTH]), rng.integers(-2, 3, [4, WIDTH])  # many equal scores
    bias = rng.integers(-1, 2, NUMBER + 1)
    model.items.assign(rows)
    model.bias.assign(bias)
    hidden = np.array([[1, 0, 0], [NUMBER, 5, 6], [0, 0, 0], [7, 8, 7]], np.int32)
    scores = (vectors @ rows.T + bias)[:, 1:].astype(np.float64)
    best = tf.function(products.find_best)
    arrays = tf.constant(vectors, tf.float32), tf.constant(k), tf.constant(hidden)
    items, found, normalisers = best(model.score_products(), NUMBER, *arrays, lambda one, begin, end: one, True)
    np.testing.assert_allclose(normalisers[:, 0], np.log(np.exp(scores).sum(axis=1)), rtol=1e-6)
    for row in range(4):
        scores[row, hidden[row][hidden[row] > 0] - 1] = -np.inf
        order = np.argsort(-scores[row], kind="stable")[:k]
        expected = np.where(np.isfinite(scores[row, order]), order + 1, 0)
        np.testing.assert_array_equal(items[row], expected)
        np.testing.assert_array_equal(found[row], scores[row, order])
