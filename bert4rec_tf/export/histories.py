"""Users' histories in an export: with them, a user's id is enough for a recommendation. Only NumPy."""

from functools import cached_property
from pathlib import Path

import numpy as np

from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError

HISTORIES = Path("assets.extra", "histories.npz")
"""The file in the folder of a SavedModel."""


class Histories:
    """The last items of every user, oldest first.

    Attributes:
        items: int32 item numbers, from 1, user after user.
        splits: int64 [users + 1]; user u's items are `items[splits[u]:splits[u + 1]]`.
        users: raw ids.

    Raises:
        ValueError: if the splits do not fit the items and users.
    """

    def __init__(self, items: np.ndarray, splits: np.ndarray, users: list[str]) -> None:
        if len(splits) != len(users) + 1 or splits[0] != 0 or splits[-1] != len(items) or (np.diff(splits) < 0).any():
            raise ValueError("`splits` must part the items by users")
        self.items, self.splits, self.users = items, splits, users

    @classmethod
    def from_sequences(cls, sequences: Sequences, most: int) -> "Histories":
        """Returns the last `most` items of every user."""
        lengths = np.minimum(sequences.lengths, most)
        from_end = np.repeat(sequences.splits[1:], sequences.lengths) - np.arange(sequences.num_actions)
        splits = np.concatenate([[0], np.cumsum(lengths)])
        return cls(sequences.items[from_end <= most], splits, sequences.users.tolist())

    @cached_property
    def facts(self) -> dict[str, int]:
        """The model card's entries: the number of `users`, and the number of items in the `longest` history."""
        return {"users": len(self.users), "longest": int(np.diff(self.splits).max(initial=0))}

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {user: place for place, user in enumerate(self.users)}

    def __contains__(self, user: object) -> bool:
        return user in self._rows

    def __getitem__(self, user: str) -> np.ndarray:
        """Returns a user's item numbers. Raises UserError for an unknown user."""
        place = self._rows.get(user)
        if place is None:
            raise UserError(f"`user` must be one of the model's {len(self.users):,} users. Received: user={user}")
        return self.items[self.splits[place] : self.splits[place + 1]]

    def write(self, path: Path) -> None:
        """Writes the file, compressed. Equal histories give equal bytes."""
        lengths = np.diff(self.splits).astype(np.int32)
        content = {"items": self.items.astype(np.int32), "lengths": lengths, "users": npz.encode_lines(self.users)}
        npz.write(path, content, compressed=True)

    @classmethod
    def read(cls, path: Path, num_items: int) -> "Histories":
        """Reads what `write` wrote. Raises UserError if it is damaged or does not fit the number of items."""
        arrays = npz.read(path, ("items", "lengths", "users"))
        try:
            items, users = arrays["items"], npz.decode_lines(arrays["users"])
            if not users:
                raise ValueError("no users")
            if items.dtype != np.int32 or (items.size and not 1 <= items.min() <= items.max() <= num_items):
                raise ValueError("unknown items")
            return cls(items, np.append(0, np.cumsum(arrays["lengths"], dtype=np.int64)), users)
        except (TypeError, ValueError) as error:
            raise npz.CorruptFileError(f"{path}: does not fit the model ({error})") from error
