"""Exports the model of a finished work directory."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert4rec_tf.evaluation.metrics import COLD, COUNT_BASELINES, FULL, find_served_protocol
from bert4rec_tf.export import portable, saved_model
from bert4rec_tf.export.histories import HISTORIES, read_histories, read_times
from bert4rec_tf.export.layout import ASSETS, CARD_OF_SAVED_MODEL, SAVED_MODEL, VOCABULARY, has_model
from bert4rec_tf.export.options import DEFAULT, ExportOptions
from bert4rec_tf.foundation import files, stores
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.models.feature_recommender import fold_features
from bert4rec_tf.runs.folder import RawIds, WorkDirectory
from bert4rec_tf.runs.trainings import load_model
from bert4rec_tf.serving.rules import Attributes, read_attributes


def check_export(folder: Path, workdir: WorkDirectory) -> None:
    """Raises UserError if no SavedModel of a run can be exported to `folder`. Call it before a long training."""
    saved_model.refuse_other_content(folder)
    stores.check_replaceable(folder)
    _refuse_lost_updates(folder, workdir.read_ids())


def export(
    workdir: WorkDirectory, folder: Path | None = None, options: ExportOptions = DEFAULT, form: str = SAVED_MODEL
) -> Path:
    """Exports the model of a finished work directory. Needs no data besides what the options hold.

    Args:
        workdir: of a run that has been trained.
        folder: where to write; None for a folder in the work directory, named after the format.
        options: for a SavedModel only. Its popularity correction counts the actions that the model was trained on.
            Without an `exclude_seen`, seen items are recommended if many validation targets were seen before
            (`evaluation.metrics.find_served_protocol`). Without titles or attributes, those in the work directory.
        form: "saved_model" (raw ids in and out), "onnx" or "litert" (an encoder and a scorer in float32).

    Returns the folder.

    Raises UserError if the training has not finished, the work directory is damaged, `folder` has other content or an
    export with more actions, or the model cannot have the format or the options.
    """
    config = workdir.read_config()
    with workdir.lock():
        if options.exclude_seen is None:
            options = replace(options, exclude_seen=find_served_protocol(config.repeats) == FULL)
        if options.titles is None and workdir.titles.exists():
            options = replace(options, titles=workdir.titles.read_text(encoding="utf-8"))
        if options.attributes is None and workdir.attributes.exists():
            options = replace(options, attributes=Attributes(workdir.attributes).frame)
        ids, folder = workdir.read_ids(), folder or workdir.path / form
        card = make_model_card(workdir, ids)
        if form == SAVED_MODEL:
            _refuse_lost_updates(folder, ids)
            model = fold_features(load_model(workdir))
            saved_model.export(model, ids.vocabulary, folder, options, ids.users, ids.training_counts, card)
        else:
            model = fold_features(load_model(workdir, run=config.run.change(mixed_precision=False)))
            portable.export(model, ids.vocabulary, folder, form, ids.users, card)
        return folder


def read_options(workdir: WorkDirectory, folder: Path, with_histories: bool) -> ExportOptions:
    """Returns the choices of the export in `folder`, if it is of this run and its data; else the usual ones.

    `with_histories`: whether to read the histories too. Raises UserError if they are damaged.
    """
    if not has_model(folder) or not (folder / CARD_OF_SAVED_MODEL).exists():
        return DEFAULT
    copy, config = stores.LocalCopy(folder), workdir.read_config()
    card = files.read_json(copy.folder / CARD_OF_SAVED_MODEL)
    is_same_run = isinstance(card, dict) and card.get("digest") == config.run.digest
    if not is_same_run or card.get("data", {}).get("fingerprint") != config.data_fingerprint:
        return DEFAULT
    histories = None
    if with_histories and card.get("histories"):
        path, items = copy.folder / HISTORIES, Lines((copy.folder / ASSETS / VOCABULARY).read_bytes())
        histories = replace(read_histories(path, items), times=read_times(copy.folder))
    return ExportOptions(card["k"], card["popularity_correction"], histories)


def keep_attributes(workdir: WorkDirectory, features: Any, columns: Mapping[str, Mapping[str, str]]) -> None:
    """Keeps features of items in a work directory as attributes for rules, for all of its exports.

    `features`: as for `rules.read_attributes`; nothing is kept of None. `columns`: of the data (`Sequences.columns`).
    """
    attributes = read_attributes(features, columns)
    if attributes is not None:
        with files.atomic_write(workdir.attributes) as temp_path:
            saved_model.write_attributes(attributes, temp_path)


def _refuse_lost_updates(folder: Path, ids: RawIds) -> None:
    """Raises UserError if an export in `folder` has more actions than the run of `ids`, as one that was updated."""
    path = folder / CARD_OF_SAVED_MODEL
    if not isinstance(path, Path) or not path.exists():
        return
    card = files.read_json(path)
    if not isinstance(card, dict):
        raise UserError(f"{path}: must hold a JSON object; delete {folder} to export anew")
    num_added = card.get("data", {}).get("actions", 0) - int(ids.vocabulary.counts.sum())
    if num_added > 0:
        raise UserError(
            f"{folder}: has {num_added:,} more actions than this run, of updates or of other data, which this export "
            "would lose; name another --export_dir, or delete that folder"
        )


def make_model_card(workdir: WorkDirectory, ids: RawIds) -> dict[str, Any]:
    """Returns the model card: settings, data, versions, and metrics (None before the evaluation)."""
    config, metrics = workdir.read_config(), workdir.read_metrics()
    parts = ("measured", "repeats", COLD, "validation", "test", *COUNT_BASELINES, "random", "ceiling", "paper")
    return {
        "run": config.run.to_dict(),
        "digest": config.run.digest,
        "data": {
            "name": config.run.dataset,
            "fingerprint": config.data_fingerprint,
            "users": config.num_users,
            "items": ids.vocabulary.num_items,
            "actions": int(ids.vocabulary.counts.sum()),
            "training_actions": int(ids.training_counts.sum()),
        },
        "trained_with": config.environment,
        "metrics": metrics and {part: metrics[part] for part in parts if part in metrics},
        "transitions": workdir.read_transitions().get("settings"),
        **({} if config.columns is None else {"columns": config.columns}),
    }
