"""What a SavedModel holds beside the model, and its defaults."""

from dataclasses import dataclass

import pandas as pd

from bert4rec_tf.config import popularity_option
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.errors import UserError


@dataclass(frozen=True, eq=False)
class ExportOptions:
    """The choices of an export as a SavedModel.

    Attributes:
        k: default number of items to return; a model with fewer items returns all.
        popularity_correction: default of this input of `recommend`, and what `serving_default` uses: items are ranked
            by score - popularity_correction * log(count + 1).
        histories: users' histories, to recommend to users by their ids; None for none.
        exclude_seen: default of this input of `recommend`, and what `serving_default` uses: whether to leave out the
            items of the histories. None for True, or what the data ask for (`runs.exporting`).
        titles: the content of a file of titles (`serving.titles`); None for none.
        attributes: of the items, indexed by their ids, for rules (`serving.rules`); None for none.

    Raises:
        UserError: for a k below 1, or a popularity correction that is negative or not finite.
    """

    k: int = 10
    popularity_correction: float = 0.0
    histories: Sequences | None = None
    exclude_seen: bool | None = None
    titles: str | None = None
    attributes: pd.DataFrame | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"`k` must be at least 1. Received: k={self.k}")
        popularity_option.check_correction(self.popularity_correction)


DEFAULT = ExportOptions()
