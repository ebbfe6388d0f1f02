"""Features beside sequences."""

import dataclasses

import numpy as np
from support.features import add_vectors
from support.ranking_oracle import make_sequences

from bert4rec_tf.config.model_settings import ITEM_FEATURES, USER_FEATURES
from bert4rec_tf.data.feature_values import Features, attach_features
from bert4rec_tf.data.sequences import mask_token

SEQUENCES = make_sequences([[1, 2, 3], [3, 2, 4, 1]], 4)


def features_of(rows):
    names = sorted({value for values in rows.values() for value in values})
    flat = [names.index(value) for values in rows.values() for value in values]
    splits = np.cumsum([0, *map(len, rows.values())])
    return Features(np.array(list(rows), object), splits, np.array(flat, np.int32), np.array(names, object))


OF_ITEMS = features_of({"new": ["a", "b"], "item3": ["b"], "item1": [], "other": ["a"]})
FINGERPRINT = "b341d7a00d23cd7e5d2ef793e8e98b0fee55e21ea35fc4923debc3a4659193cb"
"""Of OF_ITEMS, from a version that knew no vectors."""


def test_items_without_actions_come_after_all_others():
    found = attach_features(SEQUENCES, {ITEM_FEATURES: OF_ITEMS})
    words = found.vocabulary
    assert words.items.tolist() == ["item1", "item2", "item3", "item4", "new", "other"]
    assert words.counts.tolist() == [*SEQUENCES.vocabulary.counts.tolist(), 0, 0] and mask_token(words.num_items) == 7
    features = found.features[ITEM_FEATURES]
    rows = np.split(features.names[features.values], features.splits[1:-1])
    assert [row.tolist() for row in rows] == [[], [], ["b"], [], ["a", "b"], ["a"]]
    assert np.array_equal(found.items, SEQUENCES.items) and found.num_items == 6


def test_users_without_actions_are_left_out():
    of_users = features_of({"user1": ["x"], "nobody": ["x", "y"]})
    found = attach_features(SEQUENCES, {USER_FEATURES: of_users})
    features = found.features[USER_FEATURES]
    assert features.lengths.tolist() == [0, 1] and features.ids.tolist() == ["user0", "user1"]
    assert found.vocabulary is SEQUENCES.vocabulary


def test_unknown_ids_have_no_vector():
    with_vectors = add_vectors(OF_ITEMS, 3)
    found = with_vectors.select_rows(["item3", "nobody", "other", "new"])
    np.testing.assert_array_equal(found.vectors, [with_vectors.vectors[1], [0] * 3, *with_vectors.vectors[[3, 0]]])
    assert found.vectors.dtype == np.float32 and found.num_values == 2 and found.vector_columns == [("text", 3)]
    assert "4 rows, 2 values of a, b, vectors of 3 numbers of text; 1 rows have none" in repr(found)


def test_each_column_of_vectors_is_scaled_to_length_1_and_others_stay_zero():
    vectors = np.array([[3, 4, 0, 0, -2], [0, 0, 0, 0, 0], [3e38, 4e38 / 1.5, 1e-30, 0, 0]], np.float32)
    names = np.array(["text[0]", "text[1]", "image[0]", "image[1]", "image[2]"], object)
    features = dataclasses.replace(OF_ITEMS, names=names, vectors=vectors)
    assert features.vector_columns == [("text", 2), ("image", 3)] and features.num_values == 0
    long = np.hypot(9, 8)
    expected = [[0.6, 0.8, 0, 0, -1], [0] * 5, [9 / long, 8 / long, 1, 0, 0]]
    np.testing.assert_allclose(features.compute_unit_vectors(), expected, rtol=1e-6)


def test_vectors_are_part_of_the_fingerprint_and_none_leaves_it_as_it_was():
    assert OF_ITEMS.fingerprint == FINGERPRINT
    one, other = add_vectors(OF_ITEMS, 3), add_vectors(OF_ITEMS, 3, seed=5)
    assert len({OF_ITEMS.fingerprint, one.fingerprint, other.fingerprint}) == 3
    again = Features.from_arrays(one.to_arrays())
    assert again.fingerprint == one.fingerprint and again.vectors.dtype == np.float32
    assert set(OF_ITEMS.to_arrays()) == {"ids", "splits", "values", "names"}


def test_features_are_part_of_the_fingerprint_and_none_leaves_it_as_it_was():
    assert attach_features(SEQUENCES, {}).fingerprint == SEQUENCES.fingerprint
    one = attach_features(SEQUENCES, {ITEM_FEATURES: features_of({"item1": ["a"], "item2": ["a"]})})
    other = attach_features(SEQUENCES, {ITEM_FEATURES: features_of({"item1": ["a"], "item3": ["a"]})})
    assert len({SEQUENCES.fingerprint, one.fingerprint, other.fingerprint}) == 3
