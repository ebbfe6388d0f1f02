"""Downloads files: verifies them, resumes interrupted downloads, and lets one process at a time fetch a file."""

import contextlib
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import filelock

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Transfer, warn

OFFLINE = "BERT4REC_OFFLINE"
"""The environment variable that forbids downloads."""

PIECE = 1 << 20
TIMEOUT = 60.0
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each new attempt. An attempt that received data starts the list again."""

MAX_ATTEMPTS = 100


class Unreachable(Exception):
    """A URL that does not provide the file."""


class Interrupted(Exception):
    """A connection that ended too early, or a temporary failure of the server."""


@dataclass(frozen=True)
class Remote:
    """A file of at most `size` bytes, to download from the first of `urls` that has it.

    `checksum`: `sha256:`, `md5:` or `git:` (id of a blob), followed by hexadecimal digits.
    """

    urls: Sequence[str]
    checksum: str
    size: int = 4 << 30


def digest(path: Path, checksum: str) -> str:
    """Returns a file's checksum, with the algorithm of the given checksum. A `.gz` file is decompressed first."""
    with files.open_binary(path) as file:
        return digest_of(file, checksum)


def digest_of(file: BinaryIO, checksum: str) -> str:
    """Returns the checksum of an open file's content, with the algorithm of the given checksum."""
    algorithm = checksum.split(":")[0]
    found = hashlib.new("sha1" if algorithm == "git" else algorithm, usedforsecurity=False)
    if algorithm == "git":  # which hashes the size first
        found.update(b"blob %d\0" % file.seek(0, os.SEEK_END))
        file.seek(0)
    while piece := file.read(PIECE):
        found.update(piece)
    return f"{algorithm}:{found.hexdigest()}"


def fetch(remote: Remote, path: Path) -> bool:
    """Downloads a file to `path`, unless it exists, and returns whether it did. Verifies it, and writes it atomically.

    Interrupted downloads resume if the server allows it. If another process downloads the same file, this one waits.

    Raises UserError if OFFLINE is set, no URL provides the file, or its checksum is wrong.
    """
    if os.environ.get(OFFLINE):
        raise UserError(download_by_hand(remote, path, f"{OFFLINE} is set"))
    files.make_folder(path.parent)
    lock = filelock.FileLock(path.with_name(f".{path.name}{files.LOCK}"))
    files.take(lock, path, "another process is downloading it; waiting")
    try:
        if path.exists():
            return False
        reasons = []
        for url in remote.urls:
            try:
                _fetch_from(url, remote, path)
                return True
            except Unreachable as error:
                reasons.append(str(error))
        raise UserError(download_by_hand(remote, path, "; ".join(reasons)))
    finally:
        lock.release()


def download_by_hand(remote: Remote, path: Path, reason: str) -> str:
    """Returns an error message that says which file to put where."""
    return (
        f"{path}: no such file, with or without .gz, and it was not downloaded ({reason}). Get {remote.urls[0]} and "
        "put it there, or set --data_dir"
    )


def _fetch_from(url: str, remote: Remote, path: Path) -> None:
    """Downloads from one URL. Raises Unreachable if that fails, UserError if the checksum is wrong."""
    part = _Part(path)
    has_part = part.length > 0
    received = digest(part.path, remote.checksum) if has_part else None
    if received != remote.checksum:
        received = _download(url, remote, part)
    if received != remote.checksum and has_part:
        warn(f"{path}: the resumed download has the wrong checksum; downloading it again")
        part.discard()
        received = _download(url, remote, part)
    if received != remote.checksum:
        part.discard()
        raise UserError(
            f"{path}: the file at {url} has the wrong checksum and was not kept (expected {remote.checksum}, received "
            f"{received}). If you put a file there yourself, it is used as it is"
        )
    part.finish()


