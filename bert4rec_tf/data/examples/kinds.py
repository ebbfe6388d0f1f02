"""The training examples of any network."""

import inspect
import numbers
from collections.abc import Callable
from typing import Any

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.in_memory import EXAMPLE_KINDS
from bert4rec_tf.data.examples.masked import MaskedExamples
from bert4rec_tf.data.examples.rows import Examples
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.errors import UserError

MASKED = "masked"
"""The value of `Recommender.examples` for the Cloze task. The others are in EXAMPLE_KINDS; None is for no training."""


def make_examples(network: Any, sequences: Sequences, masking: MaskingSettings) -> Examples:
    """Returns what a `Recommender` is trained on. `masking`: how histories are masked, anew in every epoch."""
    if network.examples == MASKED:
        return MaskedExamples(sequences, network.max_length, masking)
    kind, options = EXAMPLE_KINDS[network.examples], network.example_options
    _check_options(network, kind, options)
    return kind(sequences, **options)


def _check_options(network: Any, kind: Callable[..., Examples], options: Any) -> None:
    """Raises UserError for options that examples of this kind do not take, that are missing, or that are no numbers."""
    parameters = [*inspect.signature(kind).parameters.values()][1:]
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    is_right = isinstance(options, dict) and required <= options.keys() <= {parameter.name for parameter in parameters}
    if not is_right or any(not isinstance(value, numbers.Real) or value < 0 for value in options.values()):
        raise UserError(
            f"`example_options` of {type(network).__name__} must be a property, a dictionary of numbers of at least 0, "
            f"of {', '.join(map(str, parameters))}. Received: {options!r}"
        )
