"""The model as a whole: its switches, dropout's places, initial weights, and bfloat16."""

import keras
import numpy as np
import pytest

from bert4rec_tf.models import BERT4Rec
from bert4rec_tf.models.pop import Pop
from bert4rec_tf.models.rows import ITEMS, copy_rows
from bert4rec_tf.nn.dropout import Dropout

NUM_ITEMS, LENGTH = 30, 8
BATCH = {
    "users": np.arange(3, dtype=np.int32),
    "items": np.array([[4, 9, 2, 7, 1], [3, 0, 0, 0, 0], [5, 6, 8, 0, 0]], np.int32),
    "lengths": np.array([5, 1, 3], np.int32),
}


def make(**settings):
    keras.utils.set_random_seed(5)
    defaults = {"max_length": LENGTH, "hidden_dim": 8, "num_heads": 2, "initializer_stddev": 0.3}
    return BERT4Rec(NUM_ITEMS, **{**defaults, **settings})


def test_without_positions_the_order_does_not_matter_and_with_them_it_does():
    reversed_history = {**BATCH, "items": BATCH["items"][:, ::-1][:1], "lengths": BATCH["lengths"][:1], "users": [0]}
    forward = {"users": [0], "items": BATCH["items"][:1], "lengths": BATCH["lengths"][:1]}
    blind, seeing = make(use_positions=False), make()
    np.testing.assert_allclose(blind.score(forward), blind.score(reversed_history), atol=1e-4)
    assert np.abs(np.asarray(seeing.score(forward)) - np.asarray(seeing.score(reversed_history))).max() > 1e-2


@pytest.mark.parametrize("row", range(3))
def test_positions_from_the_last_item_are_those_from_the_first_with_the_table_moved(row):
    """By the length of the history: its mask has the last vector of the table."""
    history = {name: column[row : row + 1] for name, column in BATCH.items()}
    inputs = BATCH["lengths"][row] + 1
    from_last, from_first = make(positions_from_last=True), make()
    for target, source in zip(from_first.weights, from_last.weights, strict=True):
        target.assign(source)
    from_first.positions.embeddings.assign(np.roll(from_last.positions.embeddings, inputs - LENGTH, axis=0))
    expected, scores = np.asarray(from_first.score(history)), np.asarray(from_last.score(BATCH))
    np.testing.assert_allclose(scores[row], expected[0], atol=1e-5)
    assert np.abs(np.asarray(make().score(history)) - expected).max() > 1e-2


def test_positions_from_the_last_item_keep_their_vectors_in_a_longer_table():
    short, long = make(positions_from_last=True), make(positions_from_last=True, max_length=LENGTH + 5)
    names = {ITEMS: [str(number) for number in range(NUM_ITEMS)]}
    copy_rows(short, long, names, names)
    np.testing.assert_allclose(long.score(BATCH), short.score(BATCH), atol=1e-5)


@pytest.mark.parametrize(("switch", "name"), [("use_feed_forward", "feed_forward"), ("use_layer_norm", "gamma")])
def test_a_model_without_a_part_has_no_weights_of_it(switch, name):
    whole, without = ([weight.path for weight in make(**{switch: use}).weights] for use in (True, False))
    assert any(name in path for path in whole) and not any(name in path for path in without)


def test_without_residual_the_hidden_state_of_one_token_forgets_its_input():
    model = make(use_residual=False)
    for block in model.blocks:
        block.attention.value.kernel.assign(np.zeros((8, 8)))
    scores = np.asarray(model.score(BATCH))
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)
    assert np.abs(np.asarray(make().score(BATCH))[0] - np.asarray(make().score(BATCH))[1]).max() > 1e-2


def test_dropout_has_its_four_places_and_no_fifth():
    model = make(dropout=0.25, attention_dropout=0.75, num_layers=1)
    block = model.blocks[0]
    rates = {
        "embedding": model.embedding_dropout.rate,
        "attention": block.attention.dropout_layer.rate,
        "after attention": block.attention_residual.dropout_layer.rate,
        "after feed-forward": block.feed_forward_residual.dropout_layer.rate,
    }
    assert rates == {"embedding": 0.25, "attention": 0.75, "after attention": 0.25, "after feed-forward": 0.25}
    everywhere = [layer for layer in model._flatten_layers() if isinstance(layer, Dropout)]
    assert len(everywhere) == 4


def test_initial_weights_are_truncated_normal():
    keras.utils.set_random_seed(1)
    model = BERT4Rec(500, max_length=50, hidden_dim=32, num_heads=1)
    table = model.item_embeddings.numpy()
    assert np.abs(table).max() <= 0.04
    assert abs(table.std() - 0.02 * 0.8796) < 3e-4
    for weight in model.trainable_variables:
        if weight.name in ("bias", "beta"):
            assert not weight.numpy().any()
        if weight.name == "gamma":
            assert (weight.numpy() == 1).all()


def test_a_mixed_policy_reaches_every_layer():
    model = make(dtype="mixed_bfloat16", use_token_type=True)
    for layer in model._flatten_layers():
        is_dropout = isinstance(layer, Dropout)
        assert layer.dtype_policy.name == ("float32" if is_dropout else "mixed_bfloat16"), layer.path
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    assert keras.config.dtype_policy().name == "float32"


def test_scores_in_bfloat16_are_not_rounded_into_ties():
    keras.utils.set_random_seed(5)
    model = BERT4Rec(2_000, max_length=LENGTH, hidden_dim=8, dtype="mixed_bfloat16", initializer_stddev=0.3)
    scores = np.asarray(model.score({name: values[:1] for name, values in BATCH.items()}))
    assert len(np.unique(scores)) > 1_980


def test_popularity_is_counted_exactly_whatever_the_policy():
    model = Pop(2, dtype="mixed_bfloat16")
    model.counts.assign([0, 100_001, 100_002])
    np.testing.assert_array_equal(model.score(BATCH), [[100_001, 100_002]] * 3)
