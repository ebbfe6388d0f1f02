"""The targets that the losses and metrics of Keras get, beside scores."""

import tensorflow as tf
from keras import ops

from bert4rec_tf.foundation.types import Tensor


def match_targets(targets: Tensor, scores: Tensor) -> Tensor:
    """Returns item numbers, [...] or [..., 1], as int32 [...], for scores [..., rows]. Raises ValueError for others."""
    targets = ops.convert_to_tensor(targets)
    if len(targets.shape) == len(scores.shape) and targets.shape[-1] != 1:
        raise ValueError(
            "`y_true` must be item numbers, one for each row of scores; `argmax` makes them of one-hot rows. "
            f"Received: y_true of shape {tuple(targets.shape)}"
        )
    column = match_rank(ops.cast(targets, "int32"), len(scores.shape) - 1)
    if not tf.TensorShape(column.shape).is_compatible_with(scores.shape[:-1]):
        raise ValueError(
            "`y_true` must have one item number for each row of scores. "
            f"Received: y_true of shape {tuple(targets.shape)}, scores of shape {tuple(scores.shape)}"
        )
    return column


def match_rank(column: Tensor, rank: int) -> Tensor:
    """Returns a column with axes of size 1 added or taken away at the end, as Keras' own metrics do with [b, 1]."""
    while len(column.shape) < rank:
        column = column[..., None]
    return ops.squeeze(column, axis=-1) if len(column.shape) > rank else column
