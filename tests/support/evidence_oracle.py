"""Transition evidence in plain Python: loops over every history, and math.log."""

import functools
import math
from collections import Counter, defaultdict

import numpy as np

from support.ranking_oracle import make_sequences


def plain_counts(histories, settings):
    """(b, a) -> the weighted count C_ba, by two loops over every history."""
    counts = Counter()
    for history in histories:
        for place, first in enumerate(history):
            for distance, second in enumerate(history[place + 1 : place + 1 + settings.window], start=1):
                weight = settings.distance_decay ** (distance - 1) / distance**settings.distance_power
                counts[first, second] += weight
                counts[second, first] += settings.backward * weight
    return counts


def plain_evidence(histories, num_items, settings, popularity_power=0.0):
    """b -> {a: log(1 + C_ba n / tau)}, of which the `num_neighbors` largest stay.

    Of equal ones, items that occur more often come first, then those of the first numbers that a seed draws. The counts
    of a are first divided by (n p(a)) to the power `popularity_power`.
    """
    found = defaultdict(dict)
    log_shares = plain_log_shares(histories, num_items)
    for (first, second), count in plain_counts(histories, settings).items():
        if count:
            divided = count / (num_items * math.exp(log_shares[second])) ** popularity_power
            found[first][second] = math.log(1 + divided * num_items / settings.smoothing)
    most = settings.num_neighbors or num_items
    draws = np.random.default_rng(0).permutation(num_items + 1)
    rank = lambda row, item: (-np.float32(row[item]), -np.float32(log_shares[item]), draws[item])  # noqa: E731
    strongest = lambda row: sorted(row, key=functools.partial(rank, row))[:most]  # noqa: E731
    return {first: {item: row[item] for item in strongest(row)} for first, row in found.items()}


def plain_log_shares(histories, num_items):
    """a -> log p(a)."""
    counts = Counter(item for history in histories for item in history)
    total = sum(counts.values()) + num_items
    return {item: math.log((counts[item] + 1) / total) for item in range(1, num_items + 1)}


def plain_weights(length, settings):
    """The weight of each item of a history, the newest first."""
    recent = [
        settings.history_decay**age / (age + 1) ** settings.history_power
        for age in range(min(length, settings.recent_items))
    ]
    num_older = length - len(recent)
    share = settings.recent_share if num_older else 1.0
    return [share * one / sum(recent) for one in recent] + [(1 - share) / num_older for _ in range(num_older)]


def plain_sums(evidence, history, settings):
    """a -> the sum of w_j E(h_j, a), of the items that have any. `history`: oldest first, of any length."""
    newest_first = history[::-1][: settings.max_history]
    sums = Counter()
    for item, weight in zip(newest_first, plain_weights(len(newest_first), settings), strict=True):
        for other, value in evidence.get(item, {}).items():
            sums[other] += weight * value
    return sums


def plain_scores(histories, num_items, history, settings):
    """S(a | history) of each item, in the order of their numbers; without any evidence, log p(a)."""
    sums = plain_sums(plain_evidence(histories, num_items, settings), history, settings)
    shares = plain_log_shares(histories, num_items)
    popularity_weight = settings.popularity_weight if any(sums.values()) else 1.0
    return [sums[item] + popularity_weight * shares[item] for item in range(1, num_items + 1)]


def histories_of(sequences):
    return [sequences[user].tolist() for user in range(sequences.num_users)]


TOLERANCE = 1e-6
"""Scores that differ by a smaller part are a tie."""


def rank_by_hand(scores, target, seen):
    """How many items but the target reach its score. `scores`: item -> score. Seen items are no rivals."""
    rivals = [item for item in scores if item != target and item not in seen]
    return sum(scores[item] >= scores[target] - TOLERANCE * abs(scores[target]) for item in rivals)


def make_walks(seed, num_users=40, num_items=30):
    """Histories of steps to either side on a circle, with some jumps, so an item before says as much as one after."""
    rng = np.random.default_rng(seed)
    histories = []
    for _ in range(num_users):
        history = [int(rng.integers(num_items))]
        for _ in range(rng.integers(3, 8)):
            step = rng.choice([-1, 1]) if rng.random() < 0.8 else rng.integers(num_items)
            history.append(int((history[-1] + step) % num_items))
        histories.append([item + 1 for item in history])
    return make_sequences([*histories, [1, 2]], num_items)
