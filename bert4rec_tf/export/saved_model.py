"""Exports a SavedModel that takes raw item ids and returns raw item ids and scores, with TensorFlow alone."""

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.config import popularity
from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export import item_index
from bert4rec_tf.export.histories import HISTORIES, Histories
from bert4rec_tf.export.item_index import INDEX, Plan
from bert4rec_tf.export.item_index import K as RECALLED
from bert4rec_tf.export.layout import CARD_OF_SAVED_MODEL, DTYPES, FLOAT, HALF, MODEL, USERS, VOCABULARY
from bert4rec_tf.export.products import half_rows
from bert4rec_tf.export.service import Service
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError, unknown_name
from bert4rec_tf.foundation.graphs import without_gradients
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.foundation.stores import BEGUN
from bert4rec_tf.models.recommender import Recommender


def export(
    model: Recommender,
    vocabulary: Vocabulary,
    folder: Path,
    k: int = 10,
    users: Sequence[str] | None = None,
    card: Mapping[str, Any] | None = None,
    popularity_correction: float = 0.0,
    counts: np.ndarray | None = None,
    histories: Histories | None = None,
    dtype: str = FLOAT,
    index: Plan | None = None,
) -> float | None:
    """Writes a SavedModel that recommends items for raw histories and needs nothing but TensorFlow.

    Its signatures are `serving_default`, `recommend`, `score` and `encode`, and `similar` and `item_vectors` where the
    model can compare items; docs/serving.md describes them. They take and return raw ids. Unknown ids are skipped and
    counted.

    Args:
        model: a trained model.
        vocabulary: its items. If no counts are known, all items are equally popular.
        folder: written atomically (`files.replace_directory`); replaces an older SavedModel.
        k: default number of items to return, at most all.
        users: raw ids of the users with embeddings, in the model's order.
        card: further entries of the model card.
        popularity_correction: default of this input of `recommend`, and what `serving_default` uses: items are ranked
            by score - popularity_correction * log(count + 1).
        counts: int64 [n], how often each item occurs in what the model was trained on, for this correction; None for
            the vocabulary's counts.
        histories: of users, to recommend to them by their ids; None for none.
        dtype: of the rows of items and users: FLOAT, or HALF for half the size (`export.products`).
        index: what an index for approximate search is made for; None for no index.

    Returns:
        The recall of the index beside exact search; None without an index.

    Raises:
        ValueError: if the vocabulary's size is not the model's, or users are missing.
        UserError: for another dtype, one or an index that the model cannot have, a missing package, a k below 1, a
            popularity correction that is negative or not finite, a raw id that is not valid in UTF-8, or a folder that
            holds other files or cannot be written.
    """
    if k < 1:
        raise UserError(f"`k` must be at least 1. Received: k={k}")
    popularity.check(popularity_correction)
    check_rows(dtype, index is not None)
    if vocabulary.num_items != model.num_items:
        raise ValueError(
            f"`vocabulary` must have the {model.num_items} items of the model. Received: {vocabulary.num_items} items"
        )
    if model.has_user_embeddings and users is None:
        raise ValueError("`users` must be the raw ids of the model's users. Received: None")
    content = {VOCABULARY: lines_of(vocabulary.items)}
    if model.has_user_embeddings:
        content[USERS] = lines_of(users)
    refuse_other_content(folder)
    with files.replace_directory(folder, MODEL) as aside, tempfile.TemporaryDirectory() as scratch:
        for name, lines in content.items():
            (Path(scratch) / name).write_bytes(lines)
        items, known = (Path(scratch) / name for name in (VOCABULARY, USERS))
        with half_rows(model) if dtype == HALF else contextlib.nullcontext() as weights:
            service = Service(
                model,
                items,
                _log_shares(vocabulary.counts),
                np.log1p(vocabulary.counts if counts is None else counts).astype(np.float32),
                min(k, model.num_items),
                popularity_correction,
                known if model.has_user_embeddings else None,
                weights,
            )
            found = None if index is None else service.item_index(index)
            try:
                functions = {name: getattr(service, name) for name in service.functions}
                with without_gradients():
                    tf.saved_model.save(service, str(aside), signatures=functions)
            except tf.errors.OpError as error:
                raise UserError(f"{folder}: cannot be written ({error.message})") from error
        (aside / CARD_OF_SAVED_MODEL).parent.mkdir()
        indexed = None
        if found is not None:
            npz.write(aside / INDEX, found[0])
            indexed = {f"recall@{RECALLED}": found[1], "lists": len(found[0]["sizes"]), "read": int(found[0]["probes"])}
        if histories is not None:
            histories.write(aside / HISTORIES)
        defaults = {"k": service.k, "popularity_correction": float(popularity_correction)}
        known = {"histories": None if histories is None else histories.facts, "dtype": dtype, "index": indexed}
        full_card = {**model_facts(model, vocabulary, users), **defaults, **known, **(card or {})}
        files.write_json(aside / CARD_OF_SAVED_MODEL, full_card)
    return None if found is None else found[1]


def model_facts(model: Recommender, vocabulary: Vocabulary, users: Sequence[str] | None) -> dict[str, Any]:
    """Returns the entries that every model card has."""
    return {
        "format": 1,
        "model": type(model).__name__,
        "items": vocabulary.num_items,
        "users": len(users) if model.has_user_embeddings else None,
        "max_history": model.max_history,
        "scores": "log-probabilities" if model.scores_are_logits else "the model's own",
        "parameters": int(sum(np.prod(weight.shape) for weight in model.trainable_weights)),
    }


def check_rows(dtype: str, with_index: bool) -> None:
    """Raises UserError for a `dtype` of an export that does not exist, or an index without the package for it."""
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if with_index:
        item_index.needed()


def lines_of(raw: Sequence[str]) -> bytes:
    """Returns raw ids, one per line. Raises UserError for one that is not valid in UTF-8."""
    if isinstance(raw, Lines):
        return raw.content
    try:
        return "".join(f"{one}\n" for one in raw).encode()
    except UnicodeEncodeError as error:
        bad = next(one for one in raw if any(0xD800 <= ord(letter) < 0xE000 for letter in one))
        raise UserError(f"A raw id must be text that UTF-8 can hold. Received: {bad!r}") from error


def refuse_other_content(folder: Path, known: str = MODEL) -> None:
    """Raises UserError if `folder` is a file, or not empty and without the file `known` of an older export."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in (known, BEGUN)):
        raise UserError(f"{folder}: holds other files than an older export; name another folder or empty it")


def _log_shares(counts: np.ndarray) -> np.ndarray:
    """Returns the logarithm of each item's share of all actions, float32 [n]. Without counts all shares are equal.

    An item without actions gets the lowest finite number: it ranks last, but it is not hidden.
    """
    counts = counts if counts.any() else np.ones_like(counts)
    with np.errstate(divide="ignore"):
        shares = np.log(counts / counts.sum()).astype(np.float32)
    return np.maximum(shares, np.finfo(np.float32).min)
