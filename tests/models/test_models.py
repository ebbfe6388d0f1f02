"""The contract that every model in MODELS keeps."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import trainings
from support.evidence_oracle import histories_of, plain_evidence
from support.models import (
    HISTORIES,
    NUM_ITEMS,
    NUM_USERS,
    SEQUENCES,
    SMALL,
    TRAINED,
    batches,
    check_parts,
    every_model,
    every_trained_model,
    make,
    make_quiet,
    make_training_step,
    needed,
    tensors,
)
from support.profiles import slow_but

from bert4rec_tf.config import presets, run_record
from bert4rec_tf.config.model_settings import AUTO, MODEL_SETTINGS
from bert4rec_tf.config.run_record import Run, TrainingSettings
from bert4rec_tf.config.setting_fields import get_field_type
from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export import saved_model
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import MODELS, recommender
from bert4rec_tf.nn.dropout import Dropout
from bert4rec_tf.runs.trainings import make_model


def two_blocks(name):
    return {"num_layers": 2} if name in ("bert4rec", "sasrec") else {}


@every_model
def test_no_two_weights_begin_equal(name):
    """But for those that begin as a constant."""
    weights = [(weight.path, weight.numpy()) for weight in make(name, **two_blocks(name)).weights]
    drawn = [(path, value) for path, value in weights if value.size > 1 and len(np.unique(value)) > 1]
    equal = [
        (first, second)
        for (first, one), (second, other) in itertools.combinations(drawn, 2)
        if one.shape == other.shape and np.array_equal(one, other)
    ]
    assert not equal


@every_model
def test_all_items_and_candidates_are_scored_alike(name):
    model = make(name)
    scores = model.score(HISTORIES)
    assert scores.shape == (4, NUM_ITEMS) and scores.dtype == tf.float32 and np.isfinite(scores).all()
    candidates = np.array([[1, 40, 7], [2, 2, 3], [5, 0, 8], [9, 10, 11]], np.int32)
    some = np.asarray(model.score(HISTORIES, candidates))
    expected = np.take_along_axis(np.asarray(scores), np.maximum(candidates - 1, 0), axis=1)
    np.testing.assert_allclose(some[candidates > 0], expected[candidates > 0], rtol=1e-5, atol=1e-6)


COUNTING, WITH_A_NETWORK = ("pop", "item_transitions"), ("ncf",)


@every_model
def test_the_vectors_of_items_are_those_they_are_scored_with(name):
    """But for a bias, and NCF, whose network stands between. What only counts has none."""
    model = make(name)
    found = model.item_vectors()
    assert (found is None) == (name in COUNTING)
    if found is None:
        return
    items = np.asarray(found, np.float64)
    assert len(items) == NUM_ITEMS and np.isfinite(items).all()
    if name not in WITH_A_NETWORK:
        compute, score = model.user_vectors, model.score_vectors
        if model.networks:  # beside evidence
            compute, score = model.network_vectors, model.network_scores
        vectors = np.asarray(compute(tensors(HISTORIES)))
        bias = np.asarray(score(np.zeros_like(vectors)))
        np.testing.assert_allclose(score(vectors) - bias, vectors @ items.T, atol=1e-5)


@every_model
def test_items_are_compared_by_the_cosine_of_their_vectors(name):
    model, asked = make(name), np.array([3, 1, NUM_ITEMS, 3], np.int32)
    found = model.similarities(asked)
    if name == "pop":
        assert found is None
        return
    found = np.asarray(found)
    assert found.shape == (len(asked), NUM_ITEMS)
    if name == "item_transitions":
        evidence = plain_evidence(histories_of(SEQUENCES), NUM_ITEMS, model.settings.resolve())
        expected = [[evidence[item].get(other, -np.inf) for other in range(1, NUM_ITEMS + 1)] for item in asked]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        return
    vectors = np.asarray(model.item_vectors(), np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(found, vectors[asked - 1] @ vectors.T, atol=1e-6)


@every_model
def test_a_batch_scores_like_its_rows_and_padding_changes_nothing(name):
    model = make(name)
    scores = np.asarray(model.score(HISTORIES))
    for row, length in enumerate(HISTORIES["lengths"]):
        for width in (length, 6, 11):
            items = np.zeros((1, width), np.int32)
            items[0, :length] = HISTORIES["items"][row, :length]
            one = {"users": HISTORIES["users"][[row]], "items": items, "lengths": np.array([length], np.int32)}
            np.testing.assert_allclose(np.asarray(model.score(one))[0], scores[row], rtol=1e-4, atol=1e-6)


@every_model
def test_a_batch_without_rows_has_no_scores(name):
    nobody = {column: values[:0] for column, values in HISTORIES.items()}
    assert make(name)(nobody).shape == (0, NUM_ITEMS)


@every_model
def test_padding_is_not_read(name):
    """The lengths say what is real, where a model reads them."""
    model = make(name)
    filled = {**HISTORIES, "items": np.where(HISTORIES["items"] > 0, HISTORIES["items"], 33).astype(np.int32)}
    np.testing.assert_allclose(model.score(filled), model.score(HISTORIES), rtol=1e-5, atol=1e-6)


@every_model
def test_only_the_last_items_of_a_long_history_are_read(name):
    model = make(name)
    if model.max_history is None:
        pytest.skip(f"{name} reads none of the history")
    long = 1 + np.arange(20, dtype=np.int32)[None, :] % NUM_ITEMS
    kept = long[:, -model.max_history :]
    users = np.array([5], np.int32)
    first = model.score({"users": users, "items": long, "lengths": np.array([20], np.int32)})
    second = model.score({"users": users, "items": kept, "lengths": np.array([kept.shape[1]], np.int32)})
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


def built(name, *settings, **fields):
    """A model of a constructor's own defaults where no settings are given."""
    users = {"num_users": NUM_USERS} if MODELS[name].needs_users else {}
    return MODELS[name](NUM_ITEMS, *settings, **users, **fields)


