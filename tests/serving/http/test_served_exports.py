"""What `saved_model.export` writes, asked over HTTP: every signature, against the same SavedModel in TensorFlow."""

import threading
from types import SimpleNamespace
from urllib.parse import urlencode

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.exports import HISTORIES, NAMES, NUM_ITEMS, USERS, VOCABULARY, K, rectangle, transformer
from support.http_server import Server
from support.profiles import examples

from bert4rec_tf.export.histories import Histories
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.models import BprMf
from bert4rec_tf.serving.http import app, predict
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings

WHO = ["ann", "stranger", "日本", "", "two words", "ann"]


def factors():
    keras.utils.set_random_seed(5)
    return BprMf(NUM_ITEMS, num_users=len(USERS), hidden_dim=4, initializer_stddev=1.0)


STORED = {"ann": ["two words", "日本語", "0"], "日本": ["item 3"], "no history of a stranger": NAMES[:9]}
KEPT = Histories(
    np.array([NAMES.index(name) + 1 for row in STORED.values() for name in row], np.int32),
    np.cumsum([0, *map(len, STORED.values())]),
    list(STORED),
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
        yield SimpleNamespace(server=server, client=server.client(), loaded=loaded, needs_users=model.needs_users)


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
    return {name: np.char.decode(one.numpy().astype(bytes)) if name == "items" else one for name, one in found.items()}


def check(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        if name == "items":
            assert found[name] == value.tolist()
        else:
            np.testing.assert_allclose(np.array(found[name], float), value, atol=1e-5)


LISTS = [["0", "item 3", "unknown"], NAMES, [], ["日本語"], ["", ""], ["0", "0"]]
ASKED = {
    "as exported": ("serving_default", {}),
    "with what is usual": ("recommend", {}),
    "with choices": ("recommend", {"k": 3, "exclude_seen": False, "exclude": [["0", "item 3"]]}),
    "a k beyond the catalogue": ("recommend", {"k": 1_000}),
    "less popular items": ("recommend", {"k": 4, "popularity_correction": 0.7, "exclude_seen": False}),
    "less popular candidates": ("recommend", {"popularity_correction": 2, "candidates": [["0", "item 1", "item 2"]]}),
    "among candidates for all": ("recommend", {"candidates": [["0", "item 1", "item 2"]]}),
    "among candidates for each": ("recommend", {"candidates": LISTS, "exclude": LISTS[::-1]}),
    "scores for all": ("score", {"candidates": [["0", "item 1", "unknown"]]}),
    "scores for each": ("score", {"candidates": LISTS}),
    "vectors": ("encode", {}),
}
OF_LISTS = [(signature, choices) for signature, choices in ASKED.values() if "k" not in choices]


@pytest.mark.parametrize("name", ASKED)
def test_every_signature_answers_as_in_tensorflow(served, name):
    signature, choices = ASKED[name]
    inputs = {**whom(served), **choices}
    check(
        served.client.predict(signature_name=signature, inputs=inputs)["outputs"], expected(served, signature, inputs)
    )


@pytest.mark.parametrize("signature", ["serving_default", "recommend", "score", "encode"])
def test_rows_are_answered_in_rows(served, signature):
    inputs = {**whom(served), **({"candidates": LISTS} if signature == "score" else {})}
    rows = [dict(zip(inputs, row)) for row in zip(*inputs.values())]
    found = served.client.predict(signature_name=signature, instances=rows)["predictions"]
    check({name: [row[name] for row in found] for name in found[0]}, expected(served, signature, inputs))


@pytest.mark.parametrize("name", [name for name, (_, choices) in ASKED.items() if LISTS not in choices.values()])
def test_users_are_answered_by_the_histories_of_the_export(served, name):
    signature, choices = ASKED[name]
    users = ["日本", "ann", "日本"]
    asked = {"users": users, **choices}
    found = served.client.predict(signature_name=signature, inputs=asked)["outputs"]
    named = {"histories": [STORED[user] for user in users], **({"users": users} if served.needs_users else {})}
    check(found, expected(served, signature, {**named, **choices}))


def test_users_are_answered_in_rows_too(served):
    rows = [{"users": "ann"}, {"users": "日本"}]
    found = served.client.predict(instances=rows)["predictions"]
    columns = served.client.predict(inputs={"users": ["ann", "日本"]})["outputs"]
    assert [row["items"] for row in found] == columns["items"]


def test_many_histories_of_users_are_looked_up_in_a_thread(served, monkeypatch):
    parse, threads = predict.parse, []

    def watched(*given):
        threads.append(threading.current_thread().name.split("_")[0])
        return parse(*given)

    monkeypatch.setattr(predict, "parse", watched)
    monkeypatch.setattr(app, "THREAD_SIZE", 500)
    for users in (["ann"], ["ann"] * 40):
        served.client.predict(inputs={"users": users})
    assert threads[1] == "json" != threads[0]


BY_USER = {
    "an unknown user": ({"users": ["nobody"]}, "must be one of the export's 3 users. Received: user=nobody"),
    "no text": ({"users": [3]}, "`users` must hold strings. Received: 3"),
    "no list": ({"users": "ann"}, "must be a list of "),
    "too many": ({"users": ["ann"] * 41}, "A request may have at most 40 rows. Received: 41"),
}


@pytest.mark.parametrize("inputs, message", BY_USER.values(), ids=BY_USER)
def test_a_mistake_with_users_is_named(served, inputs, message):
    answer = served.client.post({"inputs": inputs})
    assert answer.status == 400 and message in answer.json["error"]


def test_the_page_can_load_a_user_s_last_items(served):
    assert served.client.get("/page/model").json["users"] == len(STORED)
    for user, history in STORED.items():
        found = served.client.get("/page/items?" + urlencode({"user": user})).json["items"]
        assert [one["id"] for one in found] == history
    answer = served.client.get("/page/items?user=nobody")
    assert answer.status == 400 and "must be one of the export's 3 users" in answer.json["error"]


def test_requests_of_all_signatures_at_once_get_their_own_answers(served):
    failures, answered = [], []

    def ask(number):
        client, row = served.server.client(), slice(number % 6, number % 6 + 1)
        for turn in range(6):
            try:
                signature, choices = OF_LISTS[(number + turn) % len(OF_LISTS)]
                of_rows = {name: value[row] for name, value in choices.items() if value in (LISTS, LISTS[::-1])}
                inputs = {**whom(served, row), **choices, **of_rows}
                found = client.predict(signature_name=signature, inputs=inputs)["outputs"]
                check(found, expected(served, signature, inputs))
                answered.append(signature)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(answered) == 48


def test_the_signatures_and_the_card_are_told(served):
    told = served.client.get("/v1/models/bert4rec/metadata").json["metadata"]
    signatures = told["signature_def"]["signature_def"]
    assert {"serving_default", "recommend", "score", "encode"} <= set(signatures)
    optional = {"k", "exclude_seen", "exclude", "candidates", "popularity_correction"}
    assert set(signatures["recommend"]["defaults"]) == optional
    assert told["model_card"]["items"] == NUM_ITEMS and told["model_card"]["data"] == {"name": "awkward"}
    assert told["model_card"]["scores"] == ("the model's own" if served.needs_users else "log-probabilities")


MISTAKES = {
    "k of 0": ({"k": 0}, "`k` must be at least 1 and less than 2^31. Received: k=0"),
    "negative k": ({"k": -(2**31)}, "`k` must be at least 1"),
    "negative correction": (
        {"popularity_correction": -0.5},
        "`popularity_correction` must be at least 0 and finite. Received: popularity_correction=-0.5",
    ),
    "infinite correction": ({"popularity_correction": float("inf")}, "finite. Received: popularity_correction=inf"),
    "no correction": ({"popularity_correction": float("nan")}, "finite. Received: popularity_correction=nan"),
    "too few candidates": ({"candidates": [["0"]] * 4}, "as many rows as the other inputs, 6. Received: 4"),
    "no candidates": ({"candidates": []}, "as many rows as the other inputs, 6. Received: 0"),
    "a null": ({"exclude": [[None]]}, "must hold strings. Received: null"),
    "NaN": ({"k": float("nan")}, "a whole number"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_one_line(served, name):
    choices, words = MISTAKES[name]
    answer = served.client.post({"signature_name": "recommend", "inputs": {**whom(served), **choices}})
    assert answer.status == 400 and words in answer.json["error"] and "\n" not in answer.json["error"]


def test_users_are_asked_for_where_the_model_knows_them(served):
    answer = served.client.post({"instances": [["0"]]})
    if not served.needs_users:
        assert answer.status == 200
        return
    assert answer.status == 400 and "the inputs of serving_default are histories, users" in answer.json["error"]
    inputs = {"histories": HISTORIES, "users": WHO[:1]}
    answer = served.client.post({"inputs": inputs})
    assert answer.status == 400 and "`users` must have as many rows as `histories`" in answer.json["error"]


ids = st.sampled_from([*NAMES, "", "nobody"]) | st.text(max_size=4)
lists = st.lists(st.lists(ids, max_size=8), max_size=5)
junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.none() | ids)
asked = st.fixed_dictionaries(
    {"histories": lists | junk},
    optional={
        "users": st.lists(ids, max_size=5) | junk,
        "k": st.integers(-2, 40) | junk,
        "exclude_seen": st.booleans() | junk,
        "exclude": lists | junk,
        "popularity_correction": st.floats(0, 2) | junk,
        "candidates": lists | junk,
    },
)


@settings(max_examples=examples(80))
@given(st.sampled_from(["serving_default", "recommend", "score", "encode"]), asked)
@example("recommend", {"histories": [["0"]], "k": 2**31 - 1, "candidates": [["0"] * 300]})
@example("recommend", {"histories": [[]], "users": [""], "candidates": [[]], "exclude": [[]]})
@example("score", {"histories": [["0"]], "users": ["ann"], "candidates": [[]]})
@example("encode", {"histories": [[]] * 40, "users": [""] * 40})
def test_whatever_is_asked_no_answer_is_a_failure(served, signature, inputs):
    answer = served.client.post({"signature_name": signature, "inputs": inputs})
    assert answer.status in (200, 400), answer.body
    assert set(answer.json) == ({"outputs"} if answer.status == 200 else {"error"})
