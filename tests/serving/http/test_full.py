"""More connections than the server may have open at once."""

import contextlib
import os
import resource
import socket

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


def test_without_descriptors_one_line_is_told_and_callers_are_answered_later(few_descriptors, capfd):
    with Server(served(Fake(lambda arrays: {}))) as server:
        *waiting, one, other = as_many_as_possible()
        one.close()
        other.close()
        assert len(waiting) > 5
        for one in waiting:
            one.settimeout(60)
            one.connect(("127.0.0.1", server.port))
        with pytest.raises(TimeoutError):
            waiting[-1].settimeout(2)
            waiting[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            waiting[-1].recv(1)
        for one in waiting[:-1]:
            one.close()
        waiting[-1].settimeout(60)
        assert waiting[-1].recv(15) == b"HTTP/1.1 200 OK"
        waiting[-1].close()
    told = capfd.readouterr().err
    assert told.count("warning: new connections must wait (Too many open files)") == 1 and "Traceback" not in told
