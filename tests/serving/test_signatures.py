"""What the signatures of a SavedModel answer, against a plain-Python oracle."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.exports import (
    HISTORIES,
    LOG_SHARES,
    NAMES,
    NUM_ITEMS,
    VOCABULARY,
    K,
    log_probabilities,
    rectangle,
    transformer,
)
from support.profiles import examples
from tensorflow.core.protobuf import saved_model_pb2

from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.models import BprMf, Pop
from bert4rec_tf.nn import top_items

USERS = ["ann", "日本", "two words"]
TRAINED = np.random.default_rng(6).integers(0, 200, NUM_ITEMS)
"""How often each item occurs in what the model was trained on: other counts than the vocabulary's, and in no order."""


class Served:
    """A loaded SavedModel beside what it should say.

    Attributes:
        service: as TensorFlow loads it.
        folder: where from.
        model: as it was in Python.
        scores: (user, known item numbers) -> float64 [n].
        needs_users: whether it asks for them.
    """

    def __init__(self, folder, model, scores, users=None):
        export(model, VOCABULARY, folder, ExportOptions(K), users, TRAINED)
        self.service, self.folder, self.model, self.scores = tf.saved_model.load(str(folder)), folder, model, scores
        self.needs_users = users is not None

    def whom(self, histories, users):
        raw = {"histories": rectangle(histories)}
        return {**raw, "users": tf.constant(users, tf.string, [len(users)])} if self.needs_users else raw

    def recommend(self, histories, users, **choices):
        found = self.service.recommend(**self.whom(histories, users), **choices)
        items = [[name.decode() for name in row] for row in found["items"].numpy().tolist()]
        return items, found["scores"].numpy(), found["unknown"].numpy().tolist()


