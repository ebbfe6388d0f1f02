"""The functions of a SavedModel and their inputs. `service.Service` computes the answers."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.models.recommender import Recommender

NAMES = ("serving_default", "recommend", "score", "encode", "similar", "item_vectors")
"""Names of the functions. A model that cannot compare items lacks `similar`; without item vectors, `item_vectors`."""

HISTORIES = tf.TensorSpec([None, None], tf.string, name="histories")
USERS = tf.TensorSpec([None], tf.string, name="users")
CANDIDATES = tf.TensorSpec([None, None], tf.string, name="candidates")
ITEMS = tf.TensorSpec([None], tf.string, name="items")
K = tf.TensorSpec([], tf.int32, name="k")
CHOICES = [
    K,
    tf.TensorSpec([], tf.bool, name="exclude_seen"),
    tf.TensorSpec([None, None], tf.string, name="exclude"),
    CANDIDATES,
    tf.TensorSpec([], tf.float32, name="popularity_correction"),
]


def inputs_of_users(model: Recommender) -> list[tf.TensorSpec]:
    """Returns the inputs that say whom a request is for: HISTORIES, and USERS if the model has user embeddings."""
    return [HISTORIES, USERS] if model.needs_users else [HISTORIES]


def functions_of(
    service: Any, model: Recommender, k: int, popularity_correction: float, exclude_seen: bool
) -> dict[str, Callable]:
    """Returns name -> function, in the order of NAMES. The last three arguments are defaults of CHOICES."""
    nothing = tf.zeros([1, 0], tf.string)
    defaults = {  # in the order of CHOICES
        "k": tf.constant(k),
        "exclude_seen": tf.constant(exclude_seen),
        "exclude": nothing,
        "candidates": nothing,
        "popularity_correction": tf.constant(popularity_correction, tf.float32),
    }
    whom = inputs_of_users(model)
    number = len(whom)
    recommend = _function(
        lambda *inputs: service.recommend_to(inputs[:number], *inputs[number:]), [*whom, *CHOICES], **defaults
    )
    found = {
        "serving_default": _function(lambda *inputs: recommend(*inputs, *defaults.values()), whom),
        "recommend": recommend,
        "score": _function(lambda *inputs: service.score_for(inputs[:-1], inputs[-1]), [*whom, CANDIDATES]),
        "encode": _function(service.encode_for, whom),
    }
    has_rows = model.score_products() is not None
    if has_rows or model.similarities([1]) is not None:
        found["similar"] = _function(service.similar_to, [ITEMS, K], k=defaults["k"])
    if has_rows or model.item_vectors() is not None:
        found["item_vectors"] = _function(service.vectors_of, [ITEMS])
    return found


def _function(answer: Callable, inputs: Sequence[tf.TensorSpec], **defaults: tf.Tensor) -> Callable:
    """Returns a graph of `answer`. It takes the inputs in order or by name, and those in `defaults` may be left out."""

    def named(*given):
        return answer(*given)

    kind, required = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [inspect.Parameter(one.name, kind, default=defaults.get(one.name, required)) for one in inputs]
    named.__signature__ = inspect.Signature(parameters)  # TensorFlow reads names and defaults here
    return tf_function(named, input_signature=inputs)