def has_one_choice(field):
    return len(field.metadata["limits"].get("choices", "many")) == 1


def another(number, field):
    """A value of setting number `number` that is not its default, and for integers no other setting's."""
    choices = field.metadata["limits"].get("choices")
    if choices:
        return next(choice for choice in choices if choice != field.default)
    if get_field_type(field) is bool:
        return not field.default
    if get_field_type(field) is float:
        return (field.default or 0.0) / 3 + 0.25
    return (2 if field.default == 1 else 1) if field.name in ("num_heads", "num_layers") else 8 + 2 * number


@every_model
def test_a_constructor_and_a_run_have_the_same_defaults(name):
    plain = Run.make("beauty", name).architecture
    assert built(name).settings == built(name, plain).settings == plain
    numbered = enumerate(dataclasses.fields(MODEL_SETTINGS[name]))
    others = {field.name: another(number, field) for number, field in numbered if not has_one_choice(field)}
    for some in (others, dict(list(others.items())[:1])):
        run = Run.make("beauty", name, **some)
        expected = dataclasses.replace(plain, **some)
        assert built(name, **some, **needed(run.architecture)).settings == run.architecture == expected
    assert all(value != getattr(plain, key) for key, value in others.items())


def test_a_wide_model_has_heads_of_32_however_it_is_made():
    model = built("bert4rec", hidden_dim=256)
    assert model.settings.num_heads == presets.make_run("beauty", hidden_dim=256).architecture.num_heads == 8
    assert model.blocks[0].attention.num_heads == 8


@every_model
def test_unknown_arguments_of_a_constructor_are_errors(name):
    kind = MODEL_SETTINGS[name]
    with pytest.raises(UserError, match=f"Unknown field of {kind.__name__}: 'hiden_dim'"):
        built(name, hiden_dim=8)
    for other in ("sasrec", "bert4rec"):
        if name != other:
            with pytest.raises(UserError, match=f"`settings` must be {kind.__name__}. Received: settings="):
                built(name, MODEL_SETTINGS[other]())
    with pytest.raises(UserError, match=r"`hidden_dim` must be given in `settings` or by its name\. Received: both"):
        built(name, kind(), hidden_dim=8)
    with pytest.raises(ValueError, match="`num_users` must be"):
        MODELS[name](NUM_ITEMS, **({} if MODELS[name].needs_users else {"num_users": 3}))


