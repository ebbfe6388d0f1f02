"""Users' histories in an export: with them, a user's id is enough for a recommendation. Only NumPy."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bert4rec_tf.data.sequences import ActionTimes, Sequences, Vocabulary, make_splits
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.lines import Lines

HISTORIES = Path("assets.extra", "histories.npz")
"""The file in the folder of a SavedModel."""

TIMES = HISTORIES.with_name("times.npz")
"""The file of the items' times, if they are known. Only continued training reads it."""


def keep_last(sequences: Sequences, max_length: int) -> Sequences:
    """Returns the last `max_length` items of every user."""
    places_from_end = np.repeat(sequences.splits[1:], sequences.lengths) - np.arange(sequences.num_actions)
    is_kept, times = places_from_end <= max_length, sequences.times
    splits = make_splits(np.minimum(sequences.lengths, max_length))
    times = None if times is None else replace(times, values=times.values[is_kept])
    return Sequences(sequences.items[is_kept], splits, sequences.users, sequences.vocabulary, times=times)


def write_histories(histories: Sequences, folder: Path) -> None:
    """Writes the files into the folder of a SavedModel, compressed. Equal histories give equal bytes."""
    lengths, users = histories.lengths.astype(np.int32), npz.encode_lines(histories.users)
    content = {"items": histories.items.astype(np.int32), "lengths": lengths, "users": users}
    npz.write(folder / HISTORIES, content, compressed=True)
    if histories.times is not None:
        values, meaning = histories.times.values, npz.encode_lines([histories.times.meaning])
        steps = {"steps": np.diff(values, prepend=0)} if values.dtype == np.int64 else {"values": values}
        npz.write(folder / TIMES, {**steps, "meaning": meaning}, compressed=True)


def read_histories(path: Path, items: Lines) -> Sequences:
    """Reads what `write_histories` wrote, but the times. `items`: the model's, whose counts are those of the histories.

    Raises UserError if the file is damaged or does not fit the items.
    """
    arrays = npz.read(path, ("items", "lengths", "users"))
    try:
        numbers, lengths, users = arrays["items"], arrays["lengths"], npz.decode_lines(arrays["users"])
        if numbers.dtype != np.int32 or (numbers.size and not 1 <= numbers.min() <= numbers.max() <= len(items)):
            raise ValueError("unknown items")
        if not users or len(users) != len(lengths) or (lengths < 0).any() or lengths.sum() != len(numbers):
            raise ValueError("the lengths must part the items by users")
        vocabulary = Vocabulary(items, np.bincount(numbers, minlength=len(items) + 1)[1:])
        return Sequences(numbers, make_splits(lengths), np.array(users, object), vocabulary)
    except (TypeError, ValueError) as error:
        raise npz.CorruptFileError(f"{path}: does not fit the model ({error})") from error


def read_times(folder: Path) -> ActionTimes | None:
    """Reads the times that `write_histories` wrote; None for none. Raises UserError if they are damaged."""
    path = folder / TIMES
    if not path.exists():
        return None
    arrays = npz.read(path)
    try:
        values = np.cumsum(arrays["steps"]) if "steps" in arrays else arrays["values"]
        return ActionTimes(values, arrays["meaning"].tobytes().decode())
    except (KeyError, TypeError, ValueError) as error:
        raise npz.CorruptFileError(f"{path}: cannot be read ({error!r})") from error
