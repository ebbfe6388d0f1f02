"""Training examples made in memory, batch by batch: all but BERT4Rec's with static masks in our own loop.

A batch depends only on the seed and the step, so training can resume at any step.
"""

import abc
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.cloze import ClozeExamples, cut_last_windows, cut_windows_and_prefixes
from bert4rec_tf.data.sequences import PAD, Sequences, draw_items, number_within_groups, pad_rows
from bert4rec_tf.foundation.errors import UserError

DRAWS_SEED_OFFSET = 1 << 34
"""Added to the run's seed, which is below 2^32, so that masks and negatives have different seeds."""

ROUNDS = 20
"""Rounds of rejection sampling, after which negatives are drawn from a list of the user's unseen items."""


class UnseenItems:
    """Draws items from those that a user has not seen.

    Args:
        sequences: the training sequences, whose items count as seen. Held-out items must not: if they were never drawn,
            the model could infer which they are.
        popular: draw in proportion to the items' counts in `sequences`, as LightFM and implicit do; if False,
            uniformly. If all items with a count have been seen, the others are drawn uniformly.
    """

    def __init__(self, sequences: Sequences, popular: bool = False) -> None:
        self.num_items, self.popular = sequences.num_items, popular
        users = np.repeat(np.arange(sequences.num_users), sequences.lengths)
        self._seen = np.unique(self._encode_pairs(users, sequences.items))
        self._sequences = sequences
        self._counts = sequences.count_items()

    def _encode_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return users.astype(np.int64) * (self.num_items + 1) + items

    def have_seen(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Returns whether each user has seen each item, bool; the arguments are broadcast."""
        codes = self._encode_pairs(users, items)
        places = np.minimum(np.searchsorted(self._seen, codes), len(self._seen) - 1)
        return self._seen[places] == codes

    def draw(self, users: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        """Draws `size` items for each of `users`, int [b], with replacement.

        Returns int32 [b, size]; 0 for users who have seen every item.
        """
        items = draw_items(self._sequences, self.popular, (len(users), size), rng)
        owners = np.broadcast_to(users[:, None], items.shape)
        rejected = self.have_seen(owners, items)
        for _ in range(ROUNDS):
            if not rejected.any():
                return items
            items[rejected] = draw_items(self._sequences, self.popular, (rejected.sum(),), rng)
            rejected[rejected] = self.have_seen(owners[rejected], items[rejected])
        for row in np.flatnonzero(rejected.any(axis=1)):
            unseen = np.setdiff1d(np.arange(1, self.num_items + 1), self._sequences[users[row]])
            items[row, rejected[row]] = (
                rng.choice(unseen, rejected[row].sum(), p=self._compute_shares(unseen)) if len(unseen) else PAD
            )
        return items

    def _compute_shares(self, unseen: np.ndarray) -> np.ndarray | None:
        """Returns the probabilities of a user's unseen items; None if they are equal."""
        counts = self._counts[unseen]
        return counts / counts.sum() if self.popular and counts.any() else None


class Examples(abc.ABC):
    """Numbered training examples of one kind, `num_examples` per epoch.

    `varying`: columns whose width is the longest row of the batch.
    """

    num_examples: int
    varying: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def batch(self, examples: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the chosen examples as int32 columns; `rng` draws their negatives."""

    def batches(self, batch_size: int, seed: int, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Yields batches without end, from number `start_step` on. `seed`: decides the order and the negatives.

        Each epoch is shuffled differently; a batch may span two epochs.
        """
        epoch, order, step = -1, np.empty(0, np.int64), start_step
        while True:
            places = np.arange(step * batch_size, (step + 1) * batch_size)
            examples = np.empty(batch_size, np.int64)
            for number in np.unique(places // self.num_examples):
                if number != epoch:
                    epoch, order = number, np.random.default_rng([seed, 0, number]).permutation(self.num_examples)
                here = places // self.num_examples == number
                examples[here] = order[places[here] % self.num_examples]
            yield self.batch(examples, np.random.default_rng([seed, 1, step]))
            step += 1


class ContextTargetExamples(Examples):
    """Examples of `num_targets` consecutive items as targets, up to `context` items before them, and negatives.

    The targets start at every position that has `context` items before it. A history that is too short for that gives
    one example: its last items as targets, with the items before them. With a `context` of 0, examples are pairs of
    user and item. Each has `num_negatives` unseen items, drawn uniformly or by popularity (`UnseenItems`).
    """

    def __init__(
        self, sequences: Sequences, context: int, num_targets: int = 1, num_negatives: int = 1, popular: bool = False
    ) -> None:
        self.sequences, self.context = sequences, context
        self.num_targets, self.num_negatives = num_targets, num_negatives
        self.unseen = UnseenItems(sequences, popular)
        lengths = sequences.lengths
        min_context = 1 if context else 0
        last = np.maximum(lengths - num_targets, min_context)
        first = np.minimum(context, last)
        counts = np.where(lengths > min_context, last - first + 1, 0)
        self.users = np.repeat(np.arange(sequences.num_users), counts)
        self.places = np.repeat(first, counts) + number_within_groups(counts)
        self.num_examples = len(self.users)

    def batch(self, examples: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns `users [b]`, `items [b, context]`, `lengths [b]`, `targets [b, num_targets]` and
        `negatives [b, num_negatives]`. Items and targets are right-padded with 0."""
        users, places = self.users[examples], self.places[examples]
        begins, lengths = self.sequences.splits[users], np.minimum(places, self.context)
        targets = np.minimum(self.sequences.lengths[users] - places, self.num_targets)
        return {
            "users": users.astype(np.int32),
            "items": pad_rows(self.sequences.items, begins + places - lengths, lengths, self.context),
            "lengths": lengths.astype(np.int32),
            "targets": pad_rows(self.sequences.items, begins + places, targets, self.num_targets),
            "negatives": self.unseen.draw(users, self.num_negatives, rng),
        }


class NextItemExamples(Examples):
    """Histories with the next item at every position.

    Args:
        sequences: the training sequences; users with one item are skipped.
        max_length: most inputs of an example.
        num_negatives: unseen items per position.
        num_shared: negatives per example that all examples of the batch share. A user may have seen some of them.
        alpha: shared negatives are drawn with probability proportional to count^alpha.
        whole: cut longer histories into several examples, from the end, so that every item is a target; if False, a
            history gives one example of its last items.
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
        item_counts = sequences.count_items()[1:].astype(float)
        self.cumulative = np.cumsum(np.where(item_counts > 0, item_counts, 1.0) ** alpha * (item_counts > 0))
        self.unseen = UnseenItems(sequences) if num_negatives else None
        users = np.flatnonzero(sequences.lengths >= 2)
        lengths = sequences.lengths[users]
        counts = -(-(lengths - 1) // max_length) if whole else np.ones_like(lengths)
        self.users = np.repeat(users, counts)
        self.ends = np.repeat(lengths, counts) - max_length * number_within_groups(counts)
        self.num_examples = len(self.users)

    def batch(self, examples: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns `users [b]`, `items` and `targets [b, n]`, right-padded to the longest, and `lengths [b]`; where
        asked for, also `negatives [b, n, num_negatives]` and `shared [b, num_shared]`."""
        users, ends = self.users[examples], self.ends[examples]
        lengths = np.minimum(ends - 1, self.max_length)
        width, begins = int(lengths.max()), self.sequences.splits[users] + ends - 1 - lengths
        batch = {
            "users": users.astype(np.int32),
            "items": pad_rows(self.sequences.items, begins, lengths, width),
            "lengths": lengths.astype(np.int32),
            "targets": pad_rows(self.sequences.items, begins + 1, lengths, width),
        }
        if self.unseen is not None:
            negatives = self.unseen.draw(users, width * self.num_negatives, rng)
            batch["negatives"] = negatives.reshape(len(users), width, self.num_negatives)
        if self.num_shared:
            draws = rng.random((len(users), self.num_shared)) * self.cumulative[-1]
            batch["shared"] = 1 + np.searchsorted(self.cumulative, draws, side="right").astype(np.int32)
        return batch


class MaskedExamples(Examples):
    """Examples of the Cloze task, masked anew in every epoch.

    Args:
        sequences: the histories; those with one item are skipped.
        max_length: N.
        masking: how windows are cut and masked.
        last_only: take the last N items of each history, and mask only the last of them.
    """

    def __init__(
        self, sequences: Sequences, max_length: int, masking: MaskingSettings, last_only: bool = False
    ) -> None:
        if last_only:
            self.windows = cut_last_windows(sequences, max_length)
        else:
            self.windows = cut_windows_and_prefixes(sequences, max_length, masking)
        dynamic = replace(masking, masking="dynamic")
        self._examples = ClozeExamples(self.windows, dynamic, max_length, sequences.num_items, last_only)
        self.num_examples = self._examples.num_examples

    def batch(self, examples: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns `users [b]`, `lengths [b]`, `items [b, N]`, `mask_positions [b, P]` and `mask_targets [b, P]`."""
        return {name: column.astype(np.int32) for name, column in self._examples.mask(examples, rng).items()}


KINDS: dict[str | None, Callable[..., Examples]] = {"contexts": ContextTargetExamples, "shifted": NextItemExamples}
"""Value of `Recommender.examples` -> its class. Others are "masked", prepared on disk, and None, for no training."""


def make_dataset(examples: Examples, batch_size: int, seed: int, start_step: int = 0) -> tf.data.Dataset:
    """Returns the batches of `examples.batches` as a dataset; its caller prefetches."""
    return _make_dataset(examples, batch_size, lambda examples: examples.batches(batch_size, seed, start_step))


def make_epochs(examples: Examples, batch_size: int, seed: int, with_draws: bool = False) -> tf.data.Dataset:
    """Returns a dataset of which each pass has the batches of one epoch, and goes on where the pass before ended.

    `with_draws` adds the column of `batches.add_draws`. Raises UserError if there is no example.
    """
    if not examples.num_examples:
        raise UserError("No user has two items, so there is nothing to train on")
    steps = -(-examples.num_examples // batch_size)
    epochs = itertools.count()

    def read_epoch(examples: Examples) -> Iterator[dict[str, np.ndarray]]:
        first = next(epochs) * steps
        for step, batch in zip(range(first, first + steps), examples.batches(batch_size, seed, first)):
            draw = {"draw": np.tile([[seed + DRAWS_SEED_OFFSET, step]], (batch_size, 1))} if with_draws else {}
            yield {**batch, **draw}

    draw = {"draw": tf.TensorSpec([batch_size, 2], tf.int64)} if with_draws else {}
    batches = _make_dataset(examples, batch_size, read_epoch, draw)
    return batches.prefetch(4).apply(tf.data.experimental.assert_cardinality(steps))


def _make_dataset(
    examples: Examples,
    batch_size: int,
    generate: Callable[[Examples], Iterable[dict[str, np.ndarray]]],
    more: dict[str, tf.TensorSpec] | None = None,
) -> tf.data.Dataset:
    """Returns what `generate` yields of the examples as a dataset. `more`: the columns beside those of the examples.

    TensorFlow keeps each generator function until the process ends. So this one does not hold the examples; the dataset
    does, and they go with it.
    """

    def spec(name: str, column: np.ndarray) -> tf.TensorSpec:
        shape = [batch_size, *column.shape[1:]]
        if name in examples.varying:
            shape[1] = None
        return tf.TensorSpec(shape, column.dtype)

    first = examples.batch(np.zeros(1, np.int64), np.random.default_rng(0))
    signature = {name: spec(name, column) for name, column in first.items()}
    reference = weakref.ref(examples)

    def generate_again() -> Iterable[dict[str, np.ndarray]]:
        if (referred := reference()) is None:
            raise RuntimeError("The dataset of these examples is gone; it must live as long as what reads it")
        return generate(referred)

    dataset = tf.data.Dataset.from_generator(generate_again, output_signature={**signature, **(more or {})})
    dataset.examples = examples
    return dataset
