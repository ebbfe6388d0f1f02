"""A small model with every kind of signature, its plain-Python oracle, and a server in a thread of the test process."""

import asyncio
import contextlib
import http.client
import json
import math
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from bert4rec_tf.export.layout import CARD_OF_SAVED_MODEL
from bert4rec_tf.serving.http.app import Served, Service
from bert4rec_tf.serving.http.catalogue import Catalogue
from bert4rec_tf.serving.http.server import listening, run
from bert4rec_tf.serving.http.settings import ServerSettings
from bert4rec_tf.serving.signatures import Signature, TensorInfo

ITEMS = ["a", "two words", "Ünïcödé", "日本語", "🎬", '<b onclick="alert(1)">', "'; --", *(f"i{n}" for n in range(23))]
NUMBER = {item: row for row, item in enumerate(ITEMS)}
K = 5
MODEL_CARD = {"items": len(ITEMS), "scores": "log-probabilities", "model": "Neighbours", "data": {"name": "letters"}}
NONE = np.array([[b""]], object)


def log_probabilities(history, shift):
    """What the model below gives for a history: the item `shift` after the last known one is likeliest."""
    known = [NUMBER[item] for item in history if item in NUMBER]
    wanted = (known[-1] if known else 0) + shift
    logits = [-abs(row - wanted) / 3 for row in range(len(ITEMS))]
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


def best(history, shift=1, k=K, hidden=(), only=ITEMS):
    """The k best items with their scores, and how many ids are unknown."""
    scores = log_probabilities(history, shift)
    left = [item for item in only if item in NUMBER and item not in hidden]
    ordered = sorted(left, key=lambda item: (-scores[NUMBER[item]], NUMBER[item]))[:k]
    unknown = sum(item != "" and item not in NUMBER for item in history)
    return ordered, [scores[NUMBER[item]] for item in ordered], unknown


TEXTS = tf.TensorSpec([None, None], tf.string)


class Neighbours(tf.Module):
    """Signatures of every kind: with scalars, defaults, inputs of one row for all, a single output, a binary one."""

    def __init__(self, vocabulary, shift):
        super().__init__()
        asset = tf.saved_model.Asset(str(vocabulary))
        whole, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        to_number = tf.lookup.TextFileInitializer(asset, tf.string, whole, tf.int64, number)
        to_name = tf.lookup.TextFileInitializer(asset, tf.int64, number, tf.string, whole)
        self.numbers = tf.lookup.StaticHashTable(to_number, -1)
        self.names = tf.lookup.StaticHashTable(to_name, "")
        self.shift = tf.Variable(float(shift), trainable=False)

    def _scores(self, histories):
        numbers = self.numbers.lookup(histories)
        columns = tf.range(tf.shape(histories)[1])[None, :]
        last = tf.reduce_max(tf.where(numbers >= 0, columns, -1), axis=1)
        padded = tf.pad(numbers, [[0, 0], [0, 1]])
        newest = tf.where(last >= 0, tf.gather(padded, tf.maximum(last, 0), batch_dims=1), 0)
        wanted = tf.cast(newest, tf.float32) + self.shift
        rows = tf.range(len(ITEMS), dtype=tf.float32)
        unknown = tf.reduce_sum(tf.cast((numbers < 0) & (histories != ""), tf.int32), axis=1)
        return tf.nn.log_softmax(-tf.abs(rows[None, :] - wanted[:, None]) / 3), unknown

    def _best(self, scores, k):
        found, columns = tf.math.top_k(scores, k)
        names = self.names.lookup(tf.where(found > -np.inf, tf.cast(columns, tf.int64), -1))
        return {"items": names, "scores": found}

    @tf.function(input_signature=[TEXTS])
    def serving_default(self, histories):
        scores, unknown = self._scores(histories)
        return {**self._best(scores, K), "unknown": unknown}

    @tf.function(input_signature=[TEXTS, tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.bool), TEXTS])
    def recommend(self, histories, k=tf.constant(K), exclude_seen=tf.constant(True), exclude=tf.constant(NONE)):  # noqa: B008
        with tf.control_dependencies([tf.debugging.assert_positive(k, message="`k` must be at least 1")]):
            k = tf.minimum(k, len(ITEMS))
        scores, unknown = self._scores(histories)
        batch = tf.shape(histories)[0]
        exclude = tf.broadcast_to(exclude, [batch, tf.shape(exclude)[1]])
        hidden = tf.concat([exclude, tf.where(exclude_seen, histories, "")], axis=1)
        is_hidden = tf.reduce_any(
            self.numbers.lookup(hidden)[:, :, None] == tf.range(len(ITEMS), dtype=tf.int64), axis=1
        )
        scores = tf.where(is_hidden, -np.inf, scores)
        return {**self._best(scores, k), "unknown": unknown}

    @tf.function(input_signature=[TEXTS, TEXTS])
    def score(self, histories, candidates):
        numbers = self.numbers.lookup(candidates)
        scores = tf.gather(self._scores(histories)[0], tf.maximum(numbers, 0), batch_dims=1)
        return {"scores": tf.where(numbers >= 0, scores, np.nan)}

    @tf.function(input_signature=[TEXTS, tf.TensorSpec([None], tf.float32), tf.TensorSpec([None, 2], tf.int64)])
    def mixed(self, histories, weights, pairs):
        texts = tf.strings.reduce_join(histories, 1)
        return {"text_bytes": texts, "doubled": 2 * weights, "sums": tf.reduce_sum(pairs, 1), "one": tf.constant(7)}


def export(folder, shift=1):
    """Writes the SavedModel to a folder."""
    vocabulary = folder.parent / "vocabulary.txt"
    folder.parent.mkdir(parents=True, exist_ok=True)
    vocabulary.write_text("".join(f"{item}\n" for item in ITEMS), encoding="utf-8", newline="\n")
    model = Neighbours(vocabulary, shift)
    names = ("serving_default", "recommend", "score", "mixed")
    tf.saved_model.save(model, str(folder), signatures={name: getattr(model, name) for name in names})
    card = folder / CARD_OF_SAVED_MODEL
    card.parent.mkdir()
    card.write_text(json.dumps(MODEL_CARD))


def export_two(folder):
    """Writes two models, `1` and `2`, which differ in what comes next: 1 or 2 items on. Returns the folder."""
    for shift in (1, 2):
        export(folder / str(shift), shift)
    return folder


def still_answers(server, history=("a", "i3")):
    """Asks on a new connection and compares the answer with that of the first model."""
    (found,) = server.client().predict(instances=[list(history)])["predictions"]
    assert found["items"] == best(history)[0]


class Fake:
    """A model that a test decides itself: `function` gets the arrays and returns the outputs."""

    description: dict = {}  # noqa: RUF012
    items = histories = None
    card: dict = {}  # noqa: RUF012

    def __init__(self, function):
        text = TensorInfo(tf.string, (None, None))
        outputs = {name: TensorInfo(tf.string, None) for name in ("items", "texts", "wide", "x")}
        outputs["one"] = TensorInfo(tf.int32, (3,))
        self.signatures = {"serving_default": Signature("serving_default", {"histories": text}, outputs)}
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

    def __init__(self, versions, **changes):
        self.settings = ServerSettings(model="-", port=0, **changes)
        self._versions = versions
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with listening(self.settings) as listener:
            self.port = listener.getsockname()[1]
            service = Service(self.settings, self._versions)
            await run(service, listener, self.settings.shutdown_seconds, self._started.set, self._stop)

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
