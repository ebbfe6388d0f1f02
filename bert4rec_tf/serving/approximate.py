"""Approximate search: recommends by an export's index of items, instead of scoring all items."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from bert4rec_tf.export.item_index import INDEX, ItemIndex
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines

Arrays = Mapping[str, np.ndarray]
Call = Callable[[str, Arrays], dict[str, np.ndarray]]


class ApproximateSearch:
    """Answers `recommend` and `serving_default` with the inputs and outputs of these signatures.

    Scores are products with rows in float16, never log-probabilities, whose normaliser needs all items. Some rows are
    searched exactly, with the scores of exact search: users without a known item, users for whom the index finds too
    few items, and requests with candidates.

    Args:
        folder: of the SavedModel.
        items: its raw ids.
        call: calls a signature of the model.

    Raises:
        UserError: if the index is missing, damaged or not of this model, or faiss is not installed.
    """

    def __init__(self, folder: Path, items: Lines, call: Call) -> None:
        self._index, self._items, self._call = ItemIndex.read(folder / INDEX), items, call
        if len(self._index) != len(items):
            raise UserError(f"{folder / INDEX}: is not of this model, which has {len(items)} items")

    def recommend(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Returns `items`, bytes [b, k], `scores`, float32 [b, k], and `unknown`, int32 [b].

        Args:
            inputs: name -> array, of `recommend`. Inputs that are left out have the export's defaults.

        Raises:
            ValueError: for another `popularity_correction` than the export's, or if the index does not fit the model.
        """
        known = self._index.popularity_correction
        wanted = inputs.get("popularity_correction", np.float32(known))
        if wanted != np.float32(known):
            raise ValueError(
                f"`popularity_correction` must be the export's in approximate search, {known:g}. Received: {wanted:g}"
            )
        whom = {name: array for name, array in inputs.items() if name in ("histories", "users")}
        k, nothing = int(inputs.get("k", self._index.k)), np.zeros([1, 0], object)
        if k < 1 or inputs.get("candidates", nothing).any():
            return self._call("recommend", inputs)
        k, rows = min(k, len(self._items)), len(whom["histories"])
        encoded = self._call("encode", whom)
        seen = [set(row) for row in whom["histories"]] if inputs.get("exclude_seen", True) else [set()] * rows
        excluded = [set(row) for row in inputs.get("exclude", nothing)]
        if len(excluded) not in (1, rows):
            raise ValueError(f"`exclude` must have 1 row or {rows}. Received: {len(excluded)}")
        hidden = [one | excluded[row % len(excluded)] for row, one in enumerate(seen)]
        most = min(k + max(map(len, hidden), default=0), len(self._items))
        found, found_scores = self._index.search(encoded["vectors"], most)
        items, scores = np.full([rows, k], b"", object), np.full([rows, k], -np.inf, np.float32)
        exact = []
        for row in range(rows):
            pairs = zip(found[row], found_scores[row])
            named = [(self._items.bytes_of(int(item) - 1), score) for item, score in pairs if item > 0]
            kept = [(name, score) for name, score in named if name not in hidden[row]][:k]
            if len(kept) < k or not encoded["vectors"][row].any():
                exact.append(row)
            else:
                items[row], scores[row] = zip(*kept)
        if exact:
            asked = {name: np.asarray(array) for name, array in inputs.items()}
            of_rows = [name for name, one in asked.items() if name in whom or (one.ndim == 2 and len(one) > 1)]
            asked |= {name: asked[name][exact] for name in of_rows}
            answer = self._call("recommend", {**asked, "k": np.int32(k)})
            items[exact], scores[exact] = answer["items"], answer["scores"]
        return {"items": items, "scores": scores, "unknown": encoded["unknown"]}
