"""Makes a run's model."""

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import USER_FEATURES, list_used_features
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.models import MODELS, Recommender


def needs_users(run: Run) -> bool:
    """Returns whether the model of a run needs the user of a history."""
    return MODELS[run.model].needs_users or USER_FEATURES in list_used_features(run.architecture)


def make_model(
    run: Run,
    num_items: int,
    num_users: int,
    strategy: tf.distribute.Strategy | None = None,
    features: Mapping[str, Features] | None = None,
) -> Recommender:
    """Returns a run's model with new weights, drawn with its seed.

    Raises UserError if the run uses missing features.
    """
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
