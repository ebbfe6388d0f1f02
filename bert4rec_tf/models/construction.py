"""Makes a run's model."""

import contextlib
from typing import Any

import keras
import tensorflow as tf

from bert4rec_tf.config.run import Run
from bert4rec_tf.models import MODELS, Recommender


def new_model(run: Run, num_items: int, num_users: int, strategy: tf.distribute.Strategy | None = None) -> Recommender:
    """Returns a run's model with new weights, drawn with the run's seed."""
    keras.utils.set_random_seed(run.seed)
    kind, options = MODELS[run.model], dict[str, Any]()
    if kind.has_user_embeddings:
        options["num_users"] = num_users
    if run.training.mixed_precision:
        options["dtype"] = "mixed_bfloat16"
    with strategy.scope() if strategy else contextlib.nullcontext():
        return kind(num_items, run.architecture, **options)
