"""A small model of every kind, its data, and batches to train it on."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.config.execution import ExecutionSettings
from bert4rec_tf.config.model_settings import USER_FEATURES, list_used_features
from bert4rec_tf.config.run_record import MaskingSettings, Run
from bert4rec_tf.data.examples import in_memory
from bert4rec_tf.data.examples.cloze import cut_windows
from bert4rec_tf.data.examples.joined import join_columns
from bert4rec_tf.data.examples.rows import Feed
from bert4rec_tf.models import MODELS
from bert4rec_tf.training.calls import TrainingCalls
from bert4rec_tf.training.optimizer import make_optimizer
from support.features import add_vectors, both
from support.ranking_oracle import make_sequences
from support.shards import mask_windows, read_batches

NUM_ITEMS, NUM_USERS = 40, 60
SEQUENCES = make_sequences(
    [1 + (np.arange(4 + user % 9) + 5 * user) % NUM_ITEMS for user in range(NUM_USERS)], NUM_ITEMS
)
SMALL = {"hidden_dim": 16, "max_length": 8, "num_layers": 1, "num_heads": 2, "extra_negatives": 2}
HISTORIES = {
    "users": np.array([3, 59, 0, 7], np.int32),
    "items": np.array([[4, 9, 2, 7, 1, 12], [3, 0, 0, 0, 0, 0], [5, 6, 8, 0, 0, 0], [0, 0, 0, 0, 0, 0]], np.int32),
    "lengths": np.array([6, 1, 3, 0], np.int32),
}
TRAINED = [name for name, kind in MODELS.items() if kind.examples is not None]
every_model = pytest.mark.parametrize("name", MODELS)
every_trained_model = pytest.mark.parametrize("name", TRAINED)


FEATURES = both(SEQUENCES.vocabulary.items.tolist(), SEQUENCES.users.tolist())
VECTORS = {kind: add_vectors(features, 6) for kind, features in FEATURES.items()}


def needed(settings):
    """What the constructor of a model needs beside these settings."""
    used = list_used_features(settings)
    return {
        **({"features": FEATURES} if used else {}),
        **({"num_users": NUM_USERS} if USER_FEATURES in used else {}),
    }


def make(name, /, *, adapted=True, **changes):
    keras.utils.set_random_seed(4)
    known = dataclasses.asdict(Run.make("beauty", name).architecture)
    options = {**known, **{key: value for key, value in SMALL.items() if key in known}, **changes}
    if MODELS[name].needs_users:
        options["num_users"] = NUM_USERS
    used = Run.make("beauty", name, **{key: changes[key] for key in changes if key.startswith("us")}).architecture
    options = {**needed(used), **options}
    options["num_heads" if "num_heads" in known else "name"] = 2 if "num_heads" in known else name
    model = MODELS[name](NUM_ITEMS, **options)
    if adapted:
        model.adapt(SEQUENCES)
    return model


def make_quiet(name, **changes):
    """A model without dropout."""
    rates = {rate: 0.0 for rate in ("dropout", "attention_dropout") if rate in Run.make("beauty", name).flatten()}
    return make(name, **rates, **changes)


def make_training_step(model, settings, **options):
    optimizer = make_optimizer(settings, model)
    optimizer.build(model.trainable_variables)
    return make_step(model, optimizer, settings.clip_norm, **options)


class Given:
    """Batches that are given, as a training reads them."""

    tables: dict = {}  # noqa: RUF012

    def __init__(self, batch):
        self.columns = {name: np.asarray(column)[None] for name, column in batch.items()}

    def read(self, first_step, count):
        return {name: np.repeat(column, count, axis=0) for name, column in self.columns.items()}

    def lay_out(self, tables, columns):
        return columns


def make_step(model, optimizer, clip_norm, **execution):
    """Returns a function that takes one step with a batch, by the calls of a training."""
    made = {}

    def take(batch):
        if not made:
            options = ExecutionSettings(**{"compile": "off", "steps_per_call": 1, **execution})
            made["calls"] = TrainingCalls(model, optimizer, Given(batch), clip_norm, options)
        results = made["calls"].run(Given(batch).read(0, 1), 1)
        return {name: column[0] for name, column in results.items()}

    return take


def check_gradients(model, batch, watched):
    """Compares the slope of the loss along the gradient of each watched weight with a finite difference."""
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(model.training_loss(batch))
    for weight, gradient in zip(watched, tape.gradient(value, [weight.value for weight in watched]), strict=True):
        before, direction = np.asarray(weight), np.asarray(tf.convert_to_tensor(gradient))
        norm, around = np.linalg.norm(direction), []
        for step in (5e-3, -5e-3):
            weight.assign(before + step * direction / norm)
            around.append(float(tf.reduce_sum(model.training_loss(batch))))
        weight.assign(before)
        assert (around[0] - around[1]) / 1e-2 == pytest.approx(norm, rel=2e-2), weight.path


def check_parts(model, batch):
    """Compares the loss of a batch with the weighted sum of its parts' losses."""
    parts = [{name: column[rows] for name, column in batch.items()} for rows in (slice(0, 5), slice(5, None))]
    shares = [np.asarray(model.loss_weight(part) / model.loss_weight(batch)) for part in parts]
    total = sum(share * np.asarray(model.training_loss(part)) for share, part in zip(shares, parts))
    assert total == pytest.approx(np.asarray(model.training_loss(batch)), rel=1e-4)


def read_endlessly(feed, first_step=0):
    """Yields the batches of a feed, as arrays."""
    for step in itertools.count(first_step):
        yield read_batches(feed, step, 1)[0]


def batches(model, size=16, sequences=SEQUENCES):
    """Batches of the kind that the model is trained on."""
    if model.networks:
        parts = {name: batches(network, size, sequences) for name, network in model.networks.items()}
        return (join_columns({name: next(part) for name, part in parts.items()}) for _ in itertools.count())
    if model.examples != "masked":
        examples = in_memory.EXAMPLE_KINDS[model.examples](sequences, **model.example_options)
        return read_endlessly(Feed(examples, size, 1))
    masking = MaskingSettings(mask_proportion=0.4, max_predictions=4, mask_copies=2)
    windows, rng = cut_windows(sequences, 8, 0.5), np.random.default_rng(1)

    def endless():
        while True:
            made = mask_windows(
                windows, rng.integers(3 * len(windows), size=size), masking, 8, sequences.num_items, [1]
            )
            columns = ("users", "lengths", "items", "mask_positions", "mask_targets")
            yield {column: getattr(made, column).astype(np.int32) for column in columns}

    return endless()


def tensors(batch):
    return {name: tf.constant(column) for name, column in batch.items()}
