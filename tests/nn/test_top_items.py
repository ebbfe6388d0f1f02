"""The best items block by block, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.nn.top_items import Blocks, find_best

WIDTH, HEIGHT = 3, 1_000


@pytest.mark.parametrize(
    ("num_items", "k"),
    [(50, 0), (50, 1), (50, 6), (50, 50), (500, 6), (2 * HEIGHT, 6), (2 * HEIGHT + 1, 6), (HEIGHT + 3, 200)],
)
def test_the_best_of_all_blocks_are_found_with_ties_and_hidden_items(num_items, k):
    """One block, and several with and without a rest; few items, and enough to search groups of them."""
    rng = np.random.default_rng(2)
    rows, vectors = rng.integers(-2, 3, [num_items + 1, WIDTH]), rng.integers(-2, 3, [4, WIDTH])  # many equal scores
    bias = rng.integers(-1, 2, num_items + 1)
    bias[-1] = 20  # so the last item of the rest is the best
    hidden = np.array([[1, 0, 0], [num_items, 5, 6], [0, 0, 0], [7, 8, 7]], np.int32)
    scores = (vectors @ rows.T + bias)[:, 1:].astype(np.float64)
    products = tuple(tf.constant(part, tf.float32) for part in (rows, bias))

    @tf.function
    def find(vectors, k, hidden):
        blocks = Blocks.from_products(products, vectors, num_items, min(HEIGHT, num_items + 1))
        return find_best(blocks, k, hidden, lambda block: block.scores, is_logits=True)

    items, found, normalisers = find(tf.constant(vectors, tf.float32), tf.constant(k), tf.constant(hidden))
    np.testing.assert_allclose(normalisers[:, 0], np.log(np.exp(scores).sum(axis=1)), rtol=1e-6)
    for row in range(4):
        scores[row, hidden[row][hidden[row] > 0] - 1] = -np.inf
        order = np.argsort(-scores[row], kind="stable")[:k]
        expected = np.where(np.isfinite(scores[row, order]), order + 1, 0)
        np.testing.assert_array_equal(items[row], expected)
        np.testing.assert_array_equal(found[row], scores[row, order])
