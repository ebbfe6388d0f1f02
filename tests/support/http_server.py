"""A small exported model, its plain-Python oracle, and a server in a thread of the test process."""

import asyncio
import contextlib
import http.client
import json
import math
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.model_settings import PopSettings
from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export import saved_model
from bert4rec_tf.export.layout import CARD_OF_SAVED_MODEL
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.models.recommender import Recommender, last_items
from bert4rec_tf.serving.http.app import Served, Service
from bert4rec_tf.serving.http.catalogue import Catalogue
from bert4rec_tf.serving.http.server import open_listener, run
from bert4rec_tf.serving.http.server_settings import ServerSettings
from bert4rec_tf.serving.signatures import Signature

ITEMS = ["a", "two words", "Ünïcödé", "日本語", "🎬", '<b onclick="alert(1)">', "'; --", *(f"i{n}" for n in range(23))]
NUMBER = {item: row for row, item in enumerate(ITEMS)}
COUNTS = np.arange(len(ITEMS), 0, -1)
K = 5
CARD = {"data": {"name": "letters"}}


def log_probabilities(history, shift):
    """What the model below gives for a history: the item `shift` after the last known one is likeliest.

    Without a known item these are the items' shares of all actions.
    """
    known = [NUMBER[item] for item in history if item in NUMBER]
    if not known:
        return np.log(COUNTS / COUNTS.sum()).tolist()
    logits = [-abs(row - known[-1] - shift) / 3 for row in range(len(ITEMS))]
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


def best(history, shift=1, k=K, exclude=(), keep_seen=False):
    """The k best items with their scores, and how many ids are unknown."""
    scores = log_probabilities(history, shift)
    left = [item for item in ITEMS if item not in exclude and (keep_seen or item not in history)]
    ordered = sorted(left, key=lambda item: (-scores[NUMBER[item]], NUMBER[item]))[:k]
    unknown = sum(item != "" and item not in NUMBER for item in history)
    return ordered, [scores[NUMBER[item]] for item in ordered], unknown


class Neighbours(Recommender):
    settings_type = PopSettings
    scores_are_logits = True

    def __init__(self, shift):
        super().__init__(len(ITEMS))
        self.shift = self.add_weight(shape=(), autocast=False)
        self.shift.assign(shift)

    def user_vectors(self, batch):
        return tf.cast(last_items(batch, 1) - 1, tf.float32) + self.shift

    def score_vectors(self, vectors, candidates=None):
        rows = tf.range(len(ITEMS))[None, :] if candidates is None else candidates - 1
        difference = tf.cast(rows, tf.float32) - vectors
        return tf.minimum(difference, -difference) / 3


def export(folder, shift=1):
    """Writes the SavedModel to a folder."""
    vocabulary = Vocabulary(np.array(ITEMS, object), COUNTS)
    saved_model.export(Neighbours(shift), vocabulary, folder, ExportOptions(K), card=CARD)


def card_of(folder):
    return json.loads((folder / CARD_OF_SAVED_MODEL).read_text())


def export_two(folder):
    """Writes two models, `1` and `2`, which differ in what comes next: 1 or 2 items on. Returns the folder."""
    for shift in (1, 2):
        export(folder / str(shift), shift)
    return folder


def still_answers(server, history=("a", "i3")):
    """Asks on a new connection and compares the answer with that of the first model."""
    (found,) = server.client().predict(instances=[list(history)])["predictions"]
    assert found["items"] == best(history)[0]


def wait_until(holds, seconds=60):
    """Waits until `holds()` is true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


class Fake:
    """A model that a test decides itself: `function` gets the arrays and returns the outputs."""

    description: dict = {}  # noqa: RUF012
    items, histories = ITEMS, None
    card: dict = {}  # noqa: RUF012

    def __init__(self, function):
        self.signatures = {"serving_default": Signature("serving_default", {"histories": None})}
        self._function = function

    def call(self, signature, arrays):
        return self._function(arrays)


def served(model, items=ITEMS):
    """Versions that never change."""
    return SimpleNamespace(
        current=Served(1, model, Catalogue(items, {})), refresh=lambda: None, status=lambda: [{"version": "1"}]
    )


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self):
        return json.loads(self.body, parse_constant=lambda name: 1 / 0)


class Client:
    """Asks on one connection, and opens it again where the server closed it."""

    def __init__(self, port):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method, path, body=None, headers=None):
        try:
            kind = {} if body is None else {"Content-Type": "application/json"}
            self._connection.request(method, path, body, {**kind, **(headers or {})})
            response = self._connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        except (http.client.HTTPException, OSError):
            self._connection.close()
            raise

    def get(self, path):
        return self.ask("GET", path)

    def post(self, body, name="bert4rec", headers=None):
        """Asks for predictions: bytes as they are, anything else as JSON."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", f"/v1/models/{name}:predict", body, headers)

    def predict(self, **content):
        answer = self.post(content)
        assert answer.status == 200, answer.body
        return answer.json


class Server:
    """A running server. `stop` ends it as a signal would: requests in flight are answered first."""

    def __init__(self, versions, drain_seconds=0.05, **changes):
        self.settings = ServerSettings(model="-", port=0, **changes)
        self._versions, self._drain_seconds = versions, drain_seconds
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with open_listener(self.settings) as listener:
            self.port = listener.getsockname()[1]
            service = Service(self.settings, self._versions)
            shutdown_seconds = self.settings.shutdown_seconds
            await run(service, listener, shutdown_seconds, self._started.set, self._stop, self._drain_seconds)

    def stop(self):
        self._loop.call_soon_threadsafe(self._stop.set)

    def client(self):
        return Client(self.port)

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(RuntimeError):
            self.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
