"""The examples of the models that are trained on items and the next ones, with their negatives."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.examples.cloze import Windows
from bert4rec_tf.data.examples.rows import Examples, Tables, choose_index_type, gather_ragged, gather_windows
from bert4rec_tf.data.sequences import PAD, Sequences, draw_items, number_within_groups
from bert4rec_tf.foundation.types import Batch, Tensor

REJECTION_ROUNDS = 20
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
        self._seen_pairs = np.unique(self._encode_pairs(users, sequences.items))
        self._sequences = sequences
        self._counts = sequences.count_items()

    def _encode_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return users.astype(np.int64) * (self.num_items + 1) + items

    def have_seen(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Returns whether each user has seen each item, bool; the arguments are broadcast."""
        codes = self._encode_pairs(users, items)
        places = np.minimum(np.searchsorted(self._seen_pairs, codes), len(self._seen_pairs) - 1)
        return self._seen_pairs[places] == codes

    def draw(self, users: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        """Draws `size` items for each of `users`, int [b], with replacement.

        Returns int32 [b, size]; 0 for users who have seen every item.
        """
        items = draw_items(self._sequences, self.popular, (len(users), size), rng)
        owners = np.broadcast_to(users[:, None], items.shape)
        is_rejected = self.have_seen(owners, items)
        for _ in range(REJECTION_ROUNDS):
            if not is_rejected.any():
                return items
            items[is_rejected] = draw_items(self._sequences, self.popular, (is_rejected.sum(),), rng)
            is_rejected[is_rejected] = self.have_seen(owners[is_rejected], items[is_rejected])
        for row in np.flatnonzero(is_rejected.any(axis=1)):
            choices = np.setdiff1d(np.arange(1, self.num_items + 1), self._sequences[users[row]])
            items[row, is_rejected[row]] = (
                rng.choice(choices, is_rejected[row].sum(), p=self._compute_shares(choices)) if len(choices) else PAD
            )
        return items

    def _compute_shares(self, items: np.ndarray) -> np.ndarray | None:
        """Returns the probabilities of a user's unseen items; None if they are equal."""
        counts = self._counts[items]
        return counts / counts.sum() if self.popular and counts.any() else None


class ContextTargetExamples(Examples):
    """Examples of `num_targets` consecutive items as targets, up to `context` items before them, and negatives.

    The targets start at every position that has `context` items before it. A history that is too short for that gives
    one example: its last items as targets, with the items before them. With a `context` of 0, examples are pairs of
    user and item. Each has `num_negatives` unseen items, drawn uniformly or by popularity (`UnseenItems`).
    """

    def __init__(
        self, sequences: Sequences, context: int, num_targets: int = 1, num_negatives: int = 1, popular: bool = False
    ) -> None:
        self.context, self.num_targets, self.num_negatives = context, num_targets, num_negatives
        self.unseen_items = UnseenItems(sequences, popular)
        lengths = sequences.lengths
        min_context = 1 if context else 0
        last = np.maximum(lengths - num_targets, min_context)
        first = np.minimum(context, last)
        counts = np.where(lengths > min_context, last - first + 1, 0)
        self.users = np.repeat(np.arange(sequences.num_users), counts)
        places = np.repeat(first, counts) + number_within_groups(counts)
        self.num_examples = len(self.users)

        self._tables = {
            "items": sequences.items,
            "users": self.users.astype(np.int32),
            "target_begins": (sequences.splits[self.users] + places).astype(choose_index_type(len(sequences.items))),
            "lengths": np.minimum(places, context).astype(np.int32),
            "num_targets": np.minimum(lengths[self.users] - places, num_targets).astype(np.int32),
        }

    def draw(self, examples: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns `negatives`, int32 [b, num_negatives]."""
        return {"negatives": self.unseen_items.draw(self.users[examples], self.num_negatives, rng)}

    def lay_out(self, tables: Tables, columns: dict[str, Tensor]) -> Batch:
        """Returns `users [b]`, `items [b, context]`, `lengths [b]`, `targets [b, num_targets]` and
        `negatives [b, num_negatives]`. Items and targets are right-padded with 0."""
        users, begins, lengths, num_targets = (
            tf.gather(tables[name], columns["examples"])
            for name in ("users", "target_begins", "lengths", "num_targets")
        )
        return {
            "users": users,
            "items": gather_ragged(tables["items"], begins - tf.cast(lengths, begins.dtype), lengths, self.context),
            "lengths": lengths,
            "targets": gather_ragged(tables["items"], begins, num_targets, self.num_targets),
            "negatives": columns["negatives"],
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

    def __init__(
        self,
        sequences: Sequences,
        max_length: int,
        num_negatives: int = 0,
        num_shared: int = 0,
        alpha: float = 0.0,
        whole: bool = False,
    ) -> None:
        self.num_negatives, self.num_shared = num_negatives, num_shared
        item_counts = sequences.count_items()[1:].astype(float)
        self.cumulative = np.cumsum(np.where(item_counts > 0, item_counts, 1.0) ** alpha * (item_counts > 0))
        self.unseen_items = UnseenItems(sequences) if num_negatives else None
        users = np.flatnonzero(sequences.lengths >= 2)
        lengths = sequences.lengths[users]
        counts = -(-(lengths - 1) // max_length) if whole else np.ones_like(lengths)
        ends = np.repeat(lengths, counts) - max_length * number_within_groups(counts)
        self.users, self.lengths = np.repeat(users, counts), np.minimum(ends - 1, max_length)
        self.num_examples, self.width = len(self.users), int(self.lengths.max(initial=1))
        begins = sequences.splits[self.users] + ends - 1 - self.lengths
        self._tables = Windows(sequences.items, begins, self.lengths, self.users).make_tables()

    def draw(self, examples: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns, where asked for, `negatives [b, n, num_negatives]`, right-padded to the longest example of all, and
        `shared [b, num_shared]`."""
        users, columns = self.users[examples], {}
        if self.unseen_items is not None:
            width = int(self.lengths[examples].max())
            negatives = self.unseen_items.draw(users, width * self.num_negatives, rng)
            columns["negatives"] = np.zeros((len(users), self.width, self.num_negatives), np.int32)
            columns["negatives"][:, :width] = negatives.reshape(len(users), width, self.num_negatives)
        if self.num_shared:
            draws = rng.random((len(users), self.num_shared)) * self.cumulative[-1]
            columns["shared"] = 1 + np.searchsorted(self.cumulative, draws, side="right").astype(np.int32)
        return columns

    def lay_out(self, tables: Tables, columns: dict[str, Tensor]) -> Batch:
        """Returns `users [b]`, `items` and `targets [b, n]`, right-padded to the longest example of all, `lengths [b]`,
        and the columns of `draw`."""
        row = gather_windows(tables, columns["examples"], self.width)
        begins = tf.gather(tables["begins"], columns["examples"])
        targets = gather_ragged(tables["items"], begins + 1, row["lengths"], self.width)
        samples: dict[str, Tensor] = {name: columns[name] for name in ("negatives", "shared") if name in columns}
        return {**row, "targets": targets, **samples}


EXAMPLE_KINDS: dict[str | None, Callable[..., Examples]] = {
    "contexts": ContextTargetExamples,
    "shifted": NextItemExamples,
}
"""Value of `Recommender.examples` -> its class."""
