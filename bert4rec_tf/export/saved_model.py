"""Exports a SavedModel that takes raw item ids and returns raw item ids and scores, with TensorFlow alone."""

import hashlib
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.export.functions import LOG_PROBABILITIES
from bert4rec_tf.export.histories import write_histories
from bert4rec_tf.export.layout import ATTRIBUTES, CARD_OF_SAVED_MODEL, ITEM_ID, MODEL, TITLES, USERS, VOCABULARY
from bert4rec_tf.export.options import DEFAULT, ExportOptions
from bert4rec_tf.export.service import Service
from bert4rec_tf.foundation import files, stores
from bert4rec_tf.foundation.environment import list_versions
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.models.recommender import Recommender

RECENT_SHARE = 0.1
"""What is popular is counted in all actions, and as much in this share of them, the newest, if times are known."""


def export(
    model: Recommender,
    vocabulary: Vocabulary,
    folder: Path,
    options: ExportOptions = DEFAULT,
    users: Sequence[str] | None = None,
    counts: np.ndarray | None = None,
    card: Mapping[str, Any] | None = None,
) -> None:
    """Writes a SavedModel that recommends items for raw histories and needs nothing but TensorFlow.

    Its signatures are `serving_default`, `recommend`, `score` and `encode`; `similar` if the model can compare items;
    and `item_vectors` if items have vectors (docs/serving.md). They take and return raw ids. Unknown ids are skipped
    and counted.

    Args:
        model: a trained model.
        vocabulary: its items. If all their counts are 0, all items are equally popular.
        folder: written atomically (`stores.write_folder`); replaces an older SavedModel.
        options: its defaults, and the histories it holds.
        users: raw ids of the users, in the model's order; only a model with user embeddings needs them.
        counts: int64 [n], how often each item occurs in what the model was trained on, for the popularity correction;
            None for the vocabulary's counts.
        card: further entries of the model card.

    Raises:
        ValueError: if the items or the users are not as many as the model's.
        UserError: for a raw id that is not valid in UTF-8, or a folder that holds other files or cannot be written.
    """
    content = encode_id_files(model, vocabulary, users)
    refuse_other_content(folder)
    defaults = {
        "k": min(options.k, model.num_items),
        "popularity_correction": float(options.popularity_correction),
        "exclude_seen": options.exclude_seen is None or bool(options.exclude_seen),
    }
    with stores.write_folder(folder, MODEL) as temp_folder, tempfile.TemporaryDirectory() as scratch:
        for name, lines in content.items():
            (Path(scratch) / name).write_bytes(lines)
        service = Service(
            model,
            Path(scratch, VOCABULARY),
            _compute_log_shares(_count_recent(vocabulary.counts, options.histories)),
            np.log1p(vocabulary.counts if counts is None else counts).astype(np.float32),
            defaults,
            Path(scratch, USERS) if model.needs_users else None,
        )
        try:
            save_module(service, temp_folder, service.functions)
            _name_tables(temp_folder / MODEL)
        except tf.errors.OpError as error:
            raise UserError(f"{folder}: cannot be written ({error.message})") from error
        (temp_folder / CARD_OF_SAVED_MODEL).parent.mkdir()
        checksums = {name: hashlib.sha256(lines).hexdigest() for name, lines in content.items()}
        facts: dict[str, Any] = {**defaults, "histories": None, "checksums": checksums}
        if options.histories is not None:
            write_histories(options.histories, temp_folder)
            max_length = int(options.histories.lengths.max(initial=0))
            facts["histories"] = {"users": options.histories.num_users, "longest": max_length}
        if options.titles is not None:
            files.write_text(temp_folder / TITLES, options.titles)
        if options.attributes is not None:
            write_attributes(options.attributes, temp_folder / ATTRIBUTES)
        files.write_json(temp_folder / CARD_OF_SAVED_MODEL, {**describe_model(model), **facts, **(card or {})})


def write_attributes(attributes: pd.DataFrame, path: Path) -> None:
    """Writes attributes of items, indexed by their ids, to a file that `serving.rules.Attributes` reads."""
    attributes.rename_axis(ITEM_ID).to_parquet(path)


