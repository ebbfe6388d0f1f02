"""Files in stores: object stores (`s3://`, `gs://`), `hdfs://` and everything else that fsspec supports.

A `Url` has the methods of a `Path` that this package uses, so most code takes either. `files.expand_path` makes
either from a text. Code that can only read local files, such as TensorFlow, reads a `LocalCopy`.
"""

import contextlib
import errno
import fnmatch
import functools
import io
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

from bert4rec_tf.foundation.errors import UserError, format_error

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
OWNER = ".owner"
"""The object that says who writes in a folder (`foundation.store_lock`)."""

BEGUN = ".partial"
"""The object that marks a folder while it is replaced. It stays if that fails."""

READ_AHEAD = 8 << 20
"""Bytes per request while a file is read."""

FILE_SYSTEMS = ("dbfs", "file", "ftp", "hdfs", "local", "sftp", "smb", "ssh", "webhdfs")
"""Stores in which a half-written file can be seen. So it is written under another name and then renamed."""

ATTEMPTS = 3


@functools.cache
def _open_file_system(scheme: str, text: str) -> Any:
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
        raise UserError(f"{text}: unknown scheme {scheme!r}. Known: {schemes}") from error
    except Exception as error:
        raise UserError(f"{text}: cannot be reached ({format_error(error)})") from error


