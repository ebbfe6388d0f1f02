"""Features of invented items and users."""

import dataclasses

import numpy as np

from bert4rec_tf.config.model_settings import ITEM_FEATURES, USER_FEATURES
from bert4rec_tf.data.feature_values import Features


def made(ids, seed, num_values=5):
    """Features with up to three values per row; the second row has none."""
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.choice(num_values, rng.integers(1, 4), replace=False)) for _ in ids]
    rows[1] = rows[1][:0]
    splits = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    names = np.array([f"tag={value}" for value in range(num_values)], object)
    return Features(np.array(list(ids), object), splits, np.concatenate(rows).astype(np.int32), names)


def add_vectors(features, width, seed=3):
    """The same features with a column `text` of vectors, not of length 1. The third row has none."""
    vectors = np.random.default_rng(seed).normal(2, 3, (len(features.ids), width)).astype(np.float32)
    vectors[2] = 0
    names = [*features.names.tolist(), *(f"text[{number}]" for number in range(width))]
    return dataclasses.replace(features, names=np.array(names, object), vectors=vectors)


def both(item_ids, user_ids):
    return {ITEM_FEATURES: made(item_ids, 1), USER_FEATURES: made(user_ids, 2)}


def means_by_hand(vectors, features):
    """The mean of the vectors of each row's values, by a plain loop, and its own vector at length 1 projected."""
    found = np.zeros((len(features.ids), vectors.shape[1]))
    for row, (begin, end) in enumerate(zip(features.splits, features.splits[1:])):
        if end > begin:
            found[row] = sum(vectors[value].astype(np.float64) for value in features.values[begin:end]) / (end - begin)
        if features.vectors is not None and features.vectors[row].any():
            given = features.vectors[row].astype(np.float64)
            found[row] += given / np.sqrt(sum(given**2)) @ vectors[-len(given) :].astype(np.float64)
    return found
