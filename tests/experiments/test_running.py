"""Figure 2's attention against a plain mean, one user at a time."""

import keras
import numpy as np
import pytest

from bert4rec_tf.config import presets
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import BERT4Rec
from experiments import running

NUM_ITEMS, MAX_LENGTH = 30, 14


def sequences(lengths):
    users = np.repeat(np.arange(len(lengths)), lengths)
    codes = np.concatenate([np.arange(NUM_ITEMS), np.random.default_rng(0).integers(0, NUM_ITEMS, sum(lengths))])
    names = [np.array([str(number) for number in range(count)], object) for count in (len(lengths), NUM_ITEMS)]
    return Sequences.from_codes(users, codes[: sum(lengths)], *names)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return BERT4Rec(
        NUM_ITEMS, max_length=MAX_LENGTH, hidden_dim=8, num_layers=2, num_heads=2, dropout=0.5, initializer_stddev=1.0
    )


def plain(model, histories, users):
    """Sums the rows of one user after the other, with nothing but slices."""
    maps = []
    for user in users:
        items = [*histories[user][-(MAX_LENGTH - 1) :], model.num_items + 1]
        if len(items) < 10:
            continue
        _, layers = model.encode(np.array([items], np.int32), return_attention=True)
        last = np.array([np.asarray(layer)[0][:, -10:, -10:] for layer in layers], np.float64)
        maps.append(last / last.sum(axis=3, keepdims=True))
    return np.mean(maps, axis=0), len(maps)


def test_it_is_the_plain_mean_over_users_of_ten_inputs(model, tmp_path):
    run, split = presets.make_run("synthetic"), LeaveOneOut(sequences([9, 10, 11, 12, 13, 20, 40, 3, 15]))
    running.keep_attention(tmp_path / "new" / "attention.json", run, model, split.sequences)
    kept = files.read_json(tmp_path / "new" / "attention.json")
    expected, users = plain(model, split.histories("test"), split.users)
    assert kept["key"] == run.digest
    assert kept["users"] == users == 7, "a user of ten actions has nine before the test item, and the mask token"
    np.testing.assert_allclose(kept["attention"], expected, atol=2e-6)
    np.testing.assert_allclose(np.sum(kept["attention"], axis=-1), 1, atol=1e-5)
    assert np.std(kept["attention"]) > 0.01, "the example attends to some positions more than to others"
    in_batches, _ = running.compute_mean_attention(model, split.histories("test"), split.users, batch_size=2)
    np.testing.assert_allclose(in_batches, expected, atol=2e-6)


def test_no_long_history_is_a_mistake_of_the_user(model):
    split = LeaveOneOut(sequences([5, 6, 7]))
    with pytest.raises(UserError, match="at least 10 positions"):
        running.compute_mean_attention(model, split.histories("test"), split.users)
