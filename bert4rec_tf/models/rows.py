"""What the rows of weights are, and copies of weights between models with other items, users or features."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from bert4rec_tf.config.model_settings import ITEM_FEATURES, USER_FEATURES
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import TrainingWarning, warn

ITEMS, USERS = "items", "users"
FROM_FIRST, FROM_LAST = "positions from the first", "positions from the last"
"""What the rows of a weight are. ITEMS: row i is item i (0: padding; past n: special tokens). USERS: row u is
user u. FROM_FIRST: row p is the item after p others. FROM_LAST: the last row is the newest item, the row before it the
item before that, and so on. ITEM_FEATURES, USER_FEATURES: row v is feature value v."""

ROW_KINDS = (ITEMS, USERS, FROM_FIRST, FROM_LAST, ITEM_FEATURES, USER_FEATURES)


def copy_rows(
    source: Any, target: Any, source_names: Mapping[str, Sequence[Any]], names: Mapping[str, Sequence[Any]]
) -> None:
    """Copies all weights but the evidence's. Rows without a match stay as they are.

    `source_names`, `names`: ITEMS and USERS -> the raw ids of the items and users of each model, in their order.
    """
    source_names, names = {**source_names, **list_feature_names(source)}, {**names, **list_feature_names(target)}
    values = map(np.asarray, select_transferable(source))
    for weight, value in zip(select_transferable(target), values, strict=True):
        kind = target.row_kind(weight)
        refuse_unmarked(weight, value, kind)
        if kind is not None:
            new_value = np.asarray(weight).copy()
            source_labels = _label_rows(kind, len(value), source_names.get(kind, ()))
            rows = {label: row for row, label in enumerate(source_labels)}
            places = np.array([rows.get(label, -1) for label in _label_rows(kind, len(new_value), names.get(kind, ()))])
            new_value[places >= 0] = value[places[places >= 0]]
            value = new_value
        weight.assign(value)


def refuse_unmarked(weight: keras.Variable, value: np.ndarray, kind: str | None) -> None:
    """Raises UserError for a weight of another number of rows than its old value, if nothing says what these are."""
    if kind is None and value.shape != tuple(weight.shape):
        raise UserError(
            f"`mark_rows` must say what the rows of {weight.path} are, so that new ones can be added. "
            f"Received: a weight of the shape {value.shape}, now {tuple(weight.shape)}"
        )


@contextlib.contextmanager
def report_lost_rows(filepath: Any, skip_mismatch: bool) -> Iterator[None]:
    """Warns in one line, in place of Keras' many, if the block did not load all weights of a file."""
    with warnings.catch_warnings(record=skip_mismatch) as records:
        yield
    if records:
        warn(
            f"{filepath} has other sizes, so some tables keep their first values, and lose their rows. To keep these, "
            "load it into a model of its size, and call `model.grow(new_items)`",
            TrainingWarning,
        )


def list_feature_names(model: Any) -> dict[str, list[str]]:
    """Returns kind of features -> the names of the values that a model has vectors of."""
    return {kind: features.names.tolist() for kind, features in model.features.items()}


def select_transferable(model: Any) -> list[keras.Variable]:
    """Returns all weights but those of the evidence, which a new training counts again."""
    paths = set() if model.evidence is None else {weight.path for weight in model.evidence.weights}
    return [weight for weight in model.weights if weight.path not in paths]


def _label_rows(kind: str, size: int, names: Sequence[str]) -> Sequence[str | int]:
    """Returns what each of the `size` rows of a weight is: a name, or a number for a position or a special token."""
    if kind == FROM_FIRST:
        return range(size)
    if kind == FROM_LAST:
        return range(-size, 0)
    if kind == ITEMS:
        return [0, *names, *range(1, size - len(names))]  # 0: padding
    return names
