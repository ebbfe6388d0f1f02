"""Refuses requests that a foreign page makes a browser send: with its own origin, or under a name of its own."""

import ipaddress
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.http.predict import RequestError
from bert4rec_tf.serving.http.server_settings import ServerSettings


def make_middleware(settings: ServerSettings) -> Middleware:
    """Returns the middleware that checks `Host` and `Origin` of every request, and refuses bad ones with 403."""
    given_names = [name.strip() for name in settings.allowed_hosts.split(",") if name.strip()]
    allowed_names = {
        name.lower() if _parse_address(name) else _split_host(f"//{name.rpartition('//')[2]}")[1]
        for name in given_names
    }
    if "" in allowed_names:
        raise UserError(f"`allowed_hosts` must be names. Received: allowed_hosts={settings.allowed_hosts}")
    takes_any_name = not allowed_names and not is_loopback(settings.host)
    own_names = {"localhost", settings.host.lower(), *allowed_names}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        # A numeric address is safe: to lead a browser here, a foreign page needs a name of its own (DNS rebinding).
        _, name = _split_host(f"//{host}")
        if host is not None and not (takes_any_name or name in own_names or _parse_address(name)):
            raise RequestError(f"`Host` must be a name of this server or in --allowed_hosts. Received: {host}", 403)
        if origin is not None:
            origin_host, origin_name = _split_host(origin)
            if origin_host != host and origin_name not in allowed_names:
                raise RequestError(f"`Origin` must be this server's page. Received: {origin}", 403)
        return await handler(request)

    return check


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the address `host`."""
    address = _parse_address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _split_host(url: str) -> tuple[str, str]:
    """Returns a URL's host as written, and in lower case without port and brackets; "" for none."""
    try:
        parts = urlsplit(url)
        return parts.netloc, parts.hostname or ""
    except ValueError:
        return "", ""


def _parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns a numeric address; None for a name."""
    try:
        return ipaddress.ip_address(name.split("%")[0])
    except ValueError:
        return None
