"""TF_CONFIG: mistakes in it are one line, and waiting for the other machines has an end."""

import json
import socket
import threading

import pytest
from support.workers import config, free_addresses

from bert4rec_tf.config import machines
from bert4rec_tf.config.machines import Machines
from bert4rec_tf.foundation.errors import UserError


@pytest.mark.parametrize(
    ("addresses", "received"),
    [
        (["a", "b:1"], "'a'"),
        (["a:1", ":2"], "':2'"),
        (["a:1", "b:"], "'b:'"),
        (["a:1", "b:x"], "'b:x'"),
        (["a:1", "b:0"], "'b:0'"),
        (["a:1", "b:65536"], "'b:65536'"),
        (["a:1", "b:" + "9" * 9_000], "'b:999"),
        (["a:1", "b:٣"], "'b:٣'"),
        (["a:1", "b:-1"], "'b:-1'"),
        (["a:1", 2], "2"),
        ([1, 2], "1"),
        (["a:1", None], "None"),
        (["a:1", ["b:1"]], r"\['b:1'\]"),
        (["a:1", "b:1", "a:1"], "'a:1'"),
    ],
)
def test_an_address_that_cannot_be_one_is_an_error(monkeypatch, addresses, received):
    monkeypatch.setenv("TF_CONFIG", config("worker", 0, worker=addresses))
    with pytest.raises(UserError, match=f"must name each machine once, as host:port .*Received: {received}"):
        Machines.read()


@pytest.mark.parametrize("content", [{"cluster": {"worker": 3}}, {"cluster": {"worker": None}}, {"cluster": ["a:1"]}])
def test_a_cluster_of_another_form_is_an_error(monkeypatch, content):
    monkeypatch.setenv("TF_CONFIG", json.dumps(content))
    with pytest.raises(UserError, match="`TF_CONFIG` must be JSON with a cluster and a task"):
        Machines.read()


def test_machines_wait_for_one_another():
    addresses = tuple(free_addresses(3))
    threads = [threading.Thread(target=Machines(number, 3, addresses).wait_for_others) for number in range(3)]
    for thread in threads[:2]:
        thread.start()
    threads[0].join(0.5)
    assert threads[0].is_alive() and threads[1].is_alive()
    threads[2].start()
    # As TensorFlow does, one that has seen all others listens again at once.
    threads[2].join(30)
    again = socket.create_server(("", int(addresses[2].rpartition(":")[2])))
    with again:
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("other", ["127.0.0.1:1", "no-such-host.invalid:3333", "a..b:3333"])
def test_waiting_ends_with_the_machines_that_are_missing(monkeypatch, other):
    monkeypatch.setattr(machines, "WAIT_SECONDS", 0.5)
    with pytest.raises(UserError, match=f"no answer within 0.5 seconds from {other}$"):
        Machines(0, 2, (*free_addresses(1), other)).wait_for_others()


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on port {port} \(Address already in use\)"):
            Machines(0, 2, (f"127.0.0.1:{port}", "127.0.0.1:1")).wait_for_others()
