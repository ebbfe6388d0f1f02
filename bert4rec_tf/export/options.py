"""What a SavedModel holds beside the model, and its defaults."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bert4rec_tf.config import popularity
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.export import item_index
from bert4rec_tf.export.histories import Histories
from bert4rec_tf.export.layout import DTYPES, FLOAT
from bert4rec_tf.foundation.errors import UserError, unknown_name

if TYPE_CHECKING:
    from bert4rec_tf.models.recommender import Recommender

QUERIES = 256
"""The recall of an index is measured on at most this many users."""


@dataclass(frozen=True, eq=False)
class IndexRequest:
    """Asks for approximate search that finds the share `recall` of the best items of the users in `sequences`."""

    recall: float
    sequences: Sequences

    def __post_init__(self) -> None:
        item_index.check_recall("recall", self.recall)

    def vectors(self, model: "Recommender") -> np.ndarray:
        """Returns the vectors of the users on whom the recall is measured, float32 [q, d]."""
        chosen = np.sort(np.random.default_rng(0).permutation(self.sequences.num_users)[:QUERIES])
        width = max(1, min(int(self.sequences.lengths[chosen].max()), model.max_history or 1))
        items, lengths = self.sequences.last(chosen, width)
        batch = {"users": chosen.astype(np.int32), "items": items, "lengths": lengths}
        return np.asarray(model.user_vectors(batch))


@dataclass(frozen=True, eq=False)
class ExportOptions:
    """The choices of an export as a SavedModel.

    Attributes:
        k: default number of items to return; a model with fewer items returns all.
        popularity_correction: default of this input of `recommend`, and what `serving_default` uses: items are ranked
            by score - popularity_correction * log(count + 1). `runs.exporting` also takes CHOOSE, the alpha that
            `evaluate` chose.
        histories: users' histories, to recommend to users by their ids; None for none.
        dtype: type of the rows of items and users: FLOAT, or HALF for half the size (`export.products`).
        index: what the index for approximate search must do; None for no index.

    Raises:
        UserError: for a k below 1, a popularity correction that is negative or not finite, another dtype, or an index
            without the package for it.
    """

    k: int = 10
    popularity_correction: float | str = 0.0
    histories: Histories | None = None
    dtype: str = FLOAT
    index: IndexRequest | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"`k` must be at least 1. Received: k={self.k}")
        if self.popularity_correction != popularity.CHOOSE:
            popularity.check(float(self.popularity_correction))
        if self.dtype not in DTYPES:
            raise unknown_name("dtype", self.dtype, DTYPES)
        if self.index is not None:
            item_index.needed()


DEFAULT = ExportOptions()
