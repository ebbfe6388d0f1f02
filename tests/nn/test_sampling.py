"""The softmax over a sample of the items, against plain Python and the whole softmax."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.nn import losses, sampling

NUM_ITEMS = 40


def drawn(how, seed, number=200_000):
    items, log_counts = sampling.draw_shared_items(tf.constant([7, seed], tf.int64), number, NUM_ITEMS, how)
    return items.numpy(), log_counts.numpy()


def share_of(item, how):
    return 1 / NUM_ITEMS if how == "uniform" else math.log((item + 1) / item) / math.log(NUM_ITEMS + 1)


@pytest.mark.parametrize("how", ["uniform", "log_uniform"])
def test_items_are_drawn_as_often_as_their_shares_say(how):
    items, log_counts = drawn(how, 1)
    shares = np.array([share_of(item, how) for item in range(1, NUM_ITEMS + 1)])
    found = np.bincount(items, minlength=NUM_ITEMS + 1) / len(items)
    assert found[0] == 0 and len(found) == NUM_ITEMS + 1
    deviations = np.sqrt(shares * (1 - shares) / len(items))
    assert np.all(np.abs(found[1:] - shares) < 5 * deviations)
    np.testing.assert_allclose(log_counts, np.log(len(items) * shares[items - 1]), rtol=1e-5)


@pytest.mark.parametrize("how", ["uniform", "log_uniform"])
def test_a_seed_repeats_its_draw_and_another_does_not(how):
    assert np.array_equal(drawn(how, 3, 50)[0], drawn(how, 3, 50)[0])
    assert not np.array_equal(drawn(how, 3, 50)[0], drawn(how, 4, 50)[0])


@pytest.fixture
def scores():
    """Scores [5, n] of all items, and the targets [5]."""
    return np.random.default_rng(0).normal(0, 2, (5, NUM_ITEMS)).astype(np.float32), np.array([1, 9, 9, 33, 40])


def of_sample(scores, targets, sample):
    rows = np.arange(len(targets))
    return scores[rows, targets - 1], scores[:, sample - 1], targets[:, None] == sample


def test_a_sample_of_every_item_once_gives_the_whole_softmax(scores):
    everything = np.arange(1, NUM_ITEMS + 1)
    found = losses.sampled_softmax(*of_sample(*scores, everything), np.zeros(NUM_ITEMS, np.float32))
    whole = tf.nn.sparse_softmax_cross_entropy_with_logits(scores[1] - 1, scores[0])
    np.testing.assert_allclose(found, whole, rtol=1e-5)
