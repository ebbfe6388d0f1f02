"""Finds the best items by products of vectors, block by block, in catalogues of any size, in float32 or float16."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import PAD
from bert4rec_tf.export import ranking
from bert4rec_tf.export.layout import HALF
from bert4rec_tf.export.ranking import HIDDEN
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.models.recommender import ITEMS, USERS, Recommender

BLOCK_SCORES, FEWEST_ROWS, MOST_ROWS = 1 << 22, 1 << 10, 1 << 16
"""A block has about BLOCK_SCORES scores, few enough for the cache, of FEWEST_ROWS to MOST_ROWS items."""

Adjust = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(scores [b, e - s] of items s to e - 1, s, e) -> changed scores."""


class HalfRows:
    """A table in float16, from which models gather rows in float32. Raises UserError for a value beyond float16."""

    dtype = tf.float32

    def __init__(self, table: keras.Variable) -> None:
        self.variable = tf.Variable(tf.cast(table.value, HALF), trainable=False, name=table.name)
        self.shape = self.variable.shape
        if not np.isfinite(self.variable.numpy()).all():
            raise UserError(f"`dtype` must be float32 for rows beyond float16, as of {table.path}. Received: {HALF}")

    def sparse_read(self, indices: Tensor, name: str | None = None) -> tf.Tensor:
        """Returns the rows `indices` in float32. `tf.gather` calls it."""
        return tf.cast(ranking.rows_of(self.variable, indices), tf.float32, name=name)


@contextlib.contextmanager
def half_rows(model: Recommender) -> Iterator[list[tf.Variable]]:
    """Inside the block, the model reads its tables of items and users from copies in float16.

    Yields:
        The variables that the model then reads, including the copies.

    Raises:
        UserError: if the model's scores are not products with rows of items, it reads features, or a value does not fit
            into float16.
    """
    if model.score_products() is None or model.features:
        why = "it reads features" if model.features else "its scores are not products with rows of items"
        raise UserError(f"`dtype` must be float32 for {type(model).__name__}: {why}. Received: {HALF}")
    attributes: dict[str, Any] = vars(model)
    tables = {
        name: one
        for name, one in attributes.items()
        if isinstance(one, keras.Variable) and len(one.shape) == 2 and model.rows_of(one) in (ITEMS, USERS)
    }
    halves = {id(one): HalfRows(one) for one in tables.values()}
    attributes.update({name: halves[id(one)] for name, one in tables.items()})
    try:
        kept = [weight.value for weight in model.weights if id(weight) not in halves]
        yield [*kept, *(half.variable for half in halves.values())]
    finally:
        attributes.update(tables)


class ItemRows:
    """The rows and biases of all items of a model with `score_products`. Every call reads them anew.

    A score is <vector, row> + bias.
    """

    def __init__(self, model: Recommender) -> None:
        self._read = model.score_products
        self._num_items = model.num_items

    def biases(self) -> tf.Tensor:
        """Returns the biases, float32 [n + 1], row i for item i."""
        _, bias = self._read()
        return tf.zeros([self._num_items + 1]) if bias is None else tf.convert_to_tensor(bias)[: self._num_items + 1]

    def gather(self, items: Tensor) -> tf.Tensor:
        """Returns the rows of items, float32 [any, d]."""
        return tf.cast(tf.gather(self._read()[0], items), tf.float32)

    def best(
        self,
        vectors: Tensor,
        k: Tensor,
        hidden: Tensor,
        adjust: Adjust | None = None,
        is_logits: bool = False,
        is_cosine: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the k best items, int32 [b, k], their scores, float32 [b, k], and log-normalisers, float32 [b, 1].

        Among equal scores the first item wins. If there are fewer than k items, the rest is PAD with the score HIDDEN.

        Args:
            vectors: float32 [b, d].
            k: int32 [].
            hidden: int32 [b, any], items that must not be returned; PAD for none.
            adjust: changes the scores before they are ranked, but not the log-normalisers.
            is_logits: whether to compute the log-normalisers: the log-sum-exp of all scores, which are logits. Else 0.
            is_cosine: leave out the bias, and divide by the lengths of the rows.
        """
        rows, bias = self._read()
        rows = tf.convert_to_tensor(rows.variable if isinstance(rows, HalfRows) else rows)
        number = tf.shape(vectors)[0]
        height = tf.clip_by_value(BLOCK_SCORES // tf.maximum(number, 1), FEWEST_ROWS, MOST_ROWS)

        def step(begin, items, scores, total):
            end = tf.minimum(begin + height, self._num_items + 1)
            block = tf.cast(rows[begin:end], tf.float32)
            if is_cosine:
                block = tf.math.l2_normalize(block, axis=1)
            found = tf.matmul(vectors, block, transpose_b=True)
            if bias is not None and not is_cosine:
                found += tf.convert_to_tensor(bias)[begin:end]
            found = tf.where(tf.range(begin, end) == PAD, HIDDEN, found)
            if is_logits:
                of_block = tf.reduce_logsumexp(found, axis=1, keepdims=True)
                total = tf.reduce_logsumexp(tf.concat([total, of_block], axis=1), axis=1, keepdims=True)
            found = found if adjust is None else adjust(found, begin, end)
            is_here = (hidden >= begin) & (hidden < end) & (hidden != PAD)
            found = ranking.hide(found, tf.where(is_here, hidden - begin + 1, PAD))
            found, columns = tf.math.top_k(found, tf.minimum(k, end - begin))
            scores, places = tf.math.top_k(tf.concat([scores, found], axis=1), k)
            items = tf.gather(tf.concat([items, begin + columns], axis=1), places, batch_dims=1)
            return end, items, scores, total

        start = (0, tf.zeros([number, k], tf.int32), tf.fill([number, k], HIDDEN))
        start += (tf.fill([number, 1], HIDDEN if is_logits else 0.0),)
        shapes = tuple(tf.TensorShape(shape) for shape in ([], [None, None], [None, None], [None, 1]))
        _, items, scores, total = tf.while_loop(
            lambda begin, *_: begin <= self._num_items, step, start, shapes, parallel_iterations=1
        )
        return tf.where(scores > HIDDEN, items, PAD), scores, total
