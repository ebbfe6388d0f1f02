"""Files in stores: object stores (`s3://`, `gs://`), `hdfs://` and everything else that fsspec supports.

Data and exports are read and written there, as whole files and folders. All other files are on this machine.
"""

import contextlib
import errno
import functools
import io
import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError, format_error

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
READ_AHEAD = 8 << 20
"""Bytes per request while a file is read."""

FILE_SYSTEMS = ("dbfs", "file", "ftp", "hdfs", "local", "sftp", "smb", "ssh", "webhdfs")
"""Stores in which a half-written file can be seen. So it is written under another name and then renamed."""

ATTEMPTS = 3
"""How often a folder is copied that changes meanwhile."""


@functools.cache
def _open_file_system(text: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise UserError("URLs need fsspec: pip install 'bert4rec-tf[stores]'") from error
    try:
        return fsspec.core.url_to_fs(text)[0]
    except ImportError as error:
        raise UserError(f"{text}: {error}") from error
    except ValueError as error:
        schemes = ", ".join(sorted(fsspec.available_protocols()))
        raise UserError(f"{text}: unknown scheme {text.partition('://')[0]!r}. Known: {schemes}") from error
    except Exception as error:
        raise UserError(f"{text}: cannot be reached ({format_error(error)})") from error


@contextlib.contextmanager
def _raise_os_errors(url: "Url") -> Iterator[None]:
    """Turns whatever a store raises into an OSError, as callers expect of a file."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such file, folder or bucket", str(url)) from error
    except Exception as error:
        raise OSError(errno.EIO, format_error(error), str(url)) from error


@dataclass(frozen=True, order=True)
class Url:
    """The address of a file or a folder in a store. It has the methods of a `Path` with which data are read.

    They raise OSError, with the address as its `filename`. The constructor raises UserError for an unknown scheme, or
    one whose package is not installed.
    """

    text: str

    def __post_init__(self) -> None:
        scheme, _, rest = self.text.partition("://")
        object.__setattr__(self, "text", f"{scheme}://{rest.rstrip('/')}")
        _ = self.store

    @property
    def store(self) -> Any:
        """The store, by fsspec's interface."""
        scheme, _, rest = self.text.partition("://")
        store = _open_file_system(f"{scheme}://{rest.partition('/')[0]}")
        store.invalidate_cache()  # Other machines write too.
        return store

    @property
    def place(self) -> str:
        """The path of this file or folder as fsspec takes it."""
        return self.store._strip_protocol(self.text)

    def call_store(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls a method of the store for this file or folder. Whatever it raises becomes an OSError."""
        with _raise_os_errors(self):
            return getattr(self.store, method)(self.place, *arguments, **options)

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: Any) -> "Url":
        return Url(f"{self.text}/{PurePosixPath(name)}")

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> "Url":
        scheme, _, rest = self.text.partition("://")
        return Url(f"{scheme}://{rest.rpartition('/')[0]}") if "/" in rest else self

    @property
    def parents(self) -> list["Url"]:
        return [] if self.parent == self else [self.parent, *self.parent.parents]

    def resolve(self) -> "Url":
        return self

    absolute = resolve

    def exists(self) -> bool:
        return self.call_store("exists")

    def is_dir(self) -> bool:
        return self.call_store("isdir")

    def is_file(self) -> bool:
        return self.call_store("isfile")

    def stat(self) -> SimpleNamespace:
        """Returns `st_size`."""
        return SimpleNamespace(st_size=self.call_store("size"))

    def open(self, mode: str = "rb") -> BinaryIO:
        file = self.call_store("open", mode, block_size=READ_AHEAD)
        return cast(BinaryIO, io.BufferedReader(_Reader(self, file), io.DEFAULT_BUFFER_SIZE))

    def glob_files(self) -> list["Url"]:
        """Returns the files that match this address as a pattern."""
        entries = self.call_store("glob", detail=True)
        pairs = zip(reversed(self.text), reversed(self.place))
        length = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        prefix, start = self.text[:-length], len(self.place) - length  # above 0 for logs/... of abfs://logs@server/...
        return [Url(prefix + place[start:]) for place, facts in entries.items() if facts["type"] == "file"]

    def list_stamps(self) -> dict[str, str]:
        """Returns path in this folder -> a text that changes when the file does, for all files, also in subfolders."""
        try:
            entries = self.call_store("find", detail=True)
        except FileNotFoundError:
            return {}
        stamps = {name[len(self.place) :].lstrip("/"): str(sorted(facts.items())) for name, facts in entries.items()}
        return {name: stamp for name, stamp in stamps.items() if PurePosixPath(name).name}


class _Reader(io.RawIOBase):
    """A file of a store whose errors are OSErrors."""

    def __init__(self, url: Url, file: Any) -> None:
        self._url, self._file = url, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _raise_os_errors(self._url):
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with _raise_os_errors(self._url):
            return self._file.seek(offset, whence)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def expand_path(path: Path | str | Url) -> Path:
    """Returns a path with a leading `~` expanded, which a shell does not do in `--data_dir=~/data`.

    For an address it returns a `Url`, which has the methods of a `Path` with which data are read. Raises
    UserError if there is no such user or no such kind of store, or the path is a link to itself.
    """
    if isinstance(path, Url) or (isinstance(path, str) and ADDRESS.match(path)):
        return cast(Path, Url(str(path)))
    if not isinstance(path, (str, os.PathLike)):
        raise UserError(f"A path must be text or a Path. Received: {' '.join(repr(path).split())[:100]}")
    full_path = os.path.expanduser(path)
    try:
        full_path.encode()
    except UnicodeEncodeError:
        raise UserError(f"A path must be in UTF-8. Received: {str(path)!a}") from None
    if full_path == str(path) and full_path.startswith("~"):
        raise UserError(f"{path}: no such user (for a file whose name begins with ~, write ./~name)")
    try:
        os.stat(full_path)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ELOOP:
            raise UserError(f"{path}: is a link that leads to itself") from error
    return Path(full_path)


def finish_replacement(path: Path) -> None:
    """Does what `files.finish_replacement` does; of a folder in a store, nothing is renamed."""
    if not isinstance(path, Url):
        files.finish_replacement(path)


def find_cache_folder() -> Path:
    """Returns this package's folder in the user's cache. Raises UserError if the user has no home."""
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if cache.startswith("~"):
        raise UserError("This user has no home folder: set HOME or XDG_CACHE_HOME to a folder for downloaded files")
    return expand_local_path(cache, "XDG_CACHE_HOME") / "bert4rec_tf"


def expand_local_path(path: Path | str | Url, argument: str) -> Path:
    """Returns `expand_path`. Raises UserError for an address, which this argument cannot be."""
    path = expand_path(path)
    if isinstance(path, Url):
        raise UserError(
            f"`{argument}` must be a folder on this machine; copy it from and to a store, as by `aws s3 sync` "
            f"(docs/stores.md). Received: {argument}={path}"
        )
    return path


def _upload_file(local_path: Path, url: Url) -> None:
    """Writes a file to a store, where it replaces the one before."""
    with _raise_os_errors(url):
        if url.text.partition("://")[0] not in FILE_SYSTEMS:
            url.store.put_file(str(local_path), url.place)
            return
        folder, temp_url = url.parent, url.parent / f".{url.name}.partial"
        url.store.makedirs(folder.place, exist_ok=True)
        url.store.put_file(str(local_path), temp_url.place)
        if url.exists():
            url.store.rm_file(url.place)
        url.store.mv(temp_url.place, url.place)


def _upload_folder(local_folder: Path, url: Url, last_name: str | None) -> None:
    """Replaces a folder in a store, file by file. `last_name`: a file that makes the folder complete, uploaded last.

    If that fails, no file is left in the folder.
    """
    names = [str(PurePosixPath(path.relative_to(local_folder))) for path in local_folder.rglob("*") if path.is_file()]
    _delete_files(url, last_name)
    try:
        for name in sorted(names, key=lambda name: (name == last_name, name)):
            _upload_file(local_folder / name, url / name)
    except BaseException:
        with contextlib.suppress(OSError):
            _delete_files(url, last_name)
        raise


def _delete_files(url: Url, first: str | None) -> None:
    for name in sorted(url.list_stamps(), key=lambda name: name != first):
        (url / name).call_store("rm_file")


@contextlib.contextmanager
def write_file(path: Path | Url) -> Iterator[Path]:
    """Does what `files.atomic_write` does, also for a file in a store."""
    if isinstance(path, Path):
        with files.atomic_write(path) as temp_path:
            yield temp_path
        return
    with files.report_write_errors(path), tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch, path.name)
        _upload_file(Path(scratch, path.name), path)


@contextlib.contextmanager
def write_folder(path: Path | Url, last_name: str) -> Iterator[Path]:
    """Does what `files.replace_directory` does, also for a folder in a store, which is filled file by file."""
    if isinstance(path, Path):
        with files.replace_directory(path, last_name) as temp_folder:
            yield temp_folder
        return
    with files.report_write_errors(path), tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)
        _upload_folder(Path(scratch), path, last_name)


def check_replaceable(path: Path | Url) -> None:
    """Raises UserError if `write_folder` could not write a folder. Call it before long work."""
    if isinstance(path, Path):
        files.check_replaceable(path)
        return
    with files.report_write_errors(path):
        if path.text.partition("://")[0] in FILE_SYSTEMS:
            path.call_store("makedirs", exist_ok=True)
        (path / ".probe").call_store("pipe_file", b"")
        (path / ".probe").call_store("rm_file")


def list_content(folder: Path | Url) -> list[Any]:
    """Returns what is in a folder (`files.list_content`); in a store also what is in its subfolders."""
    return files.list_content(folder) if isinstance(folder, Path) else [folder / name for name in folder.list_stamps()]


class LocalCopy:
    """The files of a folder, on this machine.

    The attribute `folder` is the given folder or, if that is in a store, a local copy, which is deleted with this
    object. Its files are as they were at one moment. Raises OSError if a file cannot be read, and UserError if the
    folder keeps changing meanwhile.
    """

    def __init__(self, folder: Path | Url) -> None:
        if isinstance(folder, Path):
            self.folder = folder
            return
        for _ in range(ATTEMPTS):
            self._scratch = files.ScratchFolder()
            self.folder = self._scratch.path / folder.name
            stamps = folder.list_stamps()
            for name in stamps:
                self._fetch(folder, name)
            if folder.list_stamps() == stamps:
                return
        raise UserError(f"{folder}: changes while it is read; try again")

    def _fetch(self, folder: Url, name: str) -> None:
        if ".." in PurePosixPath(name).parts:
            raise UserError(f"{folder}: refused, because its file {name!r} would be written outside of it")
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / name).call_store("get_file", str(target))
