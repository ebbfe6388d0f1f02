"""The best items for many users, how many items beat a target, and single scores, with bounded memory.

Ranking and serving go through all items in the same way, block by block (`scan_blocks`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from bert4rec_tf.foundation.types import Tensor

PAD = 0
"""Item 0 is none."""

HIDDEN = -float("inf")
"""The score of items that must not be returned."""

DIVERGED = "`scores` must be numbers. Received: NaN; the training has diverged"

GROUP = 32
"""The largest scores are searched for in groups of so many columns."""

BLOCK_ELEMENTS = 1 << 26
"""Rows are processed in blocks whose tables have at most this many elements."""


def map_row_blocks(
    function: Callable[[Tensor], Tensor], rows: Tensor, width: Tensor, dtypes: tuple
) -> tuple[Tensor, ...]:
    """Applies a function to a block of rows at a time, and returns its results for all rows, each [m, any].

    Args:
        function: row numbers, int32 [r] -> tensors [r, any] of `dtypes`.
        rows: int32 [m], all row numbers.
        width: int32 [], elements per row of the function's largest table.
    """
    number = tf.size(rows)
    max_height = tf.maximum(BLOCK_ELEMENTS // tf.maximum(width, 1), 1)
    blocks = tf.maximum(-(-number // max_height), 1)
    # Blocks of equal height need the least padding.
    height = -(-number // blocks)
    padded_rows = tf.reshape(tf.pad(rows, [[0, blocks * height - number]]), [blocks, height])
    shapes = tuple(tf.TensorSpec([None, None], dtype) for dtype in dtypes)
    results = tf.map_fn(function, padded_rows, fn_output_signature=shapes, parallel_iterations=1)
    return tuple(tf.reshape(result, [blocks * height, tf.shape(result)[2]])[:number] for result in results)


def select_top(scores: Tensor, items: Tensor | None, k: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k best items, int32 [r, k], and their scores, best first. In a tie the first column wins.

    Args:
        scores: float32 [r, c], HIDDEN for items that must not be returned.
        items: int32 [r, c], the item of each column; None for item j + 1 in column j.
        k: at least 1. If fewer items are left, the rest is PAD with the score HIDDEN.
    """
    width = tf.shape(scores)[1]
    top, columns = find_largest(scores, tf.minimum(k, width))
    numbers = columns + 1 if items is None else tf.gather(items, columns, batch_dims=1)
    padding = [[0, 0], [0, tf.maximum(k - width, 0)]]
    numbers = tf.where(top > HIDDEN, numbers, PAD)
    return tf.pad(numbers, padding, constant_values=PAD), tf.pad(top, padding, constant_values=HIDDEN)


