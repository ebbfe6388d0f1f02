"""HR, NDCG and MRR as Keras' metrics: `bert4rec_tf.metrics`. The values are those of `evaluation.metrics`.

Targets are numbers of items, int [...], and scores are float [..., rows], column i for item i. The target is ranked
among all columns but that of padding, 0, with ties against it. Targets of 0 do not count. Targets may be [..., 1] too.
"""

import math
from typing import Any

import keras
from keras import ops

from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.nn.layers import check_size
from bert4rec_tf.nn.targets import match_rank, match_targets

__all__ = ["MRR", "NDCG", "HitRate"]


class RankMetric(keras.metrics.Mean):
    """The mean over targets of a gain that depends on the target's rank, 0 for the best."""

    _direction = "up"  # Keras' callbacks read it

    def compute_gains(self, ranks: Tensor) -> Tensor:
        """Returns what each rank is worth. `ranks`: float [...]."""
        raise NotImplementedError

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        scores = ops.convert_to_tensor(y_pred)
        targets = match_targets(y_true, scores)
        target_scores = ops.take_along_axis(scores, targets[..., None], axis=-1)
        is_reached = ops.logical_not(scores[..., 1:] < target_scores)  # NaN is at least anything
        ranks = ops.maximum(ops.sum(ops.cast(is_reached, self.dtype), axis=-1) - 1, 0)  # -1: padding before all items
        weights = ops.cast(targets > 0, self.dtype)
        if sample_weight is not None:
            weights = weights * match_rank(ops.cast(sample_weight, self.dtype), len(targets.shape))
        super().update_state(self.compute_gains(ranks), weights)


class CutOffMetric(RankMetric):
    """A metric of the first `k` items."""

    prefix: str

    def __init__(self, k: int = 10, name: str | None = None, **options: Any) -> None:
        super().__init__(name=name or f"{self.prefix}@{k}", **options)
        self.k = check_size("k", k)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "k": self.k}


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class HitRate(CutOffMetric):
    """HR@k: the share of targets among the `k` best items."""

    prefix = "hr"

    def compute_gains(self, ranks: Tensor) -> Tensor:
        return ops.cast(ranks < self.k, self.dtype)


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class NDCG(CutOffMetric):
    """NDCG@k with one target: 1 / log2(rank + 2) if it is among the `k` best items, else 0."""

    prefix = "ndcg"

    def compute_gains(self, ranks: Tensor) -> Tensor:
        return ops.where(ranks < self.k, math.log(2) / ops.log(ranks + 2), 0.0)


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class MRR(RankMetric):
    """The mean of 1 / (rank + 1)."""

    def __init__(self, name: str = "mrr", **options: Any) -> None:
        super().__init__(name=name, **options)

    def compute_gains(self, ranks: Tensor) -> Tensor:
        return 1 / (ranks + 1)


def __dir__() -> list[str]:
    return __all__
