"""Histories as one flat array, the vocabulary, and the leave-one-out split. Only NumPy."""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from bert4rec_tf.foundation.lines import END, Lines

PAD = 0
"""The number that pads shorter rows on the right. No item has it."""


def mask_token(num_items: int) -> int:
    """Returns the number of the Cloze task's mask token, the first one above the items."""
    return num_items + 1


USERS_OF_A_BLOCK = 1 << 14
"""Users of a block. Fingerprints depend on it."""

UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}

SHOWN_USERS, SHOWN_ITEMS = 3, 8
"""How many users and items per user `print` shows."""


def find_bad_id(raw_ids: np.ndarray | Lines) -> str | None:
    """Returns the first raw id that is empty or contains a line break; None if all are valid."""
    if isinstance(raw_ids, Lines) and b"\r" not in raw_ids.content and END * 2 not in END + raw_ids.content:
        return None  # without a Python object for each
    ids = raw_ids if isinstance(raw_ids, Lines) else raw_ids.tolist()
    return next((raw_id for raw_id in ids if not raw_id or "\n" in raw_id or "\r" in raw_id), None)


def compute_fingerprint(raw_ids: list[str]) -> str:
    """Returns the SHA-256 of raw ids, in order."""
    return hashlib.sha256("\n".join(raw_ids).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Raw item ids and their numbers, 1 to n: the most frequent item is 1; ties by id, or by first appearance in a
    published file.

    Attributes:
        items: [n] raw ids, an array of objects or `Lines`; `items[i - 1]` is the raw id of item i.
        counts: [n] int64, how often each occurs in the data, including held-out actions.

    Raises:
        ValueError: for an id that is empty or contains a line break (ids are stored one per line).
    """

    items: Any
    counts: np.ndarray

    def __post_init__(self) -> None:
        bad_id = find_bad_id(self.items)
        if bad_id is not None:
            raise ValueError(f"`items` must be ids that are not empty and contain no line break. Received: {bad_id!r}")

    @property
    def num_items(self) -> int:
        return len(self.items)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {item: index for index, item in enumerate(self.items, start=1)}

    def encode(self, raw: list[str]) -> np.ndarray:
        """Returns the item numbers of raw ids, int32; 0 for unknown ones."""
        return np.array([self._ids.get(item, PAD) for item in raw], np.int32)

    def decode(self, ids: np.ndarray) -> list[str]:
        """Returns the raw ids of item numbers. Raises ValueError if one is not in 1 .. n."""
        ids = np.asarray(ids, np.int64)
        if ids.size and (ids.min() < 1 or ids.max() > self.num_items):
            raise ValueError(f"`ids` must be in [1, {self.num_items}]. Received: {ids.min()} to {ids.max()}")
        numbers, places = np.unique(ids, return_inverse=True)
        names = np.array([self.items[number - 1] for number in numbers.tolist()], object)
        return names[places].tolist()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the raw ids, in order."""
        if isinstance(self.items, Lines):
            return hashlib.sha256(self.items.content[:-1]).hexdigest()
        return compute_fingerprint(self.items.tolist())


def find_unit(meaning: str) -> str | None:
    """Returns the unit since 1970 of numbers with this meaning (`ActionTimes`); None for dates and no known unit."""
    return next((unit for unit, name in UNIT_NAMES.items() if meaning == f"{name} since 1970"), None)


@dataclass(frozen=True, eq=False)
class ActionTimes:
    """The times of actions: `values`, int64 or float64 [actions], and their `meaning` (`Times.describe`)."""

    values: np.ndarray
    meaning: str

    def show_last(self) -> str:
        """Returns the last time: a date if the unit is known, else a number."""
        unit, time = "ns" if "date" in self.meaning else find_unit(self.meaning), self.values.max().item()
        return str(time) if unit is None else str(np.array(time).astype(f"datetime64[{unit}]").astype("datetime64[s]"))


@dataclass(frozen=True, eq=False)
class Sequences:
    """Every user's items, oldest first.

    Attributes:
        items: [actions] int32 item numbers, user after user.
        splits: [users + 1] int64; user u's items are `items[splits[u]:splits[u + 1]]`.
        users: [users] raw user ids.
        vocabulary: raw ids and counts of the items.
        num_later: [users] int64, how many of each user's last actions come after a cut, as in a split by time. The
            first of them is the test item. None if each user's last action is the test item.
        features: `data.feature_values.Features` of the items, the users or both
            (in the order of `vocabulary` and `users`; `data.feature_values.attach_features`).
        columns: user, item and time -> the `name` of the column they come from and, if its ids are integers, their
            `type`, such as "int64"; empty if unknown.
        times: of the actions, in the order of `items`; None if unknown. The fingerprint does not depend on them, and
            parts of sequences have none.

    Raises:
        ValueError: if there are more or fewer times than actions.
    """

    items: np.ndarray
    splits: np.ndarray
    users: np.ndarray
    vocabulary: Vocabulary
    num_later: np.ndarray | None = None
    features: dict = field(default_factory=dict)
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    times: ActionTimes | None = None

    def __post_init__(self) -> None:
        if self.times is not None and len(self.times.values) != len(self.items):
            raise ValueError(f"`times` must be of {len(self.items)} actions. Received: {len(self.times.values)}")

    @classmethod
    def from_codes(
        cls, user_codes: np.ndarray, item_codes: np.ndarray, users: np.ndarray, items: np.ndarray
    ) -> "Sequences":
        """Groups actions by user and numbers the items by popularity. Items without actions are left out.

        Args:
            user_codes, item_codes: [actions] places in `users` and `items`. Each user's actions are oldest first.
            users, items: raw ids. Their order decides between items of equal count.
        """
        lengths = np.bincount(user_codes, minlength=len(users))
        counts = np.bincount(item_codes, minlength=len(items))
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        ids = np.zeros(len(items), np.int32)
        ids[order] = np.arange(1, len(order) + 1, dtype=np.int32)
        if (user_codes[1:] < user_codes[:-1]).any():
            item_codes = item_codes[np.argsort(user_codes, kind="stable")]
        splits = make_splits(lengths)
        vocabulary = Vocabulary(np.asarray(items)[order], counts[order].astype(np.int64))
        return cls(ids[item_codes], splits, np.asarray(users), vocabulary)

    @property
    def num_users(self) -> int:
        return len(self.splits) - 1

    @property
    def num_items(self) -> int:
        return self.vocabulary.num_items

    @property
    def num_actions(self) -> int:
        return len(self.items)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Actions per user, int64 [users]."""
        return np.diff(self.splits)

    @property
    def training_size(self) -> tuple[int, int]:
        """The number of users with two actions or more, and of their actions, which decide settings."""
        lengths = self.lengths[self.lengths >= 2]
        return len(lengths), int(lengths.sum())

    @property
    def density(self) -> float:
        """Number of actions divided by users x items."""
        return self.num_actions / (self.num_users * self.num_items)

    def __getitem__(self, user: int) -> np.ndarray:
        """Returns a view of the items of user number `user`."""
        return self.items[self.splits[user] : self.splits[user + 1]]

    def __repr__(self) -> str:
        sizes = f"{self.num_users:,} users, {self.num_items:,} items, {self.num_actions:,} actions"
        lines = [f"Sequences of {sizes} ({self.num_actions / max(self.num_users, 1):.1f} per user)"]
        for user in range(min(self.num_users, SHOWN_USERS)):
            items, is_cut = self.vocabulary.decode(self[user][:SHOWN_ITEMS]), len(self[user]) > SHOWN_ITEMS
            lines.append(f"  user {self.users[user]}: {', '.join([*items, *['...'] * is_cut])}")
        return "\n".join([*lines, *["  ..."] * (self.num_users > SHOWN_USERS)])

    def select_users(self, users: np.ndarray) -> "Sequences":
        """Returns the histories of `users`, int64 [k], in this order, without features. The vocabulary is the same."""
        lengths = self.lengths[users]
        splits = make_splits(lengths)
        items = self.items[np.repeat(self.splits[users], lengths) + number_within_groups(lengths)]
        num_later = None if self.num_later is None else self.num_later[users]
        return replace(
            self, items=items, splits=splits, users=self.users[users], num_later=num_later, features={}, times=None
        )

    def have_items(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Returns whether each user has an item, bool [k]. `users`: int64 [k]. `items`: int32 [k], one for each."""
        has_item = np.zeros(len(users), bool)
        for begin in range(0, len(users), USERS_OF_A_BLOCK):
            histories = self.select_users(users[begin : begin + USERS_OF_A_BLOCK])
            rows = begin + np.repeat(np.arange(histories.num_users), histories.lengths)
            has_item[rows[histories.items == items[rows]]] = True
        return has_item

    def count_items(self) -> np.ndarray:
        """Returns how often each item occurs in these sequences, int64 [n + 1]; entry 0 is 0."""
        return np.bincount(self.items, minlength=self.num_items + 1)

    def drop_last(self, num_dropped: np.ndarray) -> "Sequences":
        """Returns each user's items but the last `num_dropped[u]`, without features and `num_later`.

        The vocabulary stays.
        """
        is_kept = np.ones(self.num_actions, bool)
        is_kept[np.repeat(self.splits[1:] - num_dropped, num_dropped) + number_within_groups(num_dropped)] = False
        splits = make_splits(self.lengths - num_dropped)
        return Sequences(self.items[is_kept], splits, self.users, self.vocabulary)

    def take_last(self, users: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the last `width` items of `users`, int32 [users, width], right-padded, and their lengths, int32."""
        lengths = np.minimum(self.lengths[users], width)
        return pad_rows(self.items, self.splits[users + 1] - lengths, lengths, width), lengths.astype(np.int32)

    def cut_by_time(self, begin: float, end: float) -> "Sequences":
        """Returns the actions up to `end`, inclusive; those after `begin` are held out (`num_later`).

        Users and items without an action left are left out. There are no times and no features.
        """
        times = self.times.values if self.times is not None else np.empty(0)
        users = np.repeat(np.arange(self.num_users), self.lengths)
        is_until_end = times <= end
        lengths = np.bincount(users[is_until_end], minlength=self.num_users)
        users_left = np.flatnonzero(lengths)
        codes = np.searchsorted(users_left, users[is_until_end])
        items = np.asarray(list(self.vocabulary.items), object)
        part = Sequences.from_codes(codes, self.items[is_until_end] - 1, self.users[users_left], items)
        num_later = np.bincount(users[is_until_end & (times > begin)], minlength=self.num_users)[users_left]
        return replace(part, num_later=num_later, columns=self.columns)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the hash of each block of users, and of the fingerprints of raw ids and features."""
        actions = [self._hash_actions(begin) for begin in range(0, self.num_users, USERS_OF_A_BLOCK)]
        features = [f"{name} {self.features[name].fingerprint}" for name in sorted(self.features)]
        return compute_fingerprint([*actions, self.users_fingerprint, self.vocabulary.fingerprint, *features])

    def _hash_actions(self, begin: int) -> str:
        """Returns the SHA-256 of the numbers of actions, the items and the split by time of a block of users."""
        users = slice(begin, begin + USERS_OF_A_BLOCK)
        digest = hashlib.sha256(self.lengths[users].astype("<i8").tobytes())
        digest.update(self.items[self.splits[begin] :][: self.lengths[users].sum()].astype("<i4").tobytes())
        if self.num_later is not None:
            digest.update(self.num_later[users].astype("<i8").tobytes() + b"\0")
        return digest.hexdigest()

    @cached_property
    def users_fingerprint(self) -> str:
        """SHA-256 of the raw ids of the users, in order."""
        return compute_fingerprint(self.users.tolist())


def number_within_groups(sizes: np.ndarray) -> np.ndarray:
    """Returns 0, 1, ... sizes[g] - 1 for each group g, one group after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def make_splits(lengths: np.ndarray | list[int]) -> np.ndarray:
    """Returns where each group begins and, last, where they end, int64 [groups + 1]."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


def pad_rows(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """Returns int32 [rows, width]: row r is `flat[starts[r]:starts[r] + lengths[r]]`, right-padded with 0."""
    offsets = np.arange(width)
    is_inside = offsets < lengths[:, None]
    return np.where(is_inside, values[np.where(is_inside, starts[:, None] + offsets, 0)], PAD).astype(np.int32)


def draw_items(sequences: Sequences, popular: bool, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draws from all items, int32 of `shape`: training's negatives, and the candidates of a measurement.

    If `popular`, draws actions, so each item has its share of these; else every item has the same probability.
    """
    if popular:
        return sequences.items[rng.integers(sequences.num_actions, size=shape)]
    return rng.integers(1, sequences.num_items + 1, shape, np.int32)


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Holds out each user's last item for the test, and the one before it for validation (section 4.2).

    With `Sequences.num_later`, the test item is each user's first one after the cut, and later ones are not trained on
    either. Users without a test item, a validation item and an item before these are used for training only.
    """

    sequences: Sequences

    @cached_property
    def users(self) -> np.ndarray:
        """The users with a test item, a validation item and an item before these, int64 [evaluated]."""
        lengths, num_later = self.sequences.lengths, self.sequences.num_later
        if num_later is None:
            return np.flatnonzero(lengths >= 3)
        return np.flatnonzero((num_later > 0) & (lengths - num_later >= 2))

    def why_unmeasurable(self) -> str | None:
        """Returns why no model can be measured on these data; None if one can."""
        if not len(self.users):
            by_time, times = self.sequences.num_later is not None, self.sequences.times
            requirement = "an action after the split and two before it" if by_time else "three actions"
            remark = f"; the last action is of {times.show_last()}" if by_time and times is not None else ""
            return f"No user has {requirement}, so there is nothing to measure on{remark}"
        if all(len(np.unique(self.sequences[user])) == self.sequences.num_items for user in self.users):
            return "Every user has seen every item, so there are no candidates to rank"
        return None

    @property
    def num_not_evaluated(self) -> int:
        return self.sequences.num_users - len(self.users)

    def training(self, with_validation: bool) -> Sequences:
        """Returns the items before the validation items or, `with_validation`, those before the test items."""
        return self.histories("test" if with_validation else "validation")

    def histories(self, split: str) -> Sequences:
        """Returns the items before the held-out item of `split` ("validation" or "test")."""
        return self.sequences.drop_last(self._count_held_out(split))

    def targets(self, split: str) -> np.ndarray:
        """Returns the held-out items of `split`, int32 [evaluated], in the order of `users`."""
        return self.sequences.items[self.sequences.splits[self.users + 1] - self._count_held_out(split)[self.users]]

    def _count_held_out(self, split: str) -> np.ndarray:
        """Returns how many of each user's last actions are held-out items of `split` or come after, int64 [users]."""
        num_later, is_evaluated = self.sequences.num_later, np.zeros(self.sequences.num_users, np.int64)
        is_evaluated[self.users] = 1
        if num_later is None:
            return {"test": 1, "validation": 2}[split] * is_evaluated
        return num_later + is_evaluated * (split == "validation")
