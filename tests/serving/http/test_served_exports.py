"""What `saved_model.export` writes, asked over HTTP: every signature, against the same SavedModel in TensorFlow."""

import unicodedata
from types import SimpleNamespace
from urllib.parse import urlencode

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.exports import HISTORIES, NAMES, NUM_ITEMS, USERS, VOCABULARY, K, rectangle, transformer
from support.http_server import Server

from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.models import BprMf
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings

WHO = ["ann", "stranger", "日本", "", "two words", "ann"]


def factors():
    keras.utils.set_random_seed(5)
    return BprMf(NUM_ITEMS, num_users=len(USERS), hidden_dim=4, initializer_stddev=1.0)


STORED = {"ann": ["two words", "日本語", "0"], "日本": ["item 3"], "no history of a stranger": NAMES[:9]}
KEPT = Sequences(
    np.array([NAMES.index(name) + 1 for row in STORED.values() for name in row], np.int32),
    np.cumsum([0, *map(len, STORED.values())]),
    np.array(list(STORED), object),
    VOCABULARY,
)


@pytest.fixture(scope="module", params=[transformer, factors], ids=["softmax", "users"])
def served(request, tmp_path_factory):
    """A running server with few rows to a batch, and the model as TensorFlow loads it."""
    folder = tmp_path_factory.mktemp("served") / "model"
    model = request.param()
    export(model, VOCABULARY, folder, ExportOptions(K, histories=KEPT), USERS, card={"data": {"name": "awkward"}})
    versions = open_versions(ServerSettings(model=str(folder)))
    with Server(versions, max_batch_size=4, max_rows=40, max_history=60, max_body_bytes=60_000) as server:
        loaded = tf.saved_model.load(str(folder))
        yield SimpleNamespace(
            server=server, client=server.client(), loaded=loaded, needs_users=model.needs_users, folder=folder
        )


def whom(served, rows=slice(None)):
    asked = {"histories": HISTORIES[rows]}
    return {**asked, "users": WHO[rows]} if served.needs_users else asked


def expected(served, signature, inputs):
    """The outputs of TensorFlow for the inputs of a request, as JSON has them."""
    kinds = {"histories": rectangle, "exclude": rectangle, "candidates": rectangle}
    kinds["popularity_correction"] = lambda value: tf.constant(value, tf.float32)
    tensors = {name: kinds.get(name, tf.constant)(value) for name, value in inputs.items()}
    if signature == "serving_default":
        found = served.loaded.signatures[signature](**tensors)
    else:
        found = getattr(served.loaded, signature)(**tensors)
    return {
        name: np.char.decode(one.numpy().astype(bytes)) if one.dtype == tf.string else one
        for name, one in found.items()
    }


