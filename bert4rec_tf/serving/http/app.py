"""The HTTP routes: TensorFlow Serving's REST predict API, health checks and the page."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST

from bert4rec_tf.export.layout import find_model_folder
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import expand_path
from bert4rec_tf.foundation.warning import FileWarning, warn
from bert4rec_tf.serving import explanation
from bert4rec_tf.serving.http import guard, openapi, predict
from bert4rec_tf.serving.http.batching import Batcher, Call, Overloaded
from bert4rec_tf.serving.http.catalogue import Catalogue
from bert4rec_tf.serving.http.observing import AccessLog, Metrics
from bert4rec_tf.serving.http.predict import RequestError
from bert4rec_tf.serving.http.server_settings import ServerSettings
from bert4rec_tf.serving.http.versions import LOOK_SECONDS, Versions
from bert4rec_tf.serving.rules import NOTHING_BLOCKED, Attributes, WatchedFile, read_blocked
from bert4rec_tf.serving.signatures import LoadedModel, ModelError

LOG = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
INDEX = "index.html"
PAGE_FILES = {"" if path.name == INDEX else f"page/{path.name}": path.name for path in sorted(PAGE.iterdir())}
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

JSON, IDENTITY = "application/json", "identity"

CONTENT_TYPES_OF_BODIES = (JSON, "application/x-www-form-urlencoded", "application/octet-stream")
"""The others are what `curl -d` says, and what no content type at all means. The body must be JSON all the same."""

PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

THREAD_SIZE = 1 << 14
"""Bodies of this many bytes, and responses of this many values, are converted in a thread, to free the event loop.

So are bodies with a rule, which takes time for all items; or with a backslash, as an escaped name of a rule has."""

MAX_QUERY_LENGTH, MAX_RESULTS = 200, 100

MAX_SEARCHES = 64
"""At most this many searches run or wait. One runs at a time: it competes with the event loop for Python's lock."""


@dataclass(frozen=True)
class Served:
    """One version of the model, with its items for the page, and the number of items in its longest history."""

    version: int
    model: LoadedModel
    catalogue: Catalogue
    longest_history: int = 0


def open_versions(settings: ServerSettings) -> Versions:
    """Loads the newest version. Raises UserError if there is none, or the titles cannot be read.

    They are read with each version. If they cannot be then, a warning says so, and those of before stay.
    """
    last_titles: list[Any] = []

    def read_titles(model: LoadedModel) -> tuple[Mapping[str, str], Mapping[str, list[str]]]:
        try:
            titles = model.choose_titles(settings.titles or None)
        except UserError as error:
            if not (settings.titles and last_titles):
                raise
            warn(f"{error}; the titles of before still count", FileWarning)
            return last_titles[0]
        last_titles[:] = [titles]
        return titles

    def load(folder: Path, number: int) -> Served:
        model = LoadedModel(folder, settings.trust_model)
        # Damage must show now and not at the first request.
        orjson.dumps(model.card)
        _ = model.attributes
        max_length = 0 if model.histories is None else int(model.histories.lengths.max(initial=0))
        model.warm_up()
        return Served(number, model, Catalogue(model.items, *read_titles(model)), max_length)

    return Versions(find_model_folder(expand_path(settings.model)), load)


def open_rules(settings: ServerSettings, versions: Versions) -> predict.Rules:
    """Returns the rules in the files that the settings name. Raises UserError if one cannot be read."""
    attributes = blocked = None
    if settings.attributes is not None:
        path = expand_path(settings.attributes)
        attributes = WatchedFile(path, lambda path: Attributes(path, versions.current.model.item_column))
    if settings.blocked is not None:
        path = expand_path(settings.blocked)
        blocked = WatchedFile(path, lambda path: read_blocked(path, versions.current.model.items))
    return predict.Rules(attributes, blocked)


