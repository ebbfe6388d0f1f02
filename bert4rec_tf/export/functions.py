"""The functions of a SavedModel, which `service.Service` answers, and their inputs."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bert4rec_tf.foundation.graphs import graph
from bert4rec_tf.models.recommender import Recommender

SIGNATURES = ("serving_default", "recommend", "score", "encode")
OF_ITEMS = ("similar", "item_vectors")
"""Signatures about items alone, of models that can compare them and that have vectors of them."""

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


def defaults_of(k: int, popularity_correction: float) -> dict[str, tf.Tensor]:
    """Returns the default values of `recommend`."""
    nothing = tf.zeros([1, 0], tf.string)
    return {
        "k": tf.constant(k),
        "exclude_seen": tf.constant(True),
        "exclude": nothing,
        "candidates": nothing,
        "popularity_correction": tf.constant(popularity_correction, tf.float32),
    }


def without_users(service: Any, defaults: dict[str, tf.Tensor]) -> tuple[Callable, ...]:
    """The functions of SIGNATURES for a model without user embeddings."""

    @graph(input_signature=[HISTORIES, *CHOICES])
    def recommend(
        histories,
        k=defaults["k"],
        exclude_seen=defaults["exclude_seen"],
        exclude=defaults["exclude"],
        candidates=defaults["candidates"],
        popularity_correction=defaults["popularity_correction"],
    ):
        return service.recommend_to((histories,), k, exclude_seen, exclude, candidates, popularity_correction)

    @graph(input_signature=[HISTORIES])
    def serving_default(histories):
        return recommend(histories, **defaults)

    @graph(input_signature=[HISTORIES, CANDIDATES])
    def score(histories, candidates):
        return service.score_for(histories, candidates=candidates)

    @graph(input_signature=[HISTORIES])
    def encode(histories):
        return service.encode_for(histories)

    return serving_default, recommend, score, encode


def with_users(service: Any, defaults: dict[str, tf.Tensor]) -> tuple[Callable, ...]:
    """The functions of SIGNATURES for a model with user embeddings."""

    @graph(input_signature=[HISTORIES, USERS, *CHOICES])
    def recommend(
        histories,
        users,
        k=defaults["k"],
        exclude_seen=defaults["exclude_seen"],
        exclude=defaults["exclude"],
        candidates=defaults["candidates"],
        popularity_correction=defaults["popularity_correction"],
    ):
        return service.recommend_to((histories, users), k, exclude_seen, exclude, candidates, popularity_correction)

    @graph(input_signature=[HISTORIES, USERS])
    def serving_default(histories, users):
        return recommend(histories, users, **defaults)

    @graph(input_signature=[HISTORIES, USERS, CANDIDATES])
    def score(histories, users, candidates):
        return service.score_for(histories, users, candidates=candidates)

    @graph(input_signature=[HISTORIES, USERS])
    def encode(histories, users):
        return service.encode_for(histories, users)

    return serving_default, recommend, score, encode


def of_items(service: Any, model: Recommender, default: tf.Tensor) -> tuple[Callable | None, ...]:
    """The functions of OF_ITEMS; None for what the model lacks."""

    @graph(input_signature=[ITEMS, K])
    def similar(items, k=default):
        return service.similar_to(items, k)

    @graph(input_signature=[ITEMS])
    def item_vectors(items):
        return service.vectors_of(items)

    has_rows = model.score_products() is not None
    can_compare = has_rows or model.similarities([1]) is not None
    has_vectors = has_rows or model.item_vectors() is not None
    return similar if can_compare else None, item_vectors if has_vectors else None
