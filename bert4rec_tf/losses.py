"""The losses of the models, as functions: `bert4rec_tf.losses`."""

from bert4rec_tf.nn.losses import (
    binary_cross_entropy,
    bpr,
    bpr_max,
    sampled_softmax,
    sum_in_pieces,
    table_cross_entropy,
    top1,
    top1_max,
)

__all__ = [
    "binary_cross_entropy",
    "bpr",
    "bpr_max",
    "sampled_softmax",
    "sum_in_pieces",
    "table_cross_entropy",
    "top1",
    "top1_max",
]


def __dir__() -> list[str]:
    return __all__
