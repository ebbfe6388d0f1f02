"""The minutes that a run may take."""

import dataclasses
import math
import numbers
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bert4rec_tf.config.model_settings import COUNTING_MODELS
from bert4rec_tf.config.run_record import SELECT, SELECT_AND_RETRAIN, TRAININGS
from bert4rec_tf.foundation.errors import UserError

MIN_SIZES = {"hidden_dim": 32, "max_length": 10}
"""The settings that make a step quicker when they are halved -> how small they become at least."""

FOLLOWING = ("num_heads", "intermediate_dim")
"""The settings that follow from `hidden_dim` where they are not named, in models with such a rule."""

PLANNED = (*MIN_SIZES, *FOLLOWING, "steps", "warmup_steps", "evaluate_every", "final_share")
"""The settings that a plan may change."""


@dataclass(frozen=True)
class Budget:
    """The time for a run.

    Attributes:
        minutes: for everything, from reading the data to the exported model.
        named_settings: the settings that the user named, which stay.
        begin: when it began, by `time.monotonic()`.

    Raises UserError if `minutes` is no number above 0.
    """

    minutes: float
    named_settings: Collection[str] = ()
    begin: float = dataclasses.field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        is_number = isinstance(self.minutes, numbers.Real) and not isinstance(self.minutes, bool)
        if not is_number or not 0 < self.minutes < math.inf:
            raise UserError(f"`minutes` must be a number above 0. Received: minutes={self.minutes!r}")

    @property
    def spent_seconds(self) -> float:
        """The seconds since it began."""
        return time.monotonic() - self.begin

    def record(self) -> dict[str, Any]:
        """Returns what a folder keeps until the run is planned."""
        return {"minutes": float(self.minutes), "named": sorted(self.named_settings)}

    def check(self, model: str, protocol: str = SELECT_AND_RETRAIN, replicas: int = 1, **others: Any) -> None:
        """Raises UserError if a run of a model with these settings cannot be planned."""
        for name in ("steps", "stop_after"):
            if name in self.named_settings:
                raise UserError(f"`minutes` must be left out with `{name}`, which it plans. Received: both")
        if model in COUNTING_MODELS:
            raise UserError(
                f"`minutes` must be left out for {model}, which is not trained. Received: minutes={self.minutes:g}"
            )
        if SELECT not in TRAININGS[protocol] or replicas > 1:
            raise UserError(
                "`minutes` needs one device, and a protocol that selects on the validation items. Received: "
                f"protocol={protocol}, replicas={replicas}"
            )
