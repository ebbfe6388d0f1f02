"""Dot-product attention and GELU, as BERT4Rec's and SASRec's layers share them."""

import math

import tensorflow as tf
from keras import ops

from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.nn.dropout import Dropout


def gelu(inputs: Tensor) -> tf.Tensor:
    """Returns the exact GELU of floats, x Phi(x) (equation 3), in the form that converters to ONNX and LiteRT know."""
    return (0.5 * inputs) * (1.0 + tf.math.erf(inputs / math.sqrt(2.0)))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    penalty: Tensor | None,
    dropout: Dropout,
    training: bool | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns Dropout(softmax(Q K^T / sqrt(d / h) + penalty)) V in every head (equation 2).

    Args:
        query: [b, m, d], float32 or narrower. The matrix products run in this type.
        key, value: [b, n, d] of the same type.
        num_heads: h, a divisor of d.
        penalty: broadcast to [b, h, m, n] and added to the scores.
        dropout: the layer for the probabilities, which acts in `training`.

    Returns:
        [b, m, d] of the type of `query`, and the probabilities before dropout, float32 [b, h, m, n] (query, key),
        through which no gradient flows.
    """
    query, key, value = (tf.convert_to_tensor(part) for part in (query, key, value))
    narrow_dtype, wide_dtype = query.dtype, tf.float64 if query.dtype == tf.float64 else tf.float32
    scaled_query = query * (1.0 / math.sqrt(query.shape[-1] // num_heads))
    queries, keys, values = (_split_heads(part, num_heads) for part in (scaled_query, key, value))
    shape = tf.concat([tf.shape(queries)[:3], tf.shape(keys)[2:3]], axis=0)
    keep_mask = dropout.draw_keep_mask(shape, training)
    scores = tf.cast(tf.matmul(queries, keys, transpose_b=True), wide_dtype)
    probabilities = tf.nn.softmax(scores if penalty is None else scores + tf.cast(penalty, wide_dtype))
    weights = probabilities if keep_mask is None else probabilities * tf.cast(keep_mask, wide_dtype)
    context = tf.matmul(tf.cast(weights, narrow_dtype), values) * (1.0 if keep_mask is None else dropout.factor)
    outputs = context[:, 0] if num_heads == 1 else tf.reshape(tf.transpose(context, (0, 2, 1, 3)), ops.shape(query))
    return outputs, tf.stop_gradient(probabilities)


def _split_heads(values: tf.Tensor, num_heads: int) -> tf.Tensor:
    """Returns [b, n, d] as [b, h, n, d / h].

    One head has no axes to change: the converter to ONNX would take the wrong shape from changing an axis of one.
    """
    if num_heads == 1:
        return values[:, None]
    # Of one feature: the converter to ONNX takes the shape of a dense layer's reshaped outputs from before the reshape.
    batch, length = ops.shape(values[..., 0])
    width = values.shape[-1]
    return tf.transpose(tf.reshape(values, [batch, length, num_heads, width // num_heads]), (0, 2, 1, 3))
