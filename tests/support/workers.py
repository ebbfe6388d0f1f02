"""Whole runs on several workers: processes that find each other by TF_CONFIG on 127.0.0.1."""

import json
import os
import socket
import subprocess
import sys
import time

from support.paths import ROOT

SMALL = (
    *("--dataset=synthetic", "--mode=train", "--steps=24", "--warmup_steps=2", "--evaluate_every=8"),
    *("--hidden_dim=16", "--num_layers=1", "--batch_size=33", "--threads=1", "--checkpoint_seconds=0"),
)


def config(role, index, **addresses):
    return json.dumps({"cluster": addresses, "task": {"type": role, "index": index}})


def free_addresses(number):
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def start(index, addresses, folder, flags):
    """Starts worker number `index`. Its output has both streams."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if addresses is not None:
        environment["TF_CONFIG"] = config("worker", index, worker=addresses)
    command = [sys.executable, "-m", "bert4rec_tf.run", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def start_all(folder, number=2, flags=(), each=None):
    """Starts the workers in folders of their own with one work directory, and returns them."""
    addresses, flags = free_addresses(number), [*SMALL, f"--workdir={folder / 'work'}", *flags]
    each = each or [[]] * number
    return [start(index, addresses, folder, [*flags, *each[index]]) for index in range(number)]


def ended(processes):
    """Waits for all and returns their exit codes and outputs."""
    try:
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs


def wait_for(folder, pattern):
    until = time.monotonic() + 400
    while not list(folder.glob(pattern)):
        assert time.monotonic() < until, f"{pattern} did not come"
        time.sleep(0.02)