@pytest.fixture(scope="module")
def transformer_served(tmp_path_factory):
    """A softmax model, whose tables are worked through two rows at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_items, "BLOCK_ELEMENTS", 2 * NUM_ITEMS)
        model = transformer()
        expected = log_probabilities(model)
        return Served(
            tmp_path_factory.mktemp("softmax") / "model",
            model,
            lambda user, known: expected(known) if known else LOG_SHARES,
        )


@pytest.fixture(scope="module")
def factors_served(tmp_path_factory):
    """A model that knows its users and whose scores are its own."""
    keras.utils.set_random_seed(5)
    model = BprMf(NUM_ITEMS, num_users=len(USERS), hidden_dim=4, initializer_stddev=1.0)
    of_users, of_items = np.asarray(model.users, np.float64), np.asarray(model.items, np.float64)[1:]

    def scores(user, known):
        return of_items @ of_users[USERS.index(user)] if user in USERS else LOG_SHARES

    return Served(tmp_path_factory.mktemp("factors") / "model", model, scores, USERS)


@pytest.fixture(params=["transformer", "factors"])
def served(request):
    return request.getfixturevalue(f"{request.param}_served")


def spec(name, shape, dtype):
    return tf.TensorSpec(shape, dtype, name=name)


CANDIDATES = spec("candidates", [None, None], tf.string)
EXCLUDE = spec("exclude", [None, None], tf.string)
CORRECTION = spec("popularity_correction", [], tf.float32)
ITEMS = spec("items", [None], tf.string)
OF_ITEMS = {"similar": [ITEMS, spec("k", [], tf.int32)], "item_vectors": [ITEMS]}
INPUTS = {
    "serving_default": [],
    "recommend": [spec("k", [], tf.int32), spec("exclude_seen", [], tf.bool), EXCLUDE, CANDIDATES, CORRECTION],
    "score": [CANDIDATES],
    "encode": [],
}
OUTPUTS = {
    "serving_default": {"items": tf.string, "scores": tf.float32},
    "recommend": {"items": tf.string, "scores": tf.float32},
    "score": {"scores": tf.float32},
    "encode": {"vectors": tf.float32},
    "similar": {"items": tf.string, "scores": tf.float32},
    "item_vectors": {"vectors": tf.float32},
}


def test_signatures_have_the_documented_inputs_and_outputs(served):
    whom = [spec("histories", [None, None], tf.string)]
    whom += [spec("users", [None], tf.string)] if served.needs_users else []
    inputs = {**{name: [*whom, *more] for name, more in INPUTS.items()}, **OF_ITEMS}
    assert set(served.service.signatures) == set(inputs)
    for name, signature in served.service.signatures.items():
        assert signature.structured_input_signature == ((), {one.name: one for one in inputs[name]})
        outputs = dict(signature.structured_outputs)
        unknown = outputs.pop("unknown")
        assert (unknown.dtype, unknown.shape.rank) == (tf.int32, 1)
        basis = {"basis": tf.string} if name in ("serving_default", "recommend") else {}
        assert {key: one.dtype for key, one in outputs.items()} == {**OUTPUTS[name], **basis}


def test_the_signature_holds_the_default_inputs(served):
    content = saved_model_pb2.SavedModel.FromString((served.folder / "saved_model.pb").read_bytes())
    defaults = content.meta_graphs[0].signature_def["recommend"].defaults
    found = {name: tf.make_ndarray(value) for name, value in defaults.items()}
    assert set(found) == {one.name for one in INPUTS["recommend"]}
    assert found["k"] == K and found["exclude_seen"] and found["popularity_correction"] == 0
    assert found["exclude"].shape == found["candidates"].shape == (1, 0)


def check(served, histories, users, k=K, exclude_seen=True, exclude=((),), candidates=((),), correction=0.0):
    """Compares `recommend` with scoring everything, leaving out, and sorting, in Python."""
    items, scores, unknown = served.recommend(
        histories,
        users,
        k=k,
        exclude_seen=exclude_seen,
        exclude=rectangle(exclude),
        candidates=rectangle(candidates),
        popularity_correction=correction,
    )
    width = min(k, NUM_ITEMS)
    assert scores.shape == (len(histories), width) and scores.dtype == np.float32
    for row, (history, user) in enumerate(zip(histories, users, strict=True)):
        known = [NAMES.index(name) + 1 for name in history if name in NAMES]
        expected = dict(zip(NAMES, served.scores(user, known) - correction * np.log(TRAINED + 1)))
        chosen = [name for name in candidates[row % len(candidates)] if name]
        left = {name for name in (chosen or NAMES) if name in NAMES} - set(exclude[row % len(exclude)])
        left -= set(history) if exclude_seen else set()
        best = sorted((expected[name] for name in left), reverse=True)[:width]
        names = items[row][: len(best)]
        assert len(set(names)) == len(best) and set(names) <= left
        assert items[row][len(best) :] == [""] * (width - len(best))
        assert (scores[row, len(best) :] == -np.inf).all()
        np.testing.assert_allclose(scores[row, : len(best)], best, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose([expected[name] for name in names], best, rtol=1e-5, atol=1e-5)
        assert unknown[row] == sum(name != "" and name not in NAMES for name in history)


IDS = st.lists(st.sampled_from([*NAMES, "", "unknown", "Two words"]), max_size=12)


@given(data=st.data())
@settings(max_examples=examples(40))
def test_any_request_gets_the_best_of_what_is_left(transformer_served, factors_served, data):
    histories = data.draw(st.lists(IDS, max_size=7))
    number = len(histories)
    users = data.draw(st.lists(st.sampled_from([*USERS, "", "stranger"]), min_size=number, max_size=number))
    shared = st.lists(IDS, min_size=1, max_size=1)
    each = st.lists(IDS, min_size=number, max_size=number) if number else shared
    choices = {
        "k": data.draw(st.integers(1, NUM_ITEMS + 5)),
        "exclude_seen": data.draw(st.booleans()),
        "exclude": data.draw(shared | each),
        "candidates": data.draw(shared | each),
        "correction": data.draw(st.sampled_from([0.0, 0.3, 1.0, 7.5])),
    }
    for served in (transformer_served, factors_served):
        check(served, histories, users, **choices)


def test_without_choices_recommend_is_the_default_signature(served):
    histories, users = HISTORIES, ["ann"] * len(HISTORIES)
    items, scores, unknown = served.recommend(histories, users)
    found = served.service.signatures["serving_default"](**served.whom(histories, users))
    assert [[name.decode() for name in row] for row in found["items"].numpy().tolist()] == items
    np.testing.assert_array_equal(found["scores"], scores)
    assert found["unknown"].numpy().tolist() == unknown


def test_the_correction_of_the_export_is_the_default(tmp_path):
    model = Pop(NUM_ITEMS)
    model.counts.assign([0, *TRAINED])
    plain = Served(tmp_path / "plain", model, None)
    export(model, VOCABULARY, tmp_path / "corrected", ExportOptions(K, 2.5), counts=TRAINED)
    found = tf.saved_model.load(str(tmp_path / "corrected"))
    rows = rectangle(HISTORIES)
    wanted = plain.service.recommend(rows, popularity_correction=2.5)
    for outputs in (found.signatures["serving_default"](histories=rows), found.recommend(rows)):
        for name, value in wanted.items():
            np.testing.assert_array_equal(outputs[name], value)
    uncorrected = found.recommend(rows, popularity_correction=0.0)["items"]
    np.testing.assert_array_equal(uncorrected, plain.service.recommend(rows)["items"])
    assert (uncorrected.numpy() != wanted["items"].numpy()).any()


def vectors_in_python(model):
    """The items' vectors of these two models, float64 [n, d]."""
    table = model.items if isinstance(model, BprMf) else model.item_embeddings
    return np.asarray(table, np.float64)[1 : NUM_ITEMS + 1]