@contextlib.contextmanager
def _raise_os_errors(url: "Url") -> Iterator[None]:
    """Turns whatever a store raises into an OSError, as callers expect of a file."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such file, folder or bucket", str(url)) from error
    except FileExistsError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, format_error(error), str(url)) from error


@dataclass(frozen=True, order=True)
class Url:
    """A file or a folder in a store.

    Methods that a `Path` has do the same. They raise OSError, with the URL as its `filename`. The constructor raises
    UserError for an unknown scheme, or one whose package is not installed.
    """

    text: str

    def __post_init__(self) -> None:
        scheme, _, rest = self.text.partition("://")
        object.__setattr__(self, "text", f"{scheme}://{rest.rstrip('/')}")
        _ = self._store

    @property
    def _store(self) -> Any:
        store = _open_file_system(self._scheme, self._root)
        store.invalidate_cache()  # Other machines write too.
        return store

    @property
    def _scheme(self) -> str:
        return self.text.partition("://")[0]

    @property
    def _root(self) -> str:
        """The URL up to its bucket or host: `s3://bucket`."""
        scheme, _, rest = self.text.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    @property
    def _store_path(self) -> str:
        """The path of this file or folder as fsspec takes it."""
        return self._store._strip_protocol(self.text)

    def _call_store(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls a method of the store for this path. Whatever it raises becomes an OSError."""
        with _raise_os_errors(self):
            return getattr(self._store, method)(self._store_path, *arguments, **options)

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: Any) -> "Url":
        below = str(PurePosixPath(name))
        return self if below == "." else Url(f"{self.text}/{below}")

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> "Url":
        return self if self.text == self._root else Url(self.text.rpartition("/")[0])

    @property
    def parents(self) -> list["Url"]:
        return [] if self.parent == self else [self.parent, *self.parent.parents]

    def with_name(self, name: str) -> "Url":
        return self.parent / name

    def absolute(self) -> "Url":
        return self

    resolve = absolute

    def mkdir(self, **options: Any) -> None:
        """Creates the folder and its parents, except in object stores, which have no empty folders."""
        if self._scheme in FILE_SYSTEMS:
            self._call_store("makedirs", exist_ok=True)

    def exists(self) -> bool:
        return self._call_store("exists")

    def is_dir(self) -> bool:
        return self._call_store("isdir")

    def is_file(self) -> bool:
        return self._call_store("isfile")

    def stat(self) -> SimpleNamespace:
        """Returns `st_size`."""
        return SimpleNamespace(st_size=self._call_store("size"))

    def iterdir(self) -> Iterator["Url"]:
        paths = self._call_store("ls", detail=False)
        names = {PurePosixPath(place).name for place in paths if place.rstrip("/") != self._store_path}
        return iter([self / name for name in sorted(names)])

    def glob(self, pattern: str) -> Iterator["Url"]:
        """Yields the files and folders in this one whose names match; none if there is no such folder."""
        with contextlib.suppress(FileNotFoundError):
            yield from (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def glob_files(self) -> list["Url"]:
        """Returns the files that match this URL as a pattern."""
        entries = self._call_store("glob", detail=True)
        before = self.text.removesuffix(self._store_path)
        return [Url(before + place) for place, facts in entries.items() if facts["type"] == "file"]

    def list_stamps(self) -> dict[str, str]:
        """Returns path in this folder -> a text that changes when the file does, for all files, also in subfolders."""
        try:
            entries = self._call_store("find", detail=True)
        except FileNotFoundError:
            return {}
        stamps = {
            place[len(self._store_path) :].lstrip("/"): str(sorted(facts.items())) for place, facts in entries.items()
        }
        return {name: stamp for name, stamp in stamps.items() if PurePosixPath(name).name not in ("", BEGUN, OWNER)}

    def open(self, mode: str = "rb") -> BinaryIO:
        file = self._call_store("open", mode, block_size=READ_AHEAD)
        return cast(BinaryIO, io.BufferedReader(_Reader(self, file), io.DEFAULT_BUFFER_SIZE))

    def read_bytes(self) -> bytes:
        return self._call_store("cat_file")

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def unlink(self, missing_ok: bool = False) -> None:
        with contextlib.suppress(*(FileNotFoundError,) * missing_ok):
            self._call_store("rm_file")

    def remove(self) -> None:
        """Deletes all files in this folder and below. Errors are ignored."""
        with contextlib.suppress(OSError):
            self._call_store("rm", recursive=True)

    def create(self, content: bytes) -> None:
        """Writes a new object. Raises FileExistsError if there is one, even one written at the same moment."""
        self._call_store("pipe_file", content, mode="create")

    def write_bytes(self, content: bytes) -> None:
        self._call_store("pipe_file", content)

    @contextlib.contextmanager
    def replace_file(self) -> Iterator[Path]:
        """Yields a local path to write to. When the block ends without an error, the file there replaces this one."""
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch, self.name)
            self._upload(Path(scratch, self.name))

    def _upload(self, local: Path) -> None:
        with _raise_os_errors(self):
            if self._scheme not in FILE_SYSTEMS:
                self._store.put_file(str(local), self._store_path)
                return
            aside = self.with_name(f".{self.name}.partial")._store_path
            self.parent.mkdir()
            self._store.put_file(str(local), aside)
            if self._store.exists(self._store_path):
                self._store.rm_file(self._store_path)
            self._store.mv(aside, self._store_path)

    @contextlib.contextmanager
    def replace_folder(self, last: str | None) -> Iterator[Path]:
        """Yields a local folder to fill, which replaces this one when the block ends without an error.

        The file `last` is deleted first and uploaded last, so a folder that has it is complete.
        """
        with tempfile.TemporaryDirectory() as scratch:
            local = Path(scratch, self.name)
            local.mkdir()
            yield local
            names = {str(PurePosixPath(path.relative_to(local))) for path in local.rglob("*") if path.is_file()}
            old = self.list_stamps()
            (self / BEGUN).write_bytes(b"")
            if last in old:
                (self / last).unlink()
            for name in sorted(names - {last}):
                (self / name)._upload(local / name)
            for name in sorted(old.keys() - names):
                (self / name).unlink(missing_ok=True)
            if last is not None:
                (self / last)._upload(local / last)
            (self / BEGUN).unlink()


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
            self._scratch = tempfile.TemporaryDirectory(prefix="bert4rec-")
            self.folder = Path(self._scratch.name, folder.name)
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
        with _raise_os_errors(folder / name):
            folder._store.get_file((folder / name)._store_path, str(target))