def check(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        if name in ("items", "basis"):
            assert found[name] == value.tolist()
        else:
            np.testing.assert_allclose(np.array(found[name], float), value, atol=1e-5)


LISTS = [["0", "item 3", "unknown"], NAMES, [], ["日本語"], ["", ""], ["0", "0"]]
CANDIDATES = [row if any(row) else ["item 1"] for row in LISTS]
ASKED = {
    "as exported": ("serving_default", {}),
    "with choices": ("recommend", {"k": 3, "exclude_seen": False, "exclude": [["0", "item 3"]]}),
    "less popular candidates": ("recommend", {"popularity_correction": 2, "candidates": [["0", "item 1", "item 2"]]}),
    "among candidates for each": ("recommend", {"candidates": CANDIDATES, "exclude": LISTS[::-1]}),
    "scores for all": ("score", {"candidates": [["0", "item 1", "unknown"]]}),
    "scores for each": ("score", {"candidates": LISTS}),
    "vectors": ("encode", {}),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_signature_answers_as_in_tensorflow(served, name):
    signature, choices = ASKED[name]
    inputs = {**whom(served), **choices}
    check(
        served.client.predict(signature_name=signature, inputs=inputs)["outputs"], expected(served, signature, inputs)
    )


@pytest.mark.parametrize("signature", ["serving_default", "recommend", "score", "encode"])
def test_rows_are_answered_in_rows(served, signature):
    choices = {"score": {"candidates": LISTS}, "recommend": {"exclude": LISTS}}
    inputs = {**whom(served), **choices.get(signature, {})}
    rows = [dict(zip(inputs, row)) for row in zip(*inputs.values())]
    found = served.client.predict(signature_name=signature, instances=rows)["predictions"]
    check({name: [row[name] for row in found] for name in found[0]}, expected(served, signature, inputs))


@pytest.mark.parametrize("name", ["as exported", "less popular candidates", "scores for all", "vectors"])
def test_users_are_answered_by_the_histories_of_the_export(served, name):
    signature, choices = ASKED[name]
    users = ["日本", "ann", "日本"]
    asked = {"users": users, **choices}
    found = served.client.predict(signature_name=signature, inputs=asked)["outputs"]
    named = {"histories": [STORED[user] for user in users], **({"users": users} if served.needs_users else {})}
    check(found, expected(served, signature, {**named, **choices}))


def test_all_items_of_a_user_are_left_out_however_long_the_history(served):
    user = "no history of a stranger"
    with Server(open_versions(ServerSettings(model=str(served.folder))), max_history=5, max_rows=2) as server:
        found = server.client().predict(inputs={"users": [user]})["outputs"]["items"][0]
        assert not set(found) & set(STORED[user])
        assert found == served.client.predict(inputs={"users": [user]})["outputs"]["items"][0]
        several = server.client().predict(inputs={"users": [user, "ann"]})["outputs"]["items"][0]
        assert not set(several) & set(STORED[user][-5:]), "as many as the request has space for"


def test_null_in_a_row_is_the_default(served):
    rows = [dict(zip(whom(served), row)) for row in zip(*whom(served).values())]
    answers = [
        served.client.predict(signature_name="recommend", instances=[{**row, "exclude": one} for row in rows])
        for one in (None, [])
    ]
    plain = served.client.predict(signature_name="recommend", instances=rows)
    assert answers[0] == answers[1] == plain
    mixed = [{**row, "exclude": ["0"] if place else None} for place, row in enumerate(rows)]
    found = served.client.predict(signature_name="recommend", instances=mixed)["predictions"]
    assert found[0] == plain["predictions"][0] and all("0" not in row["items"] for row in found[1:])


def test_an_unknown_user_gets_what_is_popular_beside_known_ones(served):
    found = served.client.predict(inputs={"users": ["ann", "nobody", 3]})["outputs"]
    alone = served.client.predict(inputs={"users": ["ann"]})["outputs"]
    assert found["basis"] == ["history", "popular", "popular"] and found["items"][0] == alone["items"][0]
    assert found["items"][1] == found["items"][2] == NAMES[: len(found["items"][1])]


def test_an_id_is_found_in_both_forms_of_unicode(served):
    composed, apart = (unicodedata.normalize(form, "Ünïcödé") for form in ("NFC", "NFD"))
    answers = [
        served.client.predict(
            signature_name="recommend", inputs={**whom(served), "histories": [["0", one]] * 6, "exclude": [[one]]}
        )
        for one in (composed, apart)
    ]
    assert composed in NAMES and answers[0] == answers[1] and set(answers[0]["outputs"]["unknown"]) == {0}


def test_whole_numbers_are_the_ids_of_these_texts(served):
    numbers, texts = ({**whom(served), "histories": [[zero, "item 3"]] * 6} for zero in (0, "0"))
    for signature, name in (("recommend", "exclude"), ("score", "candidates")):
        answers = [
            served.client.predict(signature_name=signature, inputs={**inputs, name: [[zero, "item 1"]]})
            for inputs, zero in ((numbers, 0), (texts, "0"))
        ]
        assert answers[0] == answers[1] and set(answers[0]["outputs"]["unknown"]) == {0}


BY_USER = {
    "no id": ({"users": [3.5]}, "`users` must hold strings or whole numbers. Received: 3.5"),
    "another name": ({"user": ["ann"]}, "Did you mean `users`?"),
    "no list": ({"users": "ann"}, "must be a list of "),
    "too many": ({"users": ["ann"] * 41}, "A request may have at most 40 rows. Received: 41"),
}


@pytest.mark.parametrize("inputs, message", BY_USER.values(), ids=BY_USER)
def test_a_mistake_with_users_is_named(served, inputs, message):
    answer = served.client.post({"inputs": inputs})
    assert answer.status == 400 and message in answer.json["error"]


def test_users_are_unknown_to_what_takes_no_histories(served):
    for signature in {"similar", "item_vectors"} & set(served.client.get("/page/model").json["signatures"]):
        answer = served.client.post({"signature_name": signature, "inputs": {"items": ["0"], "users": ["ann"]}})
        assert answer.status == 400 and answer.json["error"].startswith('Unknown input "users": ')


def test_users_replace_histories_but_in_models_that_need_both(served):
    answer = served.client.post({"inputs": {"users": ["ann"], "histories": [["0"]]}})
    if served.needs_users:
        assert answer.status == 200
    else:
        assert answer.status == 400 and answer.json["error"] == "Give either `users` or `histories`, not both"


def test_the_page_can_load_a_user_s_last_items(served):
    assert served.client.get("/page/model").json["users"] == len(STORED)
    for user, history in STORED.items():
        found = served.client.get("/page/items?" + urlencode({"user": user})).json["items"]
        assert [one["id"] for one in found] == history
    answer = served.client.get("/page/items?user=nobody")
    assert answer.status == 400 and answer.json["error"] == 'This model does not know the user "nobody".'


def test_a_model_with_users_requires_users(served):
    answer = served.client.post({"instances": [["0"]]})
    if not served.needs_users:
        assert answer.status == 200
        return
    assert answer.status == 400 and "the inputs of serving_default are histories, users" in answer.json["error"]
    inputs = {"histories": HISTORIES, "users": WHO[:1]}
    answer = served.client.post({"inputs": inputs})
    assert answer.status == 400 and "`users` must have as many rows as `histories`" in answer.json["error"]
