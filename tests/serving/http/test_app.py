"""TensorFlow Serving's REST predict API over a real connection, against a plain-Python oracle."""

import contextlib
import gzip
import http.client
import json
import shutil
import socket
import time
import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.http_server import ITEMS, Fake, Server, card_of, served
from support.profiles import examples

import bert4rec_tf as b4r
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.http import app, predict
from bert4rec_tf.serving.http.app import _json_response, open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings


@pytest.fixture(scope="module")
def server(exported):
    folder = exported.parent
    lines = 'id,title,genres\na,The First,\n🎬,"A Film, Amélie",Comedy| Drama|\nnone,Nothing,War\n'
    (folder / "titles.csv").write_text(lines, encoding="utf-8")
    chosen = ServerSettings(model=str(exported), titles=str(folder / "titles.csv"))
    with Server(open_versions(chosen), max_rows=20, max_history=30, max_body_bytes=50_000) as running:
        yield running


@pytest.fixture
def client(server):
    return server.client()


def test_a_work_directory_is_served_as_its_export(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "saved_model")
    (tmp_path / "config.json").write_text("{}")
    versions = open_versions(ServerSettings(model=str(tmp_path)))
    assert versions.current.model.folder == tmp_path / "saved_model" and list(versions.current.model.items) == ITEMS


def test_titles_of_other_items_are_refused(exported, tmp_path):
    (tmp_path / "titles.csv").write_text("id,title\nP001,Trowel\n")
    with pytest.raises(UserError, match="`titles` must have ids of the data"):
        open_versions(ServerSettings(model=str(exported), titles=str(tmp_path / "titles.csv")))


def test_a_later_version_has_the_titles_of_its_time(exported, tmp_path, monkeypatch):
    monkeypatch.setattr("bert4rec_tf.serving.http.versions.LOOK_SECONDS", 60)  # a busy machine loads slowly
    shutil.copytree(exported, tmp_path / "1")
    titles = tmp_path / "titles.csv"
    titles.write_text("id,title\na,The First\n")
    versions = open_versions(ServerSettings(model=str(tmp_path), titles=str(titles)))
    assert versions.current.catalogue.describe("a")["title"] == "The First"
    titles.write_text("id,title\na,The First Again\n")
    shutil.copytree(exported, tmp_path / "2")
    versions.refresh()
    versions.refresh()
    assert versions.current.version == 2 and versions.current.catalogue.describe("a")["title"] == "The First Again"
    titles.write_text("half wri")
    shutil.copytree(exported, tmp_path / "3")
    with pytest.warns(b4r.FileWarning, match="the titles of before still count"):
        versions.refresh()
        versions.refresh()
    assert versions.current.version == 3 and versions.current.catalogue.describe("a")["title"] == "The First Again"


def test_status_and_metadata_are_those_of_tensorflow_serving(client, exported):
    status = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("/v1/models/bert4rec", "/v1/models/bert4rec/versions/1"):
        assert client.get(path).json == {"model_version_status": [status]}
    metadata = client.get("/v1/models/bert4rec/metadata").json
    assert metadata["model_spec"] == {"name": "bert4rec", "signature_name": "", "version": "1"}
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "recommend", "score", "encode"}
    histories = signatures["serving_default"]["inputs"]["histories"]
    assert histories["dtype"] == "DT_STRING"
    assert [size["size"] for size in histories["tensor_shape"]["dim"]] == ["-1", "-1"]
    assert signatures["recommend"]["inputs"]["k"]["tensor_shape"] == {"dim": [], "unknown_rank": False}
    assert signatures["recommend"]["defaults"]["k"]["int_val"] == [5]
    assert metadata["metadata"]["model_card"] == card_of(exported)
    assert client.get("/v1/models/bert4rec/versions/1/metadata").json == metadata


def test_a_running_server_is_alive_and_ready(client):
    assert client.get("/healthz").json == {"status": "alive"}
    assert client.get("/readyz").json == {"status": "ready", "version": "1"}
    assert client.ask("HEAD", "/healthz").status == 200


