"""Fetching files: verified, resumed, and by one process at a time."""

import contextlib
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import filelock

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Transfer, warn

OFFLINE = "BERT4REC_OFFLINE"
"""A variable of the environment that forbids downloads."""

PIECE = 1 << 20
TIMEOUT = 60.0
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before the second attempt and the ones after; one that brought something starts them anew."""

MAX_ATTEMPTS = 100


class Unreachable(Exception):
    """A file that cannot be had from an address."""


class Cut(Exception):
    """A connection that ended too early."""


@dataclass(frozen=True)
class Remote:
    """A file to be fetched.

    Attributes:
        urls: where it lies; the later ones are tried where the earlier ones fail.
        checksum: `sha256:`, `md5:` or `git:` (a blob's id) and hexadecimal digits.
        size: the most bytes that it may have.
    """

    urls: Sequence[str]
    checksum: str
    size: int = 4 << 30


def digest(path: Path, checksum: str) -> str:
    """Returns the checksum of a file (of what is packed in a `.gz`), in the manner of another checksum."""
    with files.open_binary(path) as file:
        if path.suffix == ".gz" and checksum.startswith("git:"):  # Such a sum begins with the size of what is packed.
            return digest_of(file.read(), checksum)
        return _digest(iter(lambda: file.read(PIECE), b""), path.stat().st_size, checksum)


def digest_of(content: bytes, checksum: str) -> str:
    """Returns the checksum of the content of a file, in the manner of another checksum."""
    return _digest((content,), len(content), checksum)


def _digest(pieces: Iterable[bytes], size: int, checksum: str) -> str:
    manner = checksum.split(":")[0]
    found = hashlib.new("sha1" if manner == "git" else manner, usedforsecurity=False)
    if manner == "git":
        found.update(b"blob %d\0" % size)
    for piece in pieces:
        found.update(piece)
    return f"{manner}:{found.hexdigest()}"


def fetch(remote: Remote, path: Path) -> bool:
    """Brings a file to `path`, unless it is there; it appears whole and verified, or not at all.

    Returns whether this process fetched it.

    What a cut connection or a killed process left is gone on with, where the server allows it. Another process that
    fetches the same file is waited for.

    Raises:
        UserError: one line that names an address and where to put the file, where no address gives it; and where what
            it gives is not the file.
    """
    if os.environ.get(OFFLINE):
        raise UserError(by_hand(remote, path, f"{OFFLINE} is set"))
    files.make_folder(path.parent)
    with _alone(path):
        if path.exists():
            return False
        reasons = []
        for url in remote.urls:
            try:
                _fetch_from(url, remote, path)
                return True
            except Unreachable as error:
                reasons.append(str(error))
        raise UserError(by_hand(remote, path, "; ".join(reasons)))


def by_hand(remote: Remote, path: Path, why: str) -> str:
    """Returns the line that tells which file to put where."""
    return (
        f"{path}: no such file, nor the same with .gz, and it was not downloaded ({why}). Get {remote.urls[0]} and put "
        "it there, or set --data_dir"
    )


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    lock = filelock.FileLock(path.with_name(f".{path.name}{files.LOCK}"))
    try:
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            warn(f"{path}: another process fetches it; waiting for that one")
            lock.acquire()
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    try:
        yield
    finally:
        lock.release()


def _fetch_from(url: str, remote: Remote, path: Path) -> None:
    """Fetches from one address. Raises Unreachable where nothing comes, UserError where it is not the file."""
    part = _Part(path)
    begun = part.length > 0
    if begun and digest(part.path, remote.checksum) == remote.checksum:
        part.finish(path)
        return
    _complete(url, remote, part)
    found = digest(part.path, remote.checksum)
    if found != remote.checksum and begun:
        warn(f"{path}: what was gone on with is not the file; fetching it anew")
        part.discard()
        _complete(url, remote, part)
        found = digest(part.path, remote.checksum)
    if found != remote.checksum:
        part.discard()
        raise UserError(
            f"{path}: {url} gave another file than expected, which was not kept (expected {remote.checksum}, received "
            f"{found}). A file that you put there yourself is used all the same"
        )
    part.finish(path)


class _Part:
    """The beginning of a file, and the tag by which its server knows it."""

    def __init__(self, path: Path) -> None:
        self.target = path
        self.path = path.with_name(f".{path.name}.part")
        self._note = path.with_name(f".{path.name}.part.json")

    @property
    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def tag(self, url: str) -> str | None:
        """Returns what the server at `url` called the file whose beginning this is."""
        try:
            note = json.loads(self._note.read_text())
            return note["tag"] if note["url"] == url else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember(self, url: str, tag: str | None) -> None:
        files.write_json(self._note, {"url": url, "tag": tag})

    def discard(self) -> None:
        for path in (self.path, self._note):
            path.unlink(missing_ok=True)

    def finish(self, path: Path) -> None:
        with files.atomic_write(path) as aside:
            os.replace(self.path, aside)
        self.discard()


def _complete(url: str, remote: Remote, part: _Part) -> None:
    """Asks until everything has come."""
    idle = 0
    for _ in range(MAX_ATTEMPTS):
        before = part.length
        try:
            _ask(url, remote, part)
            return
        except Cut as error:
            idle = 0 if part.length > before else idle + 1
            if idle > len(PAUSES):
                raise Unreachable(f"{url}: {error}") from error
            time.sleep(PAUSES[max(idle - 1, 0)])
    raise Unreachable(f"{url}: the connection was cut {MAX_ATTEMPTS} times")


def _ask(url: str, remote: Remote, part: _Part) -> None:
    """Makes one request for what is missing. Raises Cut where the connection ended before everything had come."""
    headers = {"User-Agent": "bert4rec_tf", "Accept-Encoding": "identity"}
    tag = part.tag(url)
    if part.length and tag:
        headers |= {"Range": f"bytes={part.length}-", "If-Range": tag}
    elif part.length:
        part.discard()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
            _receive(response, url, remote, part)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.discard()
            raise Cut(f"{urlsplit(url).netloc} has no more of the file") from error
        if error.code >= 500 or error.code == http.client.TOO_MANY_REQUESTS:
            raise Cut(f"{urlsplit(url).netloc} answered {error.code} {error.reason}") from error
        raise Unreachable(f"{urlsplit(url).netloc} answered {error.code} {error.reason}") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise Cut(str(error) or type(error).__name__) from error
    except urllib.error.URLError as error:
        raise Unreachable(f"{urlsplit(url).netloc} cannot be reached: {error.reason}") from error


def _receive(response: http.client.HTTPResponse, url: str, remote: Remote, part: _Part) -> None:
    goes_on = response.status == http.client.PARTIAL_CONTENT
    start = part.length if goes_on else 0
    if goes_on and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        part.discard()
        raise Cut("the server sent another part than asked for")
    left = response.headers.get("Content-Length", "")
    total = start + int(left) if left.isdigit() else None
    if total is not None and total > remote.size:
        raise Unreachable(f"{url}: {total:,} bytes, which is more than the file can have ({remote.size:,})")
    part.remember(url, response.headers.get("ETag") or response.headers.get("Last-Modified"))
    received = _write(response, part, start, total, remote.size)
    if received > remote.size:
        part.discard()
        raise Unreachable(f"{url}: more bytes than the file can have ({remote.size:,})")
    if total is not None and received < total:
        raise Cut(f"cut off after {received:,} of {total:,} bytes")


def _write(response: http.client.HTTPResponse, part: _Part, start: int, total: int | None, most: int) -> int:
    """Writes what comes, and returns how many bytes there are now."""
    with Transfer(part.target.name, start, total) as shown, _opened(part, "ab" if start else "wb") as file:
        received = start
        while received <= most and (piece := response.read1(PIECE)):
            try:
                file.write(piece)
            except OSError as error:
                raise UserError(f"{part.target}: cannot be written ({error.strerror or error})") from error
            received += len(piece)
            shown.advance(len(piece))
    return received


def _opened(part: _Part, mode: str) -> IO[bytes]:
    try:
        return open(part.path, mode)
    except OSError as error:
        raise UserError(f"{part.target}: cannot be written ({error.strerror or error})") from error
