"""Each layer against its formula in NumPy, its switches, its errors, and dropout in its four places."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erf

from bert4rec_tf.nn import layers

RNG = np.random.default_rng(0)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layers.LAYER_NORM_EPSILON)


def gelu(x):
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def test_a_row_of_padding_only_gives_numbers():
    layer = layers.MultiHeadAttention(1)
    outputs = layer(np.ones((1, 3, 4), np.float32), padding_mask=np.zeros((1, 3), bool))
    assert np.isfinite(np.asarray(outputs)).all()


def test_positions_are_counted_from_the_last_real_item():
    layer = layers.PositionEmbedding(5, 1.0, from_last=True)
    inputs = RNG.normal(size=(4, 3, 2)).astype(np.float32)
    layer.build(inputs.shape)
    lengths, table = np.array([3, 1, 2, 0]), layer.embeddings.numpy()
    added = np.asarray(layer(inputs, padding_mask=np.arange(3) < lengths[:, None])) - inputs
    assert np.isfinite(added).all()
    for row, length in enumerate(lengths):
        for column in range(length):
            np.testing.assert_allclose(added[row, column], table[5 - length + column], atol=1e-6)
    np.testing.assert_allclose(layer(inputs) - inputs, np.broadcast_to(table[2:], inputs.shape), atol=1e-6)


@pytest.mark.parametrize("from_last", [False, True])
@pytest.mark.parametrize("max_length", [1, 4])
def test_one_position_too_many_is_refused_where_the_length_is_not_known(from_last, max_length):
    layer = layers.PositionEmbedding(max_length, from_last=from_last)
    layer.build((None, None, 2))
    call = tf.function(layer, input_signature=[tf.TensorSpec([None, None, 2])])
    np.testing.assert_array_equal(
        call(tf.zeros([3, max_length, 2])), np.broadcast_to(layer.embeddings, (3, max_length, 2))
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(tf.zeros([3, max_length + 1, 2]))


def test_positions_from_the_last_item_take_the_mask_of_an_embedding():
    layer, embedding = layers.PositionEmbedding(5, 1.0, from_last=True), keras.layers.Embedding(9, 2, mask_zero=True)
    items = np.array([[3, 4, 0], [5, 6, 7]], np.int32)
    model = keras.Sequential([embedding, layer])
    expected = layer(tf.constant(embedding(items).numpy()), padding_mask=items > 0)
    np.testing.assert_allclose(model(items), expected, atol=1e-6)


@pytest.mark.parametrize("use_layer_norm", [True, False])
@pytest.mark.parametrize("use_residual", [True, False])
def test_residual_and_its_switches(use_layer_norm, use_residual):
    layer = layers.Residual(0.3, use_layer_norm, use_residual)
    inputs, outputs = RNG.normal(size=(2, 2, 3, 4)).astype(np.float32)
    expected = outputs + (inputs if use_residual else 0)
    np.testing.assert_allclose(layer(inputs, outputs), norm(expected) if use_layer_norm else expected, atol=1e-5)


@pytest.mark.parametrize("use_layer_norm", [True, False])
def test_head_is_equation_7_with_the_program_s_norm(use_layer_norm):
    head = layers.MaskedItemHead(9, use_layer_norm, initializer_stddev=0.5)
    hidden, table = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(9, 4)).astype(np.float32)
    head(hidden, table)
    head.bias.assign(np.arange(9))
    transformed = gelu(hidden @ head.dense.kernel.numpy())
    expected = (norm(transformed) if use_layer_norm else transformed) @ table.T + np.arange(9)
    np.testing.assert_allclose(head(hidden, table), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.Residual(1.5), r"`dropout` must be in \[0, 1\). Received: dropout=1.5"),
        (lambda: layers.Residual(-0.1), "Received: dropout=-0.1"),
        (lambda: layers.MultiHeadAttention(2, dropout=1.0), "Received: dropout=1.0"),
        (lambda: layers.TransformerBlock(2, 8, attention_dropout=-1), "`attention_dropout` must be in"),
        (lambda: layers.MultiHeadAttention(0), "`num_heads` must be at least 1"),
        (lambda: layers.MultiHeadAttention(3).build((None, None, 8)), "must divide the width of the inputs, 8"),
        (lambda: layers.PositionEmbedding(0), "`max_length` must be at least 1"),
        (lambda: layers.FeedForward(0), "`intermediate_dim` must be at least 1"),
        (lambda: layers.MaskedItemHead(0), "`num_rows` must be at least 1"),
        (
            lambda: layers.MaskedItemHead(5, embedding=keras.layers.Embedding(7, 4)).build((None, 4)),
            "`num_rows` must be the rows of `embedding`, 7. Received: 5",
        ),
        (lambda: layers.MultiHeadAttention(1)(np.ones((2, 4), np.float32)), "expected ndim=3, found ndim=2"),
        (lambda: layers.TransformerBlock(1, 4)(np.ones((2, 4), np.float32)), "expected ndim=3, found ndim=2"),
    ],
)
def test_errors_name_the_argument_and_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_attention_probabilities_sum_to_1_in_bfloat16_too():
    layer = layers.MultiHeadAttention(2, initializer_stddev=0.5, dtype="mixed_bfloat16")
    mask = np.arange(50) < np.array([[50], [7], [1]])
    inputs = RNG.normal(size=(3, 50, 8)).astype(np.float32)
    outputs, probabilities = layer(inputs, padding_mask=mask, return_attention_scores=True)
    assert outputs.dtype == tf.bfloat16 and probabilities.dtype == tf.float32
    np.testing.assert_allclose(np.asarray(probabilities).sum(-1), 1, rtol=1e-6)
    assert not np.asarray(probabilities)[~np.broadcast_to(mask[:, None, None, :], probabilities.shape)].any()


def test_in_bfloat16_dropout_keeps_its_rate_and_the_mean():
    """Noise in bfloat16 itself would drop 41 % instead of 40 %."""
    keras.utils.set_random_seed(3)
    layer = layers.Residual(0.4, use_layer_norm=False, use_residual=False, dtype="mixed_bfloat16")
    ones = np.ones((2_000, 1_000), np.float32)
    dropped = np.asarray(tf.cast(layer(ones, ones, training=True), tf.float32))
    assert abs(share_of_zeros(dropped) - 0.4) < 0.001
    np.testing.assert_allclose(dropped[dropped > 0], 1 / 0.6, rtol=2**-8)


def share_of_zeros(values):
    return float((np.asarray(values) == 0).mean())


def test_dropout_acts_on_the_attention_probabilities():
    keras.utils.set_random_seed(3)
    layer = layers.MultiHeadAttention(1, dropout=0.4)
    inputs = RNG.normal(size=(2, 50, 8)).astype(np.float32)
    layer(inputs)
    layer.value.kernel.assign(np.zeros((8, 8)))
    layer.value.bias.assign(np.ones(8))
    layer.output_dense.kernel.assign(np.eye(8))
    quiet = layer(inputs, training=False)
    np.testing.assert_allclose(quiet, 1, atol=1e-5)
    noisy, probabilities = layer(inputs, training=True, return_attention_scores=True)
    np.testing.assert_allclose(np.asarray(probabilities).sum(-1), 1, atol=1e-5)
    kept = np.asarray(noisy)[..., 0]
    assert kept.std() > 0.05
    assert abs(kept.mean() - 1) < 0.1


def test_dropout_acts_on_a_sub_layer_s_output_and_not_on_the_residual():
    keras.utils.set_random_seed(3)
    layer = layers.Residual(0.4, use_layer_norm=False)
    zeros, ones = np.zeros((100, 100), np.float32), np.ones((100, 100), np.float32)
    np.testing.assert_array_equal(layer(ones, zeros, training=True), ones)
    dropped = np.asarray(layer(zeros, ones, training=True))
    assert abs(share_of_zeros(dropped) - 0.4) < 0.03
    np.testing.assert_allclose(dropped[dropped > 0], 1 / 0.6, rtol=2e-5)


@pytest.mark.parametrize("size", [20.5, 2.0, "3", None])
def test_a_size_is_a_whole_number(size):
    with pytest.raises(ValueError, match=rf"`k` must be a whole number\. Received: k={size!r}"):
        layers.check_size("k", size)
    assert layers.check_size("k", np.int64(3)) == 3
