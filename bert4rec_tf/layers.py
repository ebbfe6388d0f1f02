"""The layers of the models, to build others with Keras: `bert4rec_tf.layers`."""

from bert4rec_tf.models.sasrec import CausalBlock
from bert4rec_tf.nn.dropout import Dropout
from bert4rec_tf.nn.layers import (
    FeedForward,
    MaskedItemHead,
    MultiHeadAttention,
    PositionEmbedding,
    Residual,
    TransformerBlock,
)

__all__ = [
    "CausalBlock",
    "Dropout",
    "FeedForward",
    "MaskedItemHead",
    "MultiHeadAttention",
    "PositionEmbedding",
    "Residual",
    "TransformerBlock",
]


def __dir__() -> list[str]:
    return __all__
