"""The minutes that a run may take."""

import dataclasses
import math
import numbers
import time
from collections.abc import Collection
from dataclasses import dataclass

from bert4rec_tf.config.model_settings import COUNTING_MODELS
from bert4rec_tf.config.run_record import SELECT, TRAININGS, Run
from bert4rec_tf.foundation.errors import UserError


@dataclass(frozen=True)
class Budget:
    """The time for a run.

    Attributes:
        minutes: for everything, from reading the data to the exported model.
        named: the settings that the user named, which stay.
        begin: when it began, by `time.monotonic()`.

    Raises UserError if `minutes` is no number above 0.
    """

    minutes: float
    named: Collection[str] = ()
    begin: float = dataclasses.field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        is_number = isinstance(self.minutes, numbers.Real) and not isinstance(self.minutes, bool)
        if not is_number or not 0 < self.minutes < math.inf:
            raise UserError(f"`minutes` must be a number above 0. Received: minutes={self.minutes!r}")

    @property
    def spent(self) -> float:
        """The seconds since it began."""
        return time.monotonic() - self.begin

    def check(self, run: Run) -> None:
        """Raises UserError if a run cannot be planned."""
        if "steps" in self.named:
            raise UserError("`minutes` must be left out with `steps`, which it plans. Received: both")
        if run.model in COUNTING_MODELS:
            raise UserError(
                f"`minutes` must be left out for {run.model}, which is not trained. Received: minutes={self.minutes:g}"
            )
        if SELECT not in TRAININGS[run.training.protocol] or run.training.replicas > 1:
            raise UserError(
                "`minutes` needs one device, and a protocol that selects on the validation items. Received: "
                f"protocol={run.training.protocol}, replicas={run.training.replicas}"
            )
