"""The training examples of any network."""

from typing import Any

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.in_memory import EXAMPLE_KINDS
from bert4rec_tf.data.examples.masked import MaskedExamples
from bert4rec_tf.data.examples.rows import Examples
from bert4rec_tf.data.sequences import Sequences

MASKED = "masked"
"""The value of `Recommender.examples` for the Cloze task. The others are in EXAMPLE_KINDS; None is for no training."""


def make_examples(network: Any, sequences: Sequences, masking: MaskingSettings) -> Examples:
    """Returns what a `Recommender` is trained on. `masking`: how histories are masked, anew in every epoch."""
    if network.examples == MASKED:
        return MaskedExamples(sequences, network.max_length, masking)
    return EXAMPLE_KINDS[network.examples](sequences, **network.example_options)
