"""A server of one file on this machine that behaves as it is told to."""

import contextlib
import http.server
import threading
from dataclasses import dataclass, field


@dataclass
class Behaviour:
    """What the server does.

    Attributes:
        content: what it serves at `/file`.
        cut_after: bytes after which each of the first connections is cut; one entry per connection.
        status: answers with this instead, if it is not 200.
        delay: to be waited for before the first byte.
        asked: the path of every request.
        location: where it sends those who ask for `/moved`.
    """

    content: bytes
    cut_after: list[int] = field(default_factory=list)
    status: int = 200
    delay: threading.Event | None = None
    asked: list[str] = field(default_factory=list)
    url: str = ""
    location: str = "/file"


@contextlib.contextmanager
def served(content, **behaviour):
    """Serves `content` inside the block, and yields the `Behaviour`, which may be changed on the way."""
    known = Behaviour(content, **behaviour)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", known.location)
                self.end_headers()
                return
            known.asked.append(self.path)
            if known.delay is not None:
                known.delay.wait(20)
            if known.status != 200:
                self.send_error(known.status)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(known.content)))
            self.end_headers()
            most = known.cut_after.pop(0) if known.cut_after else None
            with contextlib.suppress(ConnectionError):
                self.wfile.write(known.content[:most])

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
