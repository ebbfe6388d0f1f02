"""Downloads and verifies files with pooch. One process at a time downloads to a folder."""

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import pooch
import requests

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import show_transfer

OFFLINE = "BERT4REC_OFFLINE"
"""The environment variable that forbids downloads, unless it is empty, 0 or false."""

TIMEOUT = 60.0
RETRIES = 2
HEADERS = {"User-Agent": "bert4rec_tf", "Accept-Encoding": "identity"}


class Unreachable(Exception):
    """A URL that does not provide the file."""


@dataclass(frozen=True)
class Remote:
    """A file to download from the first of `urls` that has it.

    `checksum`: `sha256:`, `md5:` or `git:` (id of a blob), followed by hexadecimal digits. `member`: if it is a zip
    archive, the file to unpack, named without its folders.
    """

    urls: Sequence[str]
    checksum: str
    member: str | None = None


def checksum_as(file: IO[bytes], checksum: str) -> str:
    """Returns the checksum of an open file's content, with the algorithm of the given checksum."""
    algorithm = checksum.split(":")[0]
    if algorithm != "git":
        return f"{algorithm}:{hashlib.file_digest(cast(Any, file), algorithm).hexdigest()}"
    content = file.read()
    return f"git:{hashlib.sha1(b'blob %d' % len(content) + bytes(1) + content, usedforsecurity=False).hexdigest()}"


def fetch(remote: Remote, path: Path) -> bool:
    """Downloads a file to `path`, unless it exists, and returns whether it did. Verifies it, and writes it atomically.

    If another process downloads to the same folder, this one waits. Raises UserError if OFFLINE is set, or no URL
    provides the file with its checksum.
    """
    if os.environ.get(OFFLINE, "").lower() not in ("", "0", "false"):
        raise UserError(explain_manual_download(remote, path, f"{OFFLINE} is set"))
    with files.FolderLock(path.parent).lock():
        if path.exists():
            return False
        reasons = []
        for url in remote.urls:
            try:
                _fetch_from(url, remote, path)
                return True
            except Unreachable as error:
                reasons.append(str(error))
    raise UserError(explain_manual_download(remote, path, "; ".join(reasons)))


def explain_manual_download(remote: Remote, path: Path, reason: str) -> str:
    """Returns an error message that says which file to put where."""
    unpack_hint = f", unpack {remote.member}" if remote.member else ""
    return (
        f"{path}: no such file, with or without .gz, and it was not downloaded ({reason}). Get {remote.urls[0]}"
        f"{unpack_hint} and put it there, or set --data_dir"
    )


def _fetch_from(url: str, remote: Remote, path: Path) -> None:
    """Downloads from one URL. Raises Unreachable if that fails or the checksum is wrong."""

    def get(url: str, output: str, store: pooch.Pooch) -> None:
        # pooch sets the total when it knows it, and until then asks for one that is not 0.
        with show_transfer(path.name, total=1) as progress:
            pooch.HTTPDownloader(progressbar=progress, timeout=TIMEOUT, headers=HEADERS)(url, output, store)
        with open(output, "rb") as file:
            received = checksum_as(file, remote.checksum)  # pooch knows no ids of blobs
        if received != remote.checksum:
            raise Unreachable(
                f"the file at {url} has the wrong checksum: expected {remote.checksum}, received {received}"
            )
        if remote.member is not None:
            _unpack(Path(output), remote.member)

    pooch.get_logger().setLevel("WARNING")
    store = pooch.create(
        path.parent, base_url="", registry={path.name: None}, urls={path.name: url}, retry_if_failed=RETRIES
    )
    with files.report_write_errors(path):
        try:
            store.fetch(path.name, downloader=get)
        except (requests.RequestException, ValueError) as error:  # the latter from the address in a redirect
            raise Unreachable(f"{url}: {_make_printable(error)}") from error


def _unpack(path: Path, member: str) -> None:
    """Replaces an archive, whose checksum is right, by one of its files."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        with zipfile.ZipFile(path) as archive:
            (name,) = (name for name in archive.namelist() if PurePosixPath(name).name == member)
            member_path = archive.extract(name, scratch)
        os.replace(member_path, path)


def _make_printable(reason: object) -> str:
    """Returns a server's message as one line, without control characters."""
    return "".join(letter for letter in " ".join(str(reason).split()) if letter.isprintable())
