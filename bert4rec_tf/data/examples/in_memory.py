"""Training examples made in memory, batch after batch: pairs, transitions, windows and shifted histories.

What a batch holds is a function of the seed and the batch's number alone, so a training can begin at any of them.
"""

import abc
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import PAD, Sequences, take_rows

ROUNDS = 20
"""Times that negatives which the user has met are drawn anew, before they are chosen among what is left."""


class UnseenItems:
    """Draws items uniformly among those that a user has not met.

    Args:
        sequences: what counts as met: a training's own items, for to leave out the held-out ones would give them away.
    """

    def __init__(self, sequences: Sequences) -> None:
        self.num_items = sequences.num_items
        users = np.repeat(np.arange(sequences.num_users), sequences.lengths)
        self._met = np.unique(self._codes(users, sequences.items))
        self._sequences = sequences

    def _codes(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return users.astype(np.int64) * (self.num_items + 1) + items

    def met(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Returns bool: whether each user met each item; the two are broadcast against each other."""
        codes = self._codes(users, items)
        places = np.minimum(np.searchsorted(self._met, codes), len(self._met) - 1)
        return self._met[places] == codes

    def draw(self, users: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        """Draws with replacement.

        Args:
            users: int [b].
            size: items for each.
            rng: what decides them.

        Returns:
            int32 [b, size]; 0 for users who have met every item.
        """
        drawn = rng.integers(1, self.num_items + 1, (len(users), size), np.int32)
        owners = np.broadcast_to(users[:, None], drawn.shape)
        again = self.met(owners, drawn)
        for _ in range(ROUNDS):
            if not again.any():
                return drawn
            drawn[again] = rng.integers(1, self.num_items + 1, again.sum(), np.int32)
            again[again] = self.met(owners[again], drawn[again])
        for row in np.flatnonzero(again.any(axis=1)):
            unseen = np.setdiff1d(np.arange(1, self.num_items + 1), self._sequences[users[row]])
            drawn[row, again[row]] = rng.choice(unseen, again[row].sum()) if len(unseen) else PAD
        return drawn


class Examples(abc.ABC):
    """A kind of training example, by number.

    Attributes:
        num_examples: in one epoch.
        varying: columns that are as wide as the longest row of their batch.
    """

    num_examples: int
    varying: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def batch(self, chosen: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the chosen examples, int32 columns; `rng` decides what is drawn for them."""

    def batches(self, batch_size: int, seed: int, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Yields batches without end, each epoch in an order of its own; a batch may hold parts of two epochs.

        Args:
            batch_size: examples per batch.
            seed: decides the orders and what is drawn.
            start_step: how many batches to pass over.
        """
        epoch, order, step = -1, np.zeros(0, np.int64), start_step
        while True:
            places = np.arange(step * batch_size, (step + 1) * batch_size)
            chosen = np.empty(batch_size, np.int64)
            for number in np.unique(places // self.num_examples):
                if number != epoch:
                    epoch, order = number, np.random.default_rng([seed, 0, number]).permutation(self.num_examples)
                here = places // self.num_examples == number
                chosen[here] = order[places[here] % self.num_examples]
            yield self.batch(chosen, np.random.default_rng([seed, 1, step]))
            step += 1


def _numbered(counts: np.ndarray) -> np.ndarray:
    """Returns 0, 1, ... anew for each of successive groups of so many members."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


class ContextTargetExamples(Examples):
    """Targets with the items before them and with negatives: pairs, transitions and windows.

    Each example is `num_targets` successive items of a user, as targets, and up to `context` items before them. A
    user's targets begin at every place from the first that has `context` items before it; users too short for that
    have one example, their last items, with what comes before.

    Args:
        sequences: what to train on.
        context: items before the targets; 0 for pairs of user and item.
        num_targets: successive items to predict.
        num_negatives: unseen items per example.
    """

    def __init__(self, sequences: Sequences, context: int, num_targets: int = 1, num_negatives: int = 1) -> None:
        self.sequences, self.context = sequences, context
        self.num_targets, self.num_negatives = num_targets, num_negatives
        self.unseen = UnseenItems(sequences)
        lengths = sequences.lengths
        least = 1 if context else 0
        last = np.maximum(lengths - num_targets, least)
        first = np.minimum(context, last)
        counts = np.where(lengths > least, last - first + 1, 0)
        self.users = np.repeat(np.arange(sequences.num_users), counts)
        self.places = np.repeat(first, counts) + _numbered(counts)
        self.num_examples = len(self.users)

    def batch(self, chosen: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns `users [b]`, `items [b, context]`, `lengths [b]`, `targets [b, num_targets]` (0 where there are
        fewer) and `negatives [b, num_negatives]`."""
        users, places = self.users[chosen], self.places[chosen]
        begins, lengths = self.sequences.splits[users], np.minimum(places, self.context)
        targets = np.minimum(self.sequences.lengths[users] - places, self.num_targets)
        return {
            "users": users.astype(np.int32),
            "items": take_rows(self.sequences.items, begins + places - lengths, lengths, self.context),
            "lengths": lengths.astype(np.int32),
            "targets": take_rows(self.sequences.items, begins + places, targets, self.num_targets),
            "negatives": self.unseen.draw(users, self.num_negatives, rng),
        }


class NextItemExamples(Examples):
    """Histories and the item that follows each place of them.

    Args:
        sequences: what to train on; users with one item are passed over.
        max_length: inputs per example at most.
        whole: whether longer histories are cut into as many examples as all their targets need, from the end; or have
            one, of their last items.
        num_negatives: unseen items per place.
        num_shared: further items per example, for all examples of a batch to share; a user may have met some of them.
        alpha: those are drawn in proportion to count^alpha.
    """

    varying: ClassVar[tuple[str, ...]] = ("items", "targets", "negatives")

    def __init__(
        self,
        sequences: Sequences,
        max_length: int,
        num_negatives: int = 0,
        num_shared: int = 0,
        alpha: float = 0.0,
        whole: bool = False,
    ) -> None:
        self.sequences, self.max_length = sequences, max_length
        self.num_negatives, self.num_shared = num_negatives, num_shared
        support = sequences.counts()[1:].astype(float)
        self.rising = np.cumsum(np.where(support > 0, support, 1.0) ** alpha * (support > 0))
        self.unseen = UnseenItems(sequences) if num_negatives else None
        users = np.flatnonzero(sequences.lengths >= 2)
        lengths = sequences.lengths[users]
        counts = -(-(lengths - 1) // max_length) if whole else np.ones_like(lengths)
        self.users = np.repeat(users, counts)
        self.ends = np.repeat(lengths, counts) - max_length * _numbered(counts)
        self.num_examples = len(self.users)

    def batch(self, chosen: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns `users [b]`, `items` and `targets [b, n]`, right-padded to the longest, `lengths [b]` and, where they
        are asked for, `negatives [b, n, num_negatives]` and `shared [b, num_shared]`."""
        users, ends = self.users[chosen], self.ends[chosen]
        lengths = np.minimum(ends - 1, self.max_length)
        width, begins = int(lengths.max()), self.sequences.splits[users] + ends - 1 - lengths
        batch = {
            "users": users.astype(np.int32),
            "items": take_rows(self.sequences.items, begins, lengths, width),
            "lengths": lengths.astype(np.int32),
            "targets": take_rows(self.sequences.items, begins + 1, lengths, width),
        }
        if self.unseen is not None:
            drawn = self.unseen.draw(users, width * self.num_negatives, rng)
            batch["negatives"] = drawn.reshape(len(users), width, self.num_negatives)
        if self.num_shared:
            draws = rng.random((len(users), self.num_shared)) * self.rising[-1]
            batch["shared"] = 1 + np.searchsorted(self.rising, draws, side="right").astype(np.int32)
        return batch


KINDS: dict[str, type[Examples]] = {"contexts": ContextTargetExamples, "shifted": NextItemExamples}
"""What `Recommender.examples` may name, beside "masked", whose examples are prepared on the disk."""


def dataset_of(examples: Examples, batch_size: int, seed: int, start_step: int = 0) -> tf.data.Dataset:
    """Returns the batches of `examples.batches` as TensorFlow reads them, made while a step computes."""

    def spec(name: str, column: np.ndarray) -> tf.TensorSpec:
        shape = [batch_size, *column.shape[1:]]
        if name in examples.varying:
            shape[1] = None
        return tf.TensorSpec(shape, column.dtype)

    first = examples.batch(np.zeros(1, np.int64), np.random.default_rng(0))
    return tf.data.Dataset.from_generator(
        lambda: examples.batches(batch_size, seed, start_step),
        output_signature={name: spec(name, column) for name, column in first.items()},
    ).prefetch(4)
