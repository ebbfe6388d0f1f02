"""The model as a whole: shapes, switches, the test input, dropout's places, saving."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.models import BERT4Rec
from bert4rec_tf.models.pop import Pop
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


def weight_names(model):
    return {weight.path.split("/", 1)[1] if "/" in weight.path else weight.path for weight in model.trainable_variables}


def test_score_of_all_items_and_of_candidates_agree():
    model = make()
    everything = np.asarray(model.score(BATCH))
    assert everything.shape == (3, NUM_ITEMS)
    candidates = np.array([[1, 30, 7], [2, 2, 9], [14, 1, 29]], np.int32)
    np.testing.assert_allclose(
        model.score(BATCH, candidates), np.take_along_axis(everything, candidates - 1, axis=1), atol=1e-5
    )


def test_score_is_the_head_at_the_mask_token_after_the_history():
    model = make()
    items = np.zeros((3, 6), np.int32)
    for row, length in enumerate(BATCH["lengths"]):
        items[row, :length] = BATCH["items"][row, :length]
        items[row, length] = NUM_ITEMS + 1
    hidden = np.asarray(model.encode(items))[np.arange(3), BATCH["lengths"]]
    expected = np.asarray(model.head(hidden, model.item_embeddings))[:, 1 : NUM_ITEMS + 1]
    np.testing.assert_allclose(model.score(BATCH), expected, atol=1e-5)


def test_a_batch_scores_like_its_rows_one_by_one_and_padding_changes_nothing():
    model = make()
    together = np.asarray(model.score(BATCH))
    for row, length in enumerate(BATCH["lengths"]):
        alone = {
            "users": BATCH["users"][row : row + 1],
            "items": BATCH["items"][row : row + 1, :length],
            "lengths": BATCH["lengths"][row : row + 1],
        }
        np.testing.assert_allclose(model.score(alone)[0], together[row], atol=1e-5)


def test_what_stands_in_the_padding_is_not_seen():
    model = make()
    garbage = np.where(BATCH["items"] == 0, 11, BATCH["items"])
    np.testing.assert_array_equal(model.score({**BATCH, "items": garbage}), model.score(BATCH))


def test_longer_histories_keep_the_last_items():
    model = make()
    long = np.arange(1, 21, dtype=np.int32)[None, :]
    last = long[:, -(LENGTH - 1) :]
    cut = {"users": [0], "items": last, "lengths": np.array([LENGTH - 1], np.int32)}
    np.testing.assert_allclose(
        model.score({"users": [0], "items": long, "lengths": np.array([20], np.int32)}), model.score(cut), atol=1e-6
    )


def test_an_empty_history_is_scored():
    model = make()
    empty = {"users": [0], "items": np.zeros((1, 3), np.int32), "lengths": np.zeros(1, np.int32)}
    assert np.isfinite(np.asarray(model.score(empty))).all()


def training_batch():
    items = np.array([[4, 31, 2, 31, 1], [3, 31, 0, 0, 0], [31, 6, 8, 0, 0]], np.int32)
    return {
        "users": BATCH["users"],
        "items": items,
        "lengths": BATCH["lengths"],
        "mask_positions": np.array([[1, 3, 0], [1, 0, 0], [0, 0, 0]], np.int32),
        "mask_targets": np.array([[9, 7, 0], [12, 0, 0], [5, 0, 0]], np.int32),
    }


def test_training_loss_is_the_mean_over_real_masked_positions():
    model = make(dropout=0.0, attention_dropout=0.0)
    batch = training_batch()
    logits = np.asarray(model.head(model.encode(batch["items"]), model.item_embeddings), np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    slots = [(0, 1, 9), (0, 3, 7), (1, 1, 12), (2, 0, 5)]
    expected = -sum(log_probabilities[slot] for slot in slots) / (len(slots) + 1e-5)
    np.testing.assert_allclose(model.training_loss(batch), expected, rtol=1e-5)


def test_softmax_runs_over_all_rows_of_the_table():
    model = make(num_extra_rows=2)
    assert model.item_embeddings.shape == (NUM_ITEMS + 4, 8)
    assert model.head.bias.shape == (NUM_ITEMS + 4,)


def test_without_positions_the_order_does_not_matter_and_with_them_it_does():
    reversed_history = {**BATCH, "items": BATCH["items"][:, ::-1][:1], "lengths": BATCH["lengths"][:1], "users": [0]}
    forward = {"users": [0], "items": BATCH["items"][:1], "lengths": BATCH["lengths"][:1]}
    blind, seeing = make(use_positions=False), make()
    np.testing.assert_allclose(blind.score(forward), blind.score(reversed_history), atol=1e-4)
    assert np.abs(np.asarray(seeing.score(forward)) - np.asarray(seeing.score(reversed_history))).max() > 1e-2


@pytest.mark.parametrize(
    ("switch", "gone"),
    [
        ({"use_positions": False}, "embeddings"),
        ({"use_feed_forward": False}, "feed_forward"),
        ({"use_layer_norm": False}, "gamma"),
    ],
)
def test_ablations_have_no_such_weights(switch, gone):
    assert any(gone in name for name in weight_names(make()))
    if gone == "embeddings":
        assert make(**switch).positions is None
    else:
        assert not any(gone in name for name in weight_names(make(**switch)))


def test_without_residual_the_hidden_state_of_one_token_forgets_its_input():
    model = make(use_residual=False)
    for block in model.blocks:
        block.attention.value.kernel.assign(np.zeros((8, 8)))
    scores = np.asarray(model.score(BATCH))
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)
    assert np.abs(np.asarray(make().score(BATCH))[0] - np.asarray(make().score(BATCH))[1]).max() > 1e-2


def test_the_token_type_is_one_vector_at_every_position():
    model, plain = make(use_token_type=True), make()
    for variable, other in zip(plain.variables, [v for v in model.variables if v is not model.token_type], strict=True):
        if variable.dtype == "float32":
            other.assign(variable)
    shift = np.linspace(-1, 1, 8).astype(np.float32)
    model.token_type.assign(shift)
    plain.positions.embeddings.assign_add(np.broadcast_to(shift, (LENGTH, 8)))
    np.testing.assert_allclose(model.score(BATCH), plain.score(BATCH), atol=1e-5)


@pytest.mark.parametrize(("num_layers", "num_heads", "hidden_dim"), [(1, 1, 4), (3, 4, 16), (4, 1, 6)])
def test_any_size(num_layers, num_heads, hidden_dim):
    model = make(num_layers=num_layers, num_heads=num_heads, hidden_dim=hidden_dim)
    hidden, attention = model.encode(BATCH["items"], return_attention=True)
    assert hidden.shape == (3, 5, hidden_dim)
    assert [part.shape for part in attention] == [(3, num_heads, 5, 5)] * num_layers


def test_dropout_on_the_embeddings():
    model = make(dropout=0.4, use_layer_norm=False)
    items = np.ones((200, LENGTH), np.int32)
    model.item_embeddings.assign(np.ones(model.item_embeddings.shape))
    model.positions.embeddings.assign(np.zeros((LENGTH, 8)))
    embedded = np.asarray(model.embed(items, training=True))
    assert abs((embedded == 0).mean() - 0.4) < 0.03
    np.testing.assert_array_equal(model.embed(items, training=False), np.ones((200, LENGTH, 8)))


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


def test_scoring_and_loss_differ_by_dropout_only_in_training():
    model = make(dropout=0.5)
    np.testing.assert_array_equal(model.score(BATCH), model.score(BATCH))
    assert float(model.training_loss(training_batch())) != float(model.training_loss(training_batch()))


def test_initial_weights_are_truncated_normal_and_all_different():
    keras.utils.set_random_seed(1)
    model = BERT4Rec(500, max_length=50, hidden_dim=32, num_heads=1)
    table = model.item_embeddings.numpy()
    assert np.abs(table).max() <= 0.04
    assert abs(table.std() - 0.02 * 0.8796) < 3e-4
    kernels = [weight.numpy() for weight in model.trainable_variables if weight.name == "kernel"]
    square = [kernel for kernel in kernels if kernel.shape == (32, 32)]
    assert len({kernel.tobytes() for kernel in square}) == len(square) == 9
    for weight in model.trainable_variables:
        if weight.name in ("bias", "beta"):
            assert not weight.numpy().any()
        if weight.name == "gamma":
            assert (weight.numpy() == 1).all()


def test_keras_file_round_trip(tmp_path):
    model = make(use_token_type=True, num_extra_rows=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.score(BATCH), model.score(BATCH))
    assert loaded.get_config() == model.get_config()


def in_bfloat16(**settings):
    return make(dtype="mixed_bfloat16", use_token_type=True, **settings)


def policies(model):
    return {layer.path: layer.dtype_policy.name for layer in model._flatten_layers()}


def test_a_mixed_policy_reaches_every_layer():
    model = in_bfloat16()
    for layer in model._flatten_layers():
        is_dropout = isinstance(layer, Dropout)
        assert layer.dtype_policy.name == ("float32" if is_dropout else "mixed_bfloat16"), layer.path
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    assert keras.config.dtype_policy().name == "float32"


def test_a_mixed_policy_comes_back_from_the_configuration_and_the_file(tmp_path):
    model = in_bfloat16()
    copy = BERT4Rec.from_config(model.get_config())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert policies(copy) == policies(loaded) == policies(model)
    np.testing.assert_array_equal(loaded.score(BATCH), model.score(BATCH))


def test_scores_and_losses_are_float32_and_nearly_the_same_in_bfloat16():
    narrow, plain = in_bfloat16(), make(use_token_type=True)
    scores, loss = narrow.score(BATCH), narrow.training_loss(training_batch())
    assert narrow.encode(BATCH["items"]).dtype == tf.bfloat16
    assert {scores.dtype, loss.dtype, narrow.user_vectors(BATCH).dtype} == {tf.float32}
    assert np.corrcoef(np.ravel(scores), np.ravel(plain.score(BATCH)))[0, 1] > 0.99
    np.testing.assert_array_equal(narrow(BATCH), scores)
    candidates = np.array([[1, 30, 7], [2, 2, 9], [14, 1, 29]], np.int32)
    expected = np.take_along_axis(np.asarray(scores), candidates - 1, axis=1)
    np.testing.assert_allclose(narrow.score(BATCH, candidates), expected, atol=1e-5)


def test_scores_in_bfloat16_are_not_rounded_into_ties():
    keras.utils.set_random_seed(5)
    model = BERT4Rec(2_000, max_length=LENGTH, hidden_dim=8, dtype="mixed_bfloat16", initializer_stddev=0.3)
    scores = np.asarray(model.score({name: values[:1] for name, values in BATCH.items()}))
    assert len(np.unique(scores)) > 1_980


def random_batch(rows, masked):
    rng = np.random.default_rng(rows)
    lengths = rng.integers(1, LENGTH + 1, rows)
    inside = np.arange(LENGTH) < lengths[:, None]
    counts = np.minimum(masked, lengths)
    positions = [np.sort(rng.permutation(length)[:count]) for length, count in zip(lengths, counts)]
    batch = {
        "users": np.arange(rows),
        "items": np.where(inside, rng.integers(1, NUM_ITEMS + 1, inside.shape), 0),
        "lengths": lengths,
        "mask_positions": np.array([np.pad(row, (0, 4 - len(row))) for row in positions]),
        "mask_targets": np.where(np.arange(4) < counts[:, None], rng.integers(1, NUM_ITEMS + 1, (rows, 4)), 0),
    }
    return {name: tf.constant(column.astype(np.int32)) for name, column in batch.items()}


def plain_loss(model, batch):
    """All rows together, one softmax over the whole table."""
    hidden = model.encode(batch["items"])
    logits = model.head(tf.gather(hidden, batch["mask_positions"], batch_dims=1), model.item_embeddings)
    likelihoods = tf.gather(tf.nn.log_softmax(logits), batch["mask_targets"], batch_dims=2)
    weights = tf.cast(batch["mask_targets"] > 0, tf.float32)
    return -tf.reduce_sum(weights * likelihoods) / (tf.reduce_sum(weights) + 1e-5)


@pytest.mark.parametrize(("rows", "masked"), [(1, 1), (1, 4), (2, 2), (3, 0), (7, 3), (8, 4), (33, 1)])
def test_groups_of_rows_change_neither_the_loss_nor_the_gradients(rows, masked):
    model, batch = make(dropout=0.0, attention_dropout=0.0), random_batch(rows, masked)
    results = []
    for loss in (model.training_loss, lambda batch: plain_loss(model, batch)):
        with tf.GradientTape() as tape:
            value = loss(batch)
        found = tape.gradient(value, [variable.value for variable in model.trainable_variables])
        results.append([value, *(tf.convert_to_tensor(gradient) for gradient in found)])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max() + 1e-7)


def test_the_loss_s_weight_is_the_number_of_real_masked_positions():
    weight = make().loss_weight(training_batch())
    assert weight.dtype == tf.float32 and weight.shape == ()
    np.testing.assert_allclose(weight, 4 + 1e-5)


def test_by_default_the_loss_s_weight_is_the_number_of_rows():
    np.testing.assert_array_equal(Pop(NUM_ITEMS).loss_weight(BATCH), 3.0)


def test_popularity_is_counted_exactly_whatever_the_policy():
    model = Pop(2, dtype="mixed_bfloat16")
    model.counts.assign([0, 100_001, 100_002])
    np.testing.assert_array_equal(model(BATCH), [[100_001, 100_002]] * 3)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        *(("num_layers", 0, 1), ("num_layers", -3, 1), ("num_heads", 0, 1), ("hidden_dim", 0, 1)),
        *(("intermediate_dim", 0, 1), ("num_extra_rows", -2, 0), ("max_length", 1, 2), ("num_items", 0, 1)),
    ],
)
def test_a_size_below_its_least_is_an_error(name, value, least):
    with pytest.raises(ValueError, match=f"`{name}` must be at least {least}. Received: {name}={value}"):
        BERT4Rec(**{"num_items": NUM_ITEMS, "hidden_dim": 8, name: value})


@pytest.mark.parametrize("stddev", [0.0, -1.0])
def test_initial_weights_without_a_spread_are_an_error(stddev):
    with pytest.raises(
        ValueError, match=f"`initializer_stddev` must be above 0. Received: initializer_stddev={stddev}"
    ):
        BERT4Rec(NUM_ITEMS, initializer_stddev=stddev)


def test_heads_that_do_not_divide_the_width_are_an_error():
    with pytest.raises(ValueError, match="`num_heads` must divide"):
        make(hidden_dim=9, num_heads=2)


def test_gradients_reach_every_weight():
    model = make(use_token_type=True, dropout=0.0, attention_dropout=0.0)
    with tf.GradientTape() as tape:
        loss = model.training_loss(training_batch())
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert gradient is not None, variable.path
