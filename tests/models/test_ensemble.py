"""BERT4Rec and SASRec side by side."""

import numpy as np
import pytest
import tensorflow as tf
from support.models import (
    HISTORIES,
    NUM_USERS,
    SEQUENCES,
    batches,
    make,
    make_quiet,
    make_training_step,
    tensors,
)

from bert4rec_tf.config.model_settings import AUTO, BERT4RecSettings, SASRecSettings
from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.examples import in_memory
from bert4rec_tf.data.examples.joined import JoinedFeed, join_columns, split_columns
from bert4rec_tf.data.examples.rows import Feed
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation.metrics import NDCG, compute_metrics
from bert4rec_tf.evaluation.mix_search import NETWORK_SHARES, MixSearch
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models.feature_recommender import fold_features


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_scores_of_both_networks_are_added_to_those_of_the_evidence(share):
    model = make_quiet(AUTO)
    model.set_mix([0.7, -0.1, 2.0], share)
    scores = [np.asarray(network.score(HISTORIES), np.float64) for network in model.networks.values()]
    encoded = model.evidence.encode(HISTORIES["items"], HISTORIES["lengths"])
    expected = 2 * (share * scores[0] + (1 - share) * scores[1] + np.asarray(model.evidence.score(encoded)))
    np.testing.assert_allclose(model.score(HISTORIES), expected, rtol=1e-4, atol=1e-5)
    candidates = np.array([[1, 40, 7]] * 4, np.int32)
    np.testing.assert_allclose(model.score(HISTORIES, candidates), expected[:, candidates[0] - 1], rtol=1e-4, atol=1e-5)


def test_the_networks_share_settings_and_have_no_evidence_of_their_own():
    model = make(AUTO, dropout=0.3, network_share=0.25)
    bert4rec, sasrec = model.networks.values()
    assert type(bert4rec.settings) is BERT4RecSettings and type(sasrec.settings) is SASRecSettings
    assert bert4rec.settings.dropout == sasrec.settings.dropout == 0.3 and model.get_network_share() == 0.25
    assert bert4rec.evidence is None and sasrec.evidence is None and model.evidence.built
    with pytest.raises(UserError, match="`evidence` must be one of"):
        make(AUTO, evidence="none")
    with pytest.raises(UserError, match="`network_share` must be at least 0 and at most 1"):
        make(AUTO, network_share=1.5)


@pytest.mark.long
@pytest.mark.parametrize("compiled", ["off", pytest.param("xla", marks=pytest.mark.slow)])
def test_each_network_is_trained_as_it_would_be_alone(compiled):
    """Both have the weights that training each by itself gives, step by step."""
    model, settings = make_quiet(AUTO), TrainingSettings(steps=20, warmup_steps=0, learning_rate=0.01, clip_norm=0.0)
    alone = make_quiet(AUTO)
    for weight, value in zip(alone.weights, model.weights, strict=True):
        weight.assign(value)
    together = make_training_step(model, settings, compile=compiled)
    steps = {name: make_training_step(network, settings, compile=compiled) for name, network in alone.networks.items()}
    made = batches(model)
    for _ in range(4):
        batch = next(made)
        loss = together(batch)["loss"]
        parts = split_columns(batch, steps)
        losses = [step(parts[name])["loss"] for name, step in steps.items()]
        assert loss == pytest.approx(sum(losses), rel=1e-5)
    for weight, expected in zip(model.trainable_variables, alone.trainable_variables, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-3, atol=1e-5, err_msg=weight.path)


def test_a_joined_feed_has_the_batches_of_each_feed():
    shifted = in_memory.NextItemExamples(SEQUENCES, 8)
    feeds = {"one": Feed(shifted, 4, seed=1), "other": Feed(shifted, 7, seed=2)}
    joined = JoinedFeed(feeds)
    columns = joined.read(5, 1)
    batch = joined.lay_out(joined.tables, {name: column[0] for name, column in columns.items()})
    for name, part in split_columns(batch, feeds).items():
        own = {column: values[0] for column, values in feeds[name].read(5, 1).items()}
        expected = feeds[name].lay_out(feeds[name].tables, own)
        assert part.keys() == expected.keys()
        for column, values in expected.items():
            np.testing.assert_array_equal(part[column], values)
    assert joined.steps_per_epoch == feeds["one"].steps_per_epoch > feeds["other"].steps_per_epoch
    assert joined.batch_size == 11


def test_columns_are_joined_and_split():
    parts = {"one": {"items": 1, "users": 2}, "two": {"items": 3}}
    joined = join_columns(parts)
    assert joined == {"one/items": 1, "one/users": 2, "two/items": 3}
    assert split_columns({**joined, "draw": 0}, parts) == parts


def make_search(model):
    split = LeaveOneOut(SEQUENCES)
    task = RankingTask.from_split(split, "validation", {}, all_items=True)
    settings = ItemTransitionsSettings().resolve()
    model.adapt(split.training(with_validation=False), settings)
    return MixSearch(model, task, settings), task


def spoil(network):
    """Gives the network's items vectors that say nothing, and that no gain of the evidence drowns."""
    network.own_items.assign(100 * np.random.default_rng(3).normal(size=network.own_items.shape))


@pytest.mark.long
@pytest.mark.parametrize(("spoiled", "chosen"), [("sasrec", 1.0), ("bert4rec", 0.0)])
def test_a_network_that_only_harms_gets_no_share(spoiled, chosen):
    """The other network ranks as the evidence does, which it is weak beside."""
    model = make_quiet(AUTO, adapted=False)
    search, task = make_search(model)
    for network in model.networks.values():
        network.own_items.assign(0.01 * network.own_items.numpy())
    spoil(model.networks[spoiled])
    for _ in NETWORK_SHARES:
        ranks = search.choose()
    assert model.get_network_share() == chosen
    np.testing.assert_array_equal(ranks, Ranker(model).rank(task)["full"])
    joined, measured = search.compare_networks()
    assert joined == compute_metrics(ranks)[NDCG]
    assert list(measured) == list(model.networks)
    assert measured[spoiled] < compute_metrics(ranks)[NDCG]
    assert model.get_network_share() == chosen


def test_a_given_share_stays():
    model = make_quiet(AUTO, network_share=0.75, adapted=False)
    search, _ = make_search(model)
    for _ in range(3):
        search.choose()
    assert model.get_network_share() == 0.75


@pytest.mark.parametrize("use_users", [False, True])
def test_features_are_folded_into_both_networks(use_users):
    model = make(AUTO, use_item_features="add", use_user_features=use_users)
    plain = fold_features(model)
    assert not plain.features and plain.needs_users == use_users and model.evidence is not None
    np.testing.assert_allclose(plain.score(HISTORIES), model.score(HISTORIES), rtol=1e-4, atol=1e-5)
    assert plain.num_users == (NUM_USERS if use_users else None)
    if use_users:
        strangers = {**HISTORIES, "users": np.full(4, -1, np.int32)}
        np.testing.assert_allclose(plain.score(strangers), model.score(strangers), rtol=1e-4, atol=1e-5)


def test_it_computes_in_bfloat16_and_scores_in_float32():
    model = make(AUTO, dtype="mixed_bfloat16")
    assert model.score(HISTORIES).dtype == tf.float32
    assert model.training_loss(tensors(next(batches(model)))).dtype == tf.float32
