"""Features beside sequences."""

import numpy as np
from support.ranking_oracle import make_sequences

from bert4rec_tf.config.model_settings import ITEM_FEATURES, USER_FEATURES
from bert4rec_tf.data.features import Features, attached
from bert4rec_tf.data.sequences import mask_token

SEQUENCES = make_sequences([[1, 2, 3], [3, 2, 4, 1]], 4)


def features_of(rows):
    names = sorted({value for values in rows.values() for value in values})
    flat = [names.index(value) for values in rows.values() for value in values]
    splits = np.cumsum([0, *map(len, rows.values())])
    return Features(np.array(list(rows), object), splits, np.array(flat, np.int32), np.array(names, object))


OF_ITEMS = features_of({"new": ["a", "b"], "item3": ["b"], "item1": [], "other": ["a"]})


def test_items_without_actions_come_after_all_others():
    found = attached(SEQUENCES, {ITEM_FEATURES: OF_ITEMS})
    words = found.vocabulary
    assert words.items.tolist() == ["item1", "item2", "item3", "item4", "new", "other"]
    assert words.counts.tolist() == [*SEQUENCES.vocabulary.counts.tolist(), 0, 0] and mask_token(words.num_items) == 7
    features = found.features[ITEM_FEATURES]
    rows = np.split(features.names[features.values], features.splits[1:-1])
    assert [row.tolist() for row in rows] == [[], [], ["b"], [], ["a", "b"], ["a"]]
    assert np.array_equal(found.items, SEQUENCES.items) and found.num_items == 6


def test_users_without_actions_are_left_out():
    of_users = features_of({"user1": ["x"], "nobody": ["x", "y"]})
    found = attached(SEQUENCES, {USER_FEATURES: of_users})
    features = found.features[USER_FEATURES]
    assert features.lengths.tolist() == [0, 1] and features.ids.tolist() == ["user0", "user1"]
    assert found.vocabulary is SEQUENCES.vocabulary


def test_features_of_one_kind_stay_where_those_of_the_other_come_later():
    features = {ITEM_FEATURES: OF_ITEMS, USER_FEATURES: features_of({"user1": ["x"]})}
    both = attached(SEQUENCES, features)
    found = SEQUENCES
    for name, one in features.items():
        found = attached(found, {name: one})
    assert found.fingerprint == both.fingerprint == attached(found, {}).fingerprint


def test_features_are_part_of_the_fingerprint_and_none_leaves_it_as_it_was():
    assert attached(SEQUENCES, {}).fingerprint == SEQUENCES.fingerprint
    one = attached(SEQUENCES, {ITEM_FEATURES: features_of({"item1": ["a"], "item2": ["a"]})})
    other = attached(SEQUENCES, {ITEM_FEATURES: features_of({"item1": ["a"], "item3": ["a"]})})
    assert len({SEQUENCES.fingerprint, one.fingerprint, other.fingerprint}) == 3
