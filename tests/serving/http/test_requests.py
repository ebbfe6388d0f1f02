"""Whatever is sent: an answer below 500, one line of JSON, and a server that still answers."""

import socket
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.http_server import ITEMS, Server, best, still_answers
from support.profiles import examples

from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings

SIGNATURES = ["serving_default", "recommend", "score", "encode"]
NAMES = ["histories", "candidates", "exclude", "k", "exclude_seen", "popularity_correction", "other"]


@pytest.fixture(scope="module")
def server(exported):
    versions = open_versions(ServerSettings(model=str(exported)))
    with Server(versions, max_rows=50, max_history=200, max_body_bytes=50_000) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def check(answer):
    assert answer.status < 500, answer.body
    content = answer.json
    if answer.status >= 400:
        assert list(content) == ["error"] and content["error"] and "\n" not in content["error"]
    return answer.status


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=5), st.sampled_from(ITEMS)
)
junk = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from([*NAMES, "b64"]), inner, max_size=4),
    max_leaves=12,
)
ids = st.one_of(st.sampled_from([*ITEMS, "", "nobody"]), st.text(max_size=4), st.just("\ud800"))
rows = st.lists(st.lists(ids, max_size=6), max_size=6)
nearly = st.fixed_dictionaries(
    {"signature_name": st.sampled_from(SIGNATURES)},
    optional={
        "inputs": st.one_of(
            rows,
            junk,
            st.fixed_dictionaries(
                {"histories": rows},
                optional={
                    "candidates": rows | junk,
                    "exclude": rows | junk,
                    "k": st.integers(-3, 40) | junk,
                    "exclude_seen": st.booleans() | junk,
                    "popularity_correction": st.floats() | st.integers() | junk,
                },
            ),
        ),
        "instances": st.one_of(
            rows, junk, st.lists(st.dictionaries(st.sampled_from(NAMES), st.lists(ids, max_size=4) | junk), max_size=4)
        ),
    },
)


@settings(max_examples=examples(120))
@given(st.binary(max_size=300))
@example(b"\xef\xbb\xbf{}")
@example(b'{"instances": [["\xed\xa0\x80"]]}')
@example("{}".encode("utf-16"))
def test_any_bytes_get_one_line_of_json_below_500(client, body):
    assert 400 <= check(client.post(body)) < 500


@settings(max_examples=examples(120))
@given(nearly | junk)
@example({"inputs": {"histories": [[]] * 3}})
@example({"signature_name": "score", "inputs": {"histories": [["a"]], "candidates": [[]]}})
@example({"signature_name": "recommend", "inputs": {"histories": [["a"], ["i1"]], "exclude": []}})
@example({"signature_name": "recommend", "inputs": {"histories": [["a"]], "k": 2**31 - 1}})
@example({"signature_name": "recommend", "inputs": {"histories": [["a"]], "popularity_correction": float("nan")}})
@example({"signature_name": "encode", "inputs": {"histories": []}})
def test_any_json_gets_one_line_of_json_below_500(client, content):
    check(client.post(content))


@settings(max_examples=examples(60))
@given(rows.filter(len))
def test_any_histories_get_the_best_items(client, histories):
    answer = client.post({"instances": histories})
    if any(
        "\ud800" in one or any(0xD800 <= ord(letter) < 0xE000 for letter in one) for row in histories for one in row
    ):
        assert answer.status == 400
        return
    for history, found in zip(histories, answer.json["predictions"], strict=True):
        items, scores, unknown = best(history)
        assert found["items"] == items and found["unknown"] == unknown
        assert found["scores"] == pytest.approx(scores, abs=1e-5)


def raw(server, data, ends=True):
    """Sends bytes and returns all that comes back; `ends` tells the server that nothing follows."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        try:
            connection.sendall(data)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65_536), b""))
        except ConnectionError:
            return b""


@settings(max_examples=examples(80))
@given(
    st.binary(max_size=200)
    | st.text(st.sampled_from("GET /v1:predict%?&=\r\n HTTP/1.0#\x00é..;"), max_size=60).map(str.encode)
)
def test_bytes_that_are_no_http_get_an_answer_below_500_or_none(server, data):
    answer = raw(server, data)
    assert not answer or (answer.startswith(b"HTTP/1.") and answer.split()[1] < b"500")


@settings(max_examples=examples(80))
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"]),
    st.sampled_from(["/v1/models/", "/v1/models/bert4rec/versions/", "/page/items?query=", "/page/items?id=", "/"]),
    st.text(st.sampled_from("abz019%:/?&=#.~+-_") | st.sampled_from("é日\x7f"), max_size=20),
)
def test_any_address_gets_an_answer_below_500(server, method, path, rest):
    line = f"{method} {path}{rest} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = raw(server, line.encode(), ends=False)
    assert answer.startswith(b"HTTP/1.") and answer.split()[1] < b"500", answer


@settings(max_examples=examples(60))
@given(st.text(max_size=40))
def test_any_search_gets_an_answer_below_500(client, query):
    check(client.get(f"/page/items?query={quote(query.encode('utf-8', 'surrogatepass'))}"))


def test_the_server_still_answers_after_all_that(server):
    still_answers(server)
    assert server.client().get("/readyz").status == 200
