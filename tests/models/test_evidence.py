"""Evidence of transitions beside the scores of a network."""

import dataclasses

import numpy as np
import pytest
from support.evidence_oracle import histories_of, plain_evidence, plain_log_shares, plain_sums
from support.models import HISTORIES, NUM_ITEMS, SEQUENCES, batches, make, make_quiet, tensors
from support.ranking_oracle import make_sequences

from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.models.feature_recommender import fold_features
from bert4rec_tf.runs.warm_start import StartWeights

GAIN, POPULARITY, SCALE = 3.0, -0.25, 0.75
both_models = pytest.mark.parametrize("name", ["bert4rec", "sasrec"])


def make_with_evidence(name, **changes):
    model = make(name, evidence="transitions", **changes)
    model.evidence.mix.assign([GAIN, POPULARITY, SCALE])
    return model


def own_weights(model):
    """Path -> value of all weights but those of the evidence."""
    weights = [weight for weight in model.weights if "/evidence/" not in f"/{weight.path}"]
    return {weight.path.partition("/")[2]: weight.numpy() for weight in weights}


@both_models
def test_the_network_is_the_same_as_without_evidence(name):
    plain, model = make(name), make(name, evidence="transitions")
    np.testing.assert_array_equal(model.score(HISTORIES), plain.score(HISTORIES), "before a mix is chosen")
    model.evidence.mix.assign([GAIN, POPULARITY, SCALE])
    assert plain.evidence is None and own_weights(model).keys() == own_weights(plain).keys()
    for path, value in own_weights(plain).items():
        np.testing.assert_array_equal(own_weights(model)[path], value, path)
    np.testing.assert_array_equal(model.network_scores(model.network_vectors(HISTORIES)), plain.score(HISTORIES))
    np.testing.assert_array_equal(model.item_vectors(), plain.item_vectors())
    trained = [weight.path.partition("/")[2] for weight in model.trainable_variables]
    assert trained == [weight.path.partition("/")[2] for weight in plain.trainable_variables]


@both_models
def test_the_loss_does_not_read_the_evidence(name):
    plain, model = make_quiet(name), make_quiet(name, evidence="transitions")
    model.evidence.mix.assign([GAIN, POPULARITY, SCALE])
    batch = tensors(next(batches(model)))
    assert float(model.training_loss(batch)) == float(plain.training_loss(batch))


@pytest.mark.parametrize(("name", "power"), [("bert4rec", 0.25), ("bert4rec", 0.0), ("sasrec", 1.0)])
def test_scores_are_the_network_s_plus_those_of_the_formula_scaled(name, power):
    model = make_with_evidence(name, evidence_popularity_power=power)
    candidates = np.array([[1, 40, 7], [2, 2, 3], [5, 6, 8], [9, 10, 11]], np.int32)
    every, some = model.score(HISTORIES).numpy(), model.score(HISTORIES, candidates).numpy()
    network = model.network_scores(model.network_vectors(HISTORIES)).numpy()
    settings = dataclasses.replace(ItemTransitionsSettings().resolve(), max_history=model.max_history)
    known = histories_of(SEQUENCES)
    evidence, shares = plain_evidence(known, NUM_ITEMS, settings, power), plain_log_shares(known, NUM_ITEMS)
    for row, length in enumerate(HISTORIES["lengths"]):
        sums = plain_sums(evidence, HISTORIES["items"][row, :length].tolist(), settings)
        added = [GAIN * sums[item] + POPULARITY * shares[item] for item in range(1, NUM_ITEMS + 1)]
        np.testing.assert_allclose(every[row], SCALE * (network[row] + added), rtol=1e-4, atol=1e-5)
    expected = np.take_along_axis(every, candidates - 1, axis=1)
    np.testing.assert_allclose(some, expected, rtol=1e-5, atol=1e-5)


@both_models
def test_only_what_the_network_reads_is_evidence(name):
    model = make_with_evidence(name)
    long = np.arange(1, 25, dtype=np.int32)[None, :] % NUM_ITEMS + 1
    kept = long[:, -model.max_history :]
    whole, part = (
        model.score({"users": np.zeros(1, np.int32), "items": one, "lengths": np.array([one.shape[1]], np.int32)})
        for one in (long, kept)
    )
    np.testing.assert_allclose(whole, part, rtol=1e-5, atol=1e-6)


def test_a_model_with_features_that_are_folded_keeps_the_evidence():
    model = make_with_evidence("sasrec", use_item_features="add")
    plain = fold_features(model)
    assert model.features and not plain.features
    np.testing.assert_allclose(plain.score(HISTORIES), model.score(HISTORIES), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(plain.evidence.mix, model.evidence.mix)


def test_evidence_is_counted_again_where_weights_are_moved():
    """The rows of items are moved by their ids; pairs are counted in the new actions, and the mix is chosen anew."""
    source = make_with_evidence("sasrec")
    names = SEQUENCES.vocabulary.items.tolist()
    start = StartWeights("sasrec", source, names, [])
    for evidence in ("transitions", "none"):
        model = make("sasrec", adapted=evidence == "none", evidence=evidence)
        before = {}
        if evidence == "transitions":
            model.adapt(make_sequences([[1, 2, 3], [3, 2]], NUM_ITEMS))
            before = {weight.path: weight.numpy() for weight in model.evidence.weights}
            assert model.evidence.num_pairs != source.evidence.num_pairs
        model.own_items.assign(np.zeros(model.own_items.shape))
        start.apply_to(model, names[::-1], [])
        np.testing.assert_array_equal(model.own_items.numpy()[1:], source.own_items.numpy()[:0:-1])
        for weight in model.evidence.weights if before else ():
            np.testing.assert_array_equal(weight.numpy(), before[weight.path])