def find_largest(scores: Tensor, k: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Does what `tf.math.top_k` does for scores [r, c], in a fraction of the time if k is small."""
    width = tf.shape(scores)[1]

    def search_groups() -> tuple[tf.Tensor, tf.Tensor]:
        number = -(-width // GROUP)
        padded_scores = tf.pad(scores, [[0, 0], [0, number * GROUP - width]], constant_values=HIDDEN)
        grouped_scores = tf.reshape(padded_scores, [tf.shape(scores)[0], number, GROUP])
        # Sorted, so that the first column still wins in a tie.
        groups = tf.sort(tf.math.top_k(tf.reduce_max(grouped_scores, axis=2), k)[1], axis=1)
        candidates = tf.gather(grouped_scores, groups, batch_dims=1)
        values, places = tf.math.top_k(tf.reshape(candidates, [tf.shape(scores)[0], k * GROUP]), k)
        selected_groups = places // GROUP
        first_columns = (tf.gather(groups, selected_groups, batch_dims=1) - selected_groups) * GROUP
        return values, first_columns + places

    values, columns = tf.cond(k * GROUP < width // 2, search_groups, lambda: tuple(tf.math.top_k(scores, k)))
    return values, columns


def hide_items(scores: Tensor, items: Tensor) -> tf.Tensor:
    """Sets the scores [r, n] of `items`, int32 [r, h], to HIDDEN. Column i - 1 is item i; item 0 is none."""
    places = tf.where(items != PAD)
    columns = tf.cast(tf.gather_nd(items, places), tf.int64) - 1
    indices = tf.stack([places[:, 0], columns], axis=1)
    return tf.tensor_scatter_nd_update(scores, indices, tf.fill(tf.shape(columns), HIDDEN))


def gather_rows(variable: tf.Variable, indices: Tensor) -> tf.Tensor:
    """Returns rows of a variable. A `tf.gather` of the variable itself would make later reads copy it whole."""
    return tf.gather(tf.convert_to_tensor(variable), indices)


def drop_repeated(items: Tensor) -> tf.Tensor:
    """Returns the items of each row, int32 [r, c], sorted, with 0 in place of repeated ones."""
    items = tf.sort(items, axis=1)
    is_repeat = tf.pad(items[:, 1:] == items[:, :-1], [[0, 0], [1, 0]])[:, : tf.shape(items)[1]]
    return tf.where(is_repeat, PAD, items)


def is_contained(items: Tensor, allowed_items: Tensor) -> tf.Tensor:
    """Returns which `items`, int32 [r, c], are among the `allowed_items`, int32 [r, h], of their row: bool [r, c]."""
    # An extra column, because there may be none; no item has this number.
    padding = [[0, 0], [0, 1]]
    sorted_items = tf.sort(tf.pad(allowed_items, padding, constant_values=tf.int32.max), axis=1)
    places = tf.searchsorted(sorted_items, tf.pad(items, padding))[:, :-1]
    return tf.gather(sorted_items, places, batch_dims=1) == items


Products = tuple[Tensor, Tensor | None]
"""The rows, float32 [n + 1 or more, d], and the biases of the items, as `Recommender.score_products` returns them."""


class Blocks(NamedTuple):
    """How the scores of all items are computed, some consecutive items at a time.

    All blocks have one shape, so that a product rounds equal rows alike: the last one begins where it ends with the
    last item.

    Attributes:
        score: (first, begin, end) -> the scores of items `begin` to `end` - 1, float32 [b, end - begin]; HIDDEN for PAD
            and for items before `first`, which were in the block before.
        num_items: n.
        height: items of a block, an integer or int32 []; at most n + 1.
        first_item: PAD, or 1 if no block has it.
    """

    score: Callable[[Tensor, Tensor, Tensor], Tensor]
    num_items: int
    height: Tensor
    first_item: int = PAD

    @property
    def is_whole(self) -> bool:
        """Whether one block has all items."""
        return isinstance(self.height, int) and self.height == self.num_items + 1 - self.first_item

    @classmethod
    def from_products(
        cls, products: Products, vectors: Tensor, num_items: int, height: Tensor, is_cosine: bool = False
    ) -> "Blocks":
        """The products of users' vectors, [b, d], with the items' rows, plus their biases.

        With `is_cosine`, rows are divided by their lengths, and biases left out.
        """
        rows, biases = tf.convert_to_tensor(products[0]), products[1]
        biases = None if biases is None else tf.convert_to_tensor(biases)

        def score(first: Tensor, begin: Tensor, end: Tensor) -> tf.Tensor:
            block = tf.math.l2_normalize(rows[begin:end], axis=1) if is_cosine else rows[begin:end]
            added = hide_passed(0.0 if biases is None or is_cosine else biases[begin:end], first, begin, end)
            return tf.matmul(vectors, block, transpose_b=True) + added

        return cls(score, num_items, height)

    @classmethod
    def from_scores(cls, scores: Tensor) -> "Blocks":
        """The scores of all items at once, float32 [b, n], column j for item j + 1."""
        return cls(lambda first, begin, end: scores, scores.shape[1], scores.shape[1], first_item=1)


def hide_passed(values: Tensor, first: Tensor, begin: Tensor, end: Tensor) -> tf.Tensor:
    """Returns `values` of items `begin` to `end` - 1, with HIDDEN for PAD and for those before `first`."""
    items = tf.range(begin, end)
    return tf.where((items == PAD) | (items < first), HIDDEN, values)


class Block(NamedTuple):
    """The scores of some consecutive items.

    Attributes:
        scores: float32 [b, height], column j for item `begin` + j; HIDDEN for PAD, and for items before `first`.
        first, begin, end: int32 []; `begin` is below `first` if the items between were in the block before.
    """

    scores: tf.Tensor
    first: tf.Tensor
    begin: tf.Tensor
    end: tf.Tensor

    def find_columns(self, items: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns whether each of `items`, int32 [b, c], is in this block for the first time, and its column, or 0."""
        is_here = (items >= self.first) & (items < self.end) & (items != PAD)
        return is_here, tf.where(is_here, items - self.begin, 0)

    def add_best(self, best: tuple[Tensor, Tensor], k: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the k best items, int32 [b, k], and their scores, of this block and of `best`, which is such a pair.

        In a tie the first item wins. Items with the score HIDDEN do not count (`list_best`).
        """
        scores, columns = find_largest(self.scores, tf.minimum(k, tf.shape(self.scores)[1]))
        items = tf.concat([best[0], self.begin + columns], axis=1)
        scores, places = tf.math.top_k(tf.concat([best[1], scores], axis=1), k)
        return tf.gather(items, places, batch_dims=1), scores

    def hide(self, items: Tensor) -> "Block":
        """Returns the block with the score HIDDEN for `items`, int32 [b, any]."""
        is_here, columns = self.find_columns(items)
        return self._replace(scores=hide_items(self.scores, tf.where(is_here, columns + 1, PAD)))


def scan_blocks(blocks: Blocks, visit: Callable[[Any, Block], Any], state: Any) -> Any:
    """Returns the last state after `visit(state, block)` has seen every item once. `state`: tensors in tuples."""
    width, height = blocks.num_items + 1, blocks.height
    if blocks.is_whole:
        items = blocks.first_item, blocks.first_item, width
        return visit(state, Block(blocks.score(*items), *map(tf.constant, items)))

    def step(first: Tensor, state: Any) -> tuple[Tensor, Any]:
        begin = tf.minimum(first, width - height)
        end = begin + height
        return end, visit(state, Block(blocks.score(first, begin, end), first, begin, end))

    shapes = tf.nest.map_structure(lambda value: tf.TensorShape([None] * value.shape.rank), state)
    shapes = (tf.TensorShape([]), shapes)
    return tf.while_loop(lambda first, _: first < width, step, (0, state), shapes, parallel_iterations=1)[1]


def start_best(number: Tensor, k: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what `Block.add_best` begins with for `number` users: no items."""
    return tf.zeros([number, k], tf.int32), tf.fill([number, k], HIDDEN)


def list_best(best: tuple[Tensor, Tensor]) -> tf.Tensor:
    """Returns the items from `Block.add_best`, with PAD where fewer than k have a score."""
    return tf.where(best[1] > HIDDEN, best[0], PAD)


def find_best(
    blocks: Blocks,
    k: Tensor,
    hidden: Tensor,
    adjust: Callable[[Block], Tensor] | None = None,
    is_logits: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the k best items, int32 [b, k], their scores, float32 [b, k], and log-normalisers, float32 [b, 1].

    Among equal scores the first item wins. If there are fewer than k items, the rest is PAD with the score HIDDEN.

    Args:
        hidden: int32 [b, any], items that must not be returned; PAD for none.
        adjust: block -> changed scores, by which items are ranked; the log-normalisers stay.
        is_logits: whether to compute the log-normalisers: the log-sum-exp of all scores, which are logits. Else 0.
    """
    number = tf.shape(hidden)[0]

    def visit(state: Any, block: Block) -> Any:
        *best, total = state
        if is_logits:
            block_total = tf.reduce_logsumexp(block.scores, axis=1, keepdims=True)
            total = tf.reduce_logsumexp(tf.concat([total, block_total], axis=1), axis=1, keepdims=True)
        if adjust is not None:
            block = block._replace(scores=adjust(block))
        return (*block.hide(hidden).add_best(tuple(best), k), total)

    start = (*start_best(number, k), tf.fill([number, 1], HIDDEN if is_logits else 0.0))
    *best, total = scan_blocks(blocks, visit, start)
    return list_best(tuple(best)), best[1], total
