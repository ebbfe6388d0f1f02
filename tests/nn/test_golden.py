"""The model against numbers that the authors' own program computed (tests/golden/README.md)."""

import numpy as np
import pytest
import tensorflow as tf
from support.models import make_step
from support.paths import GOLDEN
from support.tf1_program import CHECKPOINT, TOKENS

from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.models import tf1_import
from bert4rec_tf.training.optimizer import make_optimizer
from bert4rec_tf.training.step import clip_gradients

NUM_ITEMS, PROGRAM_MASK = 57, 59
ORDER = tf1_import.order_rows(TOKENS)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "original_tf1.npz") as content:
        return {name: content[name] for name in content.files}


@pytest.fixture
def model(tmp_path):
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("\n".join(TOKENS) + "\n")
    loaded, _ = tf1_import.load(CHECKPOINT, GOLDEN / "original_tf1.json", vocabulary)
    return loaded


@pytest.fixture(scope="module")
def batch(golden):
    to_ours = np.argsort(ORDER)
    ids, targets = golden["inputs/input_ids"], golden["inputs/masked_lm_ids"]
    return {
        "items": to_ours[ids].astype(np.int32),
        "mask_positions": golden["inputs/masked_lm_positions"],
        "mask_targets": np.where(golden["inputs/masked_lm_weights"] > 0, to_ours[targets], 0).astype(np.int32),
    }


def test_mask_token_takes_its_place(model, batch, golden):
    assert model.mask_token == NUM_ITEMS + 1
    np.testing.assert_array_equal(batch["items"] == model.mask_token, golden["inputs/input_ids"] == PROGRAM_MASK)


def test_the_outputs_of_every_layer_are_the_program_s(model, batch, golden):
    embedded = model.embed(batch["items"])
    np.testing.assert_allclose(embedded, golden["outputs/embedding_output"], atol=2e-5)
    padding_mask = batch["items"] != 0
    hidden = embedded
    for number, block in enumerate(model.blocks):
        hidden, probabilities = block(hidden, padding_mask=padding_mask, return_attention_scores=True)
        np.testing.assert_allclose(probabilities, golden[f"outputs/attention_probs_{number}"], atol=2e-5)
        np.testing.assert_allclose(hidden, golden[f"outputs/layer_{number}"], atol=2e-5)
    encoded, attention = model.encode(batch["items"], return_attention=True)
    np.testing.assert_array_equal(encoded, hidden)
    np.testing.assert_array_equal(attention[-1], probabilities)


def test_log_probabilities_over_every_row_are_the_program_s(model, batch, golden):
    hidden = tf.gather(model.encode(batch["items"]), batch["mask_positions"], batch_dims=1)
    logits = model.head(tf.reshape(hidden, (30, -1)), model.item_embeddings)
    np.testing.assert_allclose(tf.nn.log_softmax(logits), golden["outputs/log_probs"][:, ORDER], atol=2e-5)


def test_loss_and_gradients_are_the_program_s(model, batch, golden):
    with tf.GradientTape() as tape:
        loss = model.training_loss(batch)
    np.testing.assert_allclose(loss, golden["outputs/loss"], rtol=1e-5)
    named = dict(tf1_import.name_variables(model))
    gradients = tape.gradient(loss, [variable.value for variable in named.values()])
    for name, gradient in zip(named, gradients, strict=True):
        expected = tf1_import.convert_weight(name, golden[f"gradients/{name}"], ORDER)
        tolerance = 1e-4 * np.abs(expected).max() + 1e-7
        np.testing.assert_allclose(tf.convert_to_tensor(gradient), expected, atol=tolerance, rtol=0, err_msg=name)
    assert {name for name in golden if name.startswith("gradients/")} == {f"gradients/{name}" for name in named}
    _, norm = clip_gradients([tf.convert_to_tensor(gradient) for gradient in gradients], 5.0)
    np.testing.assert_allclose(norm, 3.77074, atol=1e-5, err_msg="of the table's gradients from both its uses, summed")


def test_fifteen_steps_of_training_are_the_program_s(model, batch, golden):
    settings = TrainingSettings(learning_rate=0.01, steps=40, warmup_steps=5, clip_norm=5.0)
    optimizer = make_optimizer(settings)
    optimizer.build(model.trainable_variables)
    step = make_step(model, optimizer, settings.clip_norm)
    observed = []
    for number in range(1, 16):
        observed.append(float(step(batch)["loss"]))
        if number in (1, 5):
            for name, variable in tf1_import.name_variables(model):
                expected = tf1_import.convert_weight(name, golden[f"after_{number}_steps/{name}"], ORDER)
                tolerance = 1e-6 if number == 1 else 1e-4
                np.testing.assert_allclose(variable, expected, atol=tolerance, err_msg=f"{name} after {number}")
    np.testing.assert_allclose(observed[:8], golden["training/losses"][:8], rtol=1e-5)
    np.testing.assert_allclose(observed[8:], golden["training/losses"][8:], rtol=2e-3)
