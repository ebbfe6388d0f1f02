"""A SavedModel: raw item ids in, raw item ids and scores out, in any program that has TensorFlow."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export.layout import CARD_OF_SAVED_MODEL, MODEL, USERS, VOCABULARY
from bert4rec_tf.export.service import SIGNATURES, Service
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models.recommender import Recommender


def export(
    model: Recommender,
    vocabulary: Vocabulary,
    folder: Path,
    k: int = 10,
    users: Sequence[str] | None = None,
    card: Mapping[str, Any] | None = None,
) -> None:
    """Writes a SavedModel which recommends to raw histories and needs nothing but TensorFlow.

    Its signatures, and what they take and give, are those of docs/serving.md: `serving_default`, `recommend`, `score`
    and `encode`. Raw ids go in and come out; unknown ones are passed over and counted.

    Args:
        model: with its weights.
        vocabulary: what the model's ids stand for. Without any counts its items are taken as equally popular.
        folder: appears whole or not at all; an older SavedModel there is replaced.
        k: how many items to return where the caller does not say, at most all.
        users: the raw ids of the users that the model knows, in its order.
        card: what to tell of the model beside what its export shows.

    Raises:
        ValueError: where the vocabulary is not of the model's size, or users are missing.
        UserError: for a k below 1, a raw id that UTF-8 cannot hold, or a folder that holds something
            else or cannot be written.
    """
    if k < 1:
        raise UserError(f"`k` must be at least 1. Received: k={k}")
    if vocabulary.num_items != model.num_items:
        raise ValueError(
            f"`vocabulary` must have the {model.num_items} items of the model. Received: {vocabulary.num_items} items"
        )
    if model.has_user_embeddings and users is None:
        raise ValueError("`users` must be the raw ids of the model's users. Received: None")
    content = {VOCABULARY: lines_of(vocabulary.items.tolist())}
    if model.has_user_embeddings:
        content[USERS] = lines_of(users)
    refuse_other_content(folder)
    with files.replace_directory(folder) as aside, tempfile.TemporaryDirectory() as scratch:
        for name, lines in content.items():
            (Path(scratch) / name).write_bytes(lines)
        items, known = (Path(scratch) / name for name in (VOCABULARY, USERS))
        service = Service(
            model,
            items,
            _log_shares(vocabulary.counts),
            min(k, model.num_items),
            known if model.has_user_embeddings else None,
        )
        try:
            functions = {name: getattr(service, name) for name in SIGNATURES}
            tf.saved_model.save(service, str(aside), signatures=functions)
        except tf.errors.OpError as error:
            raise UserError(f"{folder}: cannot be written ({error.message})") from error
        told = {**facts(model, vocabulary, users), "k": service.k, **(card or {})}
        (aside / CARD_OF_SAVED_MODEL).parent.mkdir()
        files.write_json(aside / CARD_OF_SAVED_MODEL, told)


def facts(model: Recommender, vocabulary: Vocabulary, users: Sequence[str] | None) -> dict[str, Any]:
    """Returns what a model card tells of any model."""
    return {
        "format": 1,
        "model": type(model).__name__,
        "items": vocabulary.num_items,
        "users": len(users) if model.has_user_embeddings else None,
        "max_history": model.max_history,
        "scores": "log-probabilities" if model.scores_are_logits else "the model's own",
        "parameters": int(sum(np.prod(weight.shape) for weight in model.trainable_weights)),
    }


def lines_of(raw: Sequence[str]) -> bytes:
    """Returns raw ids, one a line. Raises UserError for one that UTF-8 cannot hold."""
    try:
        return "".join(f"{one}\n" for one in raw).encode()
    except UnicodeEncodeError as error:
        bad = next(one for one in raw if any(0xD800 <= ord(letter) < 0xE000 for letter in one))
        raise UserError(f"A raw id must be text that UTF-8 can hold. Received: {bad!r}") from error


def refuse_other_content(folder: Path, known: str = MODEL) -> None:
    """Raises UserError where `folder` is not free for an export: a file, or a folder without the file `known`."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / known).exists():
        raise UserError(f"{folder}: holds something else than an older export; name another folder or empty it")


def _log_shares(counts: np.ndarray) -> np.ndarray:
    """Returns float32 [n]: the logarithm of each item's share of all actions; of equal shares where none is counted.

    What does not occur gets the least number that is finite: it comes last, but it comes.
    """
    counts = counts if counts.any() else np.ones_like(counts)
    with np.errstate(divide="ignore"):
        shares = np.log(counts / counts.sum()).astype(np.float32)
    return np.maximum(shares, np.finfo(np.float32).min)
