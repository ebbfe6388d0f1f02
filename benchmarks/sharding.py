"""Measures a training step with the whole item table in one process, and with half of it on each of two workers.

Bytes per step are computed from the collectives' arguments, and also read from the loopback interface. Run this while
nothing else uses that interface.
"""

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CATALOGUES, LARGEST = (100_000,), 10_000_000
ROUNDS, WARM_UP = 24, 4
BATCH_SIZE, LENGTH, MASKED, WIDTH = 128, 50, 10, 64


def measure(with_largest: bool) -> list[dict[str, Any]]:
    """Measures, prints and returns the figures of each process."""
    found = []
    for size in (*CATALOGUES, *[LARGEST] * with_largest):
        addresses = free_addresses()
        rows = {"one process": [finished(start(size, None, []))]}
        rows["two workers"] = [finished(one) for one in [start(size, index, addresses) for index in (0, 1)]]
        for kind, figures in ((kind, one) for kind, several in rows.items() for one in several):
            print(f"{size:,} items, {kind}: {', '.join(f'{key} {value:,.4g}' for key, value in figures.items())}")
            found.append({"items": size, "kind": kind, **figures})
    return found


def free_addresses() -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def start(num_items: int, index: int | None, addresses: list[str]) -> subprocess.Popen:
    """Starts a process that takes steps: worker `index`, or with None a process alone."""
    environment = dict(os.environ)
    if index is not None:
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment["TF_CONFIG"] = json.dumps(task)
    command = [sys.executable, "-m", "benchmarks.sharding", str(num_items), str(index is not None)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen) -> dict[str, float]:
    return json.loads(process.communicate()[0].splitlines()[-1])


def take_steps(num_items: int, sharded: bool) -> dict[str, float]:
    """Takes steps in this process, which is a worker if `sharded`. Returns its figures."""
    import numpy as np
    import tensorflow as tf

    from bert4rec_tf.config.machines import Machines
    from bert4rec_tf.config.run import Run
    from bert4rec_tf.models.construction import new_model
    from bert4rec_tf.runs.environment import set_threads
    from bert4rec_tf.training import workers
    from bert4rec_tf.training.optimizer import optimizer_of
    from bert4rec_tf.training.steps import make_step, strategy_for

    set_threads(1)
    if sharded:
        workers.join(Machines.read(), 2)
    team, replicas = workers.team(), 2 if sharded else 1
    run = Run.make(
        "beauty",
        **{"loss": "sampled_softmax", "optimizer": "rowwise_adagrad", "batch_size": BATCH_SIZE, "replicas": replicas},
        **{"hidden_dim": WIDTH, "shard_tables": sharded, "max_length": LENGTH},
    )
    begin, processor, strategy = time.perf_counter(), 0.0, strategy_for(replicas)
    model = new_model(run, num_items, 1, strategy, shard=(team.index, team.count) if sharded else None)
    with strategy.scope() if strategy else tf.init_scope():
        optimizer = optimizer_of(run.training, model)
        optimizer.build(model.trainable_variables)
    made = time.perf_counter() - begin
    step = make_step(model, optimizer, run.training, strategy)
    rng, seconds, rows, carried = np.random.default_rng(1), [], 0, 0
    for number in range(WARM_UP + ROUNDS):
        if number == WARM_UP:
            carried, processor = _carried(), time.process_time()
        batch = {name: tf.constant(values) for name, values in _batch(rng, num_items, number).items()}
        if sharded and number >= WARM_UP:
            rows += len(np.unique(np.r_[0, model.rows_read(batch)]))
        begin = time.perf_counter()
        loss = float(step(batch)["loss"])
        seconds.append(time.perf_counter() - begin)
    others = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    return {
        "seconds": statistics.median(seconds[WARM_UP:]),
        "processor": (time.process_time() - processor) / ROUNDS,  # includes making the batch, a few milliseconds
        "made": made,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "rows": rows / ROUNDS,
        # To sum, each of two workers sends its argument: rows on the way forward, gradients on the way back.
        "counted": (rows / ROUNDS * 2 * (WIDTH + 1) + others + 2) * 4 if sharded else 0,
        "interface": (_carried() - carried) / ROUNDS / 2,
        "loss": loss,
    }


def _batch(rng: Any, num_items: int, number: int) -> dict[str, Any]:
    """Returns a masked batch whose items are drawn log-uniformly."""
    import numpy as np

    items = np.exp(rng.random((BATCH_SIZE, LENGTH)) * np.log(num_items)).astype(np.int32)
    places = np.sort(rng.permuted(np.tile(np.arange(LENGTH), (BATCH_SIZE, 1)), axis=1)[:, :MASKED], axis=1)
    targets = np.take_along_axis(items, places, 1)
    np.put_along_axis(items, places, num_items + 1, 1)
    return {
        "users": np.zeros(BATCH_SIZE, np.int32),
        "items": items,
        "mask_positions": places.astype(np.int32),
        "mask_targets": targets,
        "draw": np.tile(np.array([[1, number]], np.int64), (BATCH_SIZE, 1)),
    }


def _carried() -> int:
    """Returns the bytes that all processes have sent over the loopback interface since the machine started."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


if __name__ == "__main__":
    print(json.dumps(take_steps(int(sys.argv[1]), sys.argv[2] == "True")))
