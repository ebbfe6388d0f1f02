"""Metrics of ranks (HR, NDCG, MRR) and of recommended lists, and a paired comparison of two models. Only NumPy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert4rec_tf.foundation.errors import UserError

POPULAR, UNIFORM, FULL = "popular", "uniform", "full"
PROTOCOLS = (POPULAR, UNIFORM, FULL)
"""What a target is ranked among: 100 items drawn by popularity (as in the paper), 100 drawn uniformly, or all items
that are not in the user's history, and the target."""

NEW, ANY = "new", "any"
"""Two more protocols, for data in which users come back to items. A target that is in the user's history is a repeat:
FULL ranks it, although what is recommended leaves out the history. NEW is FULL for the other targets alone. ANY ranks
every target among every item, those of the history included."""

MANY_REPEATS = 0.05
"""With a larger share of repeats among the validation targets, recommendations should include seen items."""

COUNT_BASELINES = {"pop": "POP", "item_transitions": "item_transitions"}
"""Model that every run is compared with -> its title in tables. They take seconds."""

METRICS = ("hr@1", "hr@5", "hr@10", "ndcg@5", "ndcg@10", "mrr")
"""What every run measures."""

KINDS = ("hr", "ndcg", "map", "precision", "recall")
"""What can be measured at any cut-off. Each user has one target, so recall is HR, and precision is HR / k."""

NDCG = "ndcg@10"
"""The metric by which models and settings are compared."""
LIST_LENGTH = 10
LIST_METRICS = tuple(f"{name}@{LIST_LENGTH}" for name in ("coverage", "popularity", "novelty"))
"""Metrics of the first items of all lists: how many different ones there are, and how popular they are."""

SEED_SPREAD = 0.05
"""The share by which another seed can move NDCG."""

MIN_USERS = 30
"""With fewer users the mean difference is not close enough to a normal distribution."""


def find_served_protocol(repeats: Mapping[str, float]) -> str:
    """Returns the protocol that ranks as recommendations do: ANY where they should include seen items, else FULL.

    `repeats`: part -> the share of repeated targets.
    """
    return ANY if repeats["validation"] > MANY_REPEATS else FULL


def name_metrics(cutoffs: int | Iterable[int]) -> tuple[str, ...]:
    """Returns the names of KINDS at each cut-off, and MRR.

    Raises UserError if a cut-off is not an integer of at least 1.
    """
    all_cutoffs = list(cutoffs) if isinstance(cutoffs, Iterable) else [cutoffs]
    is_number = [isinstance(cutoff, int | np.integer) and not isinstance(cutoff, bool) for cutoff in all_cutoffs]
    if not all_cutoffs or not all(is_number) or min(all_cutoffs) < 1:
        raise UserError(f"`k` must be integers of at least 1. Received: k={cutoffs!r}")
    return (*(f"{kind}@{cutoff}" for kind in KINDS for cutoff in sorted(set(all_cutoffs))), "mrr")


def compute_per_user(name: str, ranks: np.ndarray) -> np.ndarray:
    """Returns a metric for each user (section 4.2), float64, from ranks, an array of integers, 0 for the best.

    NDCG@1 equals HR@1. `name`: "mrr", or one of KINDS, "@" and a cut-off.
    """
    if name == "mrr":
        return 1 / (ranks + 1.0)
    kind, cutoff = name.split("@")
    gains = {"ndcg": 1 / np.log2(ranks + 2.0), "map": 1 / (ranks + 1.0), "precision": np.array(1 / int(cutoff))}
    return np.where(ranks < int(cutoff), gains.get(kind, np.array(1.0)), 0.0)


def compute_metrics(ranks: np.ndarray, names: Iterable[str] = METRICS) -> dict[str, float]:
    """Returns the mean over users of every metric. `ranks`: int [users], 0 for the best."""
    return {name: float(compute_per_user(name, ranks).mean()) for name in names}


def compute_ndcg(ranks: np.ndarray) -> float:
    """Returns NDCG@10 alone. `ranks`: int [users], 0 for the best."""
    return compute_metrics(ranks, [NDCG])[NDCG]


def compute_list_metrics(list_counts: np.ndarray, counts: np.ndarray, num_users: int) -> dict[str, float]:
    """Returns LIST_METRICS.

    Coverage is the share of all items that are in a list. The others are means over all places in lists: popularity of
    actions / users of the item, novelty of log2(users / actions), with at least 1 action (the surprisal of Zhou et al.,
    PNAS 2010).

    Args:
        list_counts: int [n], in how many lists each item is.
        counts: int [n], the known actions of each item.
        num_users: the number of users in the data.
    """
    shares = list_counts / max(list_counts.sum(), 1)
    popularity = float(shares @ (counts / num_users))
    novelty = float(shares @ np.log2(num_users / np.maximum(counts, 1)))
    return dict(zip(LIST_METRICS, (float(np.mean(list_counts > 0)), popularity, novelty)))