DEEP = b'{"instances": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"


def recommend(**inputs):
    return {"signature_name": "recommend", "inputs": {"histories": [["a"]], **inputs}}


def score(**inputs):
    return {"signature_name": "score", "inputs": {"histories": [["a"]], **inputs}}


WRONG = {
    "no json": (b"{", "must be JSON in UTF-8: Expecting property name"),
    "no text": (b'{"instances": "\xff"}', "UTF-8"),
    "deep": (DEEP, "nested too deeply"),
    "a huge number": (b'{"instances": ' + b"9" * 5_000 + b"}", "must be JSON"),
    "another key": ({"instances": [["a"]], "k": 2}, "`k` is an input of a signature, so it goes into"),
    "a misspelt key": (
        {"instance": [["a"]]},
        "Unknown key: 'instance'. Did you mean 'instances'? Known: inputs, instances, signature_name",
    ),
    "a key too many": ({"instances": [["a"]], "parameters" * 50: {}}, "Unknown key: 'parameters"),
    "where beside the inputs": (
        {"instances": [["a"]], "where": "price < 3"},
        "`where` is an input of a signature, so it goes into `inputs`",
    ),
    "explain beside the inputs": ({"inputs": [["a"]], "explain": True}, "`explain` is an input of a signature"),
    "where without attributes": (
        {"inputs": {"histories": [["a"]], "where": "price < 3"}},
        "`where`: this server has no attributes of the items (--attributes)",
    ),
    "reasons of scores": (
        score(candidates=[["a"]], explain=True),
        "`explain` must be true or false, and needs the signature serving_default or recommend",
    ),
    "both": ({"instances": [["a"]], "inputs": [["a"]]}, "and not both"),
    "no instances": ({"instances": []}, "list of at least one"),
    "no list": ({"instances": ["a"]}, '`histories` must be a list of lists of ids. Received: ["a"]'),
    "a fraction": ({"instances": [["a", 1.5]]}, "must hold strings or whole numbers. Received: 1.5"),
    "a k for a row": (
        {"signature_name": "recommend", "instances": [{"histories": ["a"], "k": 3}]},
        "column format",
    ),
    "a truth": ({"instances": [["a", True]]}, "must hold strings or whole numbers. Received: true"),
    "half a letter": (b'{"instances": [["\\ud800"]]}', "text that UTF-8 can hold"),
    "two kinds": ({"instances": [{"histories": ["a"]}, ["a"]]}, "same keys; number 1"),
    "an unknown input": (
        {"inputs": {"history": [["a"]]}},
        'Unknown input "history": the inputs of serving_default are histories, where (optional), explain (optional). '
        "Did you mean `histories`?",
    ),
    "a misspelt where": ({"inputs": {"histories": [["a"]], "were": "x"}}, "Did you mean `where`?"),
    "an unknown signature": ({"signature_name": "x", "instances": [["a"]]}, "one of encode, recommend, score, serving"),
    "a missing input": (score(), "`candidates` is missing"),
    "other rows": (score(candidates=[["a"]] * 2), "`histories` must have as many rows"),
    "too many": ({"instances": [["a"]] * 21}, "at most 20 rows. Received: 21"),
    "too long": ({"instances": [["a"], ["a"] * 31]}, "at most 30 items. Received: 31"),
    "too wide": (recommend(exclude=[["a"] * 601]), "600 values"),
    "no candidates": (recommend(candidates=[[]]), "`candidates` must have at least one item"),
    "candidates of padding": (recommend(candidates=[["", ""]]), "`candidates` must have at least one item"),
    "k of 0": (recommend(k=0), "`k` must be at least 1"),
    "k of 2 ** 31": (recommend(k=2**31), "less than 2^31"),
    "k of 1.5": (recommend(k=1.5), "a whole number"),
    "k of true": (recommend(k=True), "a whole number. Received: k=True"),
    "k in a list": (recommend(k=[1]), "`k` must be one value. Received: [1]"),
    "k in many lists": (
        b'{"signature_name": "recommend", "inputs": {"histories": [["a"]], "k": ' + b"[" * 900 + b"]" * 900 + b"}}",
        "`k` must be one value",
    ),
    "a number for a truth": (recommend(exclude_seen=1), "true or false"),
    "a large number": (recommend(popularity_correction=1e39), "at least 0 and finite"),
    "a number as text": (recommend(popularity_correction="0.5"), "Received: popularity_correction='0.5'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_request_gets_400_and_one_line(client, name):
    body, words = WRONG[name]
    answer = client.post(body)
    assert answer.status == 400, answer.body
    assert answer.headers["Content-Type"] == "application/json"
    assert words in answer.json["error"] and "\n" not in answer.json["error"] and len(answer.json["error"]) < 300


def test_a_body_of_any_depth_is_refused_in_one_line():
    for depth in range(900, 1_100):  # about Python's limit
        with pytest.raises(predict.RequestError, match=r"The body (is nested too deeply|must be a JSON object)"):
            predict.parse(b"[" * depth + b"]" * depth, None, None, None)


def test_a_body_that_is_too_large_is_refused(client, server):
    assert client.post(b" " * 50_001).status == 413
    assert server.client().post(b'{"instances": [["a"]]}' + b" " * 19_000).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "identity, x"])