ASKED = ["0", "unknown", "日本語", "", NAMES[-1], "0"]


@pytest.mark.parametrize("k", [1, 4, NUM_ITEMS + 3])
def test_similar_items_are_the_nearest_by_cosine_and_not_the_item_itself(served, k):
    vectors = vectors_in_python(served.model)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = served.service.similar(tf.constant(ASKED), k=k)
    assert found["unknown"].numpy().tolist() == [0, 1, 0, 1, 0, 0]
    for row, name in enumerate(ASKED):
        names = [one.decode() for one in found["items"][row].numpy().tolist()]
        scores = dict(zip(NAMES, vectors @ vectors[NAMES.index(name)])) if name in NAMES else {}
        scores.pop(name, None)
        best = sorted(scores.values(), reverse=True)[:k]
        assert len(set(names[: len(best)])) == len(best) and not any(names[len(best) :])
        np.testing.assert_allclose([scores[one] for one in names[: len(best)]], best, atol=1e-6)
        np.testing.assert_allclose(found["scores"][row, : len(best)], best, atol=1e-6)
        assert (found["scores"][row, len(best) :].numpy() == -np.inf).all()


def test_item_vectors_are_the_model_s_and_zero_for_unknown_items(served):
    found = served.service.item_vectors(tf.constant(ASKED))
    expected = [
        vectors_in_python(served.model)[NAMES.index(one)] if one in NAMES else 0 * found["vectors"][0] for one in ASKED
    ]
    np.testing.assert_allclose(found["vectors"], np.stack(expected), rtol=1e-6)
    assert found["unknown"].numpy().tolist() == [0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("shared", [True, False])
def test_score_gives_every_candidate_its_score_seen_or_not(served, shared):
    histories, users = HISTORIES[:4], ["ann", "two words", "stranger", ""]
    rows = [["two words", "0", "item 1"], NAMES[:3], ["unknown", "", "0"], ["0", "0", "日本語"]]
    rows = rows[:1] if shared else rows
    found = served.service.score(**served.whom(histories, users), candidates=rectangle(rows))
    assert found["unknown"].numpy().tolist() == [0, 0, 1, 1]
    for row, (history, user) in enumerate(zip(histories, users)):
        scores = served.scores(user, [NAMES.index(name) + 1 for name in history if name in NAMES])
        expected = [scores[NAMES.index(name)] if name in NAMES else -np.inf for name in rows[row % len(rows)]]
        np.testing.assert_allclose(found["scores"][row], expected, rtol=1e-5, atol=1e-5)


def test_encode_gives_the_model_s_vectors_and_zeros_where_it_knows_nothing(served):
    users = ["日本", "stranger", "ann", "", "two words", "ann"]
    vectors = served.service.encode(**served.whom(HISTORIES, users))["vectors"].numpy()
    assert vectors.dtype == np.float32
    for history, user, vector in zip(HISTORIES, users, vectors, strict=True):
        known = [NAMES.index(name) + 1 for name in history if name in NAMES]
        if not (user in USERS if served.needs_users else known):
            assert not vector.any()
            continue
        scores = np.asarray(served.model.score_vectors(vector[None]), np.float64)[0]
        scores -= np.log(np.exp(scores).sum()) if served.model.scores_are_logits else 0
        np.testing.assert_allclose(scores, served.scores(user, known), atol=1e-5)


MISTAKES = {
    "k": ({"k": 0}, "`k` must be at least 1"),
    "negative correction": ({"popularity_correction": -0.1}, "`popularity_correction` must be at least 0 and finite"),
    "exclude": ({"exclude": [["0"]] * 3}, "`exclude` must have 1 row, or as many as `histories`"),
    "no row": ({"candidates": np.zeros([0, 2], object)}, "`candidates` must have 1 row"),
}


@pytest.mark.parametrize("choices, message", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_request_is_named(served, choices, message):
    choices = {
        name: tf.constant(value, tf.string if name in ("exclude", "candidates") else None)
        for name, value in choices.items()
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        served.recommend(HISTORIES[:2], ["ann", "ann"], **choices)


def test_there_must_be_as_many_users_as_histories(factors_served):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`users` must have as many rows as `histories`"):
        factors_served.recommend(HISTORIES[:2], ["ann"])