DISTANCES = (f"diversity@{LIST_LENGTH}", f"serendipity@{LIST_LENGTH}")
"""Metrics of the first items of a list, by the distances of items: 1 - the cosine of their vectors."""


def compute_distances_per_user(
    lists: np.ndarray, targets: np.ndarray, histories: Sequence[np.ndarray], vectors: np.ndarray
) -> np.ndarray:
    """Returns DISTANCES for each user, float64 [users, 2].

    Diversity is the mean distance of two items of the list (Ziegler et al., WWW 2005); 0 for fewer than two.
    Serendipity is the mean distance of the target from the items of the history, or 0 if the target is not in the list.

    Args:
        lists: int [users, k], the items of each list; 0 for none.
        targets: int [users].
        histories: the items of each user before the target.
        vectors: float [n + 1, d]; an item with zeros has the distance 1 from all others.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(lengths, lengths, 1)
    diversity, serendipity = np.zeros(len(lists)), np.zeros(len(lists))
    for user, (row, target, history) in enumerate(zip(lists, targets, histories)):
        items = units[row[row > 0]]
        if len(items) > 1:
            cosines = items @ items.T
            diversity[user] = 1 - (cosines.sum() - np.trace(cosines)) / (len(items) * (len(items) - 1))
        if target in row and len(history):
            serendipity[user] = 1 - (units[history] @ units[target]).mean()
    return np.stack([diversity, serendipity], axis=1)


def compute_random_metrics(num_candidates: np.ndarray) -> dict[str, float]:
    """Returns the expected metrics of random scores. `num_candidates`: int [users], without the target."""
    every_rank = np.arange(num_candidates.max() + 1)
    sums = {name: np.cumsum(compute_per_user(name, every_rank)) for name in METRICS}
    return {name: float((sums[name][num_candidates] / (num_candidates + 1)).mean()) for name in METRICS}


COLD, COLD_BELOW = "cold", 5
"""Targets with fewer training actions than this are measured apart."""


def compute_cold_metrics(ranks: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    """Returns `cold` and `others` -> the number of `targets`, and their `hr@10`, `ndcg@10` and `median_rank`, from 1.

    Where there is no target, the metrics are None.

    Args:
        ranks: int [users], 0 for the best.
        counts: int [users], how often training saw each target.
    """
    parts = {COLD: ranks[counts < COLD_BELOW], "others": ranks[counts >= COLD_BELOW]}

    def summarize(part: np.ndarray) -> dict[str, float | None]:
        if not len(part):
            return dict.fromkeys(("hr@10", "ndcg@10", "median_rank"))
        return {**compute_metrics(part, ("hr@10", "ndcg@10")), "median_rank": float(np.median(part)) + 1}

    return {name: {"targets": len(part), **summarize(part)} for name, part in parts.items()}


@dataclass(frozen=True)
class Difference:
    """How much better the second of two models is than the first in one metric, on the same users.

    Attributes:
        first, second: the means of the two models.
        mean: second - first.
        low, high: the 95 % confidence interval of `mean`.
        p_value: two-sided, for the hypothesis that there is no difference.
    """

    first: float
    second: float
    mean: float
    low: float
    high: float
    p_value: float


def compute_difference(first: np.ndarray, second: np.ndarray, users: np.ndarray | None = None) -> Difference:
    """Compares one metric of two models, float [cases] each, by a paired test that takes the mean difference as normal.

    `users`: whose each case is, [cases]; None if each is another user's. The cases of a user may depend on each other.

    Raises UserError for fewer than MIN_USERS users, or different numbers of cases.
    """
    if len(first) != len(second):
        raise UserError(f"Both runs must have measured the same users. Received: {len(first)} and {len(second)}")
    num_users = len(first if users is None else np.unique(users))
    if num_users < MIN_USERS:
        raise UserError(f"At least {MIN_USERS} users are needed to compare two runs. Received: {num_users}")
    gains = second - first
    mean = float(gains.mean())
    error = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if users is None else _compute_error(gains, users)
    p_value = math.erfc(abs(mean) / error / math.sqrt(2)) if error else float(mean == 0)
    return Difference(
        float(first.mean()), float(second.mean()), mean, mean - 1.96 * error, mean + 1.96 * error, p_value
    )


def _compute_error(values: np.ndarray, users: np.ndarray) -> float:
    """Returns the standard error of the mean of values, float [cases], which depend on each other within `users`.

    It is clustered: the deviations of a user's cases are summed before they are squared (Liang and Zeger, 1986).
    """
    sums = np.bincount(np.unique(users, return_inverse=True)[1], values - values.mean())
    return math.sqrt(len(sums) / (len(sums) - 1) * float(sums @ sums)) / len(values)
