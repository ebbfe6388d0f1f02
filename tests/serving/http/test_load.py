"""A server with more to do than it can: who waits, who is sent back, and who is answered at the end."""

import http.client
import json
import socket
import threading
from types import SimpleNamespace

import pytest
from support.http_server import Client, Fake, Server, served, wait_until

from bert4rec_tf.serving.http import app
from bert4rec_tf.serving.http.batching import Batcher
from bert4rec_tf.serving.signatures import ModelError


class Gate:
    """A model that answers when it is let, and tells when it was asked."""

    def __init__(self):
        self.asked, self.open = threading.Event(), threading.Event()

    def __call__(self, arrays):
        self.asked.set()
        assert self.open.wait(30)
        return {"items": arrays["histories"]}


def ask_to_predict(client):
    return client.post({"instances": [["a"]]})


def ask_to_search(client):
    return client.get("/page/items?query=a")


def ask_in_background(server, count=1, ask=ask_to_predict):
    """Asks `count` times at once; returns the list that gets the answers, and the threads."""
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(server.client()))) for _ in range(count)]
    for thread in threads:
        thread.start()
    return answers, threads


def test_too_many_waiting_are_sent_back_and_the_others_answered():
    gate = Gate()
    with Server(served(Fake(gate)), max_queue=2, max_batch_size=1) as server:
        first, threads = ask_in_background(server)
        assert gate.asked.wait(30)
        answers, more = ask_in_background(server, 8)
        while len(answers) < 6:
            threading.Event().wait(0.01)
        gate.open.set()
        for thread in (*threads, *more):
            thread.join()
    refused = [answer for answer in answers if answer.status == 503]
    assert len(refused) == 6 and {answer.headers["Retry-After"] for answer in refused} == {"1"}
    assert "2 rows wait" in refused[0].json["error"]
    done = [answer for answer in (*first, *answers) if answer.status == 200]
    assert [answer.json for answer in done] == [{"predictions": [{"items": ["a"]}]}] * 3


def test_searches_wait_for_each_other_and_too_many_are_sent_back():
    gate, versions = Gate(), served(Fake(None))
    at_once, most = [], []

    def search(query, limit):
        at_once.append(query)
        most.append(len(at_once))
        gate({"histories": None})
        at_once.pop()
        return [query]

    versions.current.catalogue.search = search
    with Server(versions) as server:
        answers, threads = ask_in_background(server, app.MAX_SEARCHES + 5, ask_to_search)
        while len(answers) < 5:
            threading.Event().wait(0.01)
        assert server.client().get("/healthz").status == 200
        gate.open.set()
        for thread in threads:
            thread.join()
    assert sorted(answer.status for answer in answers) == [200] * app.MAX_SEARCHES + [503] * 5
    assert {answer.headers["Retry-After"] for answer in answers if answer.status == 503} == {"1"}
    assert max(most) == 1


def test_a_body_that_does_not_arrive_gets_408():
    with Server(served(Fake(None)), timeout=0.2) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            head = "POST /v1/models/bert4rec:predict HTTP/1.1", "Host: localhost", "Content-Length: 50"
            connection.sendall("\r\n".join([*head, "", '{"instances": ']).encode())
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            content = json.loads(answer.read())
        assert answer.status == 408 and content == {"error": "The body did not arrive within 0.2 seconds"}
        assert server.client().get("/healthz").status == 200


def test_a_model_that_fails_gets_503_and_one_that_refuses_400():
    def fail(arrays):
        is_client_error = (arrays["histories"] == b"bad").any()
        raise ModelError("out of memory", is_client_error=bool(is_client_error))

    with Server(served(Fake(fail))) as server:
        for item, status, words in (("a", 503, "The model failed"), ("bad", 400, "The model rejected the inputs")):
            answer = server.client().post({"instances": [[item]]})
            assert answer.status == status and answer.json == {"error": f"{words}: out of memory"}


