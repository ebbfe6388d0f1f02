"""Times several formulations in alternating order, and measures the limits of the machine."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Timing:
    """Seconds of one formulation.

    Attributes:
        wall: wall time of each round.
        processor: median processor time of all threads of this process.
    """

    wall: list[float]
    processor: float

    @property
    def median(self) -> float:
        return statistics.median(self.wall)


def alternate(formulations: Mapping[str, Callable[[], Any]], rounds: int = 5, warm_up: int = 1) -> dict[str, Timing]:
    """Times every formulation once per round, in alternating order, after `warm_up` untimed rounds."""
    names = list(formulations)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        for name in names if number % 2 else reversed(names):
            begin, processor_begin = time.perf_counter(), time.process_time()
            formulations[name]()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - begin)
                processor[name].append(time.process_time() - processor_begin)
    return {name: Timing(times, statistics.median(processor[name])) for name, times in seconds.items()}


def time_call(function: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def matrix_rate(dtype: str = "float32", size: int = 2_048) -> float:
    """Returns the FLOP/s of a matrix product [size, size] x [size, size]."""
    matrix = tf.cast(tf.random.stateless_uniform([size, size], [1, 2]), dtype)
    multiply = tf.function(lambda: tf.matmul(matrix, matrix)[0, 0])
    return 2 * size**3 / min(alternate({"product": lambda: multiply().numpy()}, rounds=9).popitem()[1].wall)


def copy_rate(megabytes: int = 256) -> float:
    """Returns the bytes per second, read plus written, of a copy in memory."""
    source = np.ones(megabytes << 17)
    target = np.empty_like(source)
    return 2 * source.nbytes / min(alternate({"copy": lambda: np.copyto(target, source)}, rounds=7).popitem()[1].wall)


def peak_memory(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """Calls a function in a new process. Returns its result and the process's peak memory in bytes. Only on Linux."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{function.__name__} ended with exit code {process.exitcode}") from None
    finally:
        process.join()


def _report(sender: Any, function: Callable[..., Any], arguments: tuple) -> None:
    result = function(*arguments)
    sender.send((result, _high_water_mark()))


def _high_water_mark() -> int:
    """Reads /proc, because a new process inherits getrusage's peak from its parent."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
