"""The model of a run, and its trainings: which there are, what each trains on, and its trained model."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import USER_FEATURES, list_used_features
from bert4rec_tf.config.run_record import ALL, RETRAIN, TRAININGS, Run, TrainingSettings
from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.foundation import devices
from bert4rec_tf.models import MODELS, Recommender
from bert4rec_tf.runs.workdir import WorkDirectory
from bert4rec_tf.training import loop


def list_phases(run: Run) -> list[str]:
    """Returns a run's trainings in order, as its protocol says.

    A model that only counts has nothing to select before a `retrain`.
    """
    trainings = TRAININGS[run.training.protocol]
    if MODELS[run.model].examples is None and RETRAIN in trainings:
        return [RETRAIN]
    return list(trainings)


def find_measured_phase(run: Run) -> str:
    """Returns the training whose model is measured: the last one that holds out the test items."""
    return [phase for phase in list_phases(run) if phase != ALL][-1]


FINAL_RATE = 0.1
"""The share of the learning rate with which a final training continues from the selected weights."""


def shorten_final(training: TrainingSettings, selected_steps: int) -> TrainingSettings:
    """Returns the settings of a final training that continues from the selected weights (`final_share`)."""
    steps = max(round(training.final_share * selected_steps), 1)
    rate = FINAL_RATE * training.learning_rate
    return replace(training, steps=steps, warmup_steps=steps // 10, learning_rate=rate, stop_after=0)


def needs_users(run: Run) -> bool:
    return MODELS[run.model].needs_users or USER_FEATURES in list_used_features(run.architecture)


def make_model(
    run: Run,
    num_items: int,
    num_users: int,
    strategy: tf.distribute.Strategy | None = None,
    features: Mapping[str, Features] | None = None,
) -> Recommender:
    """Returns a run's model with new weights, drawn with its seed. TensorFlow then multiplies as exactly as it says.

    Raises UserError if the run uses missing features.
    """
    devices.set_exact_products(not (run.training.tensor_float_32 or run.training.mixed_precision))
    keras.utils.set_random_seed(run.seed)
    # Without a name, Keras would number the models of the process, and the number would be in the export's bytes.
    kind, options = MODELS[run.model], dict[str, Any](name=run.model)
    if needs_users(run):
        options["num_users"] = num_users
    if run.training.mixed_precision:
        options["dtype"] = "mixed_bfloat16"
    options["features"] = features
    with strategy.scope() if strategy else contextlib.nullcontext():
        return kind(num_items, run.architecture, **options)


def load_trained(run: Run, num_items: int, num_users: int, workdir: WorkDirectory, phase: str) -> Recommender:
    """Returns the model of the finished training `phase`. Raises UserError if it has not finished."""
    model = make_model(run, num_items, num_users, features=workdir.read_features())
    if model.evidence is not None:  # its weights come after those of the network, and are as many as were counted
        shapes = loop.read_shapes(workdir.path / phase)
        model.evidence.build(tuple(shapes[len(model.variables) + model.evidence.neighbors_place]))
    loop.load_weights(model, workdir.path / phase)
    return model


def select_training_data(split: LeaveOneOut, phase: str) -> Sequences:
    return split.sequences if phase == ALL else split.training(with_validation=phase == RETRAIN)