class Service:
    """Answers all routes. Set `is_stopping` to close each connection after its next response."""

    def __init__(self, settings: ServerSettings, versions: Versions) -> None:
        self.is_stopping = False
        self._settings = settings
        self._versions = versions
        self._batcher = Batcher(settings.max_batch_size, settings.max_queue)
        # Few, because they compete with the event loop for Python's lock.
        self._converters = ThreadPoolExecutor(2, "json")
        self._searcher = ThreadPoolExecutor(1, "search")
        self._searches = 0
        self._rules = open_rules(settings, versions)
        self._metrics = Metrics(lambda: versions.current.version)
        self._access_log = AccessLog(settings.access_log)
        self._files = {path: (PAGE / name).read_bytes() for path, name in PAGE_FILES.items()}

    def make_application(self) -> web.Application:
        checks: list[Middleware] = [
            self._observe,
            self._close_when_stopping,
            self._errors_as_json,
            guard.make_middleware(self._settings),
        ]
        app = web.Application(middlewares=checks, client_max_size=self._settings.max_body_bytes)
        model = "/v1/models/{name:[^/:]+}"
        for path in (model, model + "/versions/{version:[^/:]+}"):
            app.router.add_get(path, self.get_status)
            app.router.add_get(path + "/metadata", self.get_metadata)
            app.router.add_post(path + ":predict", self.predict)
        app.router.add_get("/healthz", self.get_liveness)
        app.router.add_get("/readyz", self.get_readiness)
        app.router.add_get("/metrics", self.get_metrics)
        app.router.add_get("/openapi.json", self.get_openapi)
        app.router.add_get("/page/model", self.get_model)
        app.router.add_get("/page/items", self.get_items)
        for path in self._files:
            app.router.add_get(f"/{path}", self.get_file)
        app.cleanup_ctx.append(self._background)
        return app

    @web.middleware
    async def _observe(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts every request and its time, and writes its line to the access log."""
        begin, status = time.monotonic(), 499  # the caller has hung up
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            seconds, resource = time.monotonic() - begin, request.match_info.route.resource
            self._metrics.observe(request.method, resource.canonical if resource else "other", status, seconds)
            self._access_log.write(request, status, seconds)

    @web.middleware
    async def _close_when_stopping(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if self.is_stopping:
            response.force_close()
        return response

    @web.middleware
    async def _errors_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            return make_error_response(str(error), error.status)
        except Overloaded as error:
            return make_error_response(str(error), 503, {"Retry-After": "1"})
        except ModelError as error:
            if error.is_client_error:
                return make_error_response(f"The model rejected the inputs: {error}", 400)
            return make_error_response(f"The model failed: {error}", 503)
        except TimeoutError:
            LOG.warning("%s %s: no answer in time", request.method, request.path)
            return make_error_response(f"No answer within {self._settings.timeout:g} seconds", 504)
        except web.RequestPayloadError:
            return make_error_response("The body's encoding does not match its headers", 400)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return make_error_response(_REASONS.get(error.status, error.reason), error.status, headers)
        except Exception:
            LOG.exception("%s %s failed", request.method, request.path)
            return make_error_response("Internal error; see the server's log", 500)

    async def _background(self, app: web.Application) -> AsyncIterator[None]:
        """Runs the batcher and the check for new versions while the server runs."""
        async with self._batcher:
            stop = threading.Event()
            # Daemons, because the end must not wait for ever for a disk that hangs; one each, because others can go on.
            sources = [self._versions, *self._rules.list_files()]
            threads = [threading.Thread(target=self._watch, args=(source, stop), daemon=True) for source in sources]
            for thread in threads:
                thread.start()
            yield
            stop.set()
            await asyncio.gather(*(asyncio.to_thread(thread.join, LOOK_SECONDS) for thread in threads))
        for pool in (self._converters, self._searcher):
            pool.shutdown(wait=False, cancel_futures=True)

    def _watch(self, source: Versions | WatchedFile, stop: threading.Event) -> None:
        while not stop.wait(self._settings.poll_seconds):
            try:
                source.refresh()
            except Exception:
                LOG.exception("checking for new files failed")

    def _check_address(self, request: web.Request, versions: Collection[str]) -> None:
        """Raises RequestError if a request names another model, or a version that is not among `versions`."""
        name, version = request.match_info["name"], request.match_info.get("version")
        if name != self._settings.name:
            raise RequestError(f"No model {name!r}; this server has {self._settings.name!r}", 404)
        if version is not None and version not in versions:
            current_version = self._versions.current.version
            raise RequestError(f"No version {version!r} of {name!r}; this server has version {current_version}", 404)

    def _find_version(self, request: web.Request) -> Served:
        """Returns the current version. Raises RequestError if the request names another one."""
        served = self._versions.current
        self._check_address(request, [str(served.version)])
        return served

    async def predict(self, request: web.Request) -> web.Response:
        served = self._find_version(request)
        if request.content_type not in CONTENT_TYPES_OF_BODIES:
            raise RequestError(f"`Content-Type` must be {JSON}. Received: {request.content_type}", 415)
        encoding = request.headers.get("Content-Encoding", IDENTITY)
        if encoding.lower() != IDENTITY:
            raise RequestError(f"A body must not be compressed. Received: Content-Encoding: {encoding}", 415)
        end = asyncio.get_running_loop().time() + self._settings.timeout
        try:
            async with asyncio.timeout_at(end):
                body = await request.read()
        except TimeoutError:
            raise RequestError(f"The body did not arrive within {self._settings.timeout:g} seconds", 408) from None
        async with asyncio.timeout_at(end):
            size = len(body)
            if b'"users"' in body:  # An id of four bytes can name a whole history.
                size *= max(1, served.longest_history // 4)
            min_size = THREAD_SIZE if self._rules.blocked or b'"where"' in body or b"\\" in body else 0
            arguments = body, served.model, self._settings, self._rules
            parsed = await self._in_thread_if_large(max(size, min_size), predict.parse, *arguments)
            outputs = await self._batcher.submit(parsed.call)
            outputs = await self._in_thread_if_large(min_size, parsed.filter_outputs, outputs)
            self._metrics.count(outputs)
            size = sum(array.size for array in outputs.values())
            if parsed.explain:
                outputs["explanations"] = await self._explain(parsed.call, outputs["items"])
            by_rows = parsed.by_rows
            return await self._in_thread_if_large(size, lambda: _json_response(predict.make_response(by_rows, outputs)))

    async def _explain(self, call: Call, items: np.ndarray) -> list[list[dict[str, Any]]]:
        """Returns why each item of each row is recommended (`explanation.read_reasons`)."""
        answers = []
        users = call.arrays.get("users", [None] * call.rows)
        for history, user, row in zip(call.arrays["histories"], users, items):
            texts, recommended_items = ([raw_id.decode() for raw_id in part if raw_id] for part in (history, row))
            arguments = texts, recommended_items, None if user is None else user.decode()
            inputs, omissions = await self._in_thread_if_large(THREAD_SIZE, explanation.make_question, *arguments)
            scoring = Call(call.model, "score", inputs, len(inputs["histories"]), frozenset({"candidates"}))
            scores = (await self._batcher.submit(scoring))["scores"]
            kind = call.model.card.get("scores")
            answers.append(
                await self._in_thread_if_large(THREAD_SIZE, explanation.read_reasons, omissions, scores, kind)
            )
        return answers

    async def _in_thread_if_large(self, size: int, function: Callable[..., Any], *arguments: Any) -> Any:
        if size < THREAD_SIZE:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._converters, function, *arguments)

    async def get_status(self, request: web.Request) -> web.Response:
        states = {state["version"]: state for state in self._versions.status()}
        self._check_address(request, states)
        version = request.match_info.get("version")
        return _json_response({"model_version_status": [*states.values()] if version is None else [states[version]]})

    async def get_metadata(self, request: web.Request) -> web.Response:
        served = self._find_version(request)
        spec = {"name": self._settings.name, "signature_name": "", "version": str(served.version)}
        metadata = {"signature_def": {"signature_def": served.model.description}, "model_card": served.model.card}
        return _json_response({"model_spec": spec, "metadata": metadata})

    async def get_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def get_openapi(self, request: web.Request) -> web.Response:
        served = self._versions.current
        return _json_response(openapi.describe(self._settings.name, served.version, served.model))

    async def get_liveness(self, request: web.Request) -> web.Response:
        return _json_response({"status": "alive"})

    async def get_readiness(self, request: web.Request) -> web.Response:
        return _json_response({"status": "ready", "version": str(self._versions.current.version)})

    async def get_file(self, request: web.Request) -> web.Response:
        path = request.path[1:]
        kind = CONTENT_TYPES[Path(PAGE_FILES[path]).suffix]
        return web.Response(body=self._files[path], content_type=kind, charset="utf-8", headers=PAGE_HEADERS)

    async def get_model(self, request: web.Request) -> web.Response:
        """Answers what the page needs to know about the model."""
        served = self._versions.current
        return _json_response(
            {
                "name": self._settings.name,
                "version": str(served.version),
                "items": len(served.catalogue.items),
                "titles": bool(served.catalogue.titles),
                "signatures": list(served.model.signatures),
                "needs_users": served.model.needs_users,
                "card": served.model.card,
                "users": served.model.histories.num_users if served.model.histories else 0,
                "max_history": self._settings.max_history,
                "can_explain": self._settings.max_rows >= explanation.MOST_ROWS,
            }
        )

    async def get_items(self, request: web.Request) -> web.Response:
        """Answers with items, titles and tags: the history of `user`, the given `id`s, or what matches `query`."""
        served = self._versions.current
        ids = request.query.getall("id", [])
        query = request.query.get("query", "")
        if len(ids) > MAX_RESULTS or len(query) > MAX_QUERY_LENGTH:
            raise RequestError(f"A search may have at most {MAX_RESULTS} ids or {MAX_QUERY_LENGTH} characters")
        if "user" in request.query:
            items = predict.find_history(request.query["user"], served.model, self._settings)
        elif ids:
            items = ids
        else:  # without a query, popular items, which are recommended
            blocked_ids = NOTHING_BLOCKED if query.strip() else self._rules.blocked_ids
            matches = await self._search(served.catalogue, query, MAX_RESULTS + len(blocked_ids))
            items = [item for item in matches if item not in blocked_ids][:MAX_RESULTS]
        return _json_response({"items": [served.catalogue.describe(item) for item in items]})

    async def _search(self, catalogue: Catalogue, query: str, limit: int) -> list[str]:
        """Returns the first items that match a query. A search is dropped if its caller hangs up before its turn."""
        if self._searches >= MAX_SEARCHES:
            raise Overloaded(f"The queue is full: {self._searches} searches wait; try again")
        self._searches += 1
        try:
            async with asyncio.timeout(self._settings.timeout):
                search = asyncio.get_running_loop().run_in_executor
                return await search(self._searcher, catalogue.search, query, limit)
        finally:
            self._searches -= 1


def _json_response(content: Any, status: int = 200, headers: Any = None) -> web.Response:
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return web.Response(body=body, status=status, headers=headers, content_type=JSON)


_REASONS = {
    404: "No such path",
    405: "This path does not allow this method",
    413: "The body is larger than the server allows",
}


def make_error_response(message: str, status: int, headers: Any = None) -> web.Response:
    """Returns an error as JSON, with its message on one line."""
    readable = message.encode("utf-8", "backslashreplace").decode()
    return _json_response({"error": " ".join(readable.split())}, status, headers)
