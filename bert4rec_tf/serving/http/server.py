"""Starts the HTTP server, and stops it without dropping a request."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, BinaryIO

from aiohttp import web

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.serving.http.app import Service, open_versions
from bert4rec_tf.serving.http.guard import is_loopback
from bert4rec_tf.serving.http.settings import ServerSettings

DRAIN_SECONDS = 1.0
"""How long clients may send one more request on an open connection. Its response closes the connection."""

FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The system's errors when it has no room for another connection."""

TURNED_AWAY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"


def serve(settings: ServerSettings) -> None:
    """Serves until Ctrl-C or SIGTERM, then answers the open requests and returns.

    Raises:
        UserError: if the server cannot listen on the address, or the model cannot be loaded.
    """
    # aiohttp logs a traceback for every request that is not valid HTTP. The service logs its own failures.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    # KeyboardInterrupt: Ctrl-C while the model loads. Later Ctrl-C is a signal that `run` handles.
    with listening(settings) as listener, contextlib.suppress(KeyboardInterrupt):
        versions = open_versions(settings)
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

        def announce() -> None:
            print(f"version {versions.current.version} of {settings.model} at {address}/", flush=True)
            print(f"predict with POST {address}/v1/models/{settings.name}:predict; Ctrl-C stops", flush=True)

        async def run_until_signal() -> None:
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                # Windows has no signal handlers in asyncio. There Ctrl-C cancels this task, which also cleans up.
                with contextlib.suppress(NotImplementedError):
                    asyncio.get_running_loop().add_signal_handler(number, stop.set)
            await run(Service(settings, versions), listener, settings.shutdown_seconds, announce, stop)

        asyncio.run(run_until_signal())
        print("stopped", flush=True)


async def run(
    service: Service, listener: socket.socket, shutdown_seconds: float, ready: Callable[[], None], stop: asyncio.Event
) -> None:
    """Answers requests until `stop` is set, then open ones for at most `shutdown_seconds`.

    Calls `ready` once `listener`, a bound socket, accepts connections.
    """
    runner = web.AppRunner(
        service.application(), access_log=None, handler_cancellation=True, shutdown_timeout=shutdown_seconds
    )
    await runner.setup()
    full = FullServer(listener)
    asyncio.get_running_loop().set_exception_handler(full)
    try:
        site = web.SockSite(runner, listener, backlog=1_024)
        await site.start()
        ready()
        await stop.wait()
        service.is_stopping = True
        await site.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while runner.server.connections:
                    await asyncio.sleep(0.01)
    finally:
        full.close()
        await runner.cleanup()


class FullServer:
    """An exception handler of the event loop that turns callers away while the system has no room for connections.

    The callers get 503, or only a closed connection. It warns at most once a minute.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._silent_until = 0.0
        self._spare = self._open()

    def _open(self) -> BinaryIO | None:
        """Returns an open file, to close when a connection needs its descriptor; None if none is free."""
        with contextlib.suppress(OSError):
            return open(os.devnull, "rb")

    def close(self) -> None:
        if self._spare is not None:
            self._spare.close()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ValueError) and self._listener.fileno() < 0:
            return  # The loop wanted to accept again after the server had stopped.
        if not (isinstance(error, OSError) and error.errno in FULL):
            loop.default_exception_handler(context)
            return
        if loop.time() >= self._silent_until:
            self._silent_until = loop.time() + 60
            warn(f"new callers are turned away ({error.strerror}); raise the limit of open files with ulimit -n")
        self.close()
        with contextlib.suppress(OSError):  # raised when nobody waits any more
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.setblocking(False)
                    connection.send(TURNED_AWAY)
        self._spare = self._open()


def listening(settings: ServerSettings) -> socket.socket:
    """Returns a bound socket, which does not accept connections yet. Raises UserError for an address it cannot use."""
    try:
        ((family, kind, protocol, _, place), *_) = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"`host` and `port` cannot be listened on: {settings.host}:{settings.port} ({reason})"
        ) from error
    if not is_loopback(place[0]):
        warn(
            f"{settings.host} can be reached from other machines, and the server has no authentication; put a proxy "
            "with TLS and authentication in front of it"
        )
    return listener
