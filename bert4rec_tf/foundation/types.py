"""Names for the types in public signatures."""

from collections.abc import Mapping, Sequence
from typing import Any

Tensor = Any
"""A tensor of the backend, or anything that converts to one (a NumPy array, a Keras variable)."""

Shape = Sequence[int | None]

Batch = Mapping[str, Tensor]
"""What a model trains on or scores. Always `users [b]`, `items [b, n]` (right-padded with 0) and `lengths [b]`, all
int32; a model's kind of example adds its own entries."""