def save_module(module: tf.Module, folder: Path, signatures: Any) -> None:
    """Writes a SavedModel, and leaves the handlers of the root log as they were.

    absl adds one to a log without any, after which `logging.basicConfig` does nothing.
    """
    handlers = list(logging.root.handlers)
    try:
        tf.saved_model.save(module, str(folder), signatures=signatures)
    finally:
        logging.root.handlers[:] = handlers


def _name_tables(path: Path) -> None:
    """Numbers the tables of a SavedModel, which TensorFlow names by addresses in memory: equal runs give equal bytes.

    Models that are loaded together do not share a table: TensorFlow makes the names unique when it loads them.
    """
    content = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    names: dict[bytes, bytes] = {}
    graph = content.meta_graphs[0].graph_def
    for node in (*graph.node, *(node for function in graph.library.function for node in function.node_def)):
        if node.op == "HashTableV2":
            name = node.attr["shared_name"]
            name.s = names.setdefault(name.s, b"table_%d" % len(names))
    path.write_bytes(content.SerializeToString(deterministic=True))


def describe_model(model: Recommender) -> dict[str, Any]:
    """Returns the entries that every model card has."""
    return {
        "format": 1,
        "model": model.title or type(model).__name__,
        "items": model.num_items,
        "users": model.num_users,
        "max_history": model.max_history,
        "scores": LOG_PROBABILITIES if model.scores_are_logits else "the model's own",
        "exported_with": list_versions(),
        "parameters": int(sum(np.prod(weight.shape) for weight in model.trainable_weights)),
    }


def encode_id_files(model: Recommender, vocabulary: Vocabulary, users: Sequence[str] | None) -> dict[str, bytes]:
    """Returns file name -> content, with the raw ids of the items and, if the model has user embeddings, the users.

    Raises:
        ValueError: if there are more or fewer ids than the model has items or users.
        UserError: for an id that is not valid in UTF-8.
    """
    if vocabulary.num_items != model.num_items:
        raise ValueError(
            f"`vocabulary` must have the {model.num_items} items of the model. Received: {vocabulary.num_items} items"
        )
    content = {VOCABULARY: _encode_lines(vocabulary.items)}
    if model.needs_users:
        if users is None or len(users) != model.num_users:
            received = None if users is None else len(users)
            raise ValueError(
                f"`users` must be the raw ids of the model's {model.num_users} users. Received: {received}"
            )
        content[USERS] = _encode_lines(users)
    return content


def _encode_lines(raw_ids: Sequence[str]) -> bytes:
    if isinstance(raw_ids, Lines):
        return raw_ids.content
    try:
        return Lines.from_texts(raw_ids).content
    except UnicodeEncodeError as error:
        bad_id = next(raw_id for raw_id in raw_ids if any(0xD800 <= ord(letter) < 0xE000 for letter in raw_id))
        raise UserError(f"A raw id must be text that UTF-8 can hold. Received: {bad_id!r}") from error


def refuse_other_content(folder: Path, marker: str = MODEL) -> None:
    """Raises UserError if `folder` is a file, or not empty and without the file `marker` of an older export."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")
    if folder.is_dir() and stores.list_content(folder) and not (folder / marker).exists():
        raise UserError(f"{folder}: holds other files than an older export; name another folder or empty it")


def _count_recent(counts: np.ndarray, histories: Sequences | None) -> np.ndarray:
    """Returns how popular the items are now, [n]: `counts` and, if the histories' times are known, those in the newest
    RECENT_SHARE of all actions, scaled to the same sum."""
    if histories is None or histories.times is None or not histories.num_actions:
        return counts
    times = histories.times.values
    is_recent = times >= np.quantile(times, 1 - RECENT_SHARE, method="lower")
    recent_counts = np.bincount(histories.items[is_recent], minlength=len(counts) + 1)[1:]
    return counts + recent_counts * (max(counts.sum(), 1) / recent_counts.sum())


def _compute_log_shares(counts: np.ndarray) -> np.ndarray:
    """Returns the logarithm of each item's share of all actions, float32 [n]. If all counts are 0, shares are equal.

    An item without actions gets the lowest finite number: it ranks last, but it is not hidden.
    """
    counts = counts if counts.any() else np.ones_like(counts)
    with np.errstate(divide="ignore"):
        shares = np.log(counts / counts.sum()).astype(np.float32)
    return np.maximum(shares, np.finfo(np.float32).min)
