"""Types used in public signatures."""

from collections.abc import Mapping, Sequence
from typing import Any

Tensor = Any
"""A tensor, or anything that converts to one (a NumPy array, a Keras variable)."""

Shape = Sequence[Any]
"""The sizes of a tensor's axes: integers, and None where one is unknown."""

Batch = Mapping[str, Tensor]
"""A batch to train on or to score. It always has `users [b]`, `items [b, n]` (right-padded with 0) and `lengths [b]`,
all int32; each kind of training example adds its own entries."""
