"""Losses: cross-entropy over a large table, and losses of positive scores against negative scores.

The losses of LOSSES in `config.model_settings` with the same negatives have the same arguments.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from bert4rec_tf.foundation import devices
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.nn import layouts

CHUNK_ELEMENTS = 1 << 24
"""About how many probabilities a chunk has on a CPU: enough for fast matrix products, and still little memory."""

MEMORY_SHARE = 1 / 32
"""The share of an accelerator's memory that the float32 probabilities of a chunk may take."""

MIN_CHUNK = 128
"""Minimum targets per chunk. Each chunk reads the whole table, so smaller chunks would read it too often."""

MIN_PROBABILITY = 1e-20
"""Below this a target's probability is so close to float32's minimum that its logarithm is inexact."""

BPR_MAX_EPSILON = 1e-24
"""GRU4Rec's authors add it inside the logarithm of BPR-max, so that the logarithm is finite."""

MASKED_LOG_PROBABILITY = -1e30
MAX_SCORE = 1e15
"""Scores are clipped to it before they are squared."""


def table_cross_entropy(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, weights: Tensor, chunk: int | None = None
) -> tf.Tensor:
    """Returns the weighted sum of the targets' negative log-likelihoods under softmax(hidden table^T + bias), [].

    It goes through the targets in chunks, and computes each chunk's gradients together with its probabilities. This
    takes three matrix products and one softmax, and memory that does not grow with targets x rows. The gradients are
    computed even if the caller does not use them.

    In mixed precision (`hidden` in bfloat16, the rest in float32) the two products of the gradients run in bfloat16.
    The product of the logits does not: it would give bfloat16 logits, whose 8 bits are too few for an exponential.

    Args:
        hidden: float [targets, d], of the table's type or narrower.
        table, bias: float [rows, d] and [rows], of the same type as the result.
        targets: int32 [targets], row numbers.
        weights: float [targets], of the table's type. No gradient flows to them.
        chunk: targets per chunk; None for about CHUNK_ELEMENTS probabilities, or MEMORY_SHARE of an accelerator.
    """
    table, bias = tf.convert_to_tensor(table), tf.convert_to_tensor(bias)
    hidden, targets, weights = (tf.convert_to_tensor(part) for part in (hidden, targets, weights))
    chunk = chunk or max(MIN_CHUNK, _count_chunk_elements() // table.shape[0])

    @tf.custom_gradient
    def loss(hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor):
        value, *gradients = _compute_loss_and_gradients(hidden, table, bias, targets, weights, chunk)

        def scale_gradients(upstream: tf.Tensor):
            return [gradient * tf.cast(upstream, gradient.dtype) for gradient in gradients]

        return value, scale_gradients

    return loss(hidden, table, bias)


def _compute_loss_and_gradients(
    hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, chunk: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the loss and the gradients of `hidden`, `table` and `bias`.

    The table's gradient is summed transposed, [d, rows], and the logits use the transposed table: these products are
    faster. The gradient's part from the targets themselves, one row each, is subtracted at the end.
    """
    dtype, (rows, width) = hidden.dtype, table.shape
    narrow_table, transposed_table = tf.cast(table, dtype), tf.transpose(table)

    def add_chunk(columns: list[tf.Tensor], value: tf.Tensor, d_table: tf.Tensor, d_bias: tf.Tensor):
        part, targets, weights = columns
        states = tf.cast(part, table.dtype)
        logits = tf.nn.bias_add(tf.matmul(states, transposed_table), bias)
        probabilities = tf.nn.softmax(logits)
        value += tf.reduce_sum(_negative_log_likelihoods(logits, probabilities, targets) * weights)
        d_bias += tf.matmul(weights[None, :], probabilities)[0]
        probabilities = tf.cast(probabilities, dtype)
        mean_rows = tf.cast(tf.matmul(probabilities, narrow_table), table.dtype)
        d_part = (mean_rows - tf.gather(table, targets)) * weights[:, None]
        factors = tf.cast(states * weights[:, None], dtype)
        d_table += tf.cast(tf.matmul(factors, probabilities, transpose_a=True), table.dtype)
        return tf.cast(d_part, dtype), value, d_table, d_bias

    sums = (tf.zeros([], table.dtype), tf.zeros([width, rows], table.dtype), tf.zeros([rows], table.dtype))
    count, size = _count_chunks(hidden, chunk)
    if isinstance(count, int) and count == 1:
        d_hidden, *sums = add_chunk([hidden, targets, weights], *sums)
    else:
        blocks = [_cut_chunks(part, count, size) for part in (hidden, targets, weights)]

        def add_next(index: tf.Tensor, chunks: tf.TensorArray, *sums: tf.Tensor):
            d_part, *sums = add_chunk([column[index] for column in blocks], *sums)
            return index + 1, chunks.write(index, d_part), *sums

        chunks = tf.TensorArray(dtype, size=count, element_shape=[size if isinstance(size, int) else None, width])
        _, chunks, *sums = tf.while_loop(
            lambda index, *_: index < count, add_next, (0, chunks, *sums), parallel_iterations=1
        )
        d_hidden = _join_chunks(chunks.stack(), hidden)
    value, d_table, d_bias = sums
    updates = tf.cast(hidden, table.dtype) * weights[:, None]
    d_table = tf.tensor_scatter_nd_sub(tf.transpose(d_table), targets[:, None], updates)
    d_bias = tf.tensor_scatter_nd_sub(d_bias, targets[:, None], weights)
    return value, d_hidden, d_table, d_bias


def _count_chunk_elements() -> int:
    """Returns about how many probabilities a chunk may have."""
    if layouts.is_fixed() and devices.has_accelerator():
        return int(MEMORY_SHARE * devices.read_memory()) // 4
    return CHUNK_ELEMENTS


def _count_chunks(column: tf.Tensor, chunk: int) -> tuple[tf.Tensor | int, tf.Tensor | int]:
    """Returns how many chunks of at most `chunk` rows a column has, and their common size.

    Both are whole numbers of Python in the FIXED layout, whose shapes are known.
    """
    if layouts.is_fixed():
        count = max(1, -(-column.shape[0] // chunk))
        return count, -(-column.shape[0] // count)
    number = tf.shape(column)[0]
    count = tf.maximum(1, -(-number // chunk))
    return count, -(-number // count)


def _cut_chunks(column: tf.Tensor, count: tf.Tensor | int, size: tf.Tensor | int) -> tf.Tensor:
    """Cuts a column into [count, size, ...]. The last chunk is filled with zeros, whose weight is 0."""
    num_zeros = count * size - tf.shape(column)[0]
    values = tf.pad(column, [[0, num_zeros], *([0, 0] for _ in column.shape[1:])])
    if isinstance(count, int):
        return tf.reshape(values, [count, size, *column.shape[1:]])
    return tf.reshape(values, tf.concat([[count, size], tf.shape(column)[1:]], axis=0))


def _join_chunks(chunks: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
    """Joins chunks [count, size, ...] into one column, without the filling."""
    shape = tf.shape(column)
    return tf.reshape(chunks, tf.concat([[-1], shape[1:]], axis=0))[: shape[0]]


def _negative_log_likelihoods(logits: tf.Tensor, probabilities: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns the targets' values, [t], from the probabilities; from the logits if a probability is too small.

    The FIXED layout always takes the logits: to branch, the program would have to wait for the accelerator.
    """

    def from_logits() -> tf.Tensor:
        return tf.reduce_logsumexp(logits, axis=1) - tf.gather(logits, targets, batch_dims=1)

    if layouts.is_fixed():
        return from_logits()
    target_probabilities = tf.gather(probabilities, targets, batch_dims=1)
    return tf.cond(
        tf.reduce_any(target_probabilities < MIN_PROBABILITY), from_logits, lambda: -tf.math.log(target_probabilities)
    )


def sum_in_chunks(
    loss: Callable[..., tf.Tensor], chunk: int
) -> Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], tf.Tensor]:
    """Returns a function that sums `loss(*columns, *constants)` over chunks of the columns.

    Make the function once and keep it: each new one compiles the loss again. A chunk's gradients are computed together
    with its loss, so intermediate results take the memory of one chunk. XLA compiles both, with few passes for
    element-wise operations. For that, all chunks have the same shape.

    Args:
        loss: returns [], and 0 for rows of zeros.
        chunk: rows per chunk, at least 1.

    Returns:
        A function (columns, constants) -> [] of the constants' type. `columns`, each [n, ...], are cut along the first
        axis, and the last chunk is filled with zeros; only float columns have gradients. Every chunk gets all
        `constants` [...].
    """

    def select_floats(columns: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [column for column in columns if column.dtype.is_floating]

    @tf_function(jit_compile=True)
    def compute_gradients(chunk_columns: list[tf.Tensor], constant_parts: list[tf.Tensor]):
        sources = [*select_floats(chunk_columns), *constant_parts]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            value = loss(*chunk_columns, *constant_parts)
        return value, tape.gradient(value, sources, unconnected_gradients="zero")

    def sum_columns(columns: Sequence[tf.Tensor], constants: Sequence[tf.Tensor]) -> tf.Tensor:
        columns = [tf.convert_to_tensor(part) for part in columns]
        size = chunk
        if layouts.is_fixed():
            row_size = sum(math.prod(part.shape[1:]) for part in columns) + sum(part.shape[0] for part in constants)
            count, size = _count_chunks(columns[0], max(chunk, _count_chunk_elements() // row_size))
            if count == 1:
                return loss(*columns, *constants)
        else:
            count, _ = _count_chunks(columns[0], chunk)
        num_float = len(select_floats(columns))

        @tf.custom_gradient
        def total(*parts: tf.Tensor):
            float_columns, constant_parts = parts[:num_float], parts[num_float:]
            floats = iter(float_columns)
            blocks = [_cut_chunks(next(floats) if part.dtype.is_floating else part, count, size) for part in columns]

            def add_chunk(index: tf.Tensor, value: tf.Tensor, stacks: list[tf.TensorArray], sums: list[tf.Tensor]):
                part, gradients = compute_gradients([column[index] for column in blocks], list(constant_parts))
                stacks = [stack.write(index, gradient) for stack, gradient in zip(stacks, gradients)]
                sums = [subtotal + gradient for subtotal, gradient in zip(sums, gradients[num_float:])]
                return index + 1, value + part, stacks, sums

            stacks = [tf.TensorArray(column.dtype, size=count) for column in float_columns]
            sums = [tf.zeros_like(constant) for constant in constant_parts]
            value = tf.zeros([], constant_parts[0].dtype)
            _, value, stacks, sums = tf.while_loop(
                lambda index, *_: index < count, add_chunk, (0, value, stacks, sums), parallel_iterations=1
            )

            def scale_gradients(upstream: tf.Tensor):
                float_gradients = [_join_chunks(stack.stack(), column) for stack, column in zip(stacks, float_columns)]
                return [gradient * tf.cast(upstream, gradient.dtype) for gradient in (*float_gradients, *sums)]

            return value, scale_gradients

        return total(*select_floats(columns), *constants)

    return sum_columns


def sampled_softmax(positives: Tensor, negatives: Tensor, hits: Tensor, log_counts: Tensor) -> tf.Tensor:
    """-log of e^s / (e^s + the sum over sampled items j of e^(s_j) / the expected count of j in the sample).

    The expectation of that sum is the sum over all other items, however the sample is drawn (the logQ correction). A
    sample with every item once gives the whole softmax.

    Args:
        positives: [t], the scores s of the targets.
        negatives: [t, c], the scores of the sample.
        hits: bool [t, c], True where a sampled item is the target itself; these do not count.
        log_counts: [c], from `sampling.draw_shared_items`.
    """
    corrected_scores = tf.where(
        hits, tf.cast(MASKED_LOG_PROBABILITY, negatives.dtype), negatives - tf.cast(log_counts, negatives.dtype)
    )
    return tf.reduce_logsumexp(tf.concat([positives[:, None], corrected_scores], axis=1), axis=1) - positives


# The losses below work element by element: positives [...], negatives [..., c], result [...]. The caller averages them
# and masks the padding. The values and gradients are finite for scores of any size.


def bpr(positives: Tensor, negatives: Tensor) -> tf.Tensor:
    """BPR-Opt (Rendle et al. 2009): the mean of -log sigmoid(r_i - r_j) over the negatives."""
    return tf.reduce_mean(tf.nn.softplus(negatives - positives[..., None]), axis=-1)


def binary_cross_entropy(positives: Tensor, negatives: Tensor) -> tf.Tensor:
    """-log sigmoid(r_i) - sum over j of log(1 - sigmoid(r_j)) (He et al. 2017; Kang & McAuley 2018, equation 6)."""
    return tf.nn.softplus(-positives) + tf.reduce_sum(tf.nn.softplus(negatives), axis=-1)


def top1(positives: Tensor, negatives: Tensor, valid: Tensor) -> tf.Tensor:
    """TOP1 (Hidasi et al. 2016): the mean of sigmoid(r_j - r_i) + sigmoid(r_j^2).

    As in the authors' program, the positive itself counts in the mean, without its second term: it adds sigmoid(0) =
    1/2 to the sum and 1 to the count. `valid`, bool [..., c], is False where there is no negative.
    """
    weights = tf.cast(valid, negatives.dtype)
    count = tf.reduce_sum(weights, axis=-1) + 1.0
    return (tf.reduce_sum(weights * _top1_terms(positives, negatives), axis=-1) + 0.5) / count


def top1_max(positives: Tensor, negatives: Tensor, valid: Tensor) -> tf.Tensor:
    """TOP1-max (Hidasi & Karatzoglou 2018): TOP1's terms weighted by the softmax over the negatives."""
    return tf.reduce_sum(tf.exp(_log_softmax(negatives, valid)) * _top1_terms(positives, negatives), axis=-1)


def _top1_terms(positives: Tensor, negatives: Tensor) -> tf.Tensor:
    return tf.nn.sigmoid(negatives - positives[..., None]) + tf.nn.sigmoid(_square(negatives))


def bpr_max(positives: Tensor, negatives: Tensor, valid: Tensor, regularization: float) -> tf.Tensor:
    """BPR-max (Hidasi & Karatzoglou 2018): -log(sum_j s_j sigmoid(r_i - r_j) + 1e-24) + regularization sum_j s_j r_j^2.

    s is the softmax over the negatives alone. `valid` is that of `top1`; `regularization` pulls the negatives' scores
    towards 0 (the authors' bpreg).
    """
    softmax = tf.exp(_log_softmax(negatives, valid))
    likelihood = tf.reduce_sum(softmax * tf.sigmoid(positives[..., None] - negatives), axis=-1)
    mean_square = tf.reduce_sum(softmax * _square(negatives), axis=-1)
    return regularization * mean_square - tf.math.log(likelihood + BPR_MAX_EPSILON)


def _log_softmax(negatives: Tensor, valid: Tensor) -> tf.Tensor:
    """Returns the log-softmax over the valid negatives, and MASKED_LOG_PROBABILITY for the others."""
    padding = tf.fill(tf.shape(negatives), tf.cast(MASKED_LOG_PROBABILITY, negatives.dtype))
    return tf.where(valid, tf.nn.log_softmax(tf.where(valid, negatives, padding)), padding)


def _square(scores: Tensor) -> tf.Tensor:
    """Returns r^2, clipped so that it is finite for scores of any size."""
    return tf.square(tf.clip_by_value(scores, -MAX_SCORE, MAX_SCORE))