def test_a_compressed_body_is_refused(server, encoding):
    body = gzip.compress(json.dumps({"instances": [["a"]]}).encode())
    answer = server.client().post(body, headers={"Content-Encoding": encoding})
    assert answer.status == 415 and "must not be compressed" in answer.json["error"]
    same = server.client().post({"instances": [["a"]]}, headers={"Content-Encoding": "Identity"})
    assert same.status == 200


@pytest.fixture(scope="module")
def bomb():
    """A gigabyte in five megabytes."""
    pack = zlib.compressobj(1, wbits=31)
    first, again = (pack.compress(bytes(1 << 20)) + pack.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * 1_023


@pytest.mark.parametrize("path", ["/v1/models/bert4rec:predict", "/healthz", "/nothing"])
@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_a_compressed_body_is_never_unpacked(server, bomb, path, host):
    before = time.process_time()
    with contextlib.suppress(ConnectionError):  # the server may close before it has read everything
        answer = server.client().ask("POST", path, bomb, {"Content-Encoding": "gzip", "Host": host})
        assert 400 <= answer.status < 500 and answer.json["error"]
    assert server.client().get("/healthz").status == 200
    assert time.process_time() - before < 0.5


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 9_000 + b"\r\n\r\n", 400),
        (b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nExpect: more\r\nContent-Length: 1\r\n\r\n", 417),
    ],
)
def test_errors_of_the_http_parser_are_json(server, request_bytes, status):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request_bytes)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        content = json.loads(answer.read())
    assert answer.status == status and answer.headers["Content-Type"] == "application/json"
    assert list(content) == ["error"] and content["error"] and "\n" not in content["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/models/other:predict", 404),
        ("POST", "/v1/models/bert4rec/versions/2:predict", 404),
        ("POST", "/v1/models/bert4rec:classify", 404),
        ("GET", "/v1/models/other/versions/1", 404),
        ("GET", "/page/../../setup.py", 404),
        ("GET", "/v1/models/bert4rec:predict", 405),
        ("GET", "/page/items?query=" + "x" * 201, 400),
        ("GET", "/page/items?user=ann", 400),
    ],
)
def test_unknown_addresses_and_methods_get_json_errors(client, method, path, status):
    answer = client.ask(method, path, b"{}" if method == "POST" else None)
    assert answer.status == status and list(answer.json) == ["error"]
    assert status != 405 or answer.headers["Allow"]


