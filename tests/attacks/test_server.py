"""A server under raw requests of any form, slow senders, and versions that come, go and are damaged."""

import contextlib
import functools
import gzip
import os
import re
import resource
import shutil
import socket
import threading
import time
import zlib

import pytest
from support.http_server import Server, best, export_two, still_answers

from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export_two(tmp_path_factory.mktemp("attacked"))


BODY = b'{"instances": [["a", "i3"]]}'


ENCODINGS = [b"gzip", b"deflate", b"br", b"zstd", b"identity", b"gzip, gzip", b"x", b""]


@functools.cache
def bomb():
    return gzip.compress(bytes(100_000_000), 1)


def pack(noise):
    """A compressed body: small, or of much nothing; whole, or cut short."""
    body = noise.choice([gzip.compress(BODY), zlib.compress(BODY), bomb()])
    return body[: noise.choice([len(body), noise.randint(0, len(body))])]


def raw_request(noise):
    """A request by a grammar that also makes what no client should send."""
    method = noise.choice([b"POST", b"GET", b"HEAD", b"PUT", b"post", b"CONNECT", b"\x00", b"A" * 9_000])
    places = [
        b"/v1/models/bert4rec:predict",
        b"/healthz",
        b"/",
        b"*",
        b"//",
        b"/%00",
        b"/../../etc/passwd",
        b"/" + b"a" * 9_000,
    ]
    version = noise.choice([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP", b""])
    chunks = noise.choice([b'5\r\n{"ins\r\n0\r\n\r\n', b"ffffffffffffffff\r\n", b"-1\r\n", b"5;a=b\r\nabcde\r\n"])
    body = noise.choice([BODY, BODY[: noise.randint(0, len(BODY))], b"", chunks, noise.randbytes(40), pack(noise)])
    length = noise.choice(
        [str(len(body)).encode(), str(len(BODY)).encode(), b"0", b"-1", b"+5", b"99999999999999999999", b"x", b"5, 7"]
    )
    headers = [
        *[b"Host: 127.0.0.1", b"Host: evil.example", b"Origin: http://evil.example", b"Content-Type: application/json"],
        *[b"Content-Length: " + length, b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Transfer-Encoding: x"],
        *[b"Connection: close", b"Expect: 100-continue", b"X: " + b"y" * 9_000, b"no colon", b" folded", b"\x01: 1"],
        *[b"Upgrade: websocket", b"Range: bytes=0-", b"Content-Encoding: " + noise.choice(ENCODINGS)],
    ]
    chosen = noise.sample(headers, noise.randint(0, 7))
    end = noise.choice([b"\r\n", b"\r\n", b"\n"])
    return end.join([b" ".join([method, noise.choice(places), version]), *chosen, b"", body])


def answers_to(port, noise):
    """Sends one or two requests in pieces, and returns everything that comes back within a moment."""
    sent = b"".join(raw_request(noise) for _ in range(noise.randint(1, 2)))
    received = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.3) as connection:
        cut = noise.randint(0, len(sent))
        for piece in (sent[:cut], sent[cut:]):
            connection.sendall(piece)
        if noise.random() < 0.5:
            connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(1 << 16):
            received += piece
    return sent, received


@pytest.mark.slow
def test_raw_requests_get_an_answer_below_500_or_a_closed_connection(attack, exported):
    versions = open_versions(ServerSettings(model=str(exported / "1")))
    bomb()  # made now, so that the server's time alone is measured
    with Server(versions, max_body_bytes=50_000) as server:
        for noise in attack.trials():
            used = time.process_time()
            sent, received = answers_to(server.port, noise)
            assert time.process_time() - used < 0.5, sent[:1_000]
            codes = [int(code) for code in re.findall(rb"^HTTP/1\.[01] (\d{3})", received, re.MULTILINE)]
            assert all(code < 500 for code in codes), (sent, received)
            assert received.startswith(b"HTTP/1.") or not received, (sent, received)
            attack.outcomes[f"{codes[0] // 100}00 to {codes[0] // 100}99" if codes else "no answer"] += 1
            if attack.number % 20 == 0:
                still_answers(server)
        still_answers(server)


@pytest.mark.slow
def test_slow_senders_do_not_delay_other_callers(attack, exported):
    """Connections that send half a request and wait, in numbers."""
    versions = open_versions(ServerSettings(model=str(exported / "1")))
    most = min(1_500, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 300) // 2)
    with Server(versions) as server:
        for noise in attack.trials():
            with contextlib.ExitStack() as stack:
                for _ in range(noise.randint(most // 2, most)):
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                    connection.sendall(
                        b"POST /v1/models/bert4rec:predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "[: noise.randint(0, 70)]
                    )
                    attack.outcomes["connections"] += 1
                still_answers(server)


@pytest.mark.slow
def test_versions_that_come_go_and_are_damaged_lose_no_request(attack, exported, tmp_path):
    """Every answer is that of a version that was whole. `1` stays, so there always is one."""
    folder = tmp_path / "served"
    shutil.copytree(exported / "1", folder / "1")
    versions = open_versions(ServerSettings(model=str(folder)))
    stop, failures, answered = threading.Event(), [], [0]
    expected = [best(["a", "i3"], shift)[0] for shift in (1, 2)]

    def ask(server):
        client = server.client()
        while not stop.is_set():
            try:
                (found,) = client.predict(instances=[["a", "i3"]])["predictions"]
                assert found["items"] in expected
                answered[0] += 1
            except Exception as error:
                failures.append(error)

    with Server(versions, poll_seconds=0.05) as server:
        callers = [threading.Thread(target=ask, args=(server,)) for _ in range(3)]
        for caller in callers:
            caller.start()
        try:
            for noise in attack.trials():
                version = folder / str(noise.randint(2, 6))
                action = noise.choice(["come", "go", "damage", "half", "pipe"])
                if action == "come" and not version.exists():
                    shutil.copytree(exported / noise.choice("12"), version)
                elif action == "go":
                    shutil.rmtree(version, ignore_errors=True)
                elif action == "half" and not version.exists():
                    shutil.copytree(
                        exported / "2", version, ignore=shutil.ignore_patterns(noise.choice(["*.pb", "variables"]))
                    )
                elif action in ("damage", "pipe") and (
                    files := [path for path in version.rglob("*") if path.is_file()]
                ):
                    path = noise.choice(sorted(files))
                    content = path.read_bytes()
                    path.unlink()
                    if action == "pipe":
                        os.mkfifo(path)
                    else:
                        path.write_bytes(content[: noise.randint(0, 200)])
                attack.outcomes[action] += 1
                time.sleep(noise.uniform(0, 0.4))
                assert not failures, failures[0]
        finally:
            stop.set()
            for caller in callers:
                caller.join()
    assert not failures, failures[0]
    attack.outcomes["answers"] = answered[0]
    assert answered[0]
