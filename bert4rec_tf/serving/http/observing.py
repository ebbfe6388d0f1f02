"""What is measured of a server's requests, in Prometheus' text form, and the access log."""

import logging
import time
from collections.abc import Callable, Mapping
from logging.handlers import WatchedFileHandler
from typing import Any

import numpy as np
import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bert4rec_tf.export.functions import POPULAR
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import Url, expand_path
from bert4rec_tf.foundation.warning import ServingWarning, warn


class Metrics:
    """Counts since the server's start. `find_version`: returns the version of the model in use."""

    def __init__(self, find_version: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ("method", "path", "status")
        self._requests = Counter("bert4rec_requests", "Requests, with their errors", labels, registry=registry)
        self._seconds = Histogram("bert4rec_request_seconds", "Seconds until the answer", ("path",), registry=registry)
        self._rows = Counter("bert4rec_rows", "Rows that the model has answered", registry=registry)
        self._unknown = Counter(
            "bert4rec_unknown_ids", "Ids in requests that the model does not know", registry=registry
        )
        self._popular = Counter("bert4rec_popular_rows", "Rows that got what is popular", registry=registry)
        Gauge("bert4rec_model_version", "Version of the model in use", registry=registry).set_function(find_version)

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        self._requests.labels(method, path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def count(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Counts the rows of a model's outputs, and what it did not know in them."""
        num_unknown = outputs.get("unknown", np.empty(0))
        self._rows.inc(len(num_unknown))
        self._unknown.inc(int(num_unknown.sum()))
        self._popular.inc(int((outputs.get("basis", np.empty(0, object)) == POPULAR.encode()).sum()))

    def render(self) -> bytes:
        return generate_latest(self._registry)


class AccessLog:
    """Adds a line of JSON for each request to a file; `-` for the standard output, None for no log.

    If the file is renamed or deleted, as by logrotate, the next line begins a new one. If a line cannot be written
    later, a warning says so, once until one can. Raises UserError if it cannot be written at first, or is in a store,
    which cannot add to a file.
    """

    def __init__(self, path: str | None) -> None:
        self._path, self._fails = path, False
        if path in (None, "-"):
            return
        if isinstance(expand_path(path), Url):
            raise UserError(f"`access_log` must be a file on this machine. Received: access_log={path}")
        try:
            self._file = LogFile(expand_path(path), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from error

    def write(self, request: web.Request, status: int, seconds: float) -> None:
        if self._path is None:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line: dict[str, Any] = {"time": now, "from": request.remote, "method": request.method, "path": request.path}
        line |= {"status": status, "seconds": round(seconds, 6)}
        text = orjson.dumps(line).decode()
        try:
            if self._path == "-":
                print(text, flush=True)  # prints nothing where a service has closed the output
            else:
                self._file.emit(logging.makeLogRecord({"msg": text}))
            self._fails = False
        except (OSError, ValueError) as error:  # ValueError: the standard output was closed
            if not self._fails:
                self._fails, reason = True, getattr(error, "strerror", None) or error
                warn(f"{self._path}: cannot be written ({reason}), so requests are not logged", ServingWarning)


class LogFile(WatchedFileHandler):
    """Raises the errors of writing, which `logging` would print with a traceback for each line."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise
