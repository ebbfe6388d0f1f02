"""The option `popularity_correction`: alpha, with which items are ranked by score - alpha log(count + 1).

It changes a ranking and not a training, so it is no setting of a `Run`.
"""

import numbers

from bert4rec_tf.foundation.errors import UserError

CORRECTION = "popularity_correction"
MAX_ALPHA = 3.4e38
"""The largest alpha: about the largest float32."""

MAX_PENALTY = 1e38
"""A score is lowered by at most this much, so that it is still a number."""


def check_correction(alpha: float) -> float:
    """Returns alpha. Raises UserError if it is no number, negative or not finite."""
    if not isinstance(alpha, numbers.Real) or isinstance(alpha, bool) or not 0 <= alpha <= MAX_ALPHA:
        raise UserError(f"`{CORRECTION}` must be at least 0 and finite. Received: {CORRECTION}={alpha!r}")
    return alpha
