"""Ranks the held-out items. A rank is the number of items that beat the target; one per user and protocol.

Users are scored in batches, on the device that computes the model. A target, its candidates, the seen items and the
best items read their scores from the same tensor, so that equal scores tie. In a tie, the target is beaten.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert4rec_tf.evaluation.metrics import FULL, LIST_LENGTH, METRICS, NEW, compute_list_metrics, compute_metrics
from bert4rec_tf.evaluation.ranking_task import RankingTask, make_batch
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import Recommender, check_products
from bert4rec_tf.nn.top_items import (
    DIVERGED,
    HIDDEN,
    PAD,
    Block,
    Blocks,
    is_contained,
    list_best,
    scan_blocks,
    select_top,
    start_best,
)

MAX_SCORES = 1 << 24
"""The scores of a batch, which limit its users: 64 MB."""

MAX_ITEMS, BLOCK_ITEMS = 1 << 17, 1 << 14
"""A catalogue with more than MAX_ITEMS is ranked in blocks of BLOCK_ITEMS, if scores are products."""

MIN_USERS_OF_BATCH, MAX_USERS_OF_BATCH = 128, 1024
"""Users of a batch. There are fewer than the minimum only if all items must be scored at once and are too many."""

SINGLES, ROWS_SPEC = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
BATCH = {"users": SINGLES, "items": ROWS_SPEC, "lengths": SINGLES}
"""What models get, as for `Recommender.score`."""

Metrics = dict[str, dict[str, float]]
"""Protocol -> metric -> value."""

Score = Callable[[Batch, Tensor | None], Tensor]
"""(batch, candidates) -> scores, like `Recommender.score`."""


@dataclass(frozen=True, eq=False)
class RankingResult:
    """The result of ranking the targets of a task, by protocol.

    Attributes:
        task: the task, which has all items.
        ranks: int32 [k], 0 for the best.
        num_candidates: int32 [k], the number of items that each target was ranked among, without itself.
        list_counts: int64 [n + 1], in how many of the users' lists each item is.
        lists: int32 [k, LIST_LENGTH], the users' lists, 0 for no item; empty unless they were asked for.
    """

    task: RankingTask
    ranks: dict[str, np.ndarray]
    num_candidates: dict[str, np.ndarray]
    list_counts: dict[str, np.ndarray]
    lists: dict[str, np.ndarray]

    def compute_metrics(self, names: Iterable[str] = METRICS) -> Metrics:
        """Returns metrics of the ranks, and LIST_METRICS of the lists, also for NEW (`add_new_protocol`)."""
        counts, num_users = self.task.histories.count_items()[1:], self.task.histories.num_users
        return {
            name: compute_metrics(ranks, names) | compute_list_metrics(self.list_counts[name][1:], counts, num_users)
            for name, ranks in self.task.add_new_protocol(self.ranks).items()
        }


class Ranker:
    """Ranks targets with a model. Keep the object between evaluations, because it holds the compiled functions.

    Args:
        model: a model, whose weights may change between calls, but not its evidence; or a function (batch, candidates)
            -> scores, like `Recommender.score`.
        max_history: how many of the last items a function reads; None for all.
        batch_size: the most users of a batch; None for as many as are quick.
    """

    def __init__(
        self, model: Recommender | Score, max_history: int | None = None, batch_size: int | None = None
    ) -> None:
        self._model: Any = model if isinstance(model, Recommender) else None
        self._score: Score = model.score if isinstance(model, Recommender) else model
        self._has_shared_scores = isinstance(model, Recommender) and model.scores_are_shared
        self._evidence = self._model and self._model.evidence
        self.max_history = self._model.max_history if self._model else max_history
        self._batch_size = batch_size or MAX_USERS_OF_BATCH
        self._evidence_table = self._evidence and self._evidence.make_table()
        self._find_graph = functools.cache(self._make_graph)

    def rank(self, task: RankingTask, share: tuple[int, int] = (0, 1)) -> dict[str, np.ndarray]:
        """Ranks each target under every protocol, in one pass over the model.

        Args:
            share: (i, n) ranks every n-th batch from batch i on, and leaves the other ranks 0. So the ranks of all n
                shares add up to those of one call, to the bit.

        Returns protocol -> int32 [k], 0 for the best. Raises UserError if a score is NaN.
        """
        ranks = {protocol: np.zeros(len(task.users), np.int32) for protocol in task.protocols}
        for rows, batch_ranks, _ in self._rank_batches(task, None, share):
            for protocol, values in batch_ranks.items():
                ranks[protocol][rows] = values
        return ranks

    def rank_and_list(self, task: RankingTask, title: str | None = None, with_lists: bool = False) -> RankingResult:
        """Returns the ranks, the numbers of candidates, and in how many lists each item is. The task has all items.

        A list is the best LIST_LENGTH of a target's candidates, itself included. `with_lists` returns them too.
        """
        candidates = {name: task.count_candidates(name).astype(np.int32) for name in task.protocols}
        ranks = {name: np.zeros(len(task.users), np.int32) for name in task.protocols}
        size = task.histories.num_items + 1
        list_counts = {name: np.zeros(size, np.int64) for name in task.add_new_protocol(candidates)}
        all_lists = {name: np.zeros([len(task.users), LIST_LENGTH], np.int32) for name in ranks if with_lists}
        for rows, batch_ranks, lists in self._rank_batches(task, title, k=LIST_LENGTH):
            for protocol, counts in list_counts.items():
                items = lists[FULL][~task.is_repeat[rows]] if protocol == NEW else lists[protocol]
                counts += np.bincount(items.ravel(), minlength=size)
            for protocol, values in batch_ranks.items():
                ranks[protocol][rows] = values
            for protocol, items in all_lists.items():
                items[rows] = lists[protocol]
        return RankingResult(task, ranks, candidates, list_counts, all_lists)

    def measure(self, task: RankingTask) -> Metrics:
        """Returns every metric of every protocol (`RankingResult.compute_metrics`)."""
        return self.rank_and_list(task).compute_metrics()

    def _rank_batches(
        self, task: RankingTask, title: str | None, share: tuple[int, int] = (0, 1), k: int = 0
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """Yields the rows of each batch, and by protocol the ranks, int32 [b], and lists, int32 [b, k]."""
        constants = self._read_constants() if task.all_items else ()
        num_items, sizes = task.histories.num_items, tuple(items.shape[1] for items in task.negatives.values())
        rank = self._find_graph(num_items, sizes, task.all_items, task.with_seen, k, len(constants))
        parts = task.cut_by_length(self._choose_batch_size(task, constants))[share[0] :: share[1]]
        users = sum(map(len, parts)) // max(len(parts), 1)
        with contextlib.closing(Progress(title or "", len(parts), 0, users, silent=title is None)) as progress:
            for rows in parts:
                batch, candidates = make_batch(task, rows, self.max_history), task.list_candidates(rows)
                seen = task.list_seen(rows) if task.all_items else candidates[:, :0]
                left_out_beyond_history = task.list_left_out_beyond_history(rows) if task.with_seen else seen[:, :0]
                *results, has_nan = rank(batch, candidates, seen, left_out_beyond_history, *constants)
                if has_nan:
                    raise UserError(DIVERGED)
                ranks, lists = (dict(zip(task.protocols, map(np.asarray, part))) for part in results)
                yield rows, ranks, lists
                progress.advance()

    def _read_constants(self) -> tuple[Tensor, ...]:
        """Returns `SharedScores` if there are, or the item rows and biases if scores are products; else nothing."""
        if self._has_shared_scores:
            row = np.zeros(1, np.int32)
            return SharedScores.from_scores(self._score({"users": row, "items": row[:, None], "lengths": row}, None)[0])
        products = self._model and self._model.score_products()
        if products is None:
            return ()
        check_products(products, self._model.num_items)
        rows, biases = products
        biases = tf.zeros([rows.shape[0]]) if biases is None else tf.convert_to_tensor(biases)
        return tf.convert_to_tensor(rows), biases

    def _choose_batch_size(self, task: RankingTask, constants: tuple[Tensor, ...]) -> int:
        if self._has_shared_scores or not task.all_items:
            return self._batch_size
        width = _choose_height(task.histories.num_items) if constants else task.histories.num_items
        return min(max(MAX_SCORES // width, MIN_USERS_OF_BATCH if constants else 1), self._batch_size)

    def _score_users(self, batch: Batch, candidates: Tensor | None = None) -> Tensor:
        """Returns what `Recommender.score` does."""
        if self._evidence is None:
            return self._score(batch, candidates)
        with self._evidence.read_table(self._evidence_table):
            return self._score(batch, candidates)

    def _make_graph(
        self, num_items: int, sizes: tuple[int, ...], all_items: bool, with_seen: bool, k: int, num_constants: int
    ) -> Callable[..., Any]:
        """Returns the graph `rank` below: it returns ranks, lists, and whether a score is NaN.

        Ranks and lists are in the order of `RankingTask.protocols`.

        Args:
            sizes: how many columns of `candidates`, after the target, each sampled protocol has.
            all_items, with_seen: as in `RankingTask`.
        """

        def rank(
            batch: Batch, candidates: Tensor, seen: Tensor, left_out_beyond_history: Tensor, *constants: Tensor
        ) -> tuple[list, list, Tensor]:
            listed = tf.concat([candidates, left_out_beyond_history, seen], axis=1)
            hidden = [seen, left_out_beyond_history][: 1 + with_seen] if k else []
            if not all_items:
                result = _read_listed(self._score_users(batch, listed), listed)
            elif self._has_shared_scores:
                result = SharedScores(*constants).read(listed, hidden, k)
            elif not constants:
                scores = tf.ensure_shape(self._score_users(batch), [None, num_items])
                result = read_scores(Blocks.from_scores(scores), listed, hidden, k)
            else:
                vectors = self._model.user_vectors(batch)
                blocks = Blocks.from_products(constants, vectors, num_items, _choose_height(num_items))
                result = read_scores(blocks, listed, hidden, k, expect_scores(constants, vectors, candidates[:, 0]))
            ends = [*itertools.accumulate([*sizes, tf.shape(left_out_beyond_history)[1]], initial=1), None]
            *groups, beyond_group, seen_group = (  # the target with the candidates of each protocol, and with others
                [tf.concat([part[:, :1], part[:, begin:end]], axis=1) for part in (result.scores, listed)]
                for begin, end in itertools.pairwise(ends)
            )
            num_others = count_others(result.num_reached, num_items)
            full_ranks, any_ranks = (num_others - count_reached(*group) for group in (seen_group, beyond_group))
            ranks = [*(count_reached(*group) for group in groups), full_ranks, any_ranks]
            lists = []
            for group in groups if k else ():
                scores, items = (tf.roll(part, -1, axis=1) for part in group)  # in a tie the target loses
                lists.append(select_top(scores, items, k)[0])
            return ranks, [*lists, *result.best], result.has_nan

        constants = {
            0: (),
            2: (tf.TensorSpec([None, None]), tf.TensorSpec([None])),
            3: (tf.TensorSpec([None]), SINGLES, SINGLES),
        }[num_constants]
        return tf_function(rank, input_signature=[BATCH, ROWS_SPEC, ROWS_SPEC, ROWS_SPEC, *constants])


def _choose_height(num_items: int) -> int:
    """Returns how many items a block of products has."""
    return num_items + 1 if num_items <= MAX_ITEMS else BLOCK_ITEMS


class ReadScores(NamedTuple):
    """What `read_scores` reads.

    Attributes:
        scores: float32 [b, c], of the listed items; HIDDEN for 0.
        num_reached: int32 [b], how many scores are at least that of the first listed item, its own included.
        has_nan: bool [], whether a score is NaN.
        best: for each of `hidden`, int32 [b, k], the best items without these; 0 where there are fewer.
    """

    scores: tf.Tensor
    num_reached: tf.Tensor
    has_nan: tf.Tensor
    best: list[tf.Tensor]


def read_scores(
    blocks: Blocks, listed: Tensor, hidden: Sequence[Tensor], k: int, limits: Tensor | None = None
) -> ReadScores:
    """Reads the scores of all items once.

    Args:
        listed: int32 [b, c], the target and other items; 0 for none.
        hidden: int32 [b, any] each, items that are not among the best k; 0 for none.
        limits: float32 [b], the targets' scores; they are only needed for several blocks, because a target may be in
            the last one. If they are rounded differently from those in the blocks, everything is read again.
    """
    number = tf.shape(listed)[0]

    def scan(limit: Tensor | None) -> tuple:
        def visit(state: Any, block: Block) -> Any:
            scores, num_reached, has_nan, best = state
            is_here, columns = block.find_columns(listed)
            scores = tf.where(is_here, tf.gather(block.scores, columns, batch_dims=1), scores)
            targets = scores[:, 0] if limit is None else limit
            num_reached += tf.reduce_sum(tf.cast(block.scores >= targets[:, None], tf.int32), axis=1)
            has_nan |= tf.reduce_any(tf.math.is_nan(block.scores))
            best = tuple(block.hide(items).add_best(part, k) for items, part in zip(hidden, best))
            return scores, num_reached, has_nan, best

        start = tf.fill(tf.shape(listed), HIDDEN), tf.zeros([number], tf.int32), tf.constant(False)
        return scan_blocks(blocks, visit, (*start, tuple(start_best(number, k) for _ in hidden)))

    results = scan(None if blocks.is_whole else limits)
    if not blocks.is_whole:
        results = tf.cond(tf.reduce_all(results[0][:, 0] == limits), lambda: results, lambda: scan(results[0][:, 0]))
    scores, num_reached, has_nan, best = results
    return ReadScores(scores, num_reached, has_nan, [list_best(part) for part in best])


class SharedScores(NamedTuple):
    """The scores of all items, if they are the same for every user.

    Attributes:
        scores: float32 [n + 1], HIDDEN for item 0.
        num_reached: int32 [n + 1], how many items have at least the score of each.
        order: int32 [n], the items, the best first. Among equal scores the first item wins.
    """

    scores: tf.Tensor
    num_reached: tf.Tensor
    order: tf.Tensor

    @classmethod
    def from_scores(cls, scores: Tensor) -> "SharedScores":
        """`scores`: float32 [n], column j for item j + 1."""
        scores = np.asarray(scores)
        order = np.argsort(-scores, kind="stable").astype(np.int32) + 1
        scores = np.append(np.float32(HIDDEN), scores)
        num_reached = len(order) - np.searchsorted(np.sort(scores[1:]), scores)
        return cls(*map(tf.convert_to_tensor, (scores, num_reached.astype(np.int32), order)))

    def read(self, listed: Tensor, hidden: Sequence[Tensor], k: int) -> ReadScores:
        """Does what `read_scores` does."""

        def list_others(items: Tensor) -> tf.Tensor:
            # The best others are among these.
            best = tf.tile(self.order[None, : k + tf.shape(items)[1]], [tf.shape(listed)[0], 1])
            scores = tf.where(is_contained(best, items), HIDDEN, tf.gather(self.scores, best))
            return select_top(scores, best, k)[0]

        has_nan = tf.reduce_any(tf.math.is_nan(self.scores))
        num_reached, scores = tf.gather(self.num_reached, listed[:, 0]), tf.gather(self.scores, listed)
        return ReadScores(scores, num_reached, has_nan, [list_others(items) for items in hidden])


def _read_listed(scores: Tensor, listed: Tensor) -> ReadScores:
    """Returns what `read_scores` does for the scores of the listed items alone."""
    has_nan = tf.reduce_any(tf.math.is_nan(scores) & (listed != PAD))
    return ReadScores(scores, tf.zeros_like(listed[:, 0]), has_nan, [])


def rank_unseen(scores: Tensor, targets: Tensor, seen: Tensor) -> tf.Tensor:
    """Returns the ranks of targets, int32 [b], among all items but the `seen` ones, int32 [b, any].

    `scores`: float32 [b, n], column j for item j + 1.
    """
    listed = tf.concat([targets[:, None], seen], axis=1)
    result = read_scores(Blocks.from_scores(scores), listed, [], 0)
    return count_others(result.num_reached, scores.shape[1]) - count_reached(result.scores, listed)


def count_others(num_reached: Tensor, num_items: int) -> tf.Tensor:
    """Returns how many items but the target reach its score. If that is HIDDEN, so does what is no item."""
    return tf.minimum(num_reached, num_items) - 1


def count_reached(scores: Tensor, items: Tensor) -> tf.Tensor:
    """Returns how many items reach the score of the target in column 0, int32 [b]. In a tie, the target is beaten.

    `scores`: float32 [b, 1 + c]. `items`: int32 [b, 1 + c], 0 for none.
    """
    is_reached = (scores >= scores[:, :1]) & (items != PAD)
    return tf.reduce_sum(tf.cast(is_reached[:, 1:], tf.int32), axis=1)


def expect_scores(products: tuple[Tensor, ...], vectors: Tensor, items: Tensor) -> tf.Tensor:
    """Returns the score of one item for each vector, float32 [b], mostly rounded as in a block of products."""
    rows, biases = products
    scores = tf.matmul(vectors, tf.gather(rows, items), transpose_b=True)
    return tf.linalg.diag_part(scores) + tf.gather(biases, items)
