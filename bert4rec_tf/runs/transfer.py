"""Copies trained weights to another model. Rows of items and users are matched by raw id."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np

from bert4rec_tf.config.run_record import ALL, RETRAIN, Run
from bert4rec_tf.config.setting_fields import Settings
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import MODELS, Recommender
from bert4rec_tf.models.recommender import FROM_FIRST, FROM_LAST, ITEMS, USERS
from bert4rec_tf.runs.phases import needs_users


@dataclass(frozen=True, eq=False)
class StartWeights:
    """Trained weights, and the items and users that their rows belong to.

    Attributes:
        model: the name of their model.
        settings: the model's settings that are not `may_change`; a run must have the same.
        items: raw ids of items 1 to n.
        users: raw ids of the users; empty if the model has no user embeddings.
        weights: the values of the model's `weights` but those of the evidence, in that order.
        features: ITEM_FEATURES, USER_FEATURES or both, if the model uses them -> the names of the feature values.
        origin: for information: `path`, `checkpoint`, `step` and `dataset`; also `data_fingerprint` if the weights
            were certainly trained on these data alone.
    """

    model: str
    settings: Mapping[str, Any]
    items: Sequence[str]
    users: Sequence[str]
    weights: Sequence[np.ndarray]
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_model(
        cls, name: str, model: Recommender, items: Sequence[str], users: Sequence[str], **origin: Any
    ) -> "StartWeights":
        """Returns a copy of a model's weights. `name`: its key in MODELS."""
        recorded = model.settings.record()
        settings = {name: recorded[name] for name in _list_fixed_settings(model.settings) if name in recorded}
        weights = [np.asarray(weight).copy() for weight in _select_transferable(model)]
        return cls(name, settings, items, users, weights, origin, list_feature_names(model))

    @cached_property
    def fingerprint(self) -> str:
        """The first half of the SHA-256 of everything but the origin."""
        header = json.dumps({"model": self.model, "settings": dict(self.settings)}, sort_keys=True)
        lists = {"header": [header], ITEMS: self.items, USERS: self.users, **self.features}
        arrays = {name: npz.encode_lines(texts) for name, texts in lists.items()}
        arrays |= {f"weights/{number:03d}": value for number, value in enumerate(self.weights)}
        digest = hashlib.sha256()
        for name, value in arrays.items():
            digest.update(f"{name} {value.dtype.str} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()[:32]

    def check(self, run: Run) -> None:
        """Raises UserError if a run cannot start from these weights."""
        where = f"init_from={self.origin.get('path')}"
        if run.model != self.model:
            raise UserError(f"`model` must be {self.model}, as of the weights. Received: model={run.model}, {where}")
        if MODELS[run.model].examples is None:
            raise UserError(f"`init_from` must be left out for {run.model}, which is not trained. Received: {where}")
        for name, default in _list_fixed_settings(run.architecture).items():
            value, requested = self.settings.get(name, default), getattr(run.architecture, name)
            if requested != value:
                raise UserError(f"`{name}` must be {value}, as in the weights. Received: {name}={requested}, {where}")

    def apply_to(self, model: Recommender, items: Sequence[str], users: Sequence[str]) -> None:
        """Copies the weights into a model with the same settings, which may have other items, users and features.

        Rows are matched by raw id, name of the feature value, position or special token (padding, mask). Rows without
        a match stay as they are. `items`, `users`: the model's raw ids, in the order of its own ids.
        """
        source_names = {ITEMS: self.items, USERS: self.users, **self.features}
        names = {ITEMS: items, USERS: users, **list_feature_names(model)}
        for weight, value in zip(_select_transferable(model), self.weights, strict=True):
            kind = model.row_kind(weight)
            if kind is not None:
                moved = np.asarray(weight).copy()
                source_labels = _label_rows(kind, len(value), source_names.get(kind, ()))
                rows = {label: row for row, label in enumerate(source_labels)}
                places = np.array([rows.get(label, -1) for label in _label_rows(kind, len(moved), names.get(kind, ()))])
                moved[places >= 0] = value[places[places >= 0]]
                value = moved
            weight.assign(value)

    def record(self, run: Run, sequences: Sequences) -> dict[str, Any]:
        """Returns the record of a warm start: the origin, how many rows match, and whether held-out items may leak."""
        content = {**self.origin, ITEMS: _count_matches(self.items, sequences.vocabulary.items.tolist())}
        if needs_users(run):
            content[USERS] = _count_matches(self.users, sequences.users.tolist())
        return {**content, "leak": self._leak(sequences.fingerprint)}

    def _leak(self, data_fingerprint: str) -> str:
        if self.origin.get("data_fingerprint") != data_fingerprint:
            return (
                "These weights were trained on other data, or on several data sets. If those include what is held out "
                "here, the validation and test metrics are too high (docs/training.md)."
            )
        if self.origin["checkpoint"].startswith(ALL):
            return (
                "These weights were trained on the validation and test items of the same data: both metrics are too "
                "high. Checkpoints of `select` have not seen these items (docs/training.md)."
            )
        if self.origin["checkpoint"].startswith(RETRAIN):
            return (
                "These weights were trained on the validation items of the same data: the validation metrics are too "
                "high, the test metrics are not. Checkpoints of `select` have not seen these items (docs/training.md)."
            )
        return "These weights were trained on the same data without the held-out items: nothing leaks."


def list_feature_names(model: Recommender) -> dict[str, list[str]]:
    """Returns kind of features -> the names of the values that a model has vectors of."""
    return {kind: features.names.tolist() for kind, features in model.features.items()}


def copy_weights(source: Recommender, target: Recommender) -> None:
    """Copies all weights but those of the evidence to a model of the same settings and sizes."""
    for value, weight in zip(_select_transferable(source), _select_transferable(target), strict=True):
        weight.assign(value)


def _select_transferable(model: Recommender) -> list[keras.Variable]:
    """Returns all weights but those of the evidence, which a new training counts again."""
    counted = set() if model.evidence is None else {weight.path for weight in model.evidence.weights}
    return [weight for weight in model.weights if weight.path not in counted]


def _list_fixed_settings(settings: Settings) -> dict[str, Any]:
    """Returns name -> default of the settings that a warm start must not change."""
    return {field.name: field.default for field in dataclasses.fields(settings) if not field.metadata["may_change"]}


def _label_rows(kind: str, size: int, names: Sequence[str]) -> Sequence[str | int]:
    """Returns what each of the `size` rows of a weight is: a name, or a number for a position or a special token."""
    if kind == FROM_FIRST:
        return range(size)
    if kind == FROM_LAST:
        return range(-size, 0)
    if kind == ITEMS:
        return [0, *names, *range(1, size - len(names))]  # 0: padding
    return names


def _count_matches(source_ids: Sequence[str], ids: Sequence[str]) -> dict[str, int]:
    shared = len(set(source_ids) & set(ids))
    return {"kept": shared, "new": len(ids) - shared, "gone": len(source_ids) - shared}
