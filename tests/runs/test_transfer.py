"""Weights that go from one model to another: rows by raw ids, against plain Python."""

import keras
import numpy as np
import pytest

from bert4rec_tf.config.run_record import Run
from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.models import MODELS
from bert4rec_tf.runs.warm_start import StartWeights

SMALL = {"hidden_dim": 16, "max_length": 8, "num_heads": 2, "extra_negatives": 2, "markov_order": 3}
OLD_ITEMS, OLD_USERS = [f"item {number}" for number in range(41)], [f"user {number}" for number in range(67)]
NEW_ITEMS = ["new a", *OLD_ITEMS[:4:-2], *(f"new {number}" for number in range(27)), *OLD_ITEMS[10:2:-2], "new ü"]
NEW_USERS = [*(f"new {number}" for number in range(9)), *OLD_USERS[60:20:-1], *OLD_USERS[:5], *OLD_USERS[20:10:-1]]
every_trained_model = pytest.mark.parametrize(
    "name", [name for name, kind in MODELS.items() if kind.examples is not None]
)


def make(name, items, users, seed=1, **changes):
    keras.utils.set_random_seed(seed)
    known = Run.make("beauty", name).to_dict()["architecture"]
    options = {**known, **{key: value for key, value in {**SMALL, **changes}.items() if key in known}}
    if MODELS[name].needs_users:
        options["num_users"] = len(users)
    return MODELS[name](len(items), **options)


def trained(name, items=OLD_ITEMS, users=OLD_USERS, **changes):
    """A model whose weights are all different, and large enough to see."""
    model, rng = make(name, items, users, **changes), np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.5, weight.shape))
    return model


def source_of(name, model):
    return StartWeights(name, model, OLD_ITEMS, OLD_USERS if model.needs_users else [])


def values(model):
    return [np.asarray(weight).copy() for weight in model.weights]


def moved_by_labels(old, fresh, old_labels, new_labels):
    """The row of each label: the old one where there is one."""
    rows = dict(zip(old_labels, old, strict=True))
    return np.array([rows.get(label, row) for label, row in zip(new_labels, fresh, strict=True)], fresh.dtype)


def expected_of(old, fresh, items=(OLD_ITEMS, NEW_ITEMS), users=(OLD_USERS, NEW_USERS)):
    """What a weight must become, told by its length alone."""
    for ids, before, special in ((items, ["padding"], ["mask"]), (users, [], [])):
        for labels in ([[*before, *side] for side in ids], [[*before, *side, *special] for side in ids]):
            if [*old.shape[:1], *fresh.shape[:1]] == [len(side) for side in labels]:
                return moved_by_labels(old, fresh, *labels)
    assert old.shape == fresh.shape
    return old


@every_trained_model
def test_rows_go_to_where_their_raw_ids_are(name):
    old, new = trained(name), make(name, NEW_ITEMS, NEW_USERS)
    fresh = values(new)
    assert len({len(OLD_ITEMS), len(NEW_ITEMS), len(OLD_USERS), len(NEW_USERS)}) == 4
    source_of(name, old).apply_to(new, NEW_ITEMS, NEW_USERS)
    for weight, before, start in zip(values(new), values(old), fresh, strict=True):
        np.testing.assert_array_equal(weight, expected_of(before, start))


def histories(items, users, length=6):
    """Histories of items that both sides know, and the ids that both score."""
    both = [item for item in OLD_ITEMS if item in NEW_ITEMS]
    rows = np.array(
        [[items.index(both[(5 * row + place) % len(both)]) + 1 for place in range(length)] for row in (0, 1)]
    )
    batch = {
        "users": np.array([users.index(user) for user in ("user 3", "user 25")], np.int32),
        "items": rows.astype(np.int32),
        "lengths": np.array([length, length], np.int32),
    }
    return batch, [items.index(item) for item in both]


@pytest.mark.parametrize("name", ["bert4rec", "sasrec", "gru4rec"])
@pytest.mark.parametrize("max_length", [6, 13])
def test_a_position_keeps_its_meaning_under_another_length(name, max_length):
    """Histories that both can read whole score as before; what was never read is fresh."""
    old, new = trained(name), make(name, NEW_ITEMS, NEW_USERS, max_length=max_length)
    source_of(name, old).apply_to(new, NEW_ITEMS, NEW_USERS)
    before, columns = histories(OLD_ITEMS, OLD_USERS, 5)
    after, new_columns = histories(NEW_ITEMS, NEW_USERS, 5)
    expected = np.asarray(old.score(before))[:, columns]
    np.testing.assert_allclose(np.asarray(new.score(after))[:, new_columns], expected, atol=1e-5, rtol=1e-5)


def test_values_of_features_may_have_the_name_of_another_column_s():
    """The columns `genre` and `genre ` give the same names."""
    names = np.array(["genre=a", "genre=b", "genre=a"], object)
    features = Features(np.array(OLD_ITEMS, object), np.arange(42), np.arange(41, dtype=np.int32) % 3, names)
    options = {"hidden_dim": 16, "max_length": 8, "use_item_features": "add", "features": {"item_features": features}}
    old, new = (MODELS["sasrec"](41, **options) for _ in range(2))
    source_of("sasrec", old).apply_to(new, OLD_ITEMS, OLD_USERS)
    before, after = (np.asarray(model.item_feature_vectors) for model in (old, new))
    np.testing.assert_array_equal(after, before[[2, 1, 2]])


def test_the_fingerprint_is_that_of_the_content():
    model = trained("bpr_mf")
    source = source_of("bpr_mf", model)
    assert source.fingerprint == source_of("bpr_mf", model).fingerprint
    renamed = StartWeights("bpr_mf", model, [*OLD_ITEMS[:-1], "other"], OLD_USERS)
    model.users.assign_add(np.eye(*model.users.shape) * 1e-6)
    assert len({source.fingerprint, renamed.fingerprint, source_of("bpr_mf", model).fingerprint}) == 3
