"""Initial item vectors: mutual information by plain loops, and its best approximation by NumPy's own eigenvalues."""

import math
from collections import Counter

import keras
import numpy as np
import pytest
from support.ranking_oracle import make_sequences

from bert4rec_tf.models import MODELS
from bert4rec_tf.models.initial_vectors import make_cooccurrence_vectors

RNG = np.random.default_rng(3)
GROUPS = [np.arange(1, 11), np.arange(11, 21)]
HISTORIES = [RNG.choice(GROUPS[user % 2], RNG.integers(2, 9)) for user in range(60)]
SEQUENCES = make_sequences(HISTORIES, 22)  # items 21 and 22 never occur


def information_by_hand(histories, size):
    strengths = Counter()
    for history in histories:
        for place, item in enumerate(history):
            for other, near in enumerate(history):
                if place != other and abs(place - other) <= 10:
                    strengths[item, near] += 0.7 ** (abs(place - other) - 1)
    sums = Counter()
    for (item, _), strength in strengths.items():
        sums[item] += strength
    total, smoothed = sum(sums.values()), sum(value**0.75 for value in sums.values())
    share = {item: math.log(value / total) + math.log(value**0.75 / smoothed) for item, value in sums.items()}
    matrix = np.zeros((size, size))
    for (item, near), strength in strengths.items():
        matrix[item, near] = max(0.0, math.log(strength / total) - (share[item] + share[near]) / 2)
    return matrix


@pytest.mark.parametrize("width", [1, 4, 23])
def test_vectors_are_the_strongest_directions_of_the_mutual_information(width):
    vectors = make_cooccurrence_vectors(SEQUENCES, width)
    values, directions = np.linalg.eigh(information_by_hand(HISTORIES, 23))
    kept = np.argsort(-np.abs(values))[:width]
    expected = directions[:, kept] * np.abs(values[kept]) @ directions[:, kept].T
    assert vectors.shape == (23, width)
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=1e-4)
    assert not vectors[[0, 21, 22]].any()


@pytest.mark.parametrize("name", ["bert4rec", "sasrec"])
def test_only_the_setting_gives_a_model_cooccurrence_vectors(name):
    table = {"bert4rec": "item_embeddings", "sasrec": "items"}[name]
    models = [MODELS[name](22, hidden_dim=4, num_heads=1, initial_vectors=kind) for kind in ("random", "cooccurrence")]
    before = [getattr(model, table).numpy() for model in models]
    for model in models:
        model.initialise(SEQUENCES)
    plain, near = (getattr(model, table).numpy() for model in models)
    assert np.array_equal(plain, before[0])
    vectors = make_cooccurrence_vectors(SEQUENCES, 4)[1:21]
    scale = near[1:21].std() / vectors.std()
    np.testing.assert_allclose(near[1:21], vectors * scale, rtol=1e-5, atol=1e-7)
    assert near[1:21].std() == pytest.approx(before[1][1:].std(), rel=1e-5)
    others = [0, 21, 22, *range(23, len(near))]
    assert np.array_equal(near[others], before[1][others])


def test_identity_layers_change_these_weights_and_no_others():
    keras.utils.set_random_seed(1)
    model = MODELS["bert4rec"](22, hidden_dim=4, num_layers=3, initial_layers="identity")
    before = {weight.path: weight.numpy() for weight in model.weights}
    model.initialise(SEQUENCES)
    added = {weight.path: weight.numpy() - before[weight.path] for weight in model.weights}
    changed = {path: difference for path, difference in added.items() if difference.any()}
    for path, difference in changed.items():
        share = 0.25 if "head" in path else 1.0
        np.testing.assert_allclose(difference, share * np.eye(4), atol=1e-7)
    assert len(changed) == 7 and all(path.endswith("kernel") for path in changed)
