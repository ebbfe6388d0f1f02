"""A SavedModel asked by raw ids in ordinary Python lists, and the titles of its items."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.errors import UserError


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

    def tensors(self) -> dict[str, tf.Tensor]:
        """Returns the inputs of `recommend` for these choices."""
        inputs = {"exclude_seen": tf.constant(self.exclude_seen)}
        if self.k is not None:
            inputs["k"] = tf.constant(self.k, tf.int32)
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
        knows_users: whether it must be told whom it recommends to.

    Raises:
        UserError: where the folder holds none.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._service = tf.saved_model.load(str(folder))
            inputs = self._service.signatures["recommend"].structured_input_signature[1]
        except (OSError, ValueError, KeyError, AttributeError, tf.errors.OpError) as error:
            why = " ".join(str(error).split())[:200]
            raise UserError(f"{folder}: holds no SavedModel that recommends ({why})") from error
        self.folder = folder
        self.knows_users = "users" in inputs

    def recommend(self, histories: Sequence[Sequence[str]], users: Sequence[str], choices: Choices) -> Found:
        """Recommends to raw histories, oldest item first; `users` are read where the model knows them."""
        whom = {"histories": rectangle(histories)}
        if self.knows_users:
            whom["users"] = tf.constant([_bytes(user) for user in users], tf.string, [len(users)])
        found = self._service.recommend(**whom, **choices.tensors())
        scores = found["scores"].numpy()
        lengths = np.isfinite(scores).sum(axis=1)
        items = [
            [item.decode() for item in row[:length]] for row, length in zip(found["items"].numpy().tolist(), lengths)
        ]
        return Found(items, [row[:length] for row, length in zip(scores, lengths)], found["unknown"].numpy())


def rectangle(rows: Sequence[Sequence[str]]) -> tf.Tensor:
    """Returns raw ids as string [rows, longest], filled with empty strings."""
    width = max(map(len, rows), default=0)
    filled = [[_bytes(one) for one in row] + [b""] * (width - len(row)) for row in rows]
    return tf.constant(filled, tf.string, [len(rows), width])


def _bytes(raw: str) -> bytes:
    """Returns what the system gave, also where that is no UTF-8: then it is no item's id."""
    return raw.encode("utf-8", "surrogateescape")


def split_ids(line: str) -> list[str]:
    """Returns the ids of a line, separated by commas; one that holds a comma stands in double quotes."""
    return next(csv.reader([line], skipinitialspace=True), [])


def read_titles(path: Path) -> dict[str, str]:
    """Returns the titles of items: raw id -> title. The file has a line `id,title` (CSV) for each.

    Raises:
        UserError: for a file that cannot be read, or a line without both.
    """
    titles = {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            for fields in lines:
                if len(fields) != 2:
                    raise UserError(f"{path}:{lines.line_num}: must be `id,title`. Received: {','.join(fields)[:80]!r}")
                titles[fields[0]] = fields[1]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return titles
