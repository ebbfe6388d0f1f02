"""A Python client of a SavedModel: lists of raw ids in, lists of raw ids out."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.config import popularity_option
from bert4rec_tf.config.data_names import split_names
from bert4rec_tf.data.id_texts import normalize_id
from bert4rec_tf.data.id_types import have_type
from bert4rec_tf.export.functions import INPUTS, POPULAR, SCALARS
from bert4rec_tf.export.layout import find_model_folder
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import UnknownIdWarning, warn, warn_of_unknown
from bert4rec_tf.serving import explanation, rules
from bert4rec_tf.serving.ids import pad_ids
from bert4rec_tf.serving.signatures import LoadedModel, ModelError


@dataclass(frozen=True)
class Choices:
    """Options of `recommend`. None is the model's default.

    Attributes:
        k: number of items.
        exclude_seen: whether to leave out the items of the history.
        exclude: raw ids of further items to leave out.
        candidates: raw ids of the items to rank; empty for all.
        popularity_correction: rank by score - popularity_correction * log(count + 1).

    Raises UserError for a k below 1 or not whole, another `exclude_seen` than True, False or None, or a popularity
    correction that is no number, negative or not finite.
    """

    k: int | None = None
    exclude_seen: bool | None = None
    exclude: Sequence[str] = ()
    candidates: Sequence[str] = ()
    popularity_correction: float | None = None

    def __post_init__(self) -> None:
        if self.k is not None and not is_whole_number(self.k):
            raise UserError(f"`k` must be a whole number. Received: k={self.k!r}")
        if self.k is not None and not 1 <= self.k < 1 << 31:
            raise UserError(f"`k` must be at least 1 and less than 2^31. Received: k={self.k}")
        if self.exclude_seen is not None and not isinstance(self.exclude_seen, (bool, np.bool_)):
            raise UserError(f"`exclude_seen` must be true or false. Received: exclude_seen={self.exclude_seen!r}")
        if self.popularity_correction is not None:
            popularity_option.check_correction(self.popularity_correction)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns these options as inputs of the signature `recommend`."""
        return {**self.to_scalars(), "exclude": pad_ids([self.exclude]), "candidates": pad_ids([self.candidates])}

    def to_scalars(self) -> dict[str, np.ndarray]:
        """Returns the options with one value for all users as inputs of a signature, without those that are None."""
        return {
            name: np.array(value, INPUTS[name].dtype.as_numpy_dtype)
            for name in SCALARS
            if (value := getattr(self, name)) is not None
        }


@dataclass(frozen=True)
class Recommendations:
    """Recommendations for b users: lists of at most k raw ids, best first, and float32 arrays of their scores.

    `unknown`: int32 [b], the number of unknown ids in each history. `basis`: HISTORY or POPULAR for each of the users.
    """

    items: list[list[str]]
    scores: list[np.ndarray]
    unknown: np.ndarray
    basis: list[str]

    def list_popular(self, users: Sequence[str]) -> list[str]:
        """Returns those of the users who got what is popular."""
        return [user for user, basis in zip(users, self.basis) if basis == POPULAR]


