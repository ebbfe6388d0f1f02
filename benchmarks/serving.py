"""Times a served model: for one user, for batches of users, and over HTTP up to saturation.

The comparison is plain code: one request at a time, by the Keras model, with dictionaries and sorting in Python.
"""

import asyncio
import contextlib
import itertools
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import tensorflow as tf

from benchmarks import measuring
from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.models import BERT4Rec
from bert4rec_tf.serving.http.catalogue import Catalogue
from bert4rec_tf.serving.ids import pad_ids
from bert4rec_tf.serving.signatures import LoadedModel

CATALOGUES = (10_000, 100_000, 1_000_000)
REQUESTS = {"in process": 200, "over HTTP": 200, "saturated": 2_000}
"""Number of requests of each kind."""

CLIENTS = 32
BATCH_SIZE = 64
SMALL_QUEUE = 16
WIDTH, LENGTH, K = 64, 50, 10

History = list[str]


def measure(catalogues: Sequence[int] = CATALOGUES, requests: Mapping[str, int] = REQUESTS) -> list[dict[str, float]]:
    """Measures, prints and returns the figures of each catalogue."""
    rows = []
    for number in catalogues:
        figures = {"items": number, **measure_catalogue(number, requests)}
        print("\n".join(f"{name:<40}{value:>14,.5g}" for name, value in figures.items()), end="\n\n", flush=True)
        rows.append(figures)
    return rows


def measure_catalogue(number: int, requests: Mapping[str, int]) -> dict[str, float]:
    model = BERT4Rec(number, max_length=LENGTH, hidden_dim=WIDTH, initializer_stddev=0.1)
    vocabulary = Vocabulary(np.array([f"item{n}" for n in range(number)], object), np.arange(number, 0, -1))
    histories = make_histories(number, 200)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        export(model, vocabulary, folder, ExportOptions(K))
        begin = time.perf_counter()
        loaded_model = LoadedModel(folder)
        loaded_model.warm_up()
        figures = {"load seconds": time.perf_counter() - begin}
        figures["load seconds, search"] = measuring.time_call(lambda: Catalogue(loaded_model.items, {}))
        figures |= measure_in_process(loaded_model, Plain(model, vocabulary), histories, requests["in process"])
        expected_scores = [ask(loaded_model, [history])["scores"][0] for history in histories]
        with server(folder, max_batch_size=BATCH_SIZE) as (address, seconds):
            figures["seconds from command to listening"] = seconds
            for name, clients in (("over HTTP", 1), ("saturated", CLIENTS)):
                results = asyncio.run(load(address, histories, expected_scores, clients, requests[name]))
                figures |= prefix_names("over HTTP, one client" if clients == 1 else name, results)
        with server(folder, max_batch_size=8, max_queue=SMALL_QUEUE) as (address, _):
            results = asyncio.run(load(address, histories, expected_scores, CLIENTS, requests["saturated"]))
            figures |= prefix_names("small queue", results)
    return figures | compare_callers(figures)


def compare_callers(figures: Mapping[str, float]) -> dict[str, float]:
    """Compares one caller with a call of the export in this process, and CLIENTS callers with one."""
    single, saturated = "over HTTP, one client", "saturated"
    return {
        "one client's p50 / the call's p50": figures[f"{single}, p50 ms"] / figures["in process, p50 ms"],
        f"users/s of {CLIENTS} clients / of one": figures[f"{saturated}, users/s"] / figures[f"{single}, users/s"],
        f"p99 / p50 of {CLIENTS} clients": figures[f"{saturated}, p99 ms"] / figures[f"{saturated}, p50 ms"],
    }


def prefix_names(prefix: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}, {name}": value for name, value in figures.items()}


def make_histories(num_items: int, number: int) -> list[History]:
    rng = np.random.default_rng(1)
    return [[f"item{n}" for n in rng.integers(num_items, size=rng.integers(5, 50))] for _ in range(number)]


def ask(loaded_model: LoadedModel, histories: Sequence[History]) -> dict[str, np.ndarray]:
    return loaded_model.call("serving_default", {"histories": pad_ids(histories)})


