"""Atomic writes of files and folders, and locks on folders."""

import contextlib
import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn

LOCK = ".lock"
PARTIAL = ".partial"

UNREADABLE = (OSError, EOFError, zlib.error)
"""The exceptions that reading a file, plain or `.gz`, can raise."""


def expanded_path(path: Path | str) -> Path:
    """Expands a leading `~`, which a shell does not do in `--data_dir=~/data`.

    Raises:
        UserError: if there is no such user.
    """
    expanded = os.path.expanduser(path)
    if expanded == str(path) and expanded.startswith("~"):
        raise UserError(f"{path}: no such user (for a file whose name begins with ~, write ./~name)")
    return Path(expanded)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, and renames it to `path` when the block ends without an error.

    Until then the file at `path` stays as it was, even if the disk is full or the power fails.

    Raises:
        UserError: if the file cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        yield aside
        _to_disk(aside)
        os.replace(aside, path)
        _to_disk(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


@contextlib.contextmanager
def replace_directory(path: Path) -> Iterator[Path]:
    """Yields a new folder beside `path` to fill; it takes the place of `path` when the block ends without an error.

    A folder that was at `path` stays as it was until then. Those above it are made.

    Raises:
        UserError: where a file is at `path`, or the folder cannot be written.
    """
    place = path.resolve()
    if place.exists() and not place.is_dir():
        raise UserError(f"{path}: is not a folder")
    aside, old = (place.with_name(f".{place.name}.{os.getpid()}.{part}{PARTIAL}") for part in ("new", "old"))
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        for written in (*aside.rglob("*"), aside):
            _to_disk(written)
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(place, old)
        os.replace(aside, place)
        _to_disk(place.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        if old.exists() and not place.exists():
            os.replace(old, place)
        for leftover in (aside, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Flushes a file or a folder to the disk. Without this a power cut can undo a rename."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: Any) -> None:
    """Writes `content` with sorted keys, so that equal content gives equal bytes."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """Returns what `write_json` wrote. Raises UserError if the file cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error


def open_binary(path: Path) -> BinaryIO:
    """Opens `path` for reading, and decompresses it if its name ends in `.gz`."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def unreadable(path: Path, error: Exception) -> UserError:
    """Returns the UserError to raise for one of UNREADABLE."""
    return UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})")


def make_folder(folder: Path) -> None:
    """Creates a folder and its parents. Raises UserError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be created ({error.strerror})") from error


def is_leftover(path: Path) -> bool:
    """Whether a file is a lock or a temporary file of a killed process."""
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(PARTIAL))


def remove_partials(folder: Path) -> None:
    """Deletes the temporary files of killed processes. Call it only while the folder is locked."""
    for path in folder.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class FolderLock:
    """A folder as one process' own. The system frees it when that process ends, however it ends.

    Whoever gets it clears away what killed processes had begun to write there. The same object can be entered again
    inside itself.

    Args:
        folder: made where it is not there.
        busy: what to tell where another process has it; None to wait for that one.
    """

    def __init__(self, folder: Path, busy: str | None = None) -> None:
        self.folder = folder
        self.busy = busy
        self._lock = filelock.FileLock(folder / LOCK)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the folder inside the block.

        Raises:
            UserError: where another process has it, or it cannot be written.
        """
        make_folder(self.folder)
        try:
            self._acquire()
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be written ({error.strerror or error})") from error
        try:
            if self._lock.lock_counter == 1:
                remove_partials(self.folder)
            yield
        finally:
            self._lock.release()

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            if self.busy is not None:
                raise UserError(f"{self.folder}: {self.busy}") from None
            warn(f"{self.folder}: another process works in it; waiting for that one")
            self._lock.acquire()
