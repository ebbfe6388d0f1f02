"""What users of Keras do with a model: each works as they know it, or is refused in one line."""

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.models import (
    HISTORIES,
    NUM_ITEMS,
    SEQUENCES,
    TRAINED,
    VECTORS,
    batches,
    make,
    make_quiet,
    make_training_step,
    tensors,
)
from support.paths import ROOT
from support.profiles import slow_but

import bert4rec_tf as b4r
from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.foundation import registration
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import MODELS
from bert4rec_tf.training.optimizer import make_optimizer

SETTINGS = TrainingSettings(steps=40, warmup_steps=0, learning_rate=0.02, clip_norm=0.0)
COUNTING = ("pop", "item_transitions")


def next_items():
    return b4r.datasets.next_item_batches(SEQUENCES)


def as_dataset(*elements):
    return tf.data.Dataset.from_tensors(elements if len(elements) > 1 else elements[0])


def fit(model, *, verbose=0, **options):
    """Fits one batch without compiling first, which takes most of the time of a test."""
    model.compile(make_optimizer(SETTINGS), run_eagerly=True)
    return model.fit(as_dataset(next(batches(model, 12))), verbose=verbose, **options)


# The table of what a user does


def compare_one_step(name, eager):
    ours, theirs = make(name), make(name)
    batch = next(batches(ours, 16))
    expected = make_training_step(ours, SETTINGS)(tensors(batch))
    theirs.compile(make_optimizer(SETTINGS), run_eagerly=eager)
    history = theirs.fit(as_dataset(batch), verbose=0).history
    assert history["loss"] == [float(expected["loss"])]
    for one, other in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), one.path)


def test_fit_of_one_batch_is_one_step_of_our_own_loop_to_the_bit(quick):
    compare_one_step("bert4rec", eager=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_compiled_fit_of_one_batch_is_one_compiled_step_to_the_bit(name):
    compare_one_step(name, eager=False)


def test_a_step_of_one_s_own_calls_the_loss_of_the_model():
    class Doubled(b4r.BERT4Rec):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = 2 * self.training_loss(data)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"doubled": loss, "loss": loss}  # without the model's trackers

    model = Doubled(NUM_ITEMS, max_length=8, hidden_dim=16, num_heads=2, num_layers=1, dropout=0.0)
    expected = 2 * float(model.training_loss(tensors(next(batches(model, 12))), training=False))
    history = fit(model).history
    assert history["loss"] == history["doubled"] == [pytest.approx(expected, rel=0.01)]


def fit_in_steps(name, number, jit_compile, dataset=lambda batches: batches, **changes):
    """Fits a model to the batches of two epochs, so many steps at once. Returns its weights and the loss at the end."""
    model = make_quiet(name, **changes)
    model.compile(keras.optimizers.SGD(0.02), steps_per_execution=number, jit_compile=jit_compile)
    training = dataset(b4r.datasets.training_batches(model, SEQUENCES, 128))
    history = model.fit(training, epochs=2, verbose=0).history
    return model.get_weights(), history["loss"]


