"""A SavedModel: raw item ids in, raw item ids and scores out, in any program that has TensorFlow."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf import files
from bert4rec_tf.errors import UserError
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.sequences import PAD, Vocabulary
from bert4rec_tf.types import Tensor

VOCABULARY, USERS = "vocabulary.txt", "users.txt"
MODEL = "saved_model.pb"
"""The file by which TensorFlow, and so `export`, knows the folder of a SavedModel."""

HIDDEN = -float("inf")
"""The score of what must not come back."""

HISTORIES = tf.TensorSpec([None, None], tf.string, name="histories")

_LINE = tf.lookup.TextFileIndex.WHOLE_LINE
_NUMBER = tf.lookup.TextFileIndex.LINE_NUMBER


def export(
    model: Recommender, vocabulary: Vocabulary, folder: Path, k: int = 10, users: Sequence[str] | None = None
) -> None:
    """Writes a SavedModel which recommends to raw histories and needs nothing but TensorFlow.

    Its signature `serving_default` takes `histories`, string [b, any length]: raw item ids oldest first, padded with
    empty strings; unknown ids are passed over. It returns `items`, string [b, k], and `scores`, float32 [b, k], best
    first and without the items of the history. Where fewer than k are left, the rest is empty strings of score -inf.
    Scores are log-probabilities over all items where the model gives logits, else the model's own. A history without
    any known item gets the most popular items, scored by the logarithm of their share of all actions.

    Of a model that knows its users the signature also takes `users`, string [b], and it is not the history without
    known items but the unknown user who gets the most popular ones.

    Args:
        model: with its weights.
        vocabulary: what the model's ids stand for. Without any counts its items are taken as equally popular.
        folder: appears whole or not at all; an older SavedModel there is replaced.
        k: how many items to return, at most all.
        users: the raw ids of the users that the model knows, in its order.

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
    if model.knows_users and users is None:
        raise ValueError("`users` must be the raw ids of the model's users. Received: None")
    content = {VOCABULARY: _lines(vocabulary.items.tolist())}
    if model.knows_users:
        content[USERS] = _lines(users)
    refuse_other_content(folder)
    with files.whole_folder(folder) as aside, tempfile.TemporaryDirectory() as scratch:
        for name, lines in content.items():
            (Path(scratch) / name).write_bytes(lines)
        arguments = (model, Path(scratch) / VOCABULARY, _log_shares(vocabulary.counts), min(k, model.num_items))
        service = _UserService(Path(scratch) / USERS, *arguments) if model.knows_users else _HistoryService(*arguments)
        try:
            tf.saved_model.save(service, str(aside), signatures=service.recommend)
        except tf.errors.OpError as error:
            raise UserError(f"{folder}: cannot be written ({error.message})") from error


def _lines(raw: Sequence[str]) -> bytes:
    try:
        return "".join(f"{one}\n" for one in raw).encode()
    except UnicodeEncodeError as error:
        bad = next(one for one in raw if any(0xD800 <= ord(letter) < 0xE000 for letter in one))
        raise UserError(f"A raw id must be text that UTF-8 can hold. Received: {bad!r}") from error


def refuse_other_content(folder: Path) -> None:
    """Raises UserError where `folder` is not free for an export: a file, or a folder of something else."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MODEL).exists():
        raise UserError(f"{folder}: holds something else than a SavedModel; name another folder or empty it")


def _log_shares(counts: np.ndarray) -> np.ndarray:
    """Returns float32 [n]: the logarithm of each item's share of all actions; of equal shares where none is counted."""
    counts = counts if counts.any() else np.ones_like(counts)
    with np.errstate(divide="ignore"):
        return np.log(counts / counts.sum()).astype(np.float32)


