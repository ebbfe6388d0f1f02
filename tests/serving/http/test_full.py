"""More connections than the server may have open at once."""

import contextlib
import os
import resource
import socket
import time

import pytest
from support.http_server import Fake, Server, served

FEW = 30


@pytest.fixture
def few_descriptors():
    """Leaves this process a few descriptors more than it has open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + FEW, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def as_many_as_possible():
    found = []
    with contextlib.suppress(OSError):
        while True:
            found.append(socket.socket())
    return found


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def answer(connection, port):
    """Asks for the server's health. Returns the first bytes of the answer, none from a closed door."""
    try:
        connection.settimeout(60)
        connection.connect(("127.0.0.1", port))
        connection.sendall(HEALTH)
        return connection.recv(12)
    except ConnectionError:
        return b""


def test_without_descriptors_new_callers_are_turned_away_and_later_ones_answered(few_descriptors, capfd):
    with Server(served(Fake(lambda arrays: {}))) as server:
        *callers, one, other = as_many_as_possible()
        one.close()
        other.close()
        assert len(callers) > 5
        found = [answer(caller, server.port) for caller in callers]
        accepted = found.count(b"HTTP/1.1 200")
        assert 0 < accepted < len(found)
        assert set(found) <= {b"HTTP/1.1 200", b"HTTP/1.1 503", b""}
        for caller in callers:
            caller.close()
        until = time.monotonic() + 60
        while answer(caller := socket.socket(), server.port) != b"HTTP/1.1 200":
            caller.close()
            assert time.monotonic() < until
            time.sleep(0.05)
        caller.close()
    told = capfd.readouterr().err
    assert told.count("warning: new callers are turned away (Too many open files)") == 1 and "Traceback" not in told
