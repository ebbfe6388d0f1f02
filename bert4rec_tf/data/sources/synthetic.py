"""The built-in data sets: a Markov catalogue with communities, and its orderless twin.

Every community of users has a taste (a Zipf law over its own order of the items) and its own chain: after an item, one
of a few successors drawn once from that taste. The same item is followed by other items in another community, so the
last item alone does not tell the next one, nor does the community alone. Nobody meets an item twice.
"""

from dataclasses import dataclass

import numpy as np

from bert4rec_tf.data.sequences import Sequences


@dataclass(frozen=True)
class MarkovCatalogue:
    """The generator.

    Attributes:
        num_users, num_items, num_communities: sizes.
        shortest, longest: lengths are uniform in [shortest, longest].
        successors: how many items follow an item in a community, with falling probability.
        order: probability that the next item is a successor, not a draw from the community's taste.
        popularity_exponent: exponent of the Zipf law.
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
        law = (1 + np.arange(self.num_items)) ** -self.popularity_exponent
        tastes = np.empty((self.num_communities, self.num_items))
        for taste in tastes:
            rank = np.argsort(np.argsort(common) + rng.normal(0, self.num_items / 4, self.num_items))
            taste[rank] = law / law.sum()
        return tastes

    def transitions(self) -> np.ndarray:
        """Returns [communities, items, items]: the probability of each next item, whatever was met before."""
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
        law = tastes
        for step in range(self.longest):
            weights = law * unseen
            weights = np.where(weights.any(axis=1, keepdims=True), weights, tastes * unseen)
            drawn[:, step] = _draw(weights, rng)
            unseen[users, drawn[:, step]] = 0
            law = tables[communities, drawn[:, step]]
        return [row[:length] for row, length in zip(drawn, lengths)]

    def sequences(self) -> Sequences:
        return _to_sequences(self.histories())

    def scores(self, sequences: Sequences, histories: Sequences) -> np.ndarray:
        """Returns what the generator itself would score: float64 [users, n], column j for item j + 1.

        Args:
            sequences: what `sequences()` returned.
            histories: the part of them that is known, one row per user.
        """
        numbers = np.array([int(item.removeprefix("item")) for item in sequences.vocabulary.items])
        last = np.array([histories[user][-1] for user in range(histories.num_users)])
        communities = self.communities()[[int(user.removeprefix("user")) for user in sequences.users]]
        tables = self.transitions()[:, :, numbers]
        return tables[communities, numbers[last - 1]]


@dataclass(frozen=True)
class OrderlessCatalogue:
    """Items drawn one by one from a single Zipf law, nobody meeting one twice: nothing can be learned beyond it."""

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
        law = (1 + np.arange(self.num_items)) ** -self.popularity_exponent
        keys = rng.exponential(size=(self.num_users, self.num_items)) / rng.permutation(law)
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