class _Part:
    """A partly downloaded file, and the server's tag (ETag or date) of it."""

    def __init__(self, path: Path) -> None:
        self.target = path
        self.path = path.with_name(f".{path.name}.part")
        self._note = path.with_name(f".{path.name}.part.json")

    @property
    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def tag(self, url: str) -> str | None:
        """Returns the tag if the part was downloaded from `url`, else None."""
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

    def finish(self) -> None:
        with files.atomic_write(self.target) as aside:
            os.replace(self.path, aside)
        self.discard()


def _download(url: str, remote: Remote, part: _Part) -> str:
    """Sends requests until the file is complete, and returns its checksum."""
    idle = 0
    for _ in range(MAX_ATTEMPTS):
        before = part.length
        try:
            _request(url, remote, part)
            return digest(part.path, remote.checksum)
        except Interrupted as error:
            idle = 0 if part.length > before else idle + 1
            if idle > len(PAUSES):
                raise Unreachable(f"{url}: {error}") from error
            time.sleep(PAUSES[max(idle - 1, 0)])
    raise Unreachable(f"{url}: the connection was cut {MAX_ATTEMPTS} times")


def _request(url: str, remote: Remote, part: _Part) -> None:
    """Sends one request for the missing bytes. Raises Interrupted if not all of them arrived."""
    headers = {"User-Agent": "bert4rec_tf", "Accept-Encoding": "identity"}
    tag = part.tag(url)
    if part.length and tag:
        headers |= {"Range": f"bytes={part.length}-", "If-Range": tag}
    elif part.length:
        part.discard()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
            _receive(response, url, remote, part)
    except UserError:  # which is a ValueError
        raise
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.discard()
            raise Interrupted(f"{urlsplit(url).netloc} has no more of the file") from error
        is_temporary = error.code >= 500 or error.code == http.client.TOO_MANY_REQUESTS
        failure = Interrupted if is_temporary else Unreachable
        raise failure(f"{urlsplit(url).netloc} answered {error.code} {_line(error.reason)}") from error
    except urllib.error.URLError as error:
        raise Unreachable(f"{urlsplit(url).netloc} cannot be reached: {_line(error.reason)}") from error
    except (http.client.HTTPException, OSError) as error:
        raise Interrupted(_line(error) or type(error).__name__) from error
    except ValueError as error:  # of the address in a redirect
        raise Unreachable(f"{urlsplit(url).netloc} leads nowhere: {_line(error)}") from error


def _line(reason: object) -> str:
    """Returns what a server said as one line, without characters that act on a terminal."""
    return "".join(letter for letter in " ".join(str(reason).split()) if letter.isprintable())


def _receive(response: http.client.HTTPResponse, url: str, remote: Remote, part: _Part) -> None:
    is_resumed = response.status == http.client.PARTIAL_CONTENT
    start = part.length if is_resumed else 0
    if is_resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        part.discard()
        raise Interrupted("the server did not send the requested part")
    missing = response.headers.get("Content-Length", "")
    total = start + int(missing) if missing.isdigit() else None
    if total is not None and total > remote.size:
        raise Unreachable(f"{url}: {total:,} bytes, which is more than the maximum size ({remote.size:,})")
    part.remember(url, response.headers.get("ETag") or response.headers.get("Last-Modified"))
    received = _write(response, part, start, total, remote.size)
    if received > remote.size:
        part.discard()
        raise Unreachable(f"{url}: more bytes than the maximum size ({remote.size:,})")
    if total is not None and received < total:
        raise Interrupted(f"cut off after {received:,} of {total:,} bytes")


def _write(response: http.client.HTTPResponse, part: _Part, start: int, total: int | None, limit: int) -> int:
    """Writes the response to the part, at most `limit` bytes. Returns the size of the part."""
    received = start
    with contextlib.ExitStack() as stack, Transfer(part.target.name, start, total) as progress:
        with files.writing(part.target):
            file = stack.enter_context(open(part.path, "ab" if start else "wb"))
        while received <= limit and (piece := response.read1(PIECE)):
            with files.writing(part.target):
                file.write(piece)
                file.flush()
            received += len(piece)
            progress.advance(len(piece))
    return received