@every_model
def test_the_names_of_a_run_s_weights_do_not_depend_on_what_was_made_before(name):
    """They are in the bytes of its export."""
    run = Run.make("beauty", name)
    first, second = (make_model(run, NUM_ITEMS, NUM_USERS) for _ in range(2))
    assert first.name == second.name == name
    assert [weight.path for weight in first.weights] == [weight.path for weight in second.weights]
    assert [layer.name for layer in first._flatten_layers()] == [layer.name for layer in second._flatten_layers()]


def test_large_tables_begin_with_the_values_of_small_ones(monkeypatch):
    for initializer in (0.02, keras.initializers.TruncatedNormal(stddev=0.02, seed=3)):
        tables = []
        for large in (1 << 24, 1):
            monkeypatch.setattr(recommender, "LARGE_TABLE", large)
            tables.append(make("pop").add_table("table", 9, 4, initializer, None))
        np.testing.assert_array_equal(*tables)


@pytest.mark.parametrize("name", slow_but(["pop", "gru4rec"], MODELS))
def test_an_exported_model_recommends_and_scores_as_the_model_does(tmp_path, name):
    """A user's request of each kind, the last of a stranger, or of one without history."""
    model = make(name)
    users = [f"user {number}" for number in range(NUM_USERS)]
    raw = np.array([f"item {number}" for number in range(NUM_ITEMS)], object)
    vocabulary = Vocabulary(raw, SEQUENCES.count_items()[1:])
    saved_model.export(model, vocabulary, tmp_path / "model", ExportOptions(5), users)
    service = tf.saved_model.load(tmp_path / "model")
    histories = np.array([[f"item {item - 1}" if item else "" for item in row] for row in HISTORIES["items"]])
    whom = {"histories": tf.constant(histories)}
    if model.needs_users:
        whom["users"] = tf.constant([users[number] for number in HISTORIES["users"][:3]] + ["a stranger"])
    scores = np.asarray(model.score(HISTORIES), np.float64)
    if model.scores_are_logits:
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    scores[3] = np.log(vocabulary.counts / vocabulary.counts.sum())
    every = service.score(**whom, candidates=tf.constant([raw.tolist()]))["scores"]
    np.testing.assert_allclose(every, scores, rtol=1e-5, atol=1e-5)
    vectors = service.encode(**whom)["vectors"].numpy()
    wider = {**HISTORIES, "items": np.pad(HISTORIES["items"], [[0, 0], [0, 1]])}  # as the export reads histories
    np.testing.assert_allclose(vectors[:3], np.asarray(model.user_vectors(wider))[:3], rtol=1e-5, atol=1e-5)
    assert not vectors[3].any()
    for row, length in enumerate(HISTORIES["lengths"]):
        scores[row, HISTORIES["items"][row, :length] - 1] = -np.inf
    for choices in ({}, {"candidates": tf.constant([raw.tolist()])}):
        found = service.recommend(**whom, **choices)
        best = np.take_along_axis(scores, np.argsort(-scores, axis=1, kind="stable")[:, :5], 1)
        np.testing.assert_allclose(found["scores"], best, rtol=1e-5, atol=1e-5)
        numbers = np.array(
            [[int(item.split()[1]) for item in row] for row in found["items"].numpy().astype(str).tolist()]
        )
        np.testing.assert_allclose(np.take_along_axis(scores, numbers, 1), best, rtol=1e-5, atol=1e-5)


@every_trained_model
def test_gradients_reach_every_weight(name):
    model, reached = make(name), set()
    batch = tensors(next(batches(model, 64)))
    with tf.GradientTape() as tape:
        losses = model.training_loss(batch)
        loss = tf.reduce_sum(losses)
    assert losses.shape == ((2,) if model.networks else ()) and np.isfinite(losses).all()
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert gradient is not None, variable.path
        assert np.isfinite(tf.convert_to_tensor(gradient)).all(), variable.path
        reached |= {variable.path} if np.any(tf.convert_to_tensor(gradient)) else set()
    keys = {variable.path for variable in model.trainable_variables if "key/bias" in variable.path}
    assert {variable.path for variable in model.trainable_variables} - reached <= keys


