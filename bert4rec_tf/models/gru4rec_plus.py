"""GRU4Rec+: GRU4Rec with better losses and more negatives (Hidasi & Karatzoglou, CIKM 2018)."""

from typing import Any

import keras

from bert4rec_tf.models.gru4rec import GRU4Rec


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class GRU4RecPlus(GRU4Rec):
    """GRU4Rec with BPR-max, elu-0.5 on the scores, and extra negatives by count^0.75 that all rows of a batch share.

    The arguments are GRU4Rec's; only what is usual differs. With 128 rows, 16 extra negatives each are the authors'
    2,048.
    """

    def __init__(
        self,
        num_items: int,
        max_length: int = 50,
        hidden_dim: int = 100,
        dropout: float = 0.0,
        loss: str = "bpr_max",
        final_activation: str = "elu-0.5",
        regularization: float = 1.0,
        extra_negatives: int = 16,
        alpha: float = 0.75,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_items,
            max_length,
            hidden_dim,
            dropout,
            loss,
            final_activation,
            regularization,
            extra_negatives,
            alpha,
            **kwargs,
        )
