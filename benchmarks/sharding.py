"""A training step with the whole item table in one process, and with half of it on each of two workers.

Measures for each number of items: seconds of a step, peak memory of each process, and bytes per step, counted from the
arguments of the collectives and read from the loopback interface. Run it while nothing else uses that interface.
"""

import json
import os
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import measuring

CATALOGUE, LARGEST = 100_000, 10_000_000
ROUNDS, WARM_UP = 24, 4
BATCH_SIZE, LENGTH, MASKED, WIDTH = 128, 50, 10, 64


def measure(with_largest: bool) -> list[dict[str, Any]]:
    """Measures, prints and returns the figures of each process."""
    found = []
    for number in (CATALOGUE, *[LARGEST] * with_largest):
        for workers in (1, 2):
            for figures in of_workers(number, workers):
                row = {"items": number, "workers": workers, **figures}
                print(", ".join(f"{name} {value:,.4g}" for name, value in row.items()), flush=True)
                found.append(row)
    return found


def of_workers(num_items: int, workers: int) -> list[dict[str, float]]:
    """Returns the figures of each of some workers that train together."""
    addresses = free_addresses(workers)
    tasks = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}} for i in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        done = list(
            pool.map(lambda task: measuring.peak_memory(steps, num_items, task if workers > 1 else None), tasks)
        )
    return [{**figures, "peak_gb": peak / 1e9} for figures, peak in done]


def free_addresses(number: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def steps(num_items: int, task: dict[str, Any] | None) -> dict[str, float]:
    """Takes some steps in this process, which is a worker if it has a `task`, the content of TF_CONFIG."""
    import numpy as np
    import tensorflow as tf

    from bert4rec_tf.config.cluster import VARIABLE, Cluster
    from bert4rec_tf.config.run import Run
    from bert4rec_tf.models.construction import new_model
    from bert4rec_tf.runs.environment import set_threads
    from bert4rec_tf.training import workers
    from bert4rec_tf.training.optimizer import optimizer_of
    from bert4rec_tf.training.steps import make_step, strategy_for

    set_threads(1)
    sharded = task is not None
    if sharded:
        os.environ[VARIABLE] = json.dumps(task)
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