@every_trained_model
def test_a_part_of_a_batch_weighs_what_its_share_of_the_loss_is(name):
    """Of the models whose rows do not answer to each other, and without dropout."""
    if name.startswith("gru4rec") or name == "caser":
        pytest.skip("the rows of a batch are each other's negatives, or two means are added")
    model = make_quiet(name)
    check_parts(model, tensors(next(batches(model, 12))))


def trained(name):
    """Returns the losses of 40 training steps, and the weights after them."""
    model = make(name)
    settings = TrainingSettings(steps=40, warmup_steps=0, learning_rate=0.02, bias_correction=True)
    step, source = make_training_step(model, settings), batches(model, 32)
    return [float(step(tensors(next(source)))["loss"]) for _ in range(40)], model.get_weights()


@pytest.mark.parametrize("name", slow_but(["bpr_mf"], TRAINED))
def test_the_loss_falls_and_the_same_steps_give_the_same_bits(name):
    (losses, weights), (again, same) = trained(name), trained(name)
    assert np.mean(losses[-5:]) < 0.93 * np.mean(losses[:5])
    assert losses == again
    np.testing.assert_equal(weights, same)


DROPOUTS = {"gru4rec": 2, "gru4rec_plus": 2, "caser": 1, "sasrec": 1 + 3 * 2, "bert4rec": 1 + 3 * 2}
"""How many each model has, with two blocks."""


def dropouts(layer):
    inner = [one for part in layer._layers for one in dropouts(part)]
    return [layer] if isinstance(layer, Dropout) else inner


@pytest.mark.parametrize("name", slow_but(["sasrec", "caser"], DROPOUTS))
def test_every_dropout_acts_by_itself_in_training_and_never_in_scoring(name):
    rates = {"dropout": 0.5, **({"attention_dropout": 0.5} if name == "bert4rec" else {})}
    model = make(name, **rates, **two_blocks(name))
    batch, found = tensors(next(batches(model))), dropouts(model)
    scores = model.score(HISTORIES)
    np.testing.assert_array_equal(model(HISTORIES), scores)
    assert len(found) == DROPOUTS[name] and all(layer.rate == 0.5 for layer in found)
    for layer in found:
        layer.rate = 0.0
    without = float(model.training_loss(batch))
    assert float(model.training_loss(batch)) == without
    np.testing.assert_array_equal(model.score(HISTORIES), scores)
    for layer in found:
        layer.rate = 0.5
        assert float(model.training_loss(batch)) != without, layer.name
        layer.rate = 0.0
    for layer in found:
        layer.rate = 0.5
    assert not np.array_equal(model(HISTORIES, training=True), scores)


SAMPLED = {"loss": "sampled_softmax", "shared_negatives": 24}
KILLED = [(name, {}) for name in TRAINED if name != "bert4rec"] + [
    (name, {**SAMPLED, "optimizer": optimizer})
    for name in ("bert4rec", "sasrec")
    for optimizer in ("adam", "rowwise_adagrad")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), KILLED, ids=str)
def test_a_run_that_is_killed_and_started_again_equals_one_that_is_not(tmp_path, name, settings):
    known = Run.make("beauty", name).flatten()
    windows = {} if name == AUTO else {"window_step": 0.5}  # which it cuts into prefixes
    small = {key: value for key, value in {**SMALL, **windows}.items() if key in known}
    short = {"steps": 6, "evaluate_every": 3, "patience": 0, "batch_size": 16, "num_negatives": 10}
    run = presets.make_run("own-shop" if name == AUTO else "beauty", name, **small, **short, **settings)
    trainings.assert_a_kill_changes_nothing(tmp_path, run, SEQUENCES)


@every_model
def test_scores_and_vectors_are_float32_and_only_attention_models_compute_in_bfloat16(name):
    model, plain = make(name, dtype="mixed_bfloat16"), make(name)
    model.set_weights(plain.get_weights())
    called, expected = model(HISTORIES), plain.score(HISTORIES)
    assert called.dtype == model.user_vectors(HISTORIES).dtype == tf.float32
    np.testing.assert_allclose(called, expected, rtol=0.1, atol=0.1)
    assert np.array_equal(model.score(HISTORIES), expected) == (name not in run_record.ATTENTION_MODELS)
