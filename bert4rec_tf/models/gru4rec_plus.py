"""GRU4Rec+: GRU4Rec with better losses and more negatives (Hidasi & Karatzoglou, CIKM 2018)."""

from typing import Any

import keras

from bert4rec_tf.models.gru4rec import GRU4Rec

USUAL = {"loss": "bpr_max", "final_activation": "elu-0.5", "regularization": 1.0, "extra_negatives": 16}
"""With 128 rows per batch, 16 extra negatives for each are the authors' 2,048."""


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class GRU4RecPlus(GRU4Rec):
    """GRU4Rec with BPR-max, elu-0.5 on the scores, and extra negatives by count^0.75 that all rows of a batch share.

    Args:
        num_items: n.
        **settings: as for `GRU4Rec`; USUAL where they are not given.
    """

    def __init__(self, num_items: int, **settings: Any) -> None:
        super().__init__(num_items, **{**USUAL, **settings})
