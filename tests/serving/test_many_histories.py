"""Many histories at once are ranked by a table of all pairs of items, with the same results to the bit."""

import numpy as np
import pytest
import tensorflow as tf
from support import models

from bert4rec_tf.export.saved_model import export
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.serving import batch, signatures
from bert4rec_tf.serving.client import Choices, SavedRecommender

ITEMS = models.SEQUENCES.vocabulary.items.tolist()
HISTORIES = [[], ["unknown"], ITEMS[:1], ITEMS[3:9] * 2, *([item] * 3 for item in ITEMS), ITEMS[::-1]]
ROWS = [(f"user{number}", history) for number, history in enumerate(HISTORIES)]


@pytest.mark.long
@pytest.mark.parametrize("choices", [Choices(k=5), Choices(k=3, candidates=ITEMS[:7], popularity_correction=0.5)])
@pytest.mark.parametrize("name", ["item_transitions", "pop"])
def test_a_table_of_pairs_changes_no_bit_and_is_emptied(tmp_path, monkeypatch, name, choices):
    export(models.make(name), models.SEQUENCES.vocabulary, tmp_path / "model")
    model, sizes = SavedRecommender(tmp_path / "model"), []
    call, table = model.call, getattr(model._module, "pair_table", tf.zeros([0, 0]))

    def recommend(many):
        monkeypatch.setattr(signatures, "MANY_HISTORIES", many)
        return batch.recommend_rows(model, ROWS, choices, {ITEMS[0]: "first"}, Progress("", 1, silent=True))

    monkeypatch.setattr(model, "call", lambda *inputs: sizes.append(int(tf.size(table))) or call(*inputs))
    monkeypatch.setattr(batch, "BATCH_USERS", 16)
    expected, found = recommend(len(ROWS) + 1), recommend(len(ROWS))
    assert set(found) == {"user", "rank", "item", "score", "basis", "title"}
    for column, values in expected.items():
        np.testing.assert_array_equal(found[column], values)
    half = len(sizes) // 2
    filled = (len(ITEMS) + 1) ** 2 if name == "item_transitions" else 0
    assert sizes == [0] * half + [filled] * half and tf.size(table) == 0
    assert found["user"][found["rank"] == 1].tolist() == [user for user, _ in ROWS[:-1]]  # the last one has seen all