def test_a_request_beyond_the_timeout_gets_504():
    gate = Gate()
    with Server(served(Fake(gate)), timeout=0.2) as server:
        answer = server.client().post({"instances": [["a"]]})
        assert answer.status == 504 and answer.json["error"] == "No answer within 0.2 seconds"
        gate.open.set()
        statuses = (server.client().post({"instances": [["a"]]}).status for _ in range(50))  # a busy machine is slow
        assert 200 in statuses


@pytest.fixture
def calls(monkeypatch):
    """The calls that wait or are computed, and those that no longer do."""
    calls, submit = SimpleNamespace(begun=[], ended=[]), Batcher.submit

    async def record(batcher, call):
        calls.begun.append(call)
        try:
            return await submit(batcher, call)
        finally:
            calls.ended.append(call)

    monkeypatch.setattr(Batcher, "submit", record)
    return calls


def refuses_connections(server):
    try:
        socket.create_connection(("127.0.0.1", server.port)).close()
    except OSError:
        return True
    return False


def test_requests_in_flight_are_answered_when_the_server_stops(calls):
    gate = Gate()
    with Server(served(Fake(gate))) as server:
        answers, threads = ask_in_background(server, 3)
        wait_until(lambda: len(calls.begun) == 3)
        server.stop()
        wait_until(lambda: refuses_connections(server))
        gate.open.set()
        for thread in threads:
            thread.join()
    assert [answer.status for answer in answers] == [200] * 3


def test_a_request_whose_body_is_still_arriving_is_answered_when_the_server_stops():
    body = json.dumps({"instances": [["a"]]}).encode()
    head = f"POST /v1/models/bert4rec:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    echo = served(Fake(lambda arrays: {"items": arrays["histories"]}))
    with Server(echo) as server, socket.create_connection(("127.0.0.1", server.port), 30) as caller:
        caller.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body[:5])
        threading.Event().wait(0.2)
        server.stop()
        threading.Event().wait(0.5)  # idle connections would be closed by now
        caller.sendall(body[5:])
        answer = b"".join(iter(lambda: caller.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200") and b"Connection: close" in answer


def test_a_request_that_never_ends_does_not_hold_up_the_stop():
    server = Server(served(Fake(Gate())), shutdown_seconds=0.2, poll_seconds=60)
    with server, socket.create_connection(("127.0.0.1", server.port), 30) as caller:
        caller.sendall(b"POST /v1/models/bert4rec:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        threading.Event().wait(0.2)
        server.stop()
        server._thread.join(20)
        assert not server._thread.is_alive()


def test_the_last_answer_on_an_open_connection_says_close():
    answers, failures = [], []

    def ask(client, number):
        try:
            while True:
                answer = client.post({"instances": [[f"{number}"]]})
                answers.append((answer.status, answer.json["predictions"] == [{"items": [f"{number}"]}]))
                if answer.headers["Connection"] == "close":
                    return
        except Exception as error:
            failures.append(error)

    echo = served(Fake(lambda arrays: {"items": arrays["histories"]}))
    with Server(echo, drain_seconds=60) as server:
        threads = [threading.Thread(target=ask, args=(server.client(), number)) for number in range(8)]
        for thread in threads:
            thread.start()
        while len(answers) < 100 and not failures:
            threading.Event().wait(0.01)
        server.stop()
        for thread in threads:
            thread.join()
    assert not failures and set(answers) == {(200, True)}


def test_a_caller_that_hangs_up_is_not_computed_for(calls):
    gate, seen = Gate(), []

    def watch(arrays):
        outputs = gate(arrays)
        seen.extend(arrays["histories"].ravel())
        return outputs

    with Server(served(Fake(watch)), max_batch_size=1) as server:
        _, threads = ask_in_background(server)
        assert gate.asked.wait(30)
        gone = Client(server.port)
        body, headers = json.dumps({"instances": [["gone"]]}), {"Content-Type": "application/json"}
        gone._connection.request("POST", "/v1/models/bert4rec:predict", body, headers)
        wait_until(lambda: len(calls.begun) == 2)
        gone._connection.close()
        wait_until(lambda: calls.ended)
        gate.open.set()
        threads[0].join()
        server.client().post({"instances": [["b"]]})
    assert seen == [b"a", b"b"]
