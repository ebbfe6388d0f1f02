"""Warm starts: reads the weights that a run starts from, and copies them. Rows of items and users match by raw id."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.config.run_record import ALL, RETRAIN, SELECT, Run
from bert4rec_tf.config.setting_fields import Settings
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.export.layout import CONFIG
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import expand_local_path
from bert4rec_tf.models import MODELS, Recommender, tf1_import
from bert4rec_tf.models.rows import ITEMS, USERS, copy_rows, list_feature_names, select_transferable
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.runs.trainings import list_trainings, load_model, needs_users
from bert4rec_tf.training import loop
from bert4rec_tf.training.workers import make_strategy

ORIGINAL_CONFIG, ORIGINAL_VOCABULARY = "bert_config.json", "vocabulary.txt"
"""Files that must be in the same folder as a checkpoint of the authors' program."""

TRAINED_ON = {
    SELECT: "the same data without the held-out items",
    RETRAIN: "the same data with the validation items",
    ALL: "the same data with the validation and test items",
}
"""Training -> what its weights have seen of a run on the same data."""


@dataclass(frozen=True, eq=False)
class StartWeights:
    """The weights of a trained model, and the items and users that their rows belong to.

    Attributes:
        name: the model's key in MODELS.
        model: the model. Its settings that are not `may_change` must be those of a run.
        items: raw ids of items 1 to n.
        users: raw ids of the users; empty if the model has no user embeddings.
        origin: for information: `path`, `checkpoint`, `step` and `dataset`; also `data_fingerprint` if the weights
            were certainly trained on these data alone.
    """

    name: str
    model: Recommender
    items: Sequence[str]
    users: Sequence[str]
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """The first half of the SHA-256 of the fixed settings, all ids and names of rows, and the weights."""
        settings, names = self.model.settings.record(), _list_fixed_settings(self.model.settings)
        fixed_settings = {name: settings[name] for name in names if name in settings}
        header = json.dumps({"model": self.name, "settings": fixed_settings}, sort_keys=True)
        lists = {"header": [header], ITEMS: self.items, USERS: self.users, **list_feature_names(self.model)}
        arrays = {name: npz.encode_lines(texts) for name, texts in lists.items()}
        weights = map(np.asarray, select_transferable(self.model))
        arrays |= {f"weights/{number:03d}": value for number, value in enumerate(weights)}
        return npz.compute_fingerprint(arrays)[:32]

    def check(self, run: Run) -> None:
        """Raises UserError if a run cannot start from these weights."""
        option = f"init_from={self.origin.get('path')}"
        if MODELS[run.model].examples is None:
            raise UserError(f"`init_from` must be left out for {run.model}, which is not trained. Received: {option}")
        settings = {"model": self.name}
        if run.model == self.name:
            settings |= {name: getattr(self.model.settings, name) for name in _list_fixed_settings(run.architecture)}
        for name, value in settings.items():
            setting = run.model if name == "model" else getattr(run.architecture, name)
            if setting != value:
                raise UserError(f"`{name}` must be {value}, as in the weights. Received: {name}={setting}, {option}")

    def apply_to(self, model: Recommender, items: Sequence[str], users: Sequence[str]) -> None:
        """Copies the weights into a model with the same settings, which may have other items, users and features.

        Rows are matched by raw id, name of the feature value, position or special token (padding, mask). Rows without
        a match stay as they are. `items`, `users`: the model's raw ids, in the order of its own ids.
        """
        copy_rows(self.model, model, {ITEMS: self.items, USERS: self.users}, {ITEMS: items, USERS: users})

    def record(self, run: Run, sequences: Sequences) -> dict[str, Any]:
        """Returns the record of a warm start: the origin, how many rows match, and whether held-out items may leak."""
        content = {**self.origin, ITEMS: _count_matches(self.items, sequences.vocabulary.items.tolist())}
        if needs_users(run):
            content[USERS] = _count_matches(self.users, sequences.users.tolist())
        is_same = self.origin.get("data_fingerprint") == sequences.fingerprint
        actions = TRAINED_ON[self.origin["checkpoint"]] if is_same else "other data, which may have the held-out items"
        is_clean = is_same and self.origin["checkpoint"] == SELECT
        effect = "" if is_clean else " Metrics on items that they saw are too high (docs/update.md)."
        return {**content, "leak": f"The weights were trained on {actions}.{effect}"}


def resolve_initial(run: Run, init_from: str | Path | StartWeights) -> tuple[Run, StartWeights]:
    """Returns the run that starts from trained weights, and the weights.

    `init_from`: the weights or their path. Raises UserError as `read_start_weights` does, or if there are fewer devices
    than replicas.
    """
    if not isinstance(init_from, StartWeights):
        make_strategy(run.training.replicas)  # virtual devices must exist before reading computes anything
        init_from = read_start_weights(expand_local_path(init_from, "init_from"))
    return dataclasses.replace(run, initial_weights=init_from.fingerprint), init_from


def read_start_weights(path: Path) -> StartWeights:
    """Reads weights to start from.

    Args:
        path: a work directory, for the weights of its last training; or the folder of one of its trainings
            (`runs/may/select`); or the prefix of a checkpoint of the authors' program (`model.ckpt-400000`) with
            ORIGINAL_CONFIG and ORIGINAL_VOCABULARY in the same folder.

    Raises UserError if it is none of these, its training has not finished, or it is damaged.
    """
    path = path if path.name else path.resolve()
    if path.name and path.with_name(f"{path.name}.index").exists():
        model, words = tf1_import.load(path, path.with_name(ORIGINAL_CONFIG), path.with_name(ORIGINAL_VOCABULARY))
        origin: dict[str, Any] = {"path": str(path.resolve()), "checkpoint": path.name}
        return StartWeights("bert4rec", model, words.items.tolist(), [], origin)
    is_training = path.name in TRAINED_ON and not (path / CONFIG).exists()
    workdir = WorkDirectory(path.resolve().parent if is_training else path)
    if not workdir.config.exists():
        raise UserError(
            "`init_from` must be a work directory, the folder of a training in one (select), or the prefix of a "
            f"TensorFlow checkpoint (model.ckpt-400000). Received: init_from={path}"
        )
    config, ids = workdir.read_config(), workdir.read_ids()
    phase = path.name if is_training else list_trainings(config.run)[-1]
    model = load_model(workdir, phase)
    state = loop.read_state(workdir.path / phase)
    origin = {"path": str(path.resolve()), "checkpoint": phase, "dataset": config.run.dataset}
    origin["step"] = state.best_step or state.step
    if config.run.initial_weights is None:
        origin["data_fingerprint"] = config.data_fingerprint
    return StartWeights(config.run.model, model, list(ids.vocabulary.items), ids.users, origin)


def copy_weights(source: Recommender, target: Recommender) -> None:
    """Copies all weights but those of the evidence to a model of the same settings and sizes."""
    for value, weight in zip(select_transferable(source), select_transferable(target), strict=True):
        weight.assign(value)


def _list_fixed_settings(settings: Settings) -> list[str]:
    """Returns the names of the settings that a warm start must not change."""
    return [field.name for field in dataclasses.fields(settings) if not field.metadata["may_change"]]


def _count_matches(source_ids: Sequence[str], ids: Sequence[str]) -> dict[str, int]:
    num_shared = len(set(source_ids) & set(ids))
    return {"shared": num_shared, "added": len(ids) - num_shared, "removed": len(source_ids) - num_shared}
