"""A SavedModel asked by raw ids in ordinary Python lists."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.signatures import LoadedModel, ModelError

INPUTS = {"histories", "k", "exclude_seen", "exclude", "candidates"}
OUTPUTS = {"items", "scores", "unknown"}


@dataclass(frozen=True)
class Choices:
    """What `recommend` may be asked beside the histories.

    Attributes:
        k: how many items; None for as many as the export says.
        exclude_seen: whether to leave out the items of the history.
        exclude: raw ids that are left out too.
        candidates: raw ids to rank; none for all.

    Raises:
        UserError: for a k below 1.
    """

    k: int | None = None
    exclude_seen: bool = True
    exclude: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.k is not None and not 1 <= self.k < 1 << 31:
            raise UserError(f"`k` must be at least 1 and less than 2^31. Received: k={self.k}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the inputs of `recommend` for these choices."""
        inputs = {"exclude_seen": np.array(self.exclude_seen)}
        if self.k is not None:
            inputs["k"] = np.array(self.k, np.int32)
        return {**inputs, "exclude": rectangle([self.exclude]), "candidates": rectangle([self.candidates])}


@dataclass(frozen=True)
class Found:
    """What was recommended.

    Attributes:
        items: [b] lists of raw ids, best first, at most k each.
        scores: [b] float32 arrays of the same lengths.
        unknown: int32 [b], how many ids of each history are no item's.
    """

    items: list[list[str]]
    scores: list[np.ndarray]
    unknown: np.ndarray


class SavedRecommender:
    """A SavedModel of `saved_model.export`.

    Attributes:
        folder: where it lies.
        has_user_embeddings: whether it must be told whom it recommends to.

    Raises:
        UserError: where the folder holds none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._model = LoadedModel(folder)
        signature = self._model.signatures.get("recommend")
        if signature is None or not set(signature.inputs) >= INPUTS or set(signature.outputs) != OUTPUTS:
            raise UserError(f"{folder}: its SavedModel has no signature `recommend` as this project exports it")
        self.has_user_embeddings = "users" in signature.inputs

    def recommend(self, histories: Sequence[Sequence[str]], users: Sequence[str], choices: Choices) -> Found:
        """Recommends to raw histories, oldest item first; `users` are read where the model knows them.

        Raises:
            UserError: where the model cannot compute it, for want of memory.
        """
        asked = {"histories": rectangle(histories), **choices.arrays()}
        if self.has_user_embeddings:
            asked["users"] = np.array([_bytes(user) for user in users], object)
        try:
            found = self._model.call("recommend", asked)
        except ModelError as error:
            raise UserError(f"{self.folder}: {error}") from error
        lengths = np.isfinite(found["scores"]).sum(axis=1)
        items = [[item.decode() for item in row[:length]] for row, length in zip(found["items"].tolist(), lengths)]
        return Found(items, [row[:length] for row, length in zip(found["scores"], lengths)], found["unknown"])


def rectangle(rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns raw ids as an array of bytes [rows, longest], filled with empty ones."""
    width = max(map(len, rows), default=0)
    made = np.full([len(rows), width], b"", object)
    for place, row in enumerate(rows):
        made[place, : len(row)] = [_bytes(one) for one in row]
    return made


def _bytes(raw: str) -> bytes:
    """Returns what the system gave, also where that is no UTF-8: then it is no item's id."""
    return raw.encode("utf-8", "surrogateescape")


def split_ids(line: str) -> list[str]:
    """Returns the ids of a line, separated by commas; one that holds a comma stands in double quotes.

    Raises:
        UserError: where it is more than one line, or an id is longer than 131,072 characters.
    """
    try:
        return next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error as error:
        raise UserError(f"Ids must be separated by commas on one line. Received: {line[:100]!r}") from error
