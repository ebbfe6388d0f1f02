"""What the Keras team asks of every layer, tried on each of ours: configuration, shapes, types, masks, training."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert4rec_tf as b4r
from bert4rec_tf import layers

BATCH, LENGTH, WIDTH = 2, 5, 8
MAKERS = {
    "Dropout": lambda **options: layers.Dropout(0.3, seed=2, **options),
    "PositionEmbedding": lambda **options: layers.PositionEmbedding(7, 0.1, **options),
    "MultiHeadAttention": lambda **options: layers.MultiHeadAttention(2, 0.3, 0.1, **options),
    "FeedForward": lambda **options: layers.FeedForward(6, 0.1, **options),
    "TransformerBlock": lambda **options: layers.TransformerBlock(2, 6, 0.3, 0.4, initializer_stddev=0.1, **options),
    "CausalBlock": lambda **options: layers.CausalBlock(2, 0.3, **options),
    "Residual": lambda **options: layers.Residual(0.3, use_residual=False, **options),
    "MaskedItemHead": lambda **options: layers.MaskedItemHead(
        9, False, 0.1, keras.layers.Embedding(9, WIDTH, dtype=options.get("dtype")), **options
    ),
}
TWO_INPUTS = ("Residual",)
MASKED = ("MultiHeadAttention", "TransformerBlock")
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16")

every_layer = pytest.mark.parametrize("name", MAKERS)


def inputs_of(name, dtype="float32"):
    drawn = np.random.default_rng(1).normal(size=(BATCH, LENGTH, WIDTH))
    return [tf.constant(drawn, dtype)] * (1 + (name in TWO_INPUTS))


def test_every_public_layer_is_tried():
    assert set(MAKERS) == set(layers.__all__)


@every_layer
def test_the_configuration_has_every_argument_and_makes_the_layer_again(name):
    layer = MAKERS[name](name="one", dtype="mixed_bfloat16", trainable=False)
    config = layer.get_config()
    arguments = [one.name for one in inspect.signature(type(layer).__init__).parameters.values()]
    assert set(arguments) - {"self", "kwargs"} <= set(config)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is type(layer) and again.get_config() == config
    assert again.name == "one" and again.dtype_policy.name == "mixed_bfloat16" and not again.trainable


@every_layer
@pytest.mark.parametrize("policy", POLICIES)
def test_shapes_and_types_are_known_without_data_and_masks_pass_through(name, policy):
    layer = MAKERS[name](dtype=policy)
    inputs = inputs_of(name)
    specs = [keras.KerasTensor(one.shape, layer.compute_dtype) for one in inputs]
    outputs, expected = layer(*inputs), layer.compute_output_spec(*specs)
    assert outputs.shape == expected.shape == tuple(layer.compute_output_shape(*(one.shape for one in inputs)))
    assert keras.backend.standardize_dtype(outputs.dtype) == expected.dtype
    assert {variable.dtype for variable in layer.weights} <= {layer.variable_dtype}
    assert np.isfinite(tf.cast(outputs, tf.float32)).all()
    inputs[0]._keras_mask = tf.constant([[True] * 5, [True] * 2 + [False] * 3])
    outputs = layer(*inputs, training=True)
    assert layer.supports_masking and np.isfinite(tf.cast(outputs, tf.float32)).all()
    np.testing.assert_array_equal(outputs._keras_mask, inputs[0]._keras_mask)


@every_layer
def test_a_functional_model_with_it_trains_is_saved_and_loaded(name, tmp_path):
    inputs = keras.Input((LENGTH, WIDTH))
    outputs = MAKERS[name]()(*[inputs] * (1 + (name in TWO_INPUTS)))
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    model.compile("sgd", "mse", run_eagerly=True)
    before = [weight.numpy() for weight in model.trainable_weights]
    features = inputs_of(name)[0].numpy()
    model.fit(features, np.ones((BATCH, LENGTH, 1), np.float32), verbose=0)
    key = ("key/bias", "embeddings")  # a softmax ignores what all keys share; a head outside a model has no inputs
    for old, weight in zip(before, model.trainable_weights):
        assert weight.path.endswith(key) or not np.array_equal(old, weight.numpy()), weight.path
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(features), model(features))


@pytest.mark.parametrize("name", MASKED)
def test_the_mask_of_an_embedding_is_the_padding_mask(name):
    """Of a functional model too, in which nobody passes it on."""
    embedding, layer = keras.layers.Embedding(10, WIDTH, mask_zero=True), MAKERS[name]()
    items = np.array([[3, 1, 4, 1, 5], [9, 2, 0, 0, 0]], np.int32)
    inputs = keras.Input((LENGTH,), dtype="int32")
    model = keras.Model(inputs, layer(embedding(inputs)))
    plain = tf.constant(embedding(items).numpy())
    expected = layer(plain, padding_mask=items > 0)
    np.testing.assert_allclose(model(items), expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(layer(plain), expected)


@pytest.mark.parametrize(("name", "argument"), [("TransformerBlock", "positions"), ("CausalBlock", "places")])
def test_states_at_places_have_the_mask_of_these_places(name, argument):
    embedding, layer = keras.layers.Embedding(10, WIDTH, mask_zero=True), MAKERS[name]()
    inputs, places = keras.Input((LENGTH,), dtype="int32"), keras.Input((2,), dtype="int32")
    states = layer(embedding(inputs), **{argument: places})
    assert states.shape == (None, 2, WIDTH)
    model = keras.Model([inputs, places], [states, keras.layers.GlobalAveragePooling1D()(states)])
    states, mean = model([np.array([[3, 1, 4, 0, 0]], np.int32), np.array([[1, 4]], np.int32)])
    np.testing.assert_array_equal(states._keras_mask, [[True, False]])
    np.testing.assert_allclose(mean, states[:, 0], rtol=1e-6)


def test_layers_in_a_sequential_model_do_not_see_padding(tmp_path):
    model = keras.Sequential([keras.layers.Embedding(10, WIDTH, mask_zero=True)])
    for name in ("PositionEmbedding", "TransformerBlock", "MultiHeadAttention", "FeedForward", "CausalBlock"):
        model.add(MAKERS[name]())
    model.add(keras.layers.GlobalAveragePooling1D())
    long, short = np.array([[3, 1, 4, 0, 0]], np.int32), np.array([[3, 1, 4]], np.int32)
    np.testing.assert_allclose(model(long), model(short), rtol=1e-4, atol=1e-6)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(long), model(long))
    assert keras.models.clone_model(model)(long).shape == (1, WIDTH)


@pytest.mark.parametrize("name", MASKED)
def test_attention_scores_come_on_request(name):
    layer = MAKERS[name]()
    (inputs,) = inputs_of(name)
    outputs, scores = layer(inputs, return_attention_scores=True)
    np.testing.assert_array_equal(layer(inputs), outputs)
    assert scores.shape == (BATCH, 2, LENGTH, LENGTH)
    symbolic = layer(keras.Input((LENGTH, WIDTH)), return_attention_scores=True)
    assert [one.shape for one in symbolic] == [(None, LENGTH, WIDTH), (None, 2, LENGTH, LENGTH)]


def test_a_head_needs_a_table_or_an_embedding():
    with pytest.raises(ValueError, match=r"`table` must be given to a head without an `embedding`"):
        layers.MaskedItemHead(9)(tf.zeros((1, WIDTH)))
    embedding = keras.layers.Embedding(9, WIDTH)
    head = layers.MaskedItemHead(9, embedding=embedding)
    hidden = tf.ones((1, WIDTH))
    np.testing.assert_array_equal(head(hidden), head(hidden, embedding.embeddings))


def test_a_loaded_head_shares_the_table_of_the_loaded_embedding(tmp_path):
    items = keras.Input((LENGTH,), dtype="int32")
    embedding = keras.layers.Embedding(9, WIDTH)
    model = keras.Model(items, layers.MaskedItemHead(9, embedding=embedding)(embedding(items)))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert len(again.trainable_weights) == len(model.trainable_weights)
    rows = np.arange(LENGTH)[None] + 1
    np.testing.assert_array_equal(again(rows), model(rows))
    with pytest.warns(b4r.TrainingWarning, match="a MaskedItemHead from a configuration has an embedding of its own"):
        keras.models.clone_model(model)


@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("name", ["MaskedItemHead", "TransformerBlock", "CausalBlock"])
def test_a_quantized_model_of_own_layers_still_scores_and_is_kept(tmp_path, name, mode):
    items = keras.Input((LENGTH,), dtype="int32")
    embedding = keras.layers.Embedding(9, WIDTH)
    layer = layers.MaskedItemHead(9, embedding=embedding) if name == "MaskedItemHead" else MAKERS[name]()
    model = keras.Model(items, layer(embedding(items)))
    rows = np.random.default_rng(0).integers(1, 9, (50, LENGTH))
    before = np.asarray(model(rows))
    model.quantize(mode)
    after = np.asarray(model(rows))
    assert {part.quantization_mode for part in layer._flatten_layers() if type(part) is keras.layers.Dense} == {mode}
    assert 0 < np.abs(after - before).max() < (0.05 if mode == "int8" else 0.5) * before.std()
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(rows), after)


@pytest.mark.parametrize("name", ["TransformerBlock", "MultiHeadAttention", "CausalBlock"])
def test_padding_on_the_left_is_not_seen_either(name):
    embedding, layer = keras.layers.Embedding(10, WIDTH, mask_zero=True), MAKERS[name]()
    padded, plain = np.array([[0, 0, 3, 1, 4]], np.int32), np.array([[3, 1, 4]], np.int32)
    expected = layer(embedding(plain))
    np.testing.assert_allclose(layer(embedding(padded))[:, 2:], expected, rtol=1e-4, atol=1e-6)
    vectors = tf.constant(embedding(padded).numpy())
    np.testing.assert_allclose(layer(vectors, padding_mask=padded > 0)[:, 2:], expected, rtol=1e-4, atol=1e-6)


def test_answers_to_queries_have_the_mask_of_the_queries():
    """In a functional model too; queries without a mask are all real."""
    embedding, layer = keras.layers.Embedding(10, WIDTH, mask_zero=True), MAKERS["MultiHeadAttention"]()
    items, asked = keras.Input((LENGTH,), dtype="int32"), keras.Input((2,), dtype="int32")
    answers = layer(embedding(items), queries=embedding(asked))
    model = keras.Model([items, asked], [answers, keras.layers.GlobalAveragePooling1D()(answers)])
    data = np.array([[3, 1, 4, 0, 0]], np.int32), np.array([[7, 0]], np.int32)
    answers, mean = model(list(data))
    np.testing.assert_array_equal(answers._keras_mask, [[True, False]])
    np.testing.assert_allclose(mean, answers[:, 0], rtol=1e-6)
    bare = layer(embedding(data[0]), queries=tf.constant(embedding(data[1]).numpy()))
    np.testing.assert_array_equal(bare._keras_mask, [[True, True]])


def test_a_causal_block_of_no_heads_is_refused():
    with pytest.raises(ValueError, match="`num_heads` must be at least 1"):
        layers.CausalBlock(0, 0.1)
    with pytest.raises(ValueError, match="`num_heads` must divide the width of the inputs, 8"):
        layers.CausalBlock(3).build((None, None, 8))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("int8", {"filters": lambda layer: layer.name != "query"}),
        ("int8", {"config": keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)}),
        ("int4", {"config": keras.quantizers.Int4QuantizationConfig(block_size=4)}),
    ],
    ids=["some layers", "weights alone", "blocks"],
)
def test_each_dense_layer_is_quantized_again_as_it_was(tmp_path, mode, options):
    items = keras.Input((LENGTH,), dtype="int32")
    model = keras.Model(items, MAKERS["TransformerBlock"]()(keras.layers.Embedding(9, WIDTH)(items)))
    model.quantize(None if "config" in options else mode, **options)
    rows = np.random.default_rng(0).integers(1, 9, (50, LENGTH))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(rows), model(rows))
