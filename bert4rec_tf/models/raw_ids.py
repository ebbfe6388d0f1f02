"""The raw ids of a model's items and users, as the data have them: in its Keras file, for `recommend` and `grow`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from bert4rec_tf.data.id_texts import to_text, to_texts
from bert4rec_tf.data.id_types import find_type
from bert4rec_tf.data.sequences import PAD, Sequences, Vocabulary
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import TrainingWarning, warn, warn_of_unknown
from bert4rec_tf.models.rows import ITEMS, USERS, copy_rows
from bert4rec_tf.nn.layers import check_size
from bert4rec_tf.nn.top_items import DIVERGED, Blocks, find_best


@dataclass(frozen=True, eq=False)
class ModelIds:
    """What the rows of a model belong to.

    Attributes:
        vocabulary: of items 1 to n.
        users: [m] raw ids of users 0 to m - 1; empty if the model does not need users.
        item_type: the type of the items in the data, such as "int64", if they may be integers; else "".
    """

    vocabulary: Vocabulary
    users: Any = ()
    item_type: str = ""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns the fields as arrays that need no pickle."""
        texts = {"items": self.vocabulary.items, "users": self.users, "item_type": [self.item_type]}
        lines = {name: npz.encode_lines(content) for name, content in texts.items()}
        return {**lines, "counts": self.vocabulary.counts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "ModelIds":
        """Makes what `to_arrays` was called on."""
        items, users = (np.array(npz.decode_lines(arrays[name]), object) for name in ("items", "users"))
        return cls(Vocabulary(items, arrays["counts"]), users, "".join(npz.decode_lines(arrays["item_type"])))

    def list_texts(self, name: str, items: Iterable[Any]) -> list[str]:
        """Returns raw ids of items as texts (`id_texts.to_texts`). `name`: of the argument."""
        return to_texts(name, items, lambda text: bool(self.vocabulary.encode([text])[0]))

    def find_user(self, user: Any) -> int:
        """Returns the number of a user; -1 for an unknown one."""
        users = np.asarray(self.users, object)
        places = np.flatnonzero(users == to_text("user", user, lambda text: bool((users == text).any())))
        return int(places[0]) if len(places) else -1

    def decode(self, items: np.ndarray) -> list[Any]:
        """Returns the raw ids of item numbers, as texts or as the integers that they were in the data."""
        texts = self.vocabulary.decode(items)
        return [int(text) for text in texts] if self._are_integers else texts

    @cached_property
    def _are_integers(self) -> bool:
        return bool(self.item_type) and find_type(self.vocabulary.items, self.item_type) is not None


def check_sequences(sequences: Any) -> None:
    """Raises UserError for what is no `Sequences`, such as a table."""
    if not isinstance(sequences, Sequences):
        raise UserError(
            "`sequences` must be what `datasets.read(table)` or `datasets.sequences_of(histories)` returns. "
            f"Received: a {type(sequences).__name__}"
        )


def check_catalogue(model: Any, sequences: Sequences) -> None:
    """Raises UserError unless these are sequences of the items of the model."""
    check_sequences(sequences)
    if sequences.num_items != model.num_items:
        raise UserError(
            f"`sequences` must have the model's {model.num_items} items, as `sequences_of(histories, "
            f"num_items={model.num_items})` has. Received: {sequences.num_items} items"
        )


def recommend(model: Any, history: Iterable[Any], k: int, user: Any, exclude_seen: bool) -> pd.DataFrame:
    """Does what `Recommender.recommend` says."""
    if model.ids is None:
        raise UserError("`recommend` needs the raw ids of the items; call `model.adapt(sequences)` first")
    texts = model.ids.list_texts("history", history)
    items = model.ids.vocabulary.encode(texts)
    warn_of_unknown([text for text, item in zip(texts, items) if item == PAD], len(items), "items in the history")
    items = items[items != PAD]
    batch: dict[str, np.ndarray] = {"items": items[None]}
    if model.needs_users:
        number = -1 if user is None else model.ids.find_user(user)
        if number < 0 and not (user is None and model.scores_unknown_users):
            raise UserError(f"`user` must be a user of the data for {type(model).__name__}. Received: user={user!r}")
        batch["users"] = np.array([number], np.int32)
    elif user is not None and not texts:
        raise UserError(
            f"`history` must be given to {type(model).__name__}, which knows no users. Received: user={user!r}"
        )
    hidden = items[None] if exclude_seen else np.zeros((1, 1), np.int32)
    scores_of_all, k = model(batch), check_size("k", k)
    if tf.reduce_any(tf.math.is_nan(scores_of_all)):
        raise UserError(DIVERGED)
    blocks = Blocks.from_scores(scores_of_all)
    best, scores, total = find_best(blocks, k, hidden, is_logits=model.scores_are_logits)
    is_item = best[0].numpy() != PAD
    ids, scores = model.ids.decode(best[0].numpy()[is_item]), (scores - total)[0].numpy()[is_item]
    return pd.DataFrame({"rank": np.arange(1, len(ids) + 1), "item": ids, "score": scores})


def grow(model: Any, new_items: Iterable[Any] | Vocabulary, features: Mapping[str, Any] | None) -> Any:
    """Does what `Recommender.grow` says."""
    if any(getattr(layer, "lora_enabled", False) for layer in model._flatten_layers()):
        raise UserError("`grow` needs a model without LoRA; save it, which merges LoRA's weights, and load it")
    ids = model.ids or ModelIds(number_items(model.num_items))
    old_items = list(ids.vocabulary.items)
    if isinstance(new_items, Vocabulary):
        vocabulary = new_items
        if num_lost := len(set(old_items) - set(vocabulary.items)):
            warn(f"{num_lost:,} items of the model are not in the vocabulary, and lose their rows", TrainingWarning)
    else:
        added = ids.list_texts("new_items", new_items)
        if num_repeated := len(old_items) + len(added) - len({*old_items, *added}):
            raise UserError(f"`new_items` must be new, each once. Received: {num_repeated} that are not")
        counts = np.concatenate([ids.vocabulary.counts, np.zeros(len(added), np.int64)])
        vocabulary = Vocabulary(np.array([*old_items, *added], object), counts)
    config = {**model.get_config(), "num_items": vocabulary.num_items}
    if model.features:
        config["features"] = {**model.features, **(features or {})}
    with model.distribute_strategy.scope():
        new_model = type(model).from_config(config)
    users = range(model.num_users or 0)
    copy_rows(model, new_model, {ITEMS: old_items, USERS: users}, {ITEMS: list(vocabulary.items), USERS: users})
    new_model.ids = replace(ids, vocabulary=vocabulary)
    if model.evidence is not None:
        has_counts = model.evidence.built
        new_model.evidence.first_mix = np.asarray(model.evidence.mix) if has_counts else model.evidence.first_mix
    _keep_unseen(model, new_model, old_items, vocabulary.counts * isinstance(new_items, Vocabulary))
    return new_model


def _keep_unseen(model: Any, new_model: Any, old_items: list[str], counts: np.ndarray) -> None:
    """Tells a grown model which of the `old_items` training never saw; `counts`: how often each item is in new data."""
    parts = [(network, new_model.networks[name]) for name, network in model.networks.items()] or [(model, new_model)]
    for part, new_part in parts:
        if len(unseen_items := getattr(part, "unseen", ())):
            numbers = new_model.ids.vocabulary.encode([old_items[item - 1] for item in unseen_items])
            new_part.unseen = np.sort(numbers[(numbers != PAD) & (counts[numbers - 1] == 0)])


def number_items(num_items: int) -> Vocabulary:
    """Returns the vocabulary of items whose raw ids are their numbers."""
    return Vocabulary(np.arange(1, num_items + 1).astype(str).astype(object), np.zeros(num_items, np.int64))
