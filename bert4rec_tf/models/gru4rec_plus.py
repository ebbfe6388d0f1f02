"""GRU4Rec+: GRU4Rec with better losses and more negatives (Hidasi & Karatzoglou, CIKM 2018)."""

from typing import ClassVar

import keras

from bert4rec_tf.config.model_settings import GRU4RecPlusSettings
from bert4rec_tf.models.gru4rec import GRU4Rec


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class GRU4RecPlus(GRU4Rec):
    """GRU4Rec with BPR-max, elu-0.5 on the scores, and extra negatives, drawn by count^0.75, that a batch shares.

    With 128 rows per batch, 16 extra negatives per row make the authors' 2,048.
    """

    settings_type: ClassVar = GRU4RecPlusSettings