class Plain:
    """The plain code to compare with."""

    def __init__(self, model: BERT4Rec, vocabulary: Vocabulary) -> None:
        self._model = model
        self._names = vocabulary.items.tolist()
        self._numbers = {name: number for number, name in enumerate(self._names, 1)}

    def make_product(self, rows: int) -> Callable[[], tf.Tensor]:
        """Returns a call of TensorFlow that scores all items for `rows` vectors, and finds the best K."""
        vectors, (table, _) = tf.random.stateless_normal([rows, WIDTH], [1, 2]), self._model.network_products()
        find_best = tf.function(lambda: tf.math.top_k(tf.matmul(vectors, table, transpose_b=True), K)[1])
        return lambda: find_best().numpy()

    def recommend(self, history: History) -> tuple[History, np.ndarray]:
        """Returns the best K items and their log-probabilities."""
        numbers = [self._numbers[item] for item in history if item in self._numbers][-LENGTH + 1 :]
        logits = self._model.score({"users": [0], "items": [numbers], "lengths": [len(numbers)]}).numpy()[0]
        scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        hidden = scores.copy()
        hidden[[self._numbers[item] - 1 for item in history]] = -np.inf
        best = np.argsort(-hidden)[:K]
        return [self._names[row] for row in best], scores[best]


def measure_in_process(
    loaded_model: LoadedModel, plain: Plain, histories: Sequence[History], number: int
) -> dict[str, float]:
    """Returns the latency for one user, ours and the plain code's in turns, and our users per second in batches.

    `number`: of requests for one user.
    """
    ours, theirs = itertools.cycle(histories), itertools.cycle(histories)
    calls = {"ours": lambda: ask(loaded_model, [next(ours)]), "plain": lambda: plain.recommend(next(theirs))}
    latencies = measuring.alternate({**calls, "product": plain.make_product(1)}, number, warm_up=10)
    batch = list(itertools.islice(itertools.cycle(histories), BATCH_SIZE))
    calls = {"batch": lambda: ask(loaded_model, batch), "product": plain.make_product(BATCH_SIZE)}
    timings = measuring.alternate(calls, rounds=9)
    return {
        **prefix_names("in process", percentiles(latencies["ours"].wall)),
        **prefix_names("plain", percentiles(latencies["plain"].wall)),
        **prefix_names("product and top_k alone", percentiles(latencies["product"].wall)),
        f"product and top_k alone, users/s in batches of {BATCH_SIZE}": BATCH_SIZE / timings["product"].median,
        f"users/s in batches of {BATCH_SIZE}": BATCH_SIZE / timings["batch"].median,
        "plain, users/s": 1 / float(np.mean(latencies["plain"].wall)),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{share} ms": 1_000 * float(np.percentile(seconds, share)) for share in (50, 99)}


@contextlib.contextmanager
def server(folder: Path, **flags: int) -> Iterator[tuple[str, float]]:
    """Serves in another process. Yields the address for predictions and the seconds until the server listened."""
    program = "from bert4rec_tf.commands.main import main; main()"
    arguments = [f"--{name}={value}" for name, value in {"model": folder, "port": 0, **flags}.items()]
    command = [sys.executable, "-c", program, "serve", *arguments]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    output: Any = process.stdout
    with process:
        output.readline()  # that it loads the model
        (port,) = re.findall(r":(\d+)/$", output.readline().strip())
        seconds = time.perf_counter() - begin
        try:
            yield f"http://127.0.0.1:{port}/v1/models/bert4rec:predict", seconds
        finally:
            process.send_signal(signal.SIGTERM)
        if process.wait(60):
            raise RuntimeError(f"the server ended with {process.returncode}")


async def load(
    address: str, histories: Sequence[History], expected_scores: Sequence[np.ndarray], clients: int, requests: int
) -> dict[str, float]:
    """Sends `requests` requests from `clients` concurrent clients, each on one connection.

    Returns:
        The latency's percentiles and the rate of requests answered with status 200; the numbers of requests with the
        right answer (`answered`) or another one's (`wrong`), refused by a full queue (`refused`), with other errors
        (`errors`) and without a response (`lost`).
    """
    numbers = itertools.count()
    seconds: list[float] = []
    outcomes: Counter[str] = Counter()

    async def client(session: aiohttp.ClientSession) -> None:
        while (number := next(numbers)) < requests:
            place = number % len(histories)
            begin = time.perf_counter()
            try:
                async with session.post(address, json={"instances": [histories[place]]}) as response:
                    content = await response.json()
            except (aiohttp.ClientError, TimeoutError):
                outcomes["lost"] += 1
                continue
            if response.status == 200:
                seconds.append(time.perf_counter() - begin)
                scores = content["predictions"][0]["scores"]
                outcomes["answered" if np.allclose(scores, expected_scores[place], atol=1e-3) else "wrong"] += 1
            else:
                is_refused = response.status == 503 and response.headers.get("Retry-After")
                outcomes["refused" if is_refused else "errors"] += 1

    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
        begin = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(clients)))
        duration = time.perf_counter() - begin
    return {
        **percentiles(seconds),
        "users/s": len(seconds) / duration,
        **{name: outcomes[name] for name in ("answered", "refused", "errors", "lost", "wrong")},
    }
