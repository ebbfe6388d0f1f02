"""The built-in data sets: a Markov chain with communities of users, and one without any order.

Each community has a taste (a Zipf distribution over its own ranking of the items) and its own Markov chain: each item
has a few likely successors, drawn from that taste. An item has different successors in different communities, so
neither the last item alone nor the community alone determines the next item. No user sees an item twice.
"""

import abc
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert4rec_tf.data.sequences import Sequences


@dataclass(frozen=True)
class Generator(abc.ABC):
    """What both generators share. History lengths are uniform in [shortest, longest]; `seed` seeds everything."""

    num_users: int = 4_000
    num_items: int = 300
    shortest: int = 8
    longest: int = 28
    popularity_exponent: float = 0.9
    seed: int = 2019

    def compute_zipf(self) -> np.ndarray:
        """Returns [items]: the weights of a Zipf distribution."""
        return (1 + np.arange(self.num_items)) ** -self.popularity_exponent

    @abc.abstractmethod
    def draw_histories(self) -> list[np.ndarray]:
        """Returns each user's items (numbers from 0), oldest first."""

    def make_sequences(self) -> Sequences:
        histories = self.draw_histories()
        codes, numbers = pd.factorize(np.concatenate(histories))  # by first appearance
        items = np.array([f"item{number}" for number in numbers], object)
        users = np.array([f"user{user}" for user in range(len(histories))], object)
        user_codes = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
        return Sequences.from_codes(user_codes, codes, users, items)


@dataclass(frozen=True)
class MarkovCatalogue(Generator):
    """Communities of users, with a Markov chain each.

    Attributes:
        successors: number of likely successors of an item in a community; each is half as likely as the one before.
        order: probability that the next item is a successor; else it is drawn from the community's taste.
    """

    num_communities: int = 3
    successors: int = 4
    order: float = 0.85

    def draw_tastes(self) -> np.ndarray:
        """Returns [communities, items]: the probability of each item under each community's taste."""
        rng = np.random.default_rng([self.seed, 0])
        order = rng.permutation(self.num_items)
        zipf = self.compute_zipf()
        tastes = np.empty((self.num_communities, self.num_items))
        for taste in tastes:
            rank = np.argsort(np.argsort(order) + rng.normal(0, self.num_items / 4, self.num_items))
            taste[rank] = zipf / zipf.sum()
        return tastes

    def draw_transitions(self) -> np.ndarray:
        """Returns [communities, items, items]: the probability of each next item, seen or not."""
        rng = np.random.default_rng([self.seed, 1])
        weights = 0.5 ** np.arange(self.successors)
        weights /= weights.sum()
        tastes = self.draw_tastes()
        table = np.repeat((1 - self.order) * tastes[:, None, :], self.num_items, axis=1)
        keys = rng.exponential(size=table.shape) / tastes[:, None, :]
        successors = np.argsort(keys, axis=2)[:, :, : self.successors]
        for slot, weight in enumerate(weights):
            community, item = np.ogrid[: self.num_communities, : self.num_items]
            table[community, item, successors[:, :, slot]] += self.order * weight
        return table

    def draw_communities(self) -> np.ndarray:
        """Returns [users]: the community of each user."""
        return np.random.default_rng([self.seed, 2]).integers(self.num_communities, size=self.num_users)

    def draw_histories(self) -> list[np.ndarray]:
        rng = np.random.default_rng([self.seed, 3])
        communities, tables = self.draw_communities(), self.draw_transitions()
        lengths = rng.integers(self.shortest, self.longest + 1, size=self.num_users)
        items = np.empty((self.num_users, self.longest), np.int64)
        is_unseen = np.ones((self.num_users, self.num_items))
        users = np.arange(self.num_users)
        tastes = self.draw_tastes()[communities]
        probabilities = tastes
        for step in range(self.longest):
            weights = probabilities * is_unseen
            weights = np.where(weights.any(axis=1, keepdims=True), weights, tastes * is_unseen)
            items[:, step] = _draw_columns(weights, rng)
            is_unseen[users, items[:, step]] = 0
            probabilities = tables[communities, items[:, step]]
        return [row[:length] for row, length in zip(items, lengths)]

    def compute_scores(self, sequences: Sequences, histories: Sequences) -> np.ndarray:
        """Returns the true transition probabilities as scores: float64 [users, n], column j for item j + 1.

        `sequences` are from `make_sequences()`; `histories` are the histories of the same users to score after.
        """
        numbers = np.array([int(item.removeprefix("item")) for item in sequences.vocabulary.items])
        last_items = np.array([histories[user][-1] for user in range(histories.num_users)])
        communities = self.draw_communities()[[int(user.removeprefix("user")) for user in sequences.users]]
        tables = self.draw_transitions()[:, :, numbers]
        return tables[communities, numbers[last_items - 1]]


@dataclass(frozen=True)
class OrderlessCatalogue(Generator):
    """Histories drawn from a single Zipf distribution, no item twice. Only popularity predicts the next item."""

    def draw_histories(self) -> list[np.ndarray]:
        rng = np.random.default_rng([self.seed, 4])
        lengths = rng.integers(self.shortest, self.longest + 1, size=self.num_users)
        keys = rng.exponential(size=(self.num_users, self.num_items)) / rng.permutation(self.compute_zipf())
        order = np.argsort(keys, axis=1)
        return [row[:length] for row, length in zip(order, lengths)]


def _draw_columns(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    cumulative = np.cumsum(weights, axis=1)
    return (cumulative < rng.random((len(weights), 1)) * cumulative[:, -1:]).sum(axis=1)
