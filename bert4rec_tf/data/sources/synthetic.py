"""The built-in data sets: a Markov chain with communities of users, and one without any order.

Each community has a taste (a Zipf distribution over its own ranking of the items) and its own Markov chain: each item
has a few likely successors, drawn from that taste. An item has different successors in different communities, so
neither the last item alone nor the community alone determines the next item. No user sees an item twice.
"""

from dataclasses import dataclass

import numpy as np

from bert4rec_tf.data.sequences import Sequences


@dataclass(frozen=True)
class MarkovCatalogue:
    """The generator.

    Attributes:
        num_users, num_items, num_communities: sizes.
        shortest, longest: history lengths are uniform in [shortest, longest].
        successors: number of likely successors of an item in a community; each is half as likely as the one before.
        order: probability that the next item is a successor; else it is drawn from the community's taste.
        popularity_exponent: exponent of the Zipf distribution.
        seed: decides chains, tastes and histories.
    """

    num_users: int = 4_000
    num_items: int = 300
    num_communities: int = 3
    shortest: int = 8
    longest: int = 28
    successors: int = 4
    order: float = 0.85
    popularity_exponent: float = 0.9
    seed: int = 2019

    def __post_init__(self) -> None:
        _check_sizes(self.num_items, self.shortest, self.longest)
        if not 1 <= self.successors < self.num_items:
            raise ValueError(f"`successors` must be in [1, {self.num_items}). Received: successors={self.successors}")

    def tastes(self) -> np.ndarray:
        """Returns [communities, items]: the probability of each item under each community's taste."""
        rng = np.random.default_rng([self.seed, 0])
        common = rng.permutation(self.num_items)
        zipf = (1 + np.arange(self.num_items)) ** -self.popularity_exponent
        tastes = np.empty((self.num_communities, self.num_items))
        for taste in tastes:
            rank = np.argsort(np.argsort(common) + rng.normal(0, self.num_items / 4, self.num_items))
            taste[rank] = zipf / zipf.sum()
        return tastes

    def transitions(self) -> np.ndarray:
        """Returns [communities, items, items]: the probability of each next item, ignoring which were seen before."""
        rng = np.random.default_rng([self.seed, 1])
        weights = 0.5 ** np.arange(self.successors)
        weights /= weights.sum()
        tastes = self.tastes()
        table = np.repeat((1 - self.order) * tastes[:, None, :], self.num_items, axis=1)
        keys = rng.exponential(size=table.shape) / tastes[:, None, :]
        chosen = np.argsort(keys, axis=2)[:, :, : self.successors]
        for slot, weight in enumerate(weights):
            community, item = np.ogrid[: self.num_communities, : self.num_items]
            table[community, item, chosen[:, :, slot]] += self.order * weight
        return table

    def communities(self) -> np.ndarray:
        """Returns [users]: the community of each user."""
        return np.random.default_rng([self.seed, 2]).integers(self.num_communities, size=self.num_users)

    def histories(self) -> list[np.ndarray]:
        """Returns each user's items (numbers from 0), oldest first."""
        rng = np.random.default_rng([self.seed, 3])
        communities, tables = self.communities(), self.transitions()
        lengths = rng.integers(self.shortest, self.longest + 1, size=self.num_users)
        drawn = np.empty((self.num_users, self.longest), np.int64)
        unseen = np.ones((self.num_users, self.num_items))
        users = np.arange(self.num_users)
        tastes = self.tastes()[communities]
        probabilities = tastes
        for step in range(self.longest):
            weights = probabilities * unseen
            weights = np.where(weights.any(axis=1, keepdims=True), weights, tastes * unseen)
            drawn[:, step] = _draw(weights, rng)
            unseen[users, drawn[:, step]] = 0
            probabilities = tables[communities, drawn[:, step]]
        return [row[:length] for row, length in zip(drawn, lengths)]

    def sequences(self) -> Sequences:
        return _to_sequences(self.histories())

    def scores(self, sequences: Sequences, histories: Sequences) -> np.ndarray:
        """Returns the true transition probabilities as scores: float64 [users, n], column j for item j + 1.

        Args:
            sequences: from `sequences()`.
            histories: the known part of them, for all users.
        """
        numbers = np.array([int(item.removeprefix("item")) for item in sequences.vocabulary.items])
        last = np.array([histories[user][-1] for user in range(histories.num_users)])
        communities = self.communities()[[int(user.removeprefix("user")) for user in sequences.users]]
        tables = self.transitions()[:, :, numbers]
        return tables[communities, numbers[last - 1]]


@dataclass(frozen=True)
class OrderlessCatalogue:
    """Histories drawn from a single Zipf distribution, no item twice. There is nothing to learn but popularity."""

    num_users: int = 4_000
    num_items: int = 300
    shortest: int = 8
    longest: int = 28
    popularity_exponent: float = 0.9
    seed: int = 2019

    def __post_init__(self) -> None:
        _check_sizes(self.num_items, self.shortest, self.longest)

    def sequences(self) -> Sequences:
        rng = np.random.default_rng([self.seed, 4])
        lengths = rng.integers(self.shortest, self.longest + 1, size=self.num_users)
        zipf = (1 + np.arange(self.num_items)) ** -self.popularity_exponent
        keys = rng.exponential(size=(self.num_users, self.num_items)) / rng.permutation(zipf)
        order = np.argsort(keys, axis=1)
        return _to_sequences([row[:length] for row, length in zip(order, lengths)])


def _check_sizes(num_items: int, shortest: int, longest: int) -> None:
    if not 1 <= shortest <= longest <= num_items:
        raise ValueError(
            "`shortest`, `longest` and `num_items` must satisfy 1 <= shortest <= longest <= num_items. "
            f"Received: shortest={shortest}, longest={longest}, num_items={num_items}"
        )


def _draw(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    cumulative = np.cumsum(weights, axis=1)
    return (cumulative < rng.random((len(weights), 1)) * cumulative[:, -1:]).sum(axis=1)


def _to_sequences(histories: list[np.ndarray]) -> Sequences:
    flat = np.concatenate(histories)
    numbers, first, codes = np.unique(flat, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first)
    place = np.empty(len(numbers), np.int64)
    place[by_appearance] = np.arange(len(numbers))
    items = np.array([f"item{number}" for number in numbers[by_appearance]], object)
    users = np.array([f"user{user}" for user in range(len(histories))], object)
    user_codes = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
    return Sequences.from_codes(user_codes, place[codes], users, items)
