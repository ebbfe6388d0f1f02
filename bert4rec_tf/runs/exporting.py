"""Exports the model of a finished work directory."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.config.popularity import CHOOSE, CORRECTION, check
from bert4rec_tf.config.run import Run
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.evaluation.baselines import COUNTED
from bert4rec_tf.evaluation.metrics import COLD
from bert4rec_tf.export import portable, saved_model
from bert4rec_tf.export.histories import Histories
from bert4rec_tf.export.item_index import INDEX, K, Plan
from bert4rec_tf.export.layout import FLOAT, SAVED_MODEL
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.models.features import folded
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.runs.pipeline import phases, trained_model
from bert4rec_tf.runs.workdir import WorkDirectory, versions

QUERIES = 256
"""Of how many users the recall of an index is measured."""


@dataclass(frozen=True)
class IndexRequest:
    """An index for approximate search that finds a share of the best items, measured on users of some histories."""

    recall: float
    sequences: Sequences

    def plan(self, model: Recommender) -> Plan:
        """Returns the plan of the index of a model."""
        chosen = np.sort(np.random.default_rng(0).permutation(self.sequences.num_users)[:QUERIES])
        width = max(1, min(int(self.sequences.lengths[chosen].max()), model.max_history or 1))
        items, lengths = self.sequences.last(chosen, width)
        batch = {"users": chosen.astype(np.int32), "items": items, "lengths": lengths}
        return Plan(self.recall, np.asarray(model.user_vectors(batch)))


def check_export(folder: Path, form: str = SAVED_MODEL) -> None:
    """Raises UserError if a model cannot be exported to `folder`. Call it before a long training."""
    if form == SAVED_MODEL:
        saved_model.refuse_other_content(folder)
    else:
        portable.check_export(folder, form)
    if isinstance(folder, Url):
        with files.FolderLock(folder).lock():  # A folder in a store is created by writing to it.
            pass


def export(
    workdir: WorkDirectory,
    folder: Path | None = None,
    k: int = 10,
    form: str = SAVED_MODEL,
    popularity_correction: float | str = 0.0,
    histories: Histories | None = None,
    dtype: str = FLOAT,
    index: IndexRequest | None = None,
) -> Path:
    """Exports the model of a finished work directory. Needs no data but the histories.

    Args:
        workdir: of a run that has been trained.
        folder: where to write; None for a folder in the work directory, named after the format.
        k: number of items that a SavedModel recommends.
        form: "saved_model" (raw ids in and out), "onnx" or "litert" (an encoder and a scorer in float32).
        popularity_correction: a SavedModel ranks by score - popularity_correction * log(count + 1) unless it is asked
            otherwise. CHOOSE: the alpha that `evaluate` chose. Counts are those of the training part.
        histories: to keep in a SavedModel.
        dtype: of a SavedModel's rows of items and users (`saved_model.export`).
        index: what a SavedModel's index for approximate search is made for; None for no index.

    Returns:
        The folder.

    Raises:
        UserError: if the training has not finished, the work directory is damaged, `folder` has other content, or the
            popularity correction is negative or not finite.
    """
    config = workdir.read_config()
    run = Run.from_dict(config["run"])
    with workdir.lock():
        alpha = _alpha_of_export(workdir, popularity_correction)
        vocabulary = workdir.read_vocabulary()
        if form != SAVED_MODEL:
            run = replace(run, training=replace(run.training, mixed_precision=False))
        model = folded(trained_model(run, vocabulary.num_items, config["num_users"], workdir, phases(run)[-1]))
        folder = folder or workdir.path / form
        users = workdir.read_users() if model.has_user_embeddings else None
        counts = workdir.read_training_counts()
        card = model_card(workdir, vocabulary, counts)
        if form == SAVED_MODEL:
            plan = None if index is None else index.plan(model)
            options = (alpha, counts, histories, dtype, plan)
            found = saved_model.export(model, vocabulary, folder, k, users, card, *options)
            if found is not None:
                print(f"{folder / INDEX}: approximate search finds {found:.1%} of the best {K} items", flush=True)
        else:
            portable.export(model, vocabulary, folder, form, users, card)
        return folder


def _alpha_of_export(workdir: WorkDirectory, correction: float | str) -> float:
    if correction != CHOOSE:
        return check(float(correction))
    chosen = (workdir.read_metrics() or {}).get(CORRECTION, {})
    if "validation" not in chosen:
        raise UserError(
            f"{workdir.path}: no {CORRECTION} was chosen; run --mode=evaluate --{CORRECTION}={CHOOSE} first"
        )
    return chosen["alpha"]


def model_card(workdir: WorkDirectory, vocabulary: Vocabulary, training_counts: np.ndarray) -> dict[str, Any]:
    """Returns the model card: settings, data, versions, and metrics (None before the evaluation).

    `training_counts` are int64 [n].
    """
    config = workdir.read_config()
    card = {
        "run": config["run"],
        "digest": config["digest"],
        "data": {
            "name": config["run"]["dataset"],
            "fingerprint": config["data_fingerprint"],
            "users": config["num_users"],
            "items": vocabulary.num_items,
            "actions": int(vocabulary.counts.sum()),
            "training_actions": int(training_counts.sum()),
        },
        "trained_with": config["environment"],
        "exported_with": versions(),
    }
    measured = workdir.read_metrics()
    if measured is None:
        return {**card, "metrics": None}
    parts = ("measured", COLD, "validation", "test", *COUNTED, "random", "ceiling", "paper")
    return {**card, "metrics": {part: measured[part] for part in parts if part in measured}}
