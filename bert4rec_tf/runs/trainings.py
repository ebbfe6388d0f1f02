"""Which trainings a run has, how long a later one is, and its model: a new one, or a trained one."""

import contextlib
import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.config.model_settings import USER_FEATURES, list_used_features
from bert4rec_tf.config.run_record import RETRAIN, TRAININGS, Run, TrainingSettings
from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.foundation import devices
from bert4rec_tf.models import MODELS, Recommender
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.training import loop

FINAL_RATE = 0.1
"""The share of the learning rate with which a final training continues from the selected weights (`final_share`)."""

_SEEDING = threading.Lock()


def list_trainings(run: Run) -> list[str]:
    """Returns the names of a run's trainings in order, as its protocol says.

    A model that only counts has nothing to select before a `retrain`.
    """
    trainings = TRAININGS[run.training.protocol]
    if MODELS[run.model].examples is None and RETRAIN in trainings:
        return [RETRAIN]
    return list(trainings)


def compute_final_share(training: TrainingSettings, growth: float) -> float:
    """Returns how many times the steps of SELECT a training after it takes.

    `growth`: how many times the actions of SELECT it learns from.
    """
    return training.final_share or (growth if training.scale_final_steps else 1.0)


def scale_steps(steps: int, share: float) -> int:
    return max(round(share * steps), 1)


def make_final_settings(training: TrainingSettings, best_step: int, share: float) -> TrainingSettings:
    """Returns the settings of a training after SELECT. `share`: from `compute_final_share`."""
    steps = scale_steps(best_step, share)
    if not training.final_share:
        return replace(training, steps=scale_steps(training.steps, share), stop_after=steps)
    rates = {name: FINAL_RATE * getattr(training, name) for name in ("learning_rate", "row_learning_rate")}
    return replace(training, steps=steps, warmup_steps=steps // 10, stop_after=0, **rates)


def needs_users(run: Run) -> bool:
    return MODELS[run.model].needs_users or USER_FEATURES in list_used_features(run.architecture)


def make_model(
    run: Run,
    num_items: int,
    num_users: int,
    strategy: tf.distribute.Strategy | None = None,
    features: Mapping[str, Features] | None = None,
) -> Recommender:
    """Returns a run's model with new weights, drawn with its seed.

    TensorFlow then multiplies as exactly as the run says, and has its seed.

    Raises UserError if the run uses missing features.
    """
    devices.set_exact_products(not (run.training.tensor_float_32 or run.training.mixed_precision))
    # Without a name, Keras would number the models of the process, and the number would be in the export's bytes.
    kind, options = MODELS[run.model], dict[str, Any](name=run.model, features=features)
    if needs_users(run):
        options["num_users"] = num_users
    if run.training.mixed_precision:
        options["dtype"] = "mixed_bfloat16"
    with _use_seed(run.seed):
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = kind(num_items, run.architecture, **options)
        keras.random.uniform([])  # makes Keras' own generator, which own models may draw from, by the seed
    return model


@contextlib.contextmanager
def _use_seed(seed: int) -> Iterator[None]:
    """Seeds Python and NumPy, of which Keras' layers draw theirs, and gives both back to the caller as they were."""
    with _SEEDING:  # another thread may make a model too
        python_state, numpy_state = random.getstate(), np.random.get_state()
        keras.utils.set_random_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def load_model(workdir: WorkDirectory, training: str | None = None, run: Run | None = None) -> Recommender:
    """Returns the model of a finished training.

    Args:
        workdir: the folder of the run.
        training: the name of the training; None for the last one.
        run: the folder's run, perhaps with another precision; None for that run itself.

    Raises UserError if the training has not finished, or a file is damaged.
    """
    config = workdir.read_config()
    run, folder = run or config.run, workdir.path / (training or list_trainings(config.run)[-1])
    model = make_model(run, workdir.count_items(), config.num_users, features=workdir.read_features())
    if model.evidence is not None:  # its weights come after those of the network, and are as many as were counted
        shapes = loop.read_shapes(folder)
        model.evidence.build(tuple(shapes[len(model.variables) + model.evidence.neighbors_place]))
    loop.load_weights(model, folder)
    return model
