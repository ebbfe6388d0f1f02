"""More connections than the server may have open at once."""

import contextlib
import os
import resource
import socket
import time

import pytest
from support.http_server import Fake, Server, served

from bert4rec_tf.foundation.warning import ServingWarning

FEW = 16


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


def ask(connection, seconds):
    """Asks for the server's health. Returns the first bytes of the answer; None if none comes in time."""
    connection.settimeout(seconds)
    connection.sendall(HEALTH)
    with contextlib.suppress(TimeoutError):
        return connection.recv(4_096)[:12]


@pytest.mark.long
def test_without_descriptors_new_callers_wait_and_open_connections_are_answered(few_descriptors, capfd):
    began = time.monotonic()
    full = "^new callers have to wait .Too many open files."
    with pytest.warns(ServingWarning, match=full) as told, Server(served(Fake(lambda arrays: {}))) as server:
        *callers, one, other = as_many_as_possible()
        one.close()
        other.close()
        assert len(callers) > 5
        for caller in callers:
            caller.connect(("127.0.0.1", server.port))
        answers = [ask(caller, 0.5) for caller in callers]
        used = time.process_time()
        time.sleep(2)
        assert time.process_time() - used < 0.5, "the server looks for room again and again"
        assert set(answers) == {b"HTTP/1.1 200", None}
        early, late = ([one for one, found in zip(callers, answers) if (found is None) == waits] for waits in (0, 1))
        assert [ask(caller, 60) for caller in early] == [b"HTTP/1.1 200"] * len(early)
        for caller in early:
            caller.close()
        late[0].settimeout(60)
        assert late[0].recv(12) == b"HTTP/1.1 200"
        for caller in late:
            caller.close()
    assert 1 <= len(told) <= 1 + (time.monotonic() - began) // 60
    assert "Traceback" not in capfd.readouterr().err
