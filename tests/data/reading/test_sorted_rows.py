"""Rows without times that are sorted by item teach a model the sorting; the reader says so."""

import numpy as np
import pandas as pd
import pytest

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.sources import datasets, inputs
from bert4rec_tf.foundation.warning import DataWarning

WARNING = "these rows are sorted"


def write(path, order, ids, has_times=False):
    """Writes 200 users with 8 of 300 items each, in the order that `order` makes of them."""
    rng = np.random.default_rng(0)
    rows = ["user,item" + ",time" * has_times]
    for user in range(200):
        for place, item in enumerate(order(rng.choice(300, 8, replace=False))):
            rows.append(f"u{user},{ids(item)}" + f",{1_600_000_000 + place}" * has_times)
    path.write_text("\n".join(rows) + "\n")
    return Interactions(str(path), time_column=None if has_times else "none")


@pytest.mark.parametrize(
    ("order", "ids", "has_times", "warns"),
    [
        (np.sort, lambda item: f"p{item:03}", False, True),
        (np.sort, lambda item: str(item + 1), False, True),  # as numbers: 9 before 10
        (lambda items: items, lambda item: f"p{item:03}", False, False),
        (np.sort, lambda item: f"p{item:03}", True, False),
    ],
)
def test_sorted_rows_without_times_are_warned_of(tmp_path, recwarn, order, ids, has_times, warns):
    datasets.load(write(tmp_path / "rows.csv", order, ids, has_times), tmp_path)
    told = [str(one.message) for one in recwarn if issubclass(one.category, DataWarning)]
    assert any(WARNING in line for line in told) == warns


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("has_times", [True, False])
def test_rows_whose_order_does_not_matter_are_not_doubted(tmp_path, recwarn, repeats, has_times):
    path = write(tmp_path / "rows.csv", lambda items: np.sort(np.repeat(items, repeats)), str, has_times).path
    for data in (path, pd.read_csv(path)):
        sequences = inputs.load_any(data, to_train=False, needs_order=False)[1]
        assert sequences.num_actions == 200 * 8 * repeats and not recwarn
        inputs.load_any(data, time="none", to_train=False)
        assert len(recwarn) == repeats and any(WARNING in str(one.message) for one in recwarn)
        recwarn.clear()
