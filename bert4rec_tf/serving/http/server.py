"""The life of the HTTP server: it listens, answers, and leaves without dropping a request."""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable

from aiohttp import web

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.serving.http.app import Service, open_versions
from bert4rec_tf.serving.http.settings import ServerSettings

LEAVING_SECONDS = 1.0
"""How long callers on open connections have for one more request, whose answer tells them that it is the last."""


def serve(settings: ServerSettings) -> None:
    """Serves until Ctrl-C or SIGTERM; requests in flight are answered first.

    Raises:
        UserError: where the address cannot be had, or the model cannot be loaded.
    """
    # It logs a traceback for all that is no HTTP; what fails in the service is logged there.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    # Ctrl-C while the model is loaded; later it is a signal to `run`.
    with listening(settings) as listener, contextlib.suppress(KeyboardInterrupt):
        versions = open_versions(settings)
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

        def tell() -> None:
            print(f"version {versions.current.version} of {settings.model} at {address}/", flush=True)
            print(f"predict with POST {address}/v1/models/{settings.name}:predict; Ctrl-C ends", flush=True)

        async def until_told() -> None:
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                # Windows has no such handlers: there Ctrl-C cancels all of this, which cleans up too.
                with contextlib.suppress(NotImplementedError):
                    asyncio.get_running_loop().add_signal_handler(number, stop.set)
            await run(Service(settings, versions), listener, settings.shutdown_seconds, tell, stop)

        asyncio.run(until_told())
        print("stopped", flush=True)


async def run(
    service: Service, listener: socket.socket, shutdown_seconds: float, tell: Callable[[], None], stop: asyncio.Event
) -> None:
    """Answers until `stop` is set, and then whatever has come or comes on the connections that are open.

    Args:
        service: what answers.
        listener: has its address.
        shutdown_seconds: what requests in flight are given at the end.
        tell: called when it listens.
        stop: set by whoever ends it.
    """
    runner = web.AppRunner(
        service.application(), access_log=None, handler_cancellation=True, shutdown_timeout=shutdown_seconds
    )
    await runner.setup()
    try:
        site = web.SockSite(runner, listener, backlog=1_024)
        await site.start()
        tell()
        await stop.wait()
        service.is_leaving = True
        await site.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS):
                while runner.server.connections:
                    await asyncio.sleep(0.01)
    finally:
        await runner.cleanup()


def listening(settings: ServerSettings) -> socket.socket:
    """Returns a socket that has its address; it listens when the model is loaded.

    Raises:
        UserError: where the address cannot be had.
    """
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
    if not ipaddress.ip_address(place[0].split("%")[0]).is_loopback:
        warn(
            f"{settings.host} is not of this machine alone; whoever reaches it can ask, for nothing here asks who it is"
        )
    return listener