class _Service(tf.Module):
    """What is exported, without its signature.

    Args:
        model: what scores.
        asset: file of raw ids, line i for item i.
        log_shares: float32 [n], the scores for a history without known items.
        k: how many items to return, at most n.
    """

    def __init__(self, model: Recommender, asset: Path, log_shares: np.ndarray, k: int) -> None:
        super().__init__()
        # The bare variables: a Keras model kept here would be exported with all its layers as objects.
        self._score = model.score
        self._scores_are_logits = model.scores_are_logits
        self._weights = [weight.value for weight in model.weights]
        self._log_shares = tf.Variable(log_shares, trainable=False, name="log_shares")
        self._k = k
        asset = tf.saved_model.Asset(str(asset))
        numbers = tf.lookup.TextFileInitializer(asset, tf.string, _LINE, tf.int64, _NUMBER)
        names = tf.lookup.TextFileInitializer(asset, tf.int64, _NUMBER, tf.string, _LINE)
        self._numbers = tf.lookup.StaticHashTable(numbers, default_value=-1)
        self._names = tf.lookup.StaticHashTable(names, default_value="")

    def _best(self, known: tf.RaggedTensor, scores: Tensor) -> dict[str, Tensor]:
        """Returns the best unseen `items` and their `scores`."""
        # Below a finite least, so that -inf tells seen items from any score of a model.
        scores = tf.maximum(scores, tf.float32.min)
        seen = tf.stack([known.value_rowids(), tf.cast(known.flat_values, tf.int64) - 1], axis=1)
        scores = tf.tensor_scatter_nd_update(scores, seen, tf.fill(tf.shape(seen)[:1], HIDDEN))
        best, columns = tf.math.top_k(scores, self._k)
        lines = tf.where(best > HIDDEN, tf.cast(columns, tf.int64), -1)
        return {"items": self._names.lookup(lines), "scores": best}

    def _known_items(self, histories: Tensor) -> tf.RaggedTensor:
        """Returns the item numbers of the known raw ids, int32 [b, (known)] in their order."""
        numbers = tf.cast(self._numbers.lookup(histories), tf.int32) + 1
        return tf.ragged.boolean_mask(numbers, numbers != PAD)

    def _model_scores(self, known: tf.RaggedTensor, lengths: Tensor, users: Tensor) -> Tensor:
        """Returns float32 [b, n]."""
        # One column more than the longest row, for models which cannot read a width of 0.
        items = tf.pad(known.to_tensor(PAD), [[0, 0], [0, 1]])
        batch = {"users": users, "items": items, "lengths": lengths}
        scores = tf.cast(self._score(batch), tf.float32)
        return tf.nn.log_softmax(scores) if self._scores_are_logits else scores


class _HistoryService(_Service):
    """Of a model that reads the history alone."""

    @tf.function(input_signature=[HISTORIES])
    def recommend(self, histories: Tensor) -> dict[str, Tensor]:
        """Returns the best `items` and their `scores`, both [b, k], for raw histories, string [b, any length]."""
        known = self._known_items(histories)
        lengths = tf.cast(known.row_lengths(), tf.int32)
        scores = self._model_scores(known, lengths, tf.zeros_like(lengths))
        return self._best(known, tf.where(lengths[:, None] > 0, scores, self._log_shares[None, :]))


class _UserService(_Service):
    """Of a model that knows users.

    Args:
        user_asset: file of their raw ids, line u for user u - 1.
        *arguments: as for `_Service`.
    """

    def __init__(self, user_asset: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        asset = tf.saved_model.Asset(str(user_asset))
        numbers = tf.lookup.TextFileInitializer(asset, tf.string, _LINE, tf.int64, _NUMBER)
        self._users = tf.lookup.StaticHashTable(numbers, default_value=-1)

    @tf.function(input_signature=[HISTORIES, tf.TensorSpec([None], tf.string, name="users")])
    def recommend(self, histories: Tensor, users: Tensor) -> dict[str, Tensor]:
        """Returns the best `items` and their `scores`, both [b, k], for raw histories and users, string [b]."""
        known = self._known_items(histories)
        lengths = tf.cast(known.row_lengths(), tf.int32)
        numbers = tf.cast(self._users.lookup(users), tf.int32)
        scores = self._model_scores(known, lengths, tf.maximum(numbers, 0))
        return self._best(known, tf.where(numbers[:, None] >= 0, scores, self._log_shares[None, :]))
