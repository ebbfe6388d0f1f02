"""Starts the HTTP server, and stops it without dropping a request."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import ServingWarning, warn
from bert4rec_tf.serving.http.app import JSON, Service, make_error_response, open_versions
from bert4rec_tf.serving.http.guard import is_loopback
from bert4rec_tf.serving.http.server_settings import ServerSettings

DRAIN_SECONDS = 1.0
"""How long clients may send one more request on an open connection. Its response closes the connection."""

CANCEL_SECONDS = 1.0
"""How long aiohttp waits for what was not finished in time, before and after it cancels that."""

OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The system's errors when it has no room for another connection."""


def serve(settings: ServerSettings) -> None:
    """Serves until Ctrl-C or SIGTERM, then answers the open requests and returns.

    Raises UserError if the server cannot listen on the address, or the model cannot be loaded.
    """
    # aiohttp logs a traceback for every request that is not valid HTTP. The service logs its own failures.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    # KeyboardInterrupt: Ctrl-C while the model loads. Later Ctrl-C is a signal that `run` handles.
    with open_listener(settings) as listener, contextlib.suppress(KeyboardInterrupt):
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
    service: Service,
    listener: socket.socket,
    shutdown_seconds: float,
    announce: Callable[[], None],
    stop: asyncio.Event,
    drain_seconds: float = DRAIN_SECONDS,
) -> None:
    """Answers requests until `stop` is set, then open ones for at most `shutdown_seconds`.

    Calls `announce` once `listener`, a bound socket, accepts connections.
    """
    runner = web.AppRunner(service.make_application(), handler_cancellation=True, shutdown_timeout=CANCEL_SECONDS)
    await runner.setup()
    server: Any = runner.server
    listener.setblocking(False)
    try:
        listener.listen(1_024)
    except OSError as error:  # another server, started at the same time, may have bound the address too
        host, port = listener.getsockname()[:2]
        raise _address_error(host, port, error) from error
    accept_task = asyncio.create_task(accept_connections(listener, lambda: Connection(server)))
    accept_task.add_done_callback(lambda _: stop.set())  # A server that accepts nobody must end, whatever the reason.
    try:
        announce()
        await stop.wait()
    finally:
        service.is_stopping = True
        accept_task.cancel()
        listener.close()
        await _wait_for_callers(server, drain_seconds, shutdown_seconds)
        await runner.cleanup()


async def _wait_for_callers(server: Any, drain_seconds: float, shutdown_seconds: float) -> None:
    """Waits until all connections have closed; for idle ones and for open requests at most so many seconds."""
    clock = asyncio.get_running_loop().time
    begin = clock()
    while connections := server.connections:
        is_busy = any(connection.is_busy for connection in connections)
        if clock() > begin + (shutdown_seconds if is_busy else drain_seconds):
            return
        await asyncio.sleep(0.01)


class Connection(web.RequestHandler):
    """A caller's connection. It never decompresses a body: a few megabytes of one can be gigabytes."""

    def __init__(self, manager: web.Server) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), access_log=None, auto_decompress=False)  # type: ignore[arg-type]

    @property
    def is_busy(self) -> bool:
        """Whether a request has begun whose response is not sent yet. (`cleanup` would cut both short.)"""
        is_unsent = self.transport is not None and self.transport.get_write_buffer_size() > 0
        return self._request_in_progress or is_unsent

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Sends a response; an error that aiohttp found itself, before the service saw the request, as JSON."""
        if resp.status >= 400 and resp.content_type != JSON:
            message = getattr(resp, "text", None) or resp.reason
            resp = make_error_response(message, resp.status)
            resp.force_close()
        return await super().finish_response(request, resp, start_time)


async def accept_connections(listener: socket.socket, make_connection: Callable[[], asyncio.Protocol]) -> None:
    """Accepts connections until it is cancelled.

    If the system has no room for another one, it says so in one line, once a minute, and looks again every second. New
    callers then wait. (asyncio's own server looks more and more often, until it takes a whole processor.)
    """
    loop, silent_until = asyncio.get_running_loop(), 0.0
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
            await loop.connect_accepted_socket(make_connection, connection)
        except OSError as error:  # any other one is of a caller who has hung up
            if error.errno not in OUT_OF_ROOM:
                continue
            if loop.time() >= silent_until:
                silent_until = loop.time() + 60
                warn(
                    f"new callers have to wait ({error.strerror}); raise the limit of open files with ulimit -n",
                    ServingWarning,
                )
            await asyncio.sleep(1)


def _address_error(host: str, port: int, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or error
    return UserError(f"`host` and `port` cannot be listened on: {host}:{port} ({reason})")


def open_listener(settings: ServerSettings) -> socket.socket:
    """Returns a bound socket, which does not accept connections yet. Raises UserError for an address it cannot use."""
    try:
        ((family, kind, protocol, _, place), *_) = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
        # On Windows, the other option would let two servers have one port.
        option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
        listener.bind(place)
    except (OSError, UnicodeError) as error:
        raise _address_error(settings.host, settings.port, error) from error
    if not is_loopback(str(place[0])):
        warn(
            f"{settings.host} can be reached from other machines, and the server has no authentication; put a proxy "
            "with TLS and authentication in front of it",
            ServingWarning,
        )
    return listener
