"""Chooses, on the validation items, how transitions are counted."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from bert4rec_tf.config.transition_settings import (
    GRID,
    LONG_START,
    RARE_FIRST,
    SHORT_START,
    CompleteSettings,
    ItemTransitionsSettings,
    has_long_histories,
)
from bert4rec_tf.data import transitions
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences, make_splits, number_within_groups
from bert4rec_tf.evaluation.metrics import LIST_LENGTH, compute_ndcg
from bert4rec_tf.evaluation.ranking_task import sample_rows

SEARCH_USERS, SEARCH_SCORES = 10_000, 1 << 23
"""The search measures at most so many users, with about so many scores above 0: the same users for the same data."""

SEARCH_ACTIONS = 1 << 20
"""About how many actions the search counts at most. Of more, it counts those of every k-th user."""

AXES = ("smoothing", "ages", "popularity", "distances", "backward", "window", "popularity", "smoothing")
"""The order in which the axes of GRID are searched, one at a time."""

ORDERED = ("smoothing", "popularity", "backward", "window")
"""The axes whose values are in an order: they are climbed from the best value so far. Of the others, all are tried."""

SEARCH_ROUNDS = 2

BLOCK_USERS = 1_000

MIN_RIVALS, RIVAL_PAIRS = 20, 1 << 22
"""Each user has so many rivals at least, and more if their pairs with the items of the histories are about this few."""

HIDDEN = -1e30
"""Added to the scores of items that must not count."""


def search_settings(split: LeaveOneOut, settings: ItemTransitionsSettings) -> tuple[CompleteSettings, float]:
    """Returns the settings with the best NDCG@10 among all items on the validation items, and that NDCG@10.

    Transitions are counted in the histories before the validation items. Those that `settings` names stay. The others
    are searched along AXES, one after the other, until a round improves nothing. There are two starts, because either
    can miss the best by several percent (experiments/journal/evidence.md). Of equal settings the first stays.
    """
    search = _Search(split, settings)
    histories = split.histories("validation")
    is_long = has_long_histories(histories.num_users, histories.num_actions)
    start = LONG_START if is_long else SHORT_START
    best = max(search.search(start), search.search({**start, **RARE_FIRST}), key=lambda trial: trial.ndcg)
    return settings.fill(best.values), best.ndcg


class _Trial(NamedTuple):
    """The values of settings, and NDCG@10 with them."""

    values: dict[str, Any]
    ndcg: float


class _Rivals(NamedTuple):
    """Some of the best unseen items of each user, after its target. They show that most targets are not among the best.

    Attributes:
        items: int [r], the items of the first user, then those of the next.
        begins: int [k], where the items of each user begin, with the target.
        pairs: the pairs of an item of the history and one of `items`, [r, pairs]. The data have no meaning.
        weights: for each of these pairs, its place in the data of `weigh_histories`.
    """

    items: np.ndarray
    begins: np.ndarray
    pairs: sparse.csr_matrix
    weights: np.ndarray

    def count_better(
        self, weights: sparse.csr_matrix, evidence: sparse.csr_matrix, terms: Sequence[np.ndarray], is_cold: np.ndarray
    ) -> np.ndarray:
        """Returns how many of a user's rivals reach the target's score, int64 [k]: its rank is no better.

        `terms`: what is added to each item, and instead for cold users. The terms are added in the same order as in
        `_Search._sum_evidence`.
        """
        pairs = sparse.csr_matrix((weights.data[self.weights], self.pairs.indices, self.pairs.indptr), self.pairs.shape)
        sums = pairs @ evidence.data
        sizes = np.diff(self.begins, append=len(sums))
        scores = sums + np.where(np.repeat(is_cold, sizes), terms[1][self.items], terms[0][self.items])
        is_reached = scores >= np.repeat(scores[self.begins], sizes)
        return np.add.reduceat(is_reached.astype(np.int64), self.begins) - 1


class _Search:
    """Measures settings. What several settings share is computed once.

    NDCG@10 needs the rank of a target only if it is among the best ten. Rivals rule that out for most users.
    """

    def __init__(self, split: LeaveOneOut, settings: ItemTransitionsSettings) -> None:
        self._settings, self._histories = settings, split.histories("validation")
        self._num_items = self._histories.num_items
        self._log_shares = transitions.compute_log_shares(self._histories.count_items())
        self._order = transitions.order_items(self._log_shares)
        sample = _every_kth_user(self._histories)
        self._share = sample.num_actions / max(self._histories.num_actions, 1)
        window = settings.window or max(change["window"] for change in GRID["window"])
        self._counts = [counts for _, counts in transitions.count_transitions(sample, window)]
        self._pairs = sparse.vstack([block.pairs for block in self._counts], format="csr")
        self._pairs.data = np.arange(1, self._pairs.nnz + 1, dtype=np.int32)  # from 1, because 0 means no pair
        neighbors = 10 * self._pairs.nnz // self._num_items + 1  # of all items of a history
        rows = sample_rows(len(split.users), min(SEARCH_USERS, SEARCH_SCORES // min(neighbors, self._num_items) + 1))
        self._users, self._targets = split.users[rows], split.targets("validation")[rows]
        self._seen_items = _mark_seen(self._histories, self._users, self._targets)
        self._results: dict[CompleteSettings, tuple[float, bool]] = {}
        self._latest: dict[str, tuple[Any, sparse.csr_matrix]] = {}
        self._rivals: _Rivals | None = None

    def measure(self, values: dict[str, Any], to_beat: float = 0.0) -> _Trial:
        """Measures settings. If their NDCG@10 is below `to_beat`, it may be given too high, but below `to_beat`."""
        settings = self._settings.fill(values)
        ndcg, is_exact = self._results.get(settings, (1.0, False))
        if not is_exact and ndcg >= to_beat:
            ndcg, is_exact = self._results[settings] = self._compute_ndcg(settings, to_beat)
        return _Trial(values, ndcg)

    def _compute_ndcg(self, settings: CompleteSettings, to_beat: float) -> tuple[float, bool]:
        """Returns NDCG@10, or at least an upper bound below `to_beat`; and whether it is exact."""
        terms = np.float32(settings.popularity_weight) * self._log_shares, self._log_shares
        evidence = self._weigh(settings)
        ages = settings.history_power, settings.history_decay, settings.recent_items, settings.recent_share
        weights = self._share_latest("weights", ages, lambda: weigh_histories(self._histories, self._users, settings))
        if self._rivals is None:
            self._rivals = self._find_rivals(weights, evidence)
        is_cold = np.zeros(len(self._users), bool)
        if settings.popularity_weight <= 0:  # else popular items are first without evidence too
            is_cold = _find_cold(weights, evidence)
        ranks = self._rivals.count_better(weights, evidence, terms, is_cold)
        bound = compute_ndcg(ranks)
        if bound < to_beat:
            return bound, False
        for users, added in zip((~is_cold, is_cold), terms):
            open_users = np.flatnonzero(users & (ranks < LIST_LENGTH))
            for rows, sums in self._sum_evidence(open_users, weights, evidence):
                ranks[rows] = rank_sums(sums, added, self._targets[rows])
        return compute_ndcg(ranks), True

    def search(self, start: dict[str, Any]) -> _Trial:
        """Returns the best that is reached from a start."""
        best = self.measure(start)
        for _ in range(SEARCH_ROUNDS):
            old_best = best
            for axis in AXES:
                best = self.improve(axis, best)
            if best.ndcg == old_best.ndcg:
                break
        return best

    def improve(self, axis: str, best: _Trial) -> _Trial:
        """Returns the best of `best` and the values of an axis: all, or those on the way up, or else down, from it."""
        ways = [GRID[axis]]
        if axis in ORDERED:
            place = GRID[axis].index({name: best.values[name] for name in GRID[axis][0]})
            ways = [GRID[axis][place + 1 :], GRID[axis][:place][::-1]]
        for way in ways:
            climbed = False
            for change in way:
                trial = self.measure({**best.values, **change}, best.ndcg)
                if trial.ndcg < best.ndcg and axis in ORDERED:
                    break
                climbed, best = True, trial if trial.ndcg > best.ndcg else best
            if climbed:
                break
        return best

    def _sum_evidence(
        self, rows: np.ndarray, weights: sparse.csr_matrix, evidence: sparse.csr_matrix
    ) -> Iterator[tuple[np.ndarray, sparse.csr_matrix]]:
        """Yields blocks of `rows`, and the evidence of these users' histories for unseen items, [b, n + 1]."""
        for begin in range(0, len(rows), BLOCK_USERS):
            block = rows[begin : begin + BLOCK_USERS]
            yield block, (weights[block] @ evidence + self._seen_items[block]).tocsr()

    def _find_rivals(self, weights: sparse.csr_matrix, evidence: sparse.csr_matrix) -> _Rivals:
        """Returns the rivals: the unseen items with the most evidence."""
        num_rivals = max(MIN_RIVALS, RIVAL_PAIRS // max(weights.nnz, 1))
        users, items = [np.arange(len(self._users))], [self._targets.astype(np.int64)]
        for rows, sums in self._sum_evidence(users[0], weights, evidence):
            is_target = sums.indices == np.repeat(self._targets[rows], np.diff(sums.indptr))
            sums.data[is_target] = HIDDEN
            places, columns, _ = transitions.select_strongest_pairs(sums, num_rivals, self._order)
            users.append(rows[places])
            items.append(columns)
        order = np.argsort(np.concatenate(users), kind="stable")  # a target stays before its rivals
        owners, candidates = np.concatenate(users)[order], np.concatenate(items)[order]
        lengths = np.diff(weights.indptr)[owners]
        places = np.repeat(weights.indptr[owners], lengths) + number_within_groups(lengths)
        pairs = self._pairs[weights.indices[places], np.repeat(candidates, lengths)]
        numbers = np.asarray(pairs).ravel().astype(np.int64)
        rows = np.repeat(np.arange(len(owners)), lengths)[numbers > 0]
        ends = make_splits(np.bincount(rows, minlength=len(owners)))
        shape = (len(owners), self._pairs.nnz)
        pair_places = numbers[numbers > 0] - 1
        table = sparse.csr_matrix((np.zeros(len(pair_places), np.float32), pair_places, ends), shape)
        return _Rivals(candidates, np.searchsorted(owners, users[0]), table, places[numbers > 0])

    def _weigh(self, settings: CompleteSettings) -> sparse.csr_matrix:
        """Returns the evidence of all pairs, float32 [n + 1, n + 1], in the order of the counts' pairs."""
        weights = transitions.weigh_distances(settings.window, settings.distance_power, settings.distance_decay)
        key = weights.tobytes(), settings.backward
        counts = self._share_latest("counts", key, lambda: self._combine(weights, settings.backward))
        smoothing = settings.smoothing * self._share
        return self._share_latest("evidence", (key, smoothing), lambda: self._weigh_counts(counts, smoothing))

    def _weigh_counts(self, counts: sparse.csr_matrix, smoothing: float) -> sparse.csr_matrix:
        """Returns the evidence of counts, with zeros in place of what `num_neighbors` leaves out."""
        evidence = transitions.weigh_evidence(counts, smoothing, self._num_items)
        if self._settings.num_neighbors is not None:
            rows, columns, values = transitions.select_strongest_pairs(
                evidence, self._settings.num_neighbors, self._order
            )
            evidence.data = np.zeros_like(evidence.data)
            evidence.data[np.asarray(self._pairs[rows, columns]).ravel() - 1] = values
        return evidence

    def _share_latest(self, name: str, key: Any, compute: Callable[[], sparse.csr_matrix]) -> sparse.csr_matrix:
        """Returns the last table of a name if its key is equal, which it often is; else what `compute` returns."""
        if name not in self._latest or self._latest[name][0] != key:
            self._latest[name] = key, compute()
        return self._latest[name][1]

    def _combine(self, distance_weights: np.ndarray, backward: float) -> sparse.csr_matrix:
        sums = np.concatenate([block.combine(distance_weights, backward).data for block in self._counts])
        return sparse.csr_matrix((sums, self._pairs.indices, self._pairs.indptr), self._pairs.shape)


def rank_sums(sums: sparse.csr_matrix, added: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns how many items but the target reach its score, int64 [b], where a score is a sum plus what is added.

    `sums`: float32 [b, n + 1], where no entry is 0. `added`: float32 [n + 1], to each item. `targets`: int32 [b].
    """
    rows = np.repeat(np.arange(len(targets)), np.diff(sums.indptr))
    scores = np.asarray(sums[np.arange(len(targets)), targets]).ravel() + added[targets]
    sorted_scores = np.sort(added[1:])
    num_at_least = len(sorted_scores) - np.searchsorted(sorted_scores, scores)  # by what is added alone
    by_sum = sums.data + added[sums.indices] >= scores[rows]
    by_nothing = added[sums.indices] >= scores[rows]
    changes = np.bincount(rows, by_sum.astype(np.int64) - by_nothing, len(targets))
    return num_at_least + changes.astype(np.int64) - 1


def _find_cold(weights: sparse.csr_matrix, evidence: sparse.csr_matrix) -> np.ndarray:
    """Returns whose history has no item with evidence, bool [users]: `ItemTransitions` gives them what is popular."""
    has_evidence = np.diff(sparse.csr_matrix(evidence != 0).indptr) > 0
    return weights @ has_evidence.astype(np.float32) == 0


def _every_kth_user(histories: Sequences, most_actions: int = SEARCH_ACTIONS) -> Sequences:
    step = -(-histories.num_actions // most_actions)
    return histories if step <= 1 else histories.select_users(np.arange(0, histories.num_users, step))


def weigh_histories(histories: Sequences, users: np.ndarray, settings: CompleteSettings) -> sparse.csr_matrix:
    """Returns the weights of the items of users' histories, float32 [users, n + 1] (`transitions.weigh_ages`)."""
    items, lengths = histories.take_last(users, settings.max_history)
    rows, places = np.nonzero(items)
    weights = transitions.weigh_ages(items.shape[1], settings)[lengths[rows], lengths[rows] - 1 - places]
    return sparse.csr_matrix((weights, (rows, items[rows, places])), (len(users), histories.num_items + 1))


def _mark_seen(histories: Sequences, users: np.ndarray, targets: np.ndarray) -> sparse.csr_matrix:
    """Returns HIDDEN for the items of each user's history, but never for the target, float32 [users, n + 1]."""
    part = histories.select_users(users)
    ones = np.ones(len(part.items), np.float32)
    seen = sparse.csr_matrix((ones, part.items, part.splits), (len(users), histories.num_items + 1))
    seen.sum_duplicates()
    seen.data = np.where(seen.indices == np.repeat(targets, np.diff(seen.indptr)), 0, np.float32(HIDDEN))
    seen.eliminate_zeros()
    return seen
