"""Users' histories in an export: with them, a user's id is enough for a recommendation. Only NumPy."""

from functools import cached_property
from pathlib import Path

import numpy as np

from bert4rec_tf.data.sequences import ActionTimes, Sequences
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError

HISTORIES = Path("assets.extra", "histories.npz")
"""The file in the folder of a SavedModel."""

TIMES = HISTORIES.with_name("times.npz")
"""The file of the items' times, if they are known. Only continued training reads it."""


class Histories:
    """The last items of every user, oldest first.

    Attributes:
        items: int32 item numbers, from 1, user after user.
        splits: int64 [users + 1]; user u's items are `items[splits[u]:splits[u + 1]]`.
        users: raw ids.
        times: of the items; None if unknown, and in histories that were read.

    Raises ValueError if the splits do not fit the items and users.
    """

    def __init__(
        self, items: np.ndarray, splits: np.ndarray, users: list[str], times: ActionTimes | None = None
    ) -> None:
        if len(splits) != len(users) + 1 or splits[0] != 0 or splits[-1] != len(items) or (np.diff(splits) < 0).any():
            raise ValueError("`splits` must part the items by users")
        self.items, self.splits, self.users, self.times = items, splits, users, times

    @classmethod
    def from_sequences(cls, sequences: Sequences, most: int) -> "Histories":
        """Returns the last `most` items of every user."""
        lengths = np.minimum(sequences.lengths, most)
        from_end = np.repeat(sequences.splits[1:], sequences.lengths) - np.arange(sequences.num_actions)
        splits, times = np.concatenate([[0], np.cumsum(lengths)]), sequences.times
        if times is not None:
            times = ActionTimes(times.values[from_end <= most], times.meaning)
        return cls(sequences.items[from_end <= most], splits, sequences.users.tolist(), times)

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

    def write(self, folder: Path) -> None:
        """Writes the files into the folder of a SavedModel, compressed. Equal histories give equal bytes."""
        lengths = np.diff(self.splits).astype(np.int32)
        content = {"items": self.items.astype(np.int32), "lengths": lengths, "users": npz.encode_lines(self.users)}
        npz.write(folder / HISTORIES, content, compressed=True)
        if self.times is not None:
            values, meaning = self.times.values, npz.encode_lines([self.times.meaning])
            steps = {"steps": np.diff(values, prepend=0)} if values.dtype == np.int64 else {"values": values}
            npz.write(folder / TIMES, {**steps, "meaning": meaning}, compressed=True)

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


def read_times(path: Path) -> ActionTimes:
    """Reads the times that `Histories.write` wrote. Raises UserError if they are damaged."""
    arrays = npz.read(path)
    try:
        values = np.cumsum(arrays["steps"]) if "steps" in arrays else arrays["values"]
        return ActionTimes(values, arrays["meaning"].tobytes().decode())
    except (KeyError, TypeError, ValueError) as error:
        raise npz.CorruptFileError(f"{path}: cannot be read ({error!r})") from error
