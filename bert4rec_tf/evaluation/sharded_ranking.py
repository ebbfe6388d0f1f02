"""Ranks targets with a model whose item table is sharded over the workers of a training.

All workers rank the same task and get the same results. Each encodes its part of the users and scores the items that it
holds. Items that it does not hold count as 0, so the sums of scores and counts over all workers are exact.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import PAD
from bert4rec_tf.evaluation.full_ranking import LOWEST, Products
from bert4rec_tf.evaluation.metrics import LIST_LENGTH
from bert4rec_tf.foundation.graphs import graph
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.models.sharded_table import ShardedTable, sum_of_all


class ShardedProducts(Products):
    """Products with the item rows of this worker. `complete` combines what all workers found.

    Do not change weights while they are in use.

    Args:
        model: computes the users' vectors.
        table: the model's `sharded`.
        strategy: the workers', with one device each.
        added: float32 [n + 1], added to each item's score; None for nothing.
    """

    def __init__(
        self, model: Recommender, table: ShardedTable, strategy: tf.distribute.Strategy, added: np.ndarray | None = None
    ) -> None:
        self.index, self.count = table.index, table.count
        biases = [*table.values[1:], *([] if added is None else [added[self.index :: self.count]])]
        on_replica = partial(_user_vectors, model, table)
        super().__init__(
            lambda batch: strategy.run(on_replica, args=(batch,)), table.values[0], biases, model.num_items
        )
        self._sharded, self._strategy = table, strategy
        singles, lists, scores = [None], [None, LIST_LENGTH], [None, None]
        found = [(singles, tf.int32), ([], tf.bool), (lists, tf.int32), (lists, tf.float32), (scores, tf.float32)]
        # One graph for all shapes: a worker that traced more often than the others would wait for them for ever.
        self._complete = graph(
            lambda *found: strategy.run(self._on_replica, args=found),
            input_signature=[tf.TensorSpec(shape, dtype) for shape, dtype in found],
        )

    def of_targets(self, vectors: Tensor, targets: Tensor) -> Tensor:
        is_own, rows = self._sharded.own_rows(targets)
        own = tf.where(is_own, super().of_targets(vectors, rows), 0.0)
        return self._strategy.run(lambda own: sum_of_all([own])[0], args=(own,))

    def _rows(self, begin: Tensor, end: Tensor) -> Tensor:
        # A slice would copy the whole variable first, because its rows are updated one by one.
        return tf.gather(self._table, tf.range(begin, tf.minimum(end, self._table.shape[0])))

    def complete(self, *found: Tensor) -> tuple[Tensor, ...]:
        return self._complete(*found)

    def _on_replica(
        self, reaching: Tensor, has_nan: Tensor, best: Tensor, values: Tensor, scores: Tensor
    ) -> tuple[Tensor, ...]:
        beside = [[0, 0], [self.index * LIST_LENGTH, (self.count - 1 - self.index) * LIST_LENGTH]]
        reaching, has_nan, items = sum_of_all([reaching, tf.cast(has_nan, tf.int32), tf.pad(best, beside)])
        values, scores = sum_of_all([tf.pad(values, beside), scores])
        return reaching, has_nan > 0, *_best_of(items, values), scores


def _best_of(items: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the LIST_LENGTH best items and their scores, int32 and float32 [b, LIST_LENGTH], of joined lists [b, l].

    No item is 0, with the score LOWEST. In a tie the smaller item wins, as it does on one machine.
    """
    order = tf.argsort(items, axis=1, stable=True)
    values, columns = tf.math.top_k(tf.gather(values, order, batch_dims=1), LIST_LENGTH)
    items = tf.gather(tf.gather(items, order, batch_dims=1), columns, batch_dims=1)
    return tf.where(values > LOWEST, items, PAD), values


def sharded_score(
    model: Recommender, table: ShardedTable, strategy: tf.distribute.Strategy
) -> Callable[[Batch, Tensor], Tensor]:
    """Returns the function (batch, candidates) -> scores, like `Recommender.score` of candidates."""

    def on_replica(batch: Batch, candidates: Tensor) -> Tensor:
        return sum_of_all([table.own_scores(_user_vectors(model, table, batch), candidates)])[0]

    return lambda batch, candidates: strategy.run(on_replica, args=(batch, candidates))


def _user_vectors(model: Recommender, table: ShardedTable, batch: Batch) -> tf.Tensor:
    """Returns the vectors of all users of a batch, float32 [b, d]. Every worker encodes some of them."""
    context, count = tf.distribute.get_replica_context(), tf.shape(batch["items"])[0]
    looked_up = table.look_up(model.rows_read(batch))
    number = context.replica_id_in_sync_group
    begin = number * count // context.num_replicas_in_sync
    end = (number + 1) * count // context.num_replicas_in_sync
    part = {name: values[begin:end] for name, values in batch.items()}
    vectors = model.user_vectors({**part, **looked_up})
    return sum_of_all([tf.pad(vectors, [[begin, count - end], [0, 0]])])[0]
