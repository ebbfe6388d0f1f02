"""Features of items or users: for each, the values it has, as one flat array, and a vector. Only NumPy."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from bert4rec_tf.config.model_settings import ITEM_FEATURES, USER_FEATURES, list_used_features
from bert4rec_tf.config.setting_fields import Settings
from bert4rec_tf.data.sequences import PAD, Sequences, Vocabulary, make_splits, number_within_groups
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError

TEXT_FIELDS = ("ids", "names")
"""The fields of `Features` that are texts."""

TINY = np.finfo(np.float32).tiny
"""Replaces a length of 0 as a divisor."""


@dataclass(frozen=True, eq=False)
class Features:
    """Rows of feature values in CSR form, and a vector of each row.

    Attributes:
        ids: [rows] raw ids of the items or users.
        splits: [rows + 1] int64; row r has the values `values[splits[r]:splits[r + 1]]`.
        values: [entries] int32, places in `names`.
        names: [v + e] what each value is (`genres=Comedy`, `year=1995..1997`), and then what each number of a vector is
            (`text[0]`, `text[1]`, ...).
        vectors: float32 [rows, e] as they were given, the columns of vectors one after the other; zeros in a row
            without one. None if there are no vectors, so e is 0.
    """

    ids: np.ndarray
    splits: np.ndarray
    values: np.ndarray
    names: np.ndarray
    vectors: np.ndarray | None = None

    def __repr__(self) -> str:
        names = self.names.tolist()
        columns = dict.fromkeys(name.partition("=")[0] for name in names[: self.num_values])
        kinds = [f"{self.num_values:,} values of {', '.join(columns)}"] * bool(columns)
        kinds += [f"vectors of {width:,} numbers of {column}" for column, width in self.vector_columns]
        is_empty = self.lengths == 0
        if self.vectors is not None:
            is_empty &= ~self.vectors.any(axis=1)
        return f"{len(self.ids):,} rows, {', '.join(kinds)}; {np.count_nonzero(is_empty):,} rows have none"

    @property
    def num_values(self) -> int:
        """v, the number of different values."""
        return len(self.names) - (0 if self.vectors is None else self.vectors.shape[1])

    @property
    def vector_columns(self) -> list[tuple[str, int]]:
        """Name and width of each column of vectors."""
        columns = groupby(name.rpartition("[")[0] for name in self.names[self.num_values :].tolist())
        return [(column, len(list(numbers))) for column, numbers in columns]

    def compute_unit_vectors(self) -> np.ndarray | None:
        """Returns `vectors`, in which each column's part of a row is scaled to length 1, float32 [rows, e]; or None."""
        if self.vectors is None:
            return None
        ends = np.cumsum([width for _, width in self.vector_columns])[:-1]
        parts = np.split(np.asarray(self.vectors), ends, axis=1)
        # The largest number is divided out first, so that no square overflows.
        parts = [part / np.maximum(np.abs(part).max(axis=1, keepdims=True), TINY) for part in parts]
        return np.hstack([part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), TINY) for part in parts])

    @property
    def lengths(self) -> np.ndarray:
        """Values per row, int64 [rows]."""
        return np.diff(self.splits)

    def select_rows(self, ids: Sequence[str]) -> "Features":
        """Returns the rows of `ids`, in that order. An unknown id has no values and no vector."""
        places = {raw_id: row for row, raw_id in enumerate(self.ids.tolist())}
        rows = np.array([places.get(raw_id, -1) for raw_id in ids], np.int64)
        lengths = np.append(self.lengths, 0)[rows]
        splits = make_splits(lengths)
        values = self.values[np.repeat(self.splits[rows], lengths) + number_within_groups(lengths)]
        vectors = None
        if self.vectors is not None:
            vectors = np.zeros((len(rows), self.vectors.shape[1]), np.float32)
            vectors[rows >= 0] = self.vectors[rows[rows >= 0]]
        return Features(np.array(list(ids), object), splits, values, self.names, vectors)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything."""
        digest = hashlib.sha256(self.splits.astype("<i8").tobytes() + self.values.astype("<i4").tobytes())
        for texts in (self.ids, self.names):
            digest.update(b"\0" + "\n".join(texts.tolist()).encode())
        if self.vectors is not None:
            digest.update(b"\0" + self.vectors.astype("<f4").tobytes())
        return digest.hexdigest()

    @property
    def sizes(self) -> dict[str, int]:
        """The number of rows, and v and e: all that decides the shapes of a model's weights."""
        return {"rows": len(self.ids), "values": self.num_values, "vectors": len(self.names) - self.num_values}

    @classmethod
    def from_sizes(cls, sizes: Mapping[str, int]) -> "Features":
        """Returns features of which only the `sizes` are right: no row has any."""
        rows, values, width = (sizes[name] for name in ("rows", "values", "vectors"))
        vectors = np.zeros((rows, width), np.float32) if width else None
        splits, ids = np.zeros(rows + 1, np.int64), np.full(rows, "", object)
        return cls(ids, splits, np.zeros(0, np.int32), np.full(values + width, "", object), vectors)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns the fields as arrays that need no pickle: texts as bytes, one per line."""
        texts = {name: npz.encode_lines(getattr(self, name).tolist()) for name in TEXT_FIELDS}
        vectors = {} if self.vectors is None else {"vectors": self.vectors}
        return {**texts, "splits": self.splits, "values": self.values, **vectors}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Features":
        """Makes features from what `to_arrays` returned. Raises ValueError if a field is missing."""
        try:
            texts = {name: np.array(npz.decode_lines(arrays[name]), object) for name in TEXT_FIELDS}
            return cls(**texts, splits=arrays["splits"], values=arrays["values"], vectors=arrays.get("vectors"))
        except KeyError as error:
            raise ValueError(f"{error} is missing") from error


def select_features(
    settings: Settings, features: Mapping[str, Features], num_items: int, num_users: int | None
) -> dict[str, Features]:
    """Returns the features that a model with these settings uses.

    `features`: ITEM_FEATURES and USER_FEATURES -> features, in the order of the items or users. Raises UserError if
    those that the settings use are missing, or have not `num_items` or `num_users` rows.
    """
    selection, rows = {}, {ITEM_FEATURES: num_items, USER_FEATURES: num_users}
    for name in list_used_features(settings):
        if name not in features:
            raise UserError(f"`use_{name}` needs the features: name their file with --{name}=FILE")
        if len(features[name].lengths) != rows[name]:
            received = len(features[name].lengths)
            raise UserError(f"`{name}` must have {rows[name]} rows, one for each id. Received: {received} rows")
        selection[name] = features[name]
    return selection


def attach_features(sequences: Sequences, features: Mapping[str, Features]) -> Sequences:
    """Returns the sequences with these features. Features of the other kind do not change.

    Items that occur only among the features join the vocabulary, after all others and with a count of 0. Users that
    occur only there are left out. `features`: ITEM_FEATURES, USER_FEATURES or both -> the features, in any order.
    """
    all_features = dict(sequences.features)
    if (item_features := features.get(ITEM_FEATURES)) is not None:
        vocabulary, ids = sequences.vocabulary, item_features.ids.tolist()
        new_ids = [raw_id for raw_id, number in zip(ids, vocabulary.encode(ids)) if number == PAD]
        counts = np.concatenate([vocabulary.counts, np.zeros(len(new_ids), np.int64)])
        vocabulary = Vocabulary(np.array([*vocabulary.items.tolist(), *new_ids], object), counts)
        sequences = replace(sequences, vocabulary=vocabulary)
        all_features[ITEM_FEATURES] = item_features.select_rows(vocabulary.items.tolist())
    if (user_features := features.get(USER_FEATURES)) is not None:
        all_features[USER_FEATURES] = user_features.select_rows(sequences.users.tolist())
    return replace(sequences, features=all_features)
