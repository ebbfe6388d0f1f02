"""Finds the best items by products of vectors, block by block, in catalogues of any size."""

from collections.abc import Callable

import tensorflow as tf

from bert4rec_tf.data.sequences import PAD
from bert4rec_tf.export import top_items
from bert4rec_tf.export.top_items import HIDDEN
from bert4rec_tf.foundation.types import Tensor

BLOCK_SCORES, FEWEST_ROWS, MOST_ROWS = 1 << 22, 1 << 10, 1 << 16
"""A block has about BLOCK_SCORES scores, few enough for the cache, of FEWEST_ROWS to MOST_ROWS items."""

Adjust = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(scores [b, e - s] of items s to e - 1, s, e) -> changed scores."""


def find_best(
    products: tuple[Tensor, Tensor | None],
    num_items: int,
    vectors: Tensor,
    k: Tensor,
    hidden: Tensor,
    adjust: Adjust | None = None,
    is_logits: bool = False,
    is_cosine: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the k best items, int32 [b, k], their scores, float32 [b, k], and log-normalisers, float32 [b, 1].

    Among equal scores the first item wins. If there are fewer than k items, the rest is PAD with the score HIDDEN.

    A score is <vector, row> + bias.

    Args:
        products: the rows and biases, as `Recommender.score_products` returns them.
        num_items: n.
        vectors: float32 [b, d].
        k: int32 [].
        hidden: int32 [b, any], items that must not be returned; PAD for none.
        adjust: changes the scores before they are ranked, but not the log-normalisers.
        is_logits: whether to compute the log-normalisers: the log-sum-exp of all scores, which are logits. Else 0.
        is_cosine: leave out the bias, and divide by the lengths of the rows.
    """
    rows, bias = products
    rows = tf.convert_to_tensor(rows)
    number = tf.shape(vectors)[0]
    height = tf.clip_by_value(BLOCK_SCORES // tf.maximum(number, 1), FEWEST_ROWS, MOST_ROWS)

    def step(begin, items, scores, total):
        end = tf.minimum(begin + height, num_items + 1)
        block = rows[begin:end]
        if is_cosine:
            block = tf.math.l2_normalize(block, axis=1)
        added = 0.0 if bias is None or is_cosine else tf.convert_to_tensor(bias)[begin:end]
        added = tf.where(tf.range(begin, end) == PAD, HIDDEN, added)
        block_scores = tf.matmul(vectors, block, transpose_b=True) + added
        if is_logits:
            block_total = tf.reduce_logsumexp(block_scores, axis=1, keepdims=True)
            total = tf.reduce_logsumexp(tf.concat([total, block_total], axis=1), axis=1, keepdims=True)
        block_scores = block_scores if adjust is None else adjust(block_scores, begin, end)
        is_here = (hidden >= begin) & (hidden < end) & (hidden != PAD)
        block_scores = top_items.hide_items(block_scores, tf.where(is_here, hidden - begin + 1, PAD))
        block_scores, columns = top_items.find_largest(block_scores, tf.minimum(k, end - begin))
        scores, places = tf.math.top_k(tf.concat([scores, block_scores], axis=1), k)
        items = tf.gather(tf.concat([items, begin + columns], axis=1), places, batch_dims=1)
        return end, items, scores, total

    start = (0, tf.zeros([number, k], tf.int32), tf.fill([number, k], HIDDEN))
    start += (tf.fill([number, 1], HIDDEN if is_logits else 0.0),)
    shapes = tuple(tf.TensorShape(shape) for shape in ([], [None, None], [None, None], [None, 1]))
    _, items, scores, total = tf.while_loop(
        lambda begin, *_: begin <= num_items, step, start, shapes, parallel_iterations=1
    )
    return tf.where(scores > HIDDEN, items, PAD), scores, total
