"""TF_CONFIG: mistakes in it are one line, and waiting for the other machines has an end."""

import socket
import subprocess
import sys
import threading
import time

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
        (["a:1", "b:0"], "'b:0'"),
        (["a:1", "b:65536"], "'b:65536'"),
        (["a:1", "b:" + "9" * 9_000], "'b:999"),
        (["a:1", "b:٣"], "'b:٣'"),
        (["a:1", ["b:1"]], r"\['b:1'\]"),
        (["a:1", "b:1", "a:1"], "'a:1'"),
    ],
)
def test_an_address_that_cannot_be_one_is_an_error(monkeypatch, addresses, received):
    monkeypatch.setenv("TF_CONFIG", config("worker", 0, worker=addresses))
    with pytest.raises(UserError, match=f"must name each machine once, as host:port .*Received: {received}"):
        Machines.read()


@pytest.mark.parametrize(
    "text",
    [
        "workers",
        "[1, 2]",
        '{"cluster": ["a:1"]}',
        '{"cluster": {"worker": 3}}',
        config("ps", 0, ps=["a:1"], worker=["b:1"]),
        config("worker", 2, worker=["a:1", "b:1"]),
        config("worker", -1, worker=["a:1", "b:1"]),
        config("chief", 0, worker=["a:1", "b:1"]),
        config("chief", 1, chief=["a:1", "b:1"], worker=["c:1"]),
        config("worker", 0, worker="a:1,b:1"),
    ],
)
def test_a_tf_config_without_a_valid_cluster_and_task_is_an_error(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match=r"`TF_CONFIG` must .* Received: "):
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
def test_waiting_ends_with_the_machines_that_are_missing(other):
    with pytest.raises(UserError, match=f"no answer within 0.5 seconds from {other}$"):
        Machines(0, 2, (*free_addresses(1), other)).wait_for_others(seconds=0.5)


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on port {port} \(Address already in use\)"):
            Machines(0, 2, (f"127.0.0.1:{port}", "127.0.0.1:1")).wait_for_others()


WATCHING = """
import sys, time
from bert4rec_tf.config import machines
index, *addresses = sys.argv[1:]
here = machines.Machines(int(index), len(addresses), tuple(addresses))
here.wait_for_others()
listener = machines.socket.create_server(("", int(addresses[here.index].rpartition(":")[2])))
with here.watch_others(check_seconds=0.1, lost_seconds=3):
    print("watching", flush=True)
    time.sleep(60)  # as if it compiled
"""


def start_watching(index, addresses):
    command = [sys.executable, "-c", WATCHING, str(index), *addresses]
    return subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_machine_that_computes_ends_soon_after_the_other(killed):
    addresses = free_addresses(2)
    processes = [start_watching(index, addresses) for index in (0, 1)]
    try:
        for process in processes:
            assert process.stdout.readline() == "watching\n", process.stderr.read()
        time.sleep(1)
        assert [process.poll() for process in processes] == [None, None]
        processes[killed].kill()
        output, errors = processes[1 - killed].communicate(timeout=30)
    finally:
        for process in processes:
            process.kill()
    assert processes[1 - killed].returncode == 2 and output == ""
    assert errors == f"error: {machines.LOST} (no answer from {addresses[killed]})\n"


def test_nothing_is_watched_after_the_block(monkeypatch, capsys):
    monkeypatch.setattr(machines.os, "_exit", lambda code: pytest.fail("ended"))
    with Machines(1, 2, ("127.0.0.1:1", "127.0.0.1:2")).watch_others(check_seconds=0.05, lost_seconds=0.2):
        time.sleep(0.1)
    time.sleep(0.5)
    assert capsys.readouterr().err == ""
