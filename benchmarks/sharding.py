"""A training step with the whole item table in one process, and with half of it on each of two workers.

    python -m benchmarks.sharding 100000 10000000

Prints for each number of items: seconds of a step, peak memory of each process, and bytes per step, counted from the
arguments of the collectives and read from the loopback interface. Run it while nothing else uses that interface.
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

ROUNDS, WARM_UP = 24, 4
BATCH_SIZE, LENGTH, MASKED, WIDTH = 128, 50, 10, 64


def measure(num_items: int, sharded: bool) -> dict[str, float]:
    """Takes some steps in this process, which is a worker if TF_CONFIG says so."""
    import numpy as np
    import tensorflow as tf

    from bert4rec_tf.config.cluster import Cluster
    from bert4rec_tf.config.run import Run
    from bert4rec_tf.models.construction import new_model
    from bert4rec_tf.runs.pipeline import set_threads
    from bert4rec_tf.training import workers
    from bert4rec_tf.training.optimizer import optimizer_of
    from bert4rec_tf.training.steps import make_step, strategy_for

    set_threads(1)
    if sharded:
        workers.join(Cluster.read(), 2)
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
        items = np.exp(rng.random((BATCH_SIZE, LENGTH)) * np.log(num_items)).astype(np.int32)
        places = np.sort(rng.permuted(np.tile(np.arange(LENGTH), (BATCH_SIZE, 1)), axis=1)[:, :MASKED], axis=1)
        targets = np.take_along_axis(items, places, 1)
        np.put_along_axis(items, places, num_items + 1, 1)
        batch = {"users": np.zeros(BATCH_SIZE, np.int32), "items": items, "mask_positions": places.astype(np.int32)}
        batch |= {"mask_targets": targets, "draw": np.tile(np.array([[1, number]], np.int64), (BATCH_SIZE, 1))}
        batch = {name: tf.constant(values) for name, values in batch.items()}
        if sharded and number >= WARM_UP:
            rows += len(np.unique(np.r_[0, model.rows_read(batch)]))
        start = time.perf_counter()
        loss = float(step(batch)["loss"])
        seconds.append(time.perf_counter() - start)
    others = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    return {
        "seconds": statistics.median(seconds[WARM_UP:]),
        "processor": (time.process_time() - processor) / ROUNDS,  # with the making of the batch, a few milliseconds
        "made": made,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "rows": rows / ROUNDS,
        # Each sum of two workers: each sends as many bytes as its argument has. Rows go out and gradients come back.
        "counted": (rows / ROUNDS * 2 * (WIDTH + 1) + others + 2) * 4 if sharded else 0,
        "interface": (_carried() - carried) / ROUNDS / 2,
        "loss": loss,
    }


def _carried() -> int:
    """Bytes that the loopback interface has sent since the machine started, of all processes."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


def start(num_items: int, index: int | None, addresses: list[str]) -> subprocess.Popen:
    environment = dict(os.environ)
    if index is not None:
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment["TF_CONFIG"] = json.dumps(task)
    command = [sys.executable, "-m", "benchmarks.sharding", "measure", str(num_items), str(index is not None)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen) -> dict[str, float]:
    return json.loads(process.communicate()[0].splitlines()[-1])


def free_addresses() -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def main(sizes: list[int]) -> None:
    for size in sizes:
        addresses = free_addresses()
        rows = {"one process": [finished(start(size, None, []))]}
        rows["two workers"] = [finished(one) for one in [start(size, index, addresses) for index in (0, 1)]]
        for name, found in rows.items():
            for one in found:
                figures = ", ".join(f"{key} {value:,.4g}" for key, value in one.items())
                print(f"{size:,} items, {name}: {figures}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        print(json.dumps(measure(int(sys.argv[2]), sys.argv[3] == "True")))
    else:
        main([int(size) for size in sys.argv[1:]])