def assert_same_fit(got, expected, rtol=1e-6, atol=0.0):
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-5)
    for one, other in zip(got[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def test_several_steps_at_once_and_data_of_unknown_size_give_the_weights_of_single_steps():
    alone = fit_in_steps("bpr_mf", 1, False, lambda batches: batches.filter(lambda batch: True))
    assert_same_fit(fit_in_steps("bpr_mf", 3, False), alone)


@pytest.mark.long
def test_a_compiled_program_of_steps_trains_as_single_steps_do():
    """Four steps an epoch: the second program of each takes only one."""
    alone = fit_in_steps("bpr_mf", 1, False)
    assert_same_fit(fit_in_steps("bpr_mf", 3, True), alone, atol=1e-6)
    unknown = lambda batches: batches.filter(lambda batch: True)  # noqa: E731
    assert_same_fit(fit_in_steps("bpr_mf", 3, True, unknown), alone, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRAINED if name != "bpr_mf"])
def test_every_model_is_fitted_by_compiled_programs(name):
    assert_same_fit(fit_in_steps(name, 2, True), fit_in_steps(name, 1, False), rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_a_compiled_model_is_measured_and_predicts_as_before():
    model = make("bert4rec", evidence="transitions")
    model.compile(make_optimizer(SETTINGS), metrics=[b4r.metrics.NDCG(10)], jit_compile=True)
    plain = make("bert4rec", evidence="transitions")
    plain.compile(make_optimizer(SETTINGS), metrics=[b4r.metrics.NDCG(10)], jit_compile=False)
    assert model.evaluate(next_items(), verbose=0) == plain.evaluate(next_items(), verbose=0)
    np.testing.assert_array_equal(model.predict(HISTORIES, verbose=0), plain.predict(HISTORIES, verbose=0))


@pytest.mark.parametrize("received", [HISTORIES, HISTORIES["items"], as_dataset(HISTORIES)])
@pytest.mark.parametrize("name", ["bert4rec", "bpr_mf"])
def test_histories_are_no_training_batches(name, received):
    model = make(name)
    model.compile("adam")
    columns = "`items`, `mask_positions`, `mask_targets`" if name == "bert4rec" else "`targets`"
    words = "items" if received is HISTORIES["items"] else "items, lengths, users"
    message = f"{type(model).__name__} needs {columns}; `bert4rec_tf.datasets.training_batches` has them. .*: {words}$"
    for method in ("fit", "evaluate"):
        with pytest.raises(UserError, match=message):
            getattr(model, method)(received, verbose=0)


def cross_entropy(scores, targets):
    scores = np.asarray(scores, np.float64)
    return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(targets)), targets - 1]


@pytest.mark.long
@pytest.mark.parametrize("name", ["bert4rec", "bpr_mf"])
@pytest.mark.parametrize(
    "loss", [b4r.losses.SoftmaxCrossEntropy(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)]
)
def test_a_loss_of_keras_is_that_of_histories_and_next_items(name, loss):
    model, targets = make_quiet(name), np.array([3, 40, 1, 7])
    expected = cross_entropy(model.score(HISTORIES), targets)
    model.compile(keras.optimizers.Adam(0.1), loss=loss, metrics=[b4r.metrics.MRR()], run_eagerly=True)
    first = model.evaluate(HISTORIES, targets, verbose=0, return_dict=True)
    assert first["loss"] == pytest.approx(expected.mean(), rel=1e-5)
    history = model.fit(HISTORIES, targets, sample_weight=np.eye(4)[1] * 4, epochs=5, shuffle=False, verbose=0).history
    assert history["loss"][0] == pytest.approx(expected[1], rel=1e-5)
    np.testing.assert_array_less(cross_entropy(model.score(HISTORIES), targets)[1], expected[1])


@pytest.mark.parametrize(
    "loss",
    [
        *("sparse_categorical_crossentropy", "binary_crossentropy", keras.losses.KLDivergence()),
        *(keras.losses.SparseCategoricalCrossentropy(), ["SparseCategoricalCrossentropy"]),
    ],
)
def test_a_loss_that_takes_probabilities_is_refused_but_where_a_file_has_it(tmp_path, loss):
    model = make("sasrec")
    with pytest.raises(UserError, match=r"`loss` must take scores that are no probabilities, as .*from_logits=True"):
        model.compile("adam", loss=loss)
    model.compile("adam", loss="mse")
    model.compile_from_config({"optimizer": "adam", "loss": keras.saving.serialize_keras_object(loss)})


def test_a_loss_of_keras_is_refused_for_batches_that_the_loss_of_the_model_needs():
    model = make("bert4rec")
    model.compile("adam", loss=b4r.losses.SoftmaxCrossEntropy(), run_eagerly=True)
    batch = as_dataset(next(batches(model, 4)))
    with pytest.raises(UserError, match=r"`loss` in `compile` is for .*, `\(x, y\)`. .* BERT4Rec has its own"):
        model.fit(batch, verbose=0)
    model.compile("adam", run_eagerly=True)  # Keras would remember the loss
    model.fit(batch, verbose=0)
    with pytest.raises(ValueError, match="No loss to compute"):
        model.fit(HISTORIES, np.array([3, 40, 1, 7]), verbose=0)


LOAD = """
import sys
{imports}
assert {light} == ("keras" not in sys.modules)
import keras
model = keras.saving.load_model(sys.argv[1])
assert type(model).__name__ == "BERT4Rec" and model.optimizer.iterations == 1
keras.ops.convert_to_numpy(model(keras.ops.ones((2, 3), "int32"))).tofile(sys.argv[2])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "imports", ["import bert4rec_tf", pytest.param("import keras; import bert4rec_tf", marks=pytest.mark.slow)]
)
def test_a_fresh_process_loads_a_keras_file_after_importing_the_package(tmp_path, imports):
    model = make("bert4rec")
    fit(model)
    model.save(tmp_path / "model.keras")
    code = LOAD.format(imports=imports, light="keras" not in imports)
    words = [sys.executable, "-c", code, str(tmp_path / "model.keras"), str(tmp_path / "scores")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    scores = np.fromfile(tmp_path / "scores", np.float32).reshape(2, NUM_ITEMS)
    np.testing.assert_allclose(scores, model(np.ones((2, 3), np.int32)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", slow_but(["bert4rec", "bpr_mf"], TRAINED))
def test_an_export_serves_what_the_model_predicts(tmp_path, name):
    model = make(name)
    model.export(tmp_path / "export", verbose=False)
    served = tf.saved_model.load(tmp_path / "export")
    inputs = {column: HISTORIES[column] for column in ("items", "users")} if model.needs_users else HISTORIES["items"]
    np.testing.assert_allclose(served.serve(inputs), model.score(HISTORIES), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["bert4rec", "pop"])
def test_items_alone_are_enough(name):
    model, expected = make(name), make(name).score(HISTORIES)
    np.testing.assert_array_equal(model(HISTORIES["items"]), expected)
    np.testing.assert_array_equal(model({"items": HISTORIES["items"].astype(np.int64)}), expected)
    np.testing.assert_array_equal(model(HISTORIES["items"], return_vectors=True), model.user_vectors(HISTORIES))


def test_padding_before_a_history_is_padding_too():
    left, right = np.array([[0, 0, 5, 4], [0, 1, 2, 3]]), np.array([[5, 4, 0, 0], [1, 2, 3, 0]])
    for name in ("bert4rec", "item_transitions"):
        model = make(name)
        np.testing.assert_array_equal(model(left), model(right))


def test_predict_refuses_a_batch_without_rows():
    nobody = {name: column[:0] for name, column in HISTORIES.items()}
    with pytest.raises(UserError, match=r"`x` must have at least one row\. Received: no rows"):
        make("pop").predict(nobody)


def test_a_model_that_needs_users_says_so():
    model = make("bpr_mf")
    with pytest.raises(UserError, match=r"^BprMf needs `items`, `users`\. Received: items$"):
        model(HISTORIES["items"])
    without_lengths = {column: HISTORIES[column] for column in ("items", "users")}
    np.testing.assert_array_equal(model(without_lengths), model.score(HISTORIES))


@pytest.mark.parametrize("name", ["bert4rec", "caser"])
def test_a_summary_has_a_row_for_each_table(name):
    model = make(name)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        model.summary()
    tables = [weight for weight in model.weights if model.row_kind(weight) and len(weight.shape) == 2]
    for table in tables:
        assert table.name[:20] in printed.getvalue() or table.name == "embeddings"
    assert f"Total params: {model.count_params():,}" in printed.getvalue()


@pytest.mark.parametrize("name", ["bert4rec", "sasrec"])
def test_int8_stays_close_and_is_kept(tmp_path, name):
    model = make(name)
    expected = np.asarray(model.score(HISTORIES))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # such as Keras gives for a layer that it cannot quantize
        model.quantize("int8")
    kernels = [layer._kernel.dtype for layer in model._flatten_layers() if isinstance(layer, keras.layers.Dense)]
    assert kernels and set(kernels) == {"int8"}
    scores = np.asarray(model.score(HISTORIES))
    assert not np.array_equal(scores, expected) and np.corrcoef(scores.ravel(), expected.ravel())[0, 1] > 0.98
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras").score(HISTORIES), scores)


@pytest.mark.parametrize("name", ["bert4rec", "sasrec"])
def test_weights_alone_in_int8_are_kept_as_such(tmp_path, name):
    model = make(name)
    model.quantize(config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=None))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.score(HISTORIES), model.score(HISTORIES))


@pytest.mark.parametrize("name", ["gru4rec", "gru4rec_plus"])
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_recurrent_models_are_trained_in_half_precision(name, policy):
    model, plain = make(name, dtype=policy), make(name)
    plain.set_weights(model.get_weights())
    batch = tensors(next(batches(model, 12)))
    loss, expected = (float(one.training_loss(batch, training=False)) for one in (model, plain))
    assert loss == pytest.approx(expected, rel=0.02)
    fit(model)
    assert np.isfinite(model.score(HISTORIES)).all()


def test_a_dtype_policy_for_all_models_acts_in_fit_and_is_kept(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = make("bert4rec")
    finally:
        keras.config.set_dtype_policy("float32")
    fit(model)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.blocks[0].attention.query.compute_dtype == "bfloat16"
    assert {weight.dtype for weight in again.weights} == {"float32"}
    np.testing.assert_array_equal(again.score(HISTORIES), model.score(HISTORIES))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_weights_of_other_types_are_refused(dtype):
    message = f"`dtype` must have float32 weights, as mixed_bfloat16 does. Received: dtype={dtype}"
    with pytest.raises(UserError, match=message):
        make("pop", dtype=dtype)


def test_a_model_that_cannot_be_quantized_says_so():
    with pytest.raises(UserError, match=r"`quantize` works for BERT4Rec and SASRec\. Received: a model Ncf"):
        make("ncf").quantize("int8")


def test_lora_trains_two_small_matrices_of_a_dense_layer_alone_which_saving_merges(tmp_path):
    model = make("bert4rec")
    expected = model.score(HISTORIES)
    for variable in model.trainable_variables:
        variable.trainable = False
    model.blocks[0].attention.value.enable_lora(2)
    np.testing.assert_array_equal(model.score(HISTORIES), expected)
    assert [variable.shape for variable in model.trainable_variables] == [(16, 2), (2, 16)]
    fit(model)
    assert not np.array_equal(model.score(HISTORIES), expected)
    with pytest.raises(UserError, match="`grow` needs a model without LoRA; save it"):
        model.grow(["new"])
    model.save_weights(tmp_path / "merged.weights.h5")
    again = make("bert4rec")
    again.load_weights(tmp_path / "merged.weights.h5")
    np.testing.assert_allclose(again.score(HISTORIES), model.score(HISTORIES), rtol=1e-4, atol=1e-6)


def test_tables_refuse_lora():
    with pytest.raises(NotImplementedError, match="LoRA works for the dense layers"):
        make("bert4rec").get_layer("item_embeddings").enable_lora(2)


def test_a_configuration_has_sizes_and_a_keras_file_the_features(tmp_path):
    model = make("bert4rec", features=VECTORS, use_item_features="add", use_user_features=True)
    config = model.get_config()
    assert config["features"] == {name: one.sizes for name, one in VECTORS.items()}
    assert len(str(config)) < 2_000 and type(model).from_config(json.loads(json.dumps(config))).get_config() == config
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.score(HISTORIES), model.score(HISTORIES))
    assert {name: one.fingerprint for name, one in again.features.items()} == {
        name: one.fingerprint for name, one in model.features.items()
    }
    bare = type(model).from_config(config)
    for use in (lambda: bare.score(HISTORIES), lambda: bare.save(tmp_path / "bare.keras")):
        with pytest.raises(UserError, match="`features` are not part of the configuration; load the model's Keras"):
            use()


@pytest.mark.long
def test_a_model_with_features_and_evidence_is_fitted_saved_and_fitted_on(tmp_path):
    options = {"features": VECTORS, "use_item_features": "add", "use_user_features": True, "evidence": "transitions"}
    model = make("bert4rec", **options)
    without = np.asarray(model.score(HISTORIES))
    model.evidence.mix.assign([0.5, 0.1, 1.0])
    assert not np.array_equal(model.score(HISTORIES), without)
    model.compile("adam", metrics=[b4r.metrics.MRR()], run_eagerly=True)
    training, validation = b4r.datasets.training_batches(model, SEQUENCES, 64), next_items()
    assert set(model.fit(training, validation_data=training, verbose=0).history) == {"loss", "val_loss"}
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.score(HISTORIES), model.score(HISTORIES))
    assert again.evaluate(validation, verbose=0) == model.evaluate(validation, verbose=0) > [0, 0]
    for one, other in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    again.fit(training, verbose=0)
    other = make("bert4rec", **options)
    other.set_weights(model.get_weights())
    np.testing.assert_array_equal(other.score(HISTORIES), model.score(HISTORIES))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_made_again_from_its_configuration_and_its_file(name, tmp_path):
    model = make(name)
    config = json.loads(json.dumps(model.get_config()))
    clone = keras.models.clone_model(model)
    for copy in (type(model).from_config(config), clone, keras.models.model_from_json(model.to_json())):
        assert type(copy) is type(model) and json.loads(json.dumps(copy.get_config())) == config
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again) is MODELS[name] and json.loads(json.dumps(again.get_config())) == config
    np.testing.assert_array_equal(again.score(HISTORIES), model.score(HISTORIES))
    model.save_weights(tmp_path / "model.weights.h5")
    clone.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(clone.score(HISTORIES), model.score(HISTORIES))


def test_older_formats_of_files_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"`filepath` must end with \.keras\. Received: filepath=.*old\.h5"):
        make("pop").save(tmp_path / "old.h5")


@pytest.mark.parametrize(("name", "options"), [("item_transitions", {}), ("sasrec", {"evidence": "transitions"})])
def test_a_model_that_has_not_counted_says_so(name, options):
    model = make(name, adapted=False, **options)
    for use in (model, lambda histories: model.predict(histories, verbose=0)):
        with pytest.raises(UserError, match=r"are not counted yet; call `model\.adapt\(sequences\)` first"):
            use(HISTORIES["items"])


# What belongs to it


def test_the_stand_ins_are_all_classes_that_keras_knows():
    for module in registration.CLASSES:
        __import__(f"bert4rec_tf.{module}")
    known = {key for key in keras.saving.get_custom_objects() if key.startswith("bert4rec_tf>")}
    listed = {f"bert4rec_tf>{name}" for names in registration.CLASSES.values() for name in names}
    assert known == listed
    assert not [key for key in known if isinstance(keras.saving.get_registered_object(key), registration.StandIn)]


@pytest.mark.long
def test_callbacks_and_next_items_work_in_fit(tmp_path):
    model = make("bert4rec")
    model.compile("adam", metrics=[b4r.metrics.NDCG(10), b4r.metrics.HitRate(10)], run_eagerly=True)
    training = b4r.datasets.training_batches(model, SEQUENCES, batch_size=64)
    validation = next_items()
    best = tmp_path / "best.keras"
    callbacks = [
        keras.callbacks.EarlyStopping("val_ndcg@10", 1.0, mode="max", restore_best_weights=True),  # after two epochs
        keras.callbacks.ModelCheckpoint(best, "val_ndcg@10", mode="max", save_best_only=True),
        keras.callbacks.TensorBoard(tmp_path / "logs"),
    ]
    history = model.fit(training, epochs=5, validation_data=validation, callbacks=callbacks, verbose=0).history
    assert set(history) == {"loss", "val_loss", "val_ndcg@10", "val_hr@10"} and len(history["loss"]) == 2
    assert list((tmp_path / "logs").rglob("events*"))
    measured = model.evaluate(validation, verbose=0, return_dict=True)
    assert measured["ndcg@10"] == pytest.approx(history["val_ndcg@10"][0])
    again = keras.saving.load_model(best).evaluate(validation, verbose=0, return_dict=True)
    assert again["ndcg@10"] == pytest.approx(max(history["val_ndcg@10"]))


def test_evaluate_gives_the_loss_without_dropout():
    model = make("bert4rec", dropout=0.5)
    batch = next(batches(model, 12))
    model.compile("adam", run_eagerly=True)
    losses = [model.evaluate(as_dataset(batch), verbose=0) for _ in range(2)]
    assert losses[0] == losses[1] == pytest.approx(float(model.training_loss(tensors(batch), training=False)))


@pytest.mark.parametrize("name", COUNTING)
def test_a_model_that_only_counts_predicts_and_is_not_fitted(name):
    model = make(name)
    model.compile(run_eagerly=True)
    np.testing.assert_allclose(model.predict(HISTORIES, verbose=0), model.score(HISTORIES), rtol=1e-5)
    with pytest.raises(UserError, match=r"is not trained by steps; call `model\.adapt"):
        b4r.datasets.training_batches(model, SEQUENCES)
    with pytest.raises(UserError, match=r"is not trained by steps; call `model\.adapt"):
        model.fit(as_dataset(HISTORIES), verbose=0)


TWO_DEVICES = """
import json, sys
import tensorflow as tf
(device,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
import numpy as np
from support.models import SEQUENCES, make_quiet
import bert4rec_tf as b4r

weights, histories = [], []
for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
    with strategy.scope():
        model = make_quiet(sys.argv[1])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), metrics=[b4r.metrics.NDCG(10)])
    training = b4r.datasets.training_batches(model, SEQUENCES, 33)  # unequal parts
    validation = b4r.datasets.next_item_batches(SEQUENCES, 31)
    histories.append(model.fit(training, validation_data=validation, epochs=2, verbose=0).history)
    weights.append(np.concatenate([weight.ravel() for weight in model.get_weights()]))
    items = {"items": np.array([[4, 6], [1, 0], [2, 0]]), "users": np.arange(3)}
    np.testing.assert_allclose(model.predict(items, verbose=0), model(items), rtol=1e-5, atol=1e-6)
print(json.dumps([float(abs(weights[0] - weights[1]).max()), histories]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bpr_mf", "bert4rec", "gru4rec"])
def test_fit_on_two_devices_is_fit_on_one(name):
    paths = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    words = [sys.executable, "-c", TWO_DEVICES, name]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=paths)
    assert done.returncode == 0, done.stderr
    difference, (one, two) = json.loads(done.stdout)
    assert difference < (0.01 if name == "gru4rec" else 1e-6)  # whose negatives are the other rows of a replica
    for column in ("loss", "val_loss", "val_ndcg@10"):
        assert two[column] == pytest.approx(one[column], rel=1e-5 if name == "bert4rec" else 0.1), column
    assert name == "gru4rec" or two["loss"] == pytest.approx(one["loss"], rel=1e-5)