class SavedRecommender(LoadedModel):
    """A SavedModel that `saved_model.export` wrote, called with lists.

    `folder`: the SavedModel's folder, or a work directory that has one. Else as `LoadedModel`.
    """

    def __init__(self, folder: Path, is_trusted: bool = False) -> None:
        super().__init__(find_model_folder(folder), is_trusted)

    def restore_ids(self, role: str, texts: Sequence[str]) -> Sequence[str] | np.ndarray:
        """Returns ids of users or items in the type they had in the data: texts, or an array of integers.

        `role`: "user" or "item". Raises UserError if the model card has a type that the ids do not have: 007 is no
        integer, else it would be 7, which is another id.
        """
        kind = self.columns.get(role, {}).get("type")
        if kind is None:
            return texts
        try:
            if have_type(texts, kind):
                return np.array([int(text) for text in texts], kind)
        except (AttributeError, TypeError, ValueError) as error:  # of a type that is none
            raise UserError(f"{self.folder}: its model card is damaged ({error})") from error
        raise UserError(f"{self.folder}: its ids are not of the type in its model card, {kind}")

    def knows_item(self, item: str) -> bool:
        return item in self.items

    def warn_of_unknown_items(self, ids: Sequence[str], kind: str) -> None:
        """Warns of ids that are no items of the model. `kind`: whose ids."""
        unknown_ids = [item for item, is_known in zip(ids, self.items.contains_each(ids)) if not is_known]
        warn_of_unknown(unknown_ids, len(ids), kind)

    def warn_about_history(self, history: Sequence[str], user: str, answer: Recommendations) -> None:
        """Warns of unknown items in a history, and of one that does not count because the user is unknown.

        `user`: the one who got the answer; empty for nobody. Such a user got what is popular.
        """
        if answer.unknown[0]:
            self.warn_of_unknown_items(history, "items in the history")
        if answer.list_popular([user]) and any(map(self.knows_item, history)):
            reason = "the model has counted nothing after these items"
            if self.needs_users:
                reason = f"the model does not know user {user!r}, whom it needs" if user else "this model needs --user"
            warn(f"{reason}, so you get what is popular", UnknownIdWarning)

    def recommend(self, histories: Sequence[Sequence[str]], users: Sequence[str], choices: Choices) -> Recommendations:
        """Recommends to raw histories, oldest item first. `users` only matters if the model has user embeddings.

        Raises UserError if the model cannot compute the result, because memory runs out.
        """
        inputs = {**self._make_user_inputs(histories, users), **choices.to_arrays()}
        return _make_recommendations(self._call("recommend", inputs))

    def restrict(self, choices: Choices, where: str | None, attributes: Any = None) -> Choices:
        """Returns choices of only the items for which `where` holds, after a warning of unknown ids in them.

        `attributes`: a file or a table; None for those in the model. Raises UserError as `rules.select_allowed`.
        """
        self.warn_of_unknown_items(choices.exclude, "items in `exclude`")
        self.warn_of_unknown_items(choices.candidates, "items in `candidates`")
        selection = self._select_allowed(where, attributes)
        (exclude,), (candidates,) = rules.restrict([choices.exclude], [choices.candidates], selection)
        return replace(choices, exclude=exclude, candidates=candidates)

    def similar(
        self, items: Sequence[str], k: int | None = None, where: str | None = None, attributes: Any = None
    ) -> Recommendations:
        """Returns the items most similar to each of `items`. `unknown` is 1 for an unknown item, else 0.

        `where`, `attributes`: as for `restrict`. Raises UserError for a k below 1, or if items cannot be compared.
        """
        inputs = {"items": pad_ids([items])[0], **Choices(k).to_scalars()}
        selection = self._select_allowed(where, attributes)
        if selection is None:
            return _make_recommendations(self._call("similar", inputs))
        k = k or self.card.get("k", 10)
        wide_k = rules.widen_similar(k, len(self.items), selection)
        outputs = self._call("similar", {**inputs, **Choices(wide_k).to_scalars()})
        return _make_recommendations(rules.filter_similar(outputs, k, selection))

    def explain(self, history: Sequence[str], user: str, items: Sequence[str]) -> list[dict[str, Any]]:
        """Returns why items are recommended (`explanation.read_reasons`)."""
        inputs, omissions = explanation.make_question(history, items, user if self.needs_users else None)
        return explanation.read_reasons(omissions, self._call("score", inputs)["scores"], self.card.get("scores"))

    def item_vectors(self, items: Sequence[str]) -> np.ndarray:
        """Returns the vectors of items, float32 [b, d]; zeros for unknown ones. Raises UserError if items have none."""
        return self._call("item_vectors", {"items": pad_ids([items])[0]})["vectors"]

    def encode(self, histories: Sequence[Sequence[str]], users: Sequence[str]) -> np.ndarray:
        """Returns the vectors of users with these raw histories, float32 [b, d]. `users`: as for `recommend`."""
        return self._call("encode", self._make_user_inputs(histories, users))["vectors"]

    def read_penalties(self) -> np.ndarray:
        """Returns by how much `recommend` lowers the scores of padding and of each item, float32 [1 + items]."""
        strength = np.float32(self.card.get("popularity_correction", 0))
        return np.minimum(strength * self._module._log_counts.numpy(), np.float32(popularity_option.MAX_PENALTY))

    def scores(self, histories: tf.Tensor, users: tf.Tensor, candidates: tf.Tensor) -> tf.Tensor:
        """Scores candidates, string [b or 1, c]: float32 [b, c]. Can be called in a TensorFlow function.

        `histories`: string [b, any]. `users`: string [b], used only if the model has user embeddings.
        """
        inputs = {"histories": histories, **({"users": users} if self.needs_users else {})}
        return self._module.signatures["score"](**inputs, candidates=candidates)["scores"]

    def _select_allowed(self, where: str | None, attributes: Any) -> rules.Selection | None:
        """Returns the items for which `where` holds; None for no condition, which needs no attributes of the model."""
        if where is None and attributes is None:
            return None
        own = self.attributes if attributes is None else rules.Attributes(attributes, self.item_column)
        return rules.select_allowed(own, where, self.items)

    def _make_user_inputs(self, histories: Sequence[Sequence[str]], users: Sequence[str]) -> dict[str, np.ndarray]:
        inputs = {"histories": pad_ids(histories)}
        return {**inputs, "users": pad_ids([users])[0]} if self.needs_users else inputs

    def _call(self, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if signature not in self.signatures:
            raise UserError(f"{self.folder}: has no signature `{signature}`: its model cannot do that")
        try:
            return self.call(signature, inputs)
        except ModelError as error:
            raise UserError(f"{self.folder}: {error}") from error


def is_whole_number(number: Any) -> bool:
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def warn_of_popular(users: Sequence[Any], total: int) -> None:
    """Warns of `users` without a history that the model can use, if there are any among the `total`."""
    if len(users):
        warn(
            f"{len(users):,} of {total:,} users have no history that the model knows, and get what is popular "
            f"(such as {users[0]!r})",
            UnknownIdWarning,
        )


def _make_recommendations(outputs: dict[str, np.ndarray]) -> Recommendations:
    lengths = np.isfinite(outputs["scores"]).sum(axis=1)
    items = [[item.decode() for item in row[:length]] for row, length in zip(outputs["items"].tolist(), lengths)]
    scores = [row[:length] for row, length in zip(outputs["scores"], lengths)]
    return Recommendations(items, scores, outputs["unknown"], [basis.decode() for basis in outputs.get("basis", ())])


def split_ids(line: str) -> list[str]:
    """Returns the ids of a line, separated by commas, without blanks around them.

    An id that contains a comma must be in double quotes. Raises UserError as `split_names`.
    """
    return [normalize_id(text) for text in split_names(line) if text]
