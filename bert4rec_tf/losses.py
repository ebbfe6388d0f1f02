"""The losses of the models: `bert4rec_tf.losses`.

The classes are Keras' losses, for the `loss` of `compile`, and compare a target with all other items. Their targets are
numbers of items, int [...], and their scores float [..., rows], column i for item i; column 0 is padding, and does not
count. Targets of 0 do not count; targets may be [..., 1] too.

The functions compare with what they are given: a sample, the other targets of a batch, or a whole table, in pieces that
fit into memory. They need more than targets and scores, so `compile` cannot call them.
"""

from typing import Any

import keras
import tensorflow as tf

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.nn.losses import (
    binary_cross_entropy,
    bpr,
    bpr_max,
    sampled_softmax,
    sum_in_chunks,
    table_cross_entropy,
    top1,
    top1_max,
)
from bert4rec_tf.nn.targets import match_targets

__all__ = [
    "BPR",
    "TOP1",
    "BPRMax",
    "BinaryCrossEntropy",
    "SoftmaxCrossEntropy",
    "TOP1Max",
    "binary_cross_entropy",
    "bpr",
    "bpr_max",
    "sampled_softmax",
    "sum_in_chunks",
    "table_cross_entropy",
    "top1",
    "top1_max",
]

HIDDEN = -1e9
"""The score of a column that is no negative."""


class ItemLoss(keras.losses.Loss):
    """The mean over the targets of a loss against all other items.

    Raises UserError for a `dtype` that is narrower than float32, in which Keras would round the targets.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.dtype in ("float16", "bfloat16"):
            raise UserError(
                f"`dtype` must be float32 or float64: narrower ones round targets. Received: dtype={self.dtype}"
            )

    def compare(self, positives: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
        """Returns the loss of each target, float [t].

        `positives`: float [t], the scores of the targets. `negatives`: float [t, rows], those of all columns; `valid`,
        bool [t, rows], is False for padding and the target itself, whose scores are HIDDEN.
        """
        raise NotImplementedError

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        scores = tf.convert_to_tensor(y_pred)
        targets = match_targets(y_true, scores)
        columns = tf.range(tf.shape(scores)[-1])
        valid = (columns != 0) & (columns != targets[..., None])
        positives = tf.gather(scores, targets, batch_dims=len(targets.shape))
        losses = self.compare(positives, tf.where(valid, scores, tf.cast(HIDDEN, scores.dtype)), valid)
        losses._keras_mask = targets > 0
        return losses


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class SoftmaxCrossEntropy(ItemLoss):
    """Cross-entropy over all items, without padding: the Cloze loss of BERT4Rec."""

    def compare(self, positives: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
        return tf.reduce_logsumexp(tf.concat([positives[..., None], negatives], axis=-1), axis=-1) - positives


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class BinaryCrossEntropy(ItemLoss):
    """`binary_cross_entropy`: the sum over all other items."""

    def compare(self, positives: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
        return binary_cross_entropy(positives, negatives)


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class BPR(ItemLoss):
    """`bpr`: the mean over all other items."""

    def compare(self, positives: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
        share = tf.reduce_mean(tf.cast(valid, negatives.dtype), axis=-1)
        return tf.math.divide_no_nan(bpr(positives, negatives), share)


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class TOP1(ItemLoss):
    """`top1`: the mean over all other items and the target."""

    def compare(self, positives: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
        return top1(positives, negatives, valid)


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class TOP1Max(ItemLoss):
    """`top1_max`: TOP1's terms, weighted by the softmax over all other items."""

    def compare(self, positives: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
        return top1_max(positives, negatives, valid)


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class BPRMax(ItemLoss):
    """`bpr_max`, weighted by the softmax over all other items. `regularization` pulls their scores towards 0."""

    def __init__(self, regularization: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.regularization = regularization

    def compare(self, positives: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
        return bpr_max(positives, negatives, valid, self.regularization)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "regularization": self.regularization}


def __dir__() -> list[str]:
    return __all__