def test_the_page_finds_items_by_id_and_title_and_shows_their_tags(client, exported):
    found = client.get("/page/items?query=amelie%20fil").json["items"]
    assert found == [{"id": "🎬", "title": "A Film, Amélie", "tags": ["Comedy", "Drama"]}]
    assert client.get("/page/items?id=a&id=i1&id=none&id=x").json["items"] == [
        {"id": "a", "title": "The First", "tags": []},
        {"id": "i1", "title": "", "tags": []},
        {"id": "none", "title": "Nothing", "tags": ["War"]},
        {"id": "x", "title": "", "tags": []},
    ]
    about = client.get("/page/model").json
    assert about["items"] == len(ITEMS) and "recommend" in about["signatures"] and not about["needs_users"]
    assert about["card"] == card_of(exported) and about["users"] == 0 and about["can_explain"] is False


def test_the_page_forbids_itself_all_that_comes_from_elsewhere(client):
    answer = client.get("/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert {"", "page/app.js", "page/style.css", "page/icon.svg"} < {*app.PAGE_FILES}
    for path in app.PAGE_FILES:
        found = client.get(f"/{path}")
        assert found.status == 200 and found.headers["X-Content-Type-Options"] == "nosniff"
        assert b"//" not in found.body.replace(b"http://www.w3.org/2000/svg", b"").replace(b"\n//", b"")


NUMBERS = st.one_of(st.floats(width=32), st.sampled_from([0.1, 1 / 3, 1e-45, 3.4e38, 16777217.0]))


@given(st.lists(NUMBERS, min_size=1, max_size=20))
@example([1e15])  # written with an exponent
@settings(max_examples=examples(60))
def test_numbers_are_sent_as_their_shortest_text(values):
    row = np.array(values, np.float32)
    for by_rows in (True, False):
        made = predict.make_response(by_rows, {"scores": row[None, :], "unknown": np.array([3], np.int32)})
        content = json.loads(_json_response(made).body, parse_constant=lambda name: 1 / 0)
        found = content["predictions"][0] if by_rows else {name: one[0] for name, one in content["outputs"].items()}
        assert found["unknown"] == 3
        for value, sent in zip(row, found["scores"], strict=True):
            if np.isfinite(value):
                texts = [np.format_float_scientific(number) for number in (sent, float(value))]
                assert np.float32(sent) == value and len(texts[0]) <= len(texts[1])
            else:
                assert sent == {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(float(value))]


WIDE = {
    "many": {"inputs": {"histories": [["a"]] * 5, "k": 2_147_483_647}},
    "of candidates for all": {"inputs": {"histories": [["a"]] * 50, "candidates": [ITEMS[:3]]}},
    "of candidates for each": {"inputs": {"histories": [["a"]] * 5, "candidates": [ITEMS[:21]] * 5}},
}


@pytest.mark.parametrize("name", WIDE)
def test_an_answer_with_too_many_values_is_not_computed(exported, name):
    signature = "score" if "candidates" in name else "recommend"
    with Server(open_versions(ServerSettings(model=str(exported))), max_answer=100) as server:
        answer = server.client().post({"signature_name": signature, **WIDE[name]})
        assert answer.status == 413 and "An answer may have at most 100 values. Received: " in answer.json["error"]
        assert server.client().post({"instances": [["a"]] * 21}).status == 413, "the default has a k too"
        more = {"candidates": [ITEMS[:25]] * 4} if signature == "score" else {"k": 25}
        allowed = {"histories": [["a"]] * 4, **more}
        assert server.client().post({"signature_name": signature, "inputs": allowed}).status == 200


def test_a_defect_gets_500_without_details_and_the_server_continues(caplog):
    def fail(arrays):
        if (arrays["histories"] == b"a").any():
            raise ZeroDivisionError("inside")
        return {"items": arrays["histories"]}

    with Server(served(Fake(fail))) as server:
        answer = server.client().post({"instances": [["a"]]})
        assert answer.status == 500 and "inside" not in answer.json["error"]
        assert server.client().post({"instances": [["b"]]}).status == 200
    assert "ZeroDivisionError" in caplog.text
