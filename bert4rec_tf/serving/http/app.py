"""What is answered over HTTP: TensorFlow Serving's REST predict API, health checks, and the page."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from bert4rec_tf.foundation.files import expanded_path
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.serving.http import predict
from bert4rec_tf.serving.http.batching import Batcher, Overloaded
from bert4rec_tf.serving.http.catalogue import Catalogue, read_items
from bert4rec_tf.serving.http.predict import RequestError
from bert4rec_tf.serving.http.settings import ServerSettings
from bert4rec_tf.serving.http.versions import Versions
from bert4rec_tf.serving.signatures import LoadedModel, ModelError
from bert4rec_tf.serving.titles import read_titles

LOG = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {"": "index.html", "page/style.css": "style.css", "page/app.js": "app.js", "page/icon.svg": "icon.svg"}
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

HEAVY = 1 << 16
"""Bytes of a body, or numbers of an answer, from which on a thread translates them and not the event loop."""

LONGEST_QUERY, MOST_FOUND = 200, 100

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Served:
    """One version: the model, and its items for the page."""

    version: int
    model: LoadedModel
    catalogue: Catalogue


def open_versions(settings: ServerSettings, tell: Callable[[str], None] = warn) -> Versions[Served]:
    """Loads the newest version. Raises UserError where there is none, or the titles cannot be read."""
    titles = read_titles(expanded_path(settings.titles)) if settings.titles else {}

    def load(folder: Path, number: int) -> Served:
        model = LoadedModel(folder)
        model.warm_up()
        items = read_items(model.vocabulary) if model.vocabulary else list(titles)
        return Served(number, model, Catalogue(items, titles))

    return Versions(expanded_path(settings.model), load, tell)


class Service:
    """The handlers of all addresses.

    Args:
        settings: its limits.
        versions: what is served.

    Attributes:
        is_leaving: whether every answer is to be the last one on its connection.
    """

    def __init__(self, settings: ServerSettings, versions: Versions[Served]) -> None:
        self.is_leaving = False
        self._settings = settings
        self._versions = versions
        self._batcher: Batcher | None = None
        self._files = {path: (PAGE / name).read_bytes() for path, name in PAGE_FILES.items()}

    def application(self) -> web.Application:
        app = web.Application(
            middlewares=[self._last_ones, _errors_as_json], client_max_size=self._settings.max_body_bytes
        )
        model = "/v1/models/{name:[^/:]+}"
        for place in (model, model + "/versions/{version:[^/:]+}"):
            app.router.add_get(place, self.status)
            app.router.add_get(place + "/metadata", self.metadata)
            app.router.add_post(place + ":predict", self.predict)
        app.router.add_get("/healthz", self.live)
        app.router.add_get("/readyz", self.ready)
        app.router.add_get("/page/model", self.about)
        app.router.add_get("/page/items", self.items)
        for path in self._files:
            app.router.add_get(f"/{path}", self.file)
        app.cleanup_ctx.append(self._at_work)
        return app

    @web.middleware
    async def _last_ones(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if self.is_leaving:
            response.force_close()
        return response

    async def _at_work(self, app: web.Application) -> AsyncIterator[None]:
        settings = self._settings
        async with Batcher(settings.max_batch_size, settings.batch_timeout_ms / 1_000, settings.max_queue) as batcher:
            self._batcher = batcher
            watch = asyncio.create_task(self._watch())
            yield
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "versions") as thread:
            while True:
                await asyncio.sleep(self._settings.poll_seconds)
                try:
                    await loop.run_in_executor(thread, self._versions.refresh)
                except Exception:
                    LOG.exception("the folder of versions could not be looked through")

    def _name(self, request: web.Request) -> str:
        """Returns the name of the model, which is the only one that may be asked for."""
        name = request.match_info["name"]
        if name != self._settings.name:
            raise RequestError(f"There is no model {name!r} here, but {self._settings.name!r}", 404)
        return name

    def _served(self, request: web.Request) -> Served:
        """Returns the version that a request names, or else the current one."""
        name, version = self._name(request), request.match_info.get("version")
        served = self._versions.current
        if version is not None and version != str(served.version):
            raise _no_version(name, version, served)
        return served

    async def predict(self, request: web.Request) -> web.Response:
        served = self._served(request)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.timeout
        try:
            async with asyncio.timeout_at(end):
                body = await request.read()
        except TimeoutError:
            raise RequestError(f"The body did not come within {self._settings.timeout:g} seconds", 408) from None
        try:
            async with asyncio.timeout_at(end):
                question = await _translated(len(body), predict.parse, body, served.model, self._settings)
                outputs = await self._batcher.submit(question.call)
                size = sum(array.size for array in outputs.values())
                return await _translated(size, _answer, question, outputs)
        except TimeoutError:
            raise RequestError(f"No answer within {self._settings.timeout:g} seconds", 504) from None

    async def status(self, request: web.Request) -> web.Response:
        name, named = self._name(request), request.match_info.get("version")
        states = [state for state in self._versions.status() if named in (None, state["version"])]
        if not states:
            raise _no_version(name, named, self._versions.current)
        return _json({"model_version_status": states})

    async def metadata(self, request: web.Request) -> web.Response:
        served = self._served(request)
        spec = {"name": self._settings.name, "signature_name": "", "version": str(served.version)}
        told = {"signature_def": {"signature_def": served.model.description}, "model_card": served.model.card}
        return _json({"model_spec": spec, "metadata": told})

    async def live(self, request: web.Request) -> web.Response:
        return _json({"status": "alive"})

    async def ready(self, request: web.Request) -> web.Response:
        return _json({"status": "ready", "version": str(self._versions.current.version)})

    async def file(self, request: web.Request) -> web.Response:
        path = request.path[1:]
        kind = CONTENT_TYPES[Path(PAGE_FILES[path]).suffix]
        return web.Response(body=self._files[path], content_type=kind, charset="utf-8", headers=PAGE_HEADERS)

    async def about(self, request: web.Request) -> web.Response:
        """What the page has to know of the model."""
        served = self._versions.current
        signatures = {
            name: {key: info.default is None for key, info in one.inputs.items()}
            for name, one in served.model.signatures.items()
        }
        return _json(
            {
                "name": self._settings.name,
                "version": str(served.version),
                "items": len(served.catalogue.items),
                "titles": bool(served.catalogue.titles),
                "inputs": signatures,
                "card": served.model.card,
                "max_history": self._settings.max_history,
            }
        )

    async def items(self, request: web.Request) -> web.Response:
        """Items by `query`, or those with the given `id`s, with their titles."""
        catalogue = self._versions.current.catalogue
        ids = request.query.getall("id", [])
        query = request.query.get("query", "")
        if len(ids) > MOST_FOUND or len(query) > LONGEST_QUERY:
            raise RequestError(f"At most {MOST_FOUND} ids or {LONGEST_QUERY} letters can be looked for")
        found = ids or await asyncio.to_thread(catalogue.search, query, MOST_FOUND)
        return _json({"items": [{"id": item, "title": catalogue.title(item)} for item in found]})


def _answer(question: predict.PredictRequest, outputs: Any) -> web.Response:
    return _json(predict.answer(question, outputs))


def _no_version(name: str, version: str, served: Served) -> RequestError:
    return RequestError(f"There is no version {version!r} of {name!r} here, but {served.version}", 404)


async def _translated(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments) if size >= HEAVY else function(*arguments)


def _json(content: Any, status: int = 200, headers: Any = None) -> web.Response:
    body = json.dumps(content, allow_nan=False).encode()
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return _error(str(error), error.status)
    except Overloaded as error:
        return _error(str(error), 503, {"Retry-After": "1"})
    except ModelError as error:
        return _error(
            f"The model {'refused' if error.is_callers else 'failed'}: {error}", 400 if error.is_callers else 503
        )
    except web.RequestPayloadError:
        return _error("The body is not encoded as its headers say", 400)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return _error(_REASONS.get(error.status, error.reason), error.status, allowed)
    except Exception:
        LOG.exception("%s %s failed", request.method, request.path)
        return _error("The server failed; its log says more", 500)


_REASONS = {
    404: "There is nothing at this address",
    405: "This address does not take this method",
    413: "The body is larger than the server takes",
}


def _error(message: str, status: int, headers: Any = None) -> web.Response:
    return _json({"error": " ".join(message.split())}, status, headers)
