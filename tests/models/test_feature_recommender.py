"""Vectors of features and users in BERT4Rec and SASRec, against NumPy, finite differences, and models without them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.features import means_by_hand
from support.models import (
    FEATURES,
    HISTORIES,
    NUM_ITEMS,
    NUM_USERS,
    VECTORS,
    batches,
    check_gradients,
    make,
    make_quiet,
    make_training_step,
    tensors,
)
from support.profiles import slow_but
from support.ranking_oracle import make_sequences

from bert4rec_tf.config.model_settings import ITEM_FEATURES, USER_FEATURES
from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import MODELS
from bert4rec_tf.models.feature_recommender import fold_features

NAMES = ("bert4rec", "sasrec")
WAYS = {
    "add": {"use_item_features": "add"},
    "alone": {"use_item_features": "alone"},
    "users": {"use_user_features": True},
    "all": {"use_item_features": "add", "use_user_features": True},
}
EVERY = [(name, way) for name in NAMES for way in WAYS]
QUICK = [("bert4rec", "alone"), ("bert4rec", "all"), ("sasrec", "add"), ("sasrec", "users")]
every_way = pytest.mark.parametrize(("name", "way"), slow_but(QUICK, EVERY))


@pytest.mark.parametrize(("name", "way"), slow_but([("bert4rec", "all"), ("sasrec", "alone")], EVERY))
def test_gradients_are_those_of_finite_differences(name, way):
    for loss in losses_of(name):
        model = make_quiet(name, **WAYS[way], **loss)
        weights = [model.own_items, model.item_feature_vectors, model.user_feature_vectors]
        if name == "sasrec" and way == "alone":
            weights = weights[1:]  # own items are padding alone, which no position shows
        check_gradients(model, tensors(next(batches(model, 8))), [one for one in weights if one is not None])


def losses_of(name):
    return [{}, {"loss": "cross_entropy"}] if name == "sasrec" else [{}]


@pytest.mark.parametrize("features", [FEATURES, VECTORS], ids=["categories", "vectors"])
@every_way
def test_tables_are_own_vectors_means_of_values_and_unit_vectors_projected_and_can_be_folded(name, way, features):
    model = make(name, features=features, **WAYS[way])
    rows, own_rows = np.asarray(model.item_table()), np.asarray(model.own_items)
    num_masks = len(rows) - NUM_ITEMS - 1
    np.testing.assert_array_equal(rows[0], own_rows[0])
    np.testing.assert_array_equal(rows[NUM_ITEMS + 1 :], own_rows[len(own_rows) - num_masks :])
    for kind, table, vectors in (
        (ITEM_FEATURES, lambda: model.item_vectors(), model.item_feature_vectors),
        (USER_FEATURES, lambda: model.user_table(), model.user_feature_vectors),
    ):
        if kind in model.features:
            own = np.zeros((NUM_ITEMS if kind == ITEM_FEATURES else NUM_USERS, 16))
            if kind == ITEM_FEATURES and way != "alone":
                own = np.asarray(model.own_items)[1 : NUM_ITEMS + 1]
            expected = own + means_by_hand(np.asarray(vectors), features[kind])
            np.testing.assert_allclose(table(), expected, rtol=1e-4, atol=1e-6)
    plain, strangers = fold_features(model), {**HISTORIES, "users": np.full(4, -1, np.int32)}
    assert not plain.features and plain.needs_users == model.needs_users and fold_features(plain) is plain
    for batch in (HISTORIES, strangers):
        np.testing.assert_allclose(plain.score(batch), model.score(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_unseen_items_have_no_own_vector_beside_a_given_one(name):
    few = make_sequences([[1, 2, 4, 5, 6]] * 8, NUM_ITEMS)
    model, before = (make(name, features=VECTORS, use_item_features="add") for _ in range(2))
    model.adapt(few)
    own, drawn = np.asarray(model.own_items), np.asarray(before.own_items)
    same = [0, 1, 2, 3, 4, 5, 6, *range(NUM_ITEMS + 1, len(own))]  # item 3 is unseen, but has no vector
    np.testing.assert_array_equal(own[same], drawn[same])
    assert not own[7 : NUM_ITEMS + 1].any() and drawn[7 : NUM_ITEMS + 1].any(axis=1).all()


@pytest.mark.parametrize("name", slow_but(["sasrec"], NAMES))
def test_an_item_without_actions_is_ranked_by_its_vector(name):
    """Users stay among the even or among the odd items; the vectors tell these apart, and two items are new."""
    rng = np.random.default_rng(3)
    histories = [2 * rng.permutation(10)[:6] + 1 + user % 2 for user in range(40)]
    vectors = np.array([[item % 2, (item + 1) % 2] for item in range(1, 23)]) + rng.normal(0, 0.1, (22, 2))
    ids = np.array([f"item{number}" for number in range(1, 23)], object)
    names = np.array(["text[0]", "text[1]"], object)
    given = Features(ids, np.zeros(23, np.int64), np.empty(0, np.int32), names, vectors.astype(np.float32))
    keras.utils.set_random_seed(1)
    options = {"dropout": 0.0, "hidden_dim": 16, "max_length": 8, "num_layers": 1, "num_heads": 1}
    options |= {"loss": "cross_entropy"} if name == "sasrec" else {}
    model = MODELS[name](22, use_item_features="add", features={ITEM_FEATURES: given}, **options)
    sequences = make_sequences(histories, 22)
    model.adapt(sequences)
    settings = TrainingSettings(steps=60, warmup_steps=0, learning_rate=0.02)
    step, source = make_training_step(model, settings), batches(model, 32, sequences)
    for _ in range(60):
        step(tensors(next(source)))
    batch = {"users": [0, 1], "lengths": [3, 3], "items": [[1, 5, 9], [2, 6, 10]]}
    odd, even = np.asarray(model.score(batch, tf.constant([[21, 22]] * 2)))
    assert odd[0] > odd[1] and even[1] > even[0]


@pytest.mark.parametrize("name", NAMES)
def test_first_vectors_from_cooccurrence_are_kept_and_projected_to_items_without(name):
    few = make_sequences([[1, 2, 4, 5, 6, 7, 8], [8, 6, 4, 2, 1, 5, 7]] * 4, NUM_ITEMS)
    options = {"use_item_features": "add", "initial_vectors": "cooccurrence"}
    plain, model = (make(name, features=given, **options) for given in (FEATURES, VECTORS))
    drawn = np.asarray(model.own_items)
    for one in (plain, model):
        one.adapt(few)
        one.item_feature_vectors.assign(np.zeros(one.item_feature_vectors.shape))
        one.initialise(few)
    known = [1, 2, 4, 5, 6, 7, 8]
    # Unseen items with a vector count as little as padding in the standard deviation that the first vectors take.
    random = np.concatenate([drawn[1:9], drawn[NUM_ITEMS + 1 :]])
    expected = np.asarray(plain.item_table()) * random.std() / drawn[1:].std()
    np.testing.assert_allclose(np.asarray(model.item_table())[known], expected[known], rtol=1e-4, atol=1e-6)
    given = VECTORS[ITEM_FEATURES].compute_unit_vectors().astype(np.float64)
    # Ridge regression is least squares with one more row, of zeros, for each number of a vector.
    rows = np.concatenate([given[np.array(known) - 1], np.eye(6)])
    targets = np.concatenate([expected[known], np.zeros((6, 16))])
    projection = np.linalg.lstsq(rows, targets, rcond=None)[0]
    np.testing.assert_allclose(np.asarray(model.item_feature_vectors)[-6:], projection, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(np.asarray(model.item_table())[9:41], given[8:] @ projection, rtol=1e-3, atol=1e-6)


@every_way
def test_a_model_scores_as_one_without_features_that_has_its_tables(name, way):
    """Row by row: the user's vector is added to what every position reads."""
    model, plain = make(name, name="same", **WAYS[way]), make(name, name="same")
    rest = {weight.path: weight for weight in model.weights}
    for weight in plain.weights:
        weight.assign(model.item_table() if weight is plain.own_items else rest[weight.path])
    if model.needs_users:
        vectors = means_by_hand(np.asarray(model.user_feature_vectors), FEATURES[USER_FEATURES])
        np.testing.assert_allclose(model.embed_users([3, -1]), [vectors[3], np.zeros(16)], rtol=1e-5, atol=1e-7)
    scores = model.score(HISTORIES)
    target = plain.positions if name == "sasrec" else plain.positions.embeddings
    before = np.asarray(target)
    for row, user in enumerate(HISTORIES["users"]):
        one = {key: column[[row]] for key, column in HISTORIES.items()}
        if model.needs_users:
            target.assign(before + vectors[user])
        np.testing.assert_allclose(plain.score(one)[0], scores[row], rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_other_weights_are_drawn_as_without_features(name):
    plain, model = make(name, name="same"), make(name, name="same", **WAYS["all"])
    drawn = {weight.path: np.asarray(weight) for weight in model.weights}
    for weight in plain.weights:
        np.testing.assert_array_equal(weight, drawn[weight.path])
    more = {path.split("/")[-1] for path in drawn} - {weight.path.split("/")[-1] for weight in plain.weights}
    assert more == {"item_features", "user_features"} and not plain.features


@pytest.mark.parametrize(("name", "loss"), [(name, loss) for name in NAMES for loss in losses_of(name)])
def test_items_that_training_never_sees_are_not_pushed_down(name, loss):
    few = make_sequences([[1, 2, 3, 4, 5], [5, 4, 1, 2, 3], [2, 3, 5, 1]] * 8, NUM_ITEMS)
    model = make_quiet(name, **WAYS["add"], **loss)
    model.adapt(few)
    batch = {"users": [0], "lengths": [4], "items": [[1, 2, 3, 4]]}
    if name == "bert4rec":
        batch |= {"items": [[1, 2, model.mask_token, 4]], "mask_positions": [[2]], "mask_targets": [[3]]}
    else:
        batch |= {"targets": [[2, 3, 4, 5]], "negatives": [[[5], [30], [1], [40]]]}
    own = [model.own_items.value, *([model.head.bias.value] if name == "bert4rec" else [])]
    with tf.GradientTape() as tape:
        value = model.training_loss({key: tf.constant(column, tf.int32) for key, column in batch.items()})
    for gradient in tape.gradient(value, own):
        rows = np.asarray(tf.convert_to_tensor(gradient))
        assert rows[1:6].any() and not rows[6 : NUM_ITEMS + 1].any()
    assert np.isfinite(model.score(HISTORIES)).all() and np.asarray(model.score(HISTORIES))[:, 6:].min() > -100


def test_features_must_be_those_that_the_settings_use():
    with pytest.raises(UserError, match="`use_item_features` needs the features"):
        MODELS["bert4rec"](NUM_ITEMS, use_item_features="add")
    with pytest.raises(UserError, match=r"`item_features` must have 41 rows, one for each id\. Received: 40 rows"):
        MODELS["sasrec"](NUM_ITEMS + 1, use_item_features="add", features=FEATURES)
    assert not MODELS["sasrec"](NUM_ITEMS, features=FEATURES).features
    with pytest.raises(UserError, match="`initial_vectors` must be random with use_item_features=alone"):
        make("bert4rec", use_item_features="alone", initial_vectors="cooccurrence")


@pytest.mark.parametrize("name", [*NAMES, "auto"])
def test_what_training_never_sees_is_kept_in_files_and_in_grown_models(name, tmp_path):
    few = make_sequences([[1, 2, 3, 4, 5], [5, 4, 1, 2, 3]], NUM_ITEMS)
    model = make_quiet(name, adapted=False, **WAYS["add"])
    model.adapt(few)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    more = {ITEM_FEATURES: FEATURES[ITEM_FEATURES].select_rows([*FEATURES[ITEM_FEATURES].ids.tolist(), "new"])}
    for other in (again, model.grow(["new"], more)):
        for network in other.networks.values() or [other]:
            assert network.unseen.tolist() == list(range(6, NUM_ITEMS + 1))
    batch = next(batches(model, 8))
    np.testing.assert_array_equal(again.training_loss(tensors(batch)), model.training_loss(tensors(batch)))
