"""The functions of a SavedModel: their inputs and outputs. `service.Service` computes the answers."""

from collections.abc import Mapping

import tensorflow as tf

INPUTS = {
    spec.name: spec
    for spec in (
        tf.TensorSpec([None, None], tf.string, name="histories"),
        tf.TensorSpec([None], tf.string, name="users"),
        tf.TensorSpec([None], tf.string, name="items"),
        tf.TensorSpec([], tf.int32, name="k"),
        tf.TensorSpec([], tf.bool, name="exclude_seen"),
        tf.TensorSpec([None, None], tf.string, name="exclude"),
        tf.TensorSpec([None, None], tf.string, name="candidates"),
        tf.TensorSpec([], tf.float32, name="popularity_correction"),
    )
}
"""Every input of a function."""

SCALARS = tuple(name for name, spec in INPUTS.items() if not spec.shape.rank)
"""The inputs with one value for all rows."""

LOG_PROBABILITIES = "log-probabilities"
"""What `scores` in the model card says of a model whose scores are logarithms of probabilities."""

HISTORY, POPULAR = "history", "popular"
"""Values of `basis`: by the history of the row; or popular items, because the model knows none of its items, or not its
user, whom it needs."""

LISTS, SCORES, VECTORS = {"items", "scores", "unknown"}, {"scores", "unknown"}, {"vectors", "unknown"}
RECOMMENDED = {*LISTS, "basis"}
FUNCTIONS: Mapping[str, tuple[tuple[str, ...], set[str]]] = {
    "serving_default": (("histories",), RECOMMENDED),
    "recommend": (("histories", "k", "exclude_seen", "exclude", "candidates", "popularity_correction"), RECOMMENDED),
    "score": (("histories", "candidates"), SCORES),
    "encode": (("histories",), VECTORS),
    "similar": (("items", "k"), LISTS),
    "item_vectors": (("items",), VECTORS),
}
"""Name -> the inputs, in order, and the outputs. A function that takes `histories` takes `users` behind them if the
model has user embeddings."""

OPTIONAL = {"similar", "item_vectors"}
"""A model that cannot compare items lacks `similar`; one without item vectors, `item_vectors`."""


def find_inputs(name: str, needs_users: bool) -> list[tf.TensorSpec]:
    """Returns the inputs of a function, in order. `needs_users`: whether the model has user embeddings."""
    names = FUNCTIONS[name][0]
    if needs_users and names[0] == "histories":
        names = ("histories", "users", *names[1:])
    return [INPUTS[input_name] for input_name in names]
