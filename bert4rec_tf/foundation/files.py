"""Atomic writes of files and folders, and locks on folders."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.processes import get_host_code, is_running, make_writer_name, own_writers
from bert4rec_tf.foundation.warning import FileWarning, warn

LOCK = ".lock"
OF_THE_SYSTEM = {"lost+found", ".DS_Store", "Thumbs.db", "desktop.ini"}
"""What disks and file managers put into folders."""

MOUNTS = Path("/proc/self/mountinfo")

PARTIAL = ".partial"
_PARTIAL_NAME = re.compile(
    r"\.(?P<name>.+?)\.(?P<writer>(?P<pid>\d+)-(?P<host>\w+)-\w+)(\.(?P<part>new|old))?\.partial"
)
ABANDONED_SECONDS = 24 * 3600
"""Another machine's temporary file counts as left behind after this time: its processes cannot be seen."""


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, and renames it to `path` when the block ends without an error.

    Until then the file at `path` is unchanged, even if the disk is full or the power fails. Raises UserError if the
    file cannot be written.
    """
    writer = make_writer_name()
    temp_path = path.with_name(f".{path.name}.{writer}{PARTIAL}")
    try:
        with report_write_errors(path):
            yield temp_path
            _flush_to_disk(temp_path)
            os.replace(temp_path, path)
            _flush_to_disk(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temp_path.unlink(missing_ok=True)
        own_writers.discard(writer)


@contextlib.contextmanager
def report_write_errors(path: Any) -> Iterator[None]:
    """Turns an OSError raised inside the block into a UserError that names `path`, and the file if it is another."""
    try:
        yield
    except OSError as error:
        reason, file = error.strerror or error, str(error.filename or path)
        if PARTIAL not in file and not file.startswith((str(path), str(path.resolve()))):
            reason = f"{file}: {reason}"
        raise UserError(f"{path}: cannot be written ({reason})") from error


@contextlib.contextmanager
def replace_directory(path: Path, last_name: str | None = None) -> Iterator[Path]:
    """Yields a temporary folder to fill, which replaces the folder at `path` when the block ends without an error.

    Until then the folder at `path` is unchanged. Its parents are created.

    The old folder is renamed, then the new one. If the process is killed, the whole old or the whole new folder is at
    `path`. After a kill between the two renames there is none, until the next call for `path`, `finish_replacement`, or
    the next lock on its parent, moves the new folder there.

    A folder that cannot be renamed, such as a mount point, is emptied and filled in place. There the file `last_name`
    makes a folder complete: it is deleted first and written last.

    Raises UserError if `path` is a file, or the folder cannot be written.
    """
    place = path.resolve()
    if place.exists() and not place.is_dir():
        raise UserError(f"{path}: is not a folder")
    is_fixed = place.exists() and not can_be_renamed(place)
    parent, writer = place if is_fixed else place.parent, make_writer_name()
    temp_folder, old_folder = (parent / f".{place.name}.{writer}.{part}{PARTIAL}" for part in ("new", "old"))
    try:
        with report_write_errors(path):
            remove_partials(parent, target_name=place.name)
            temp_folder.mkdir(parents=True)
            yield temp_folder
            for entry in (*temp_folder.rglob("*"), temp_folder):
                _flush_to_disk(entry)
            if is_fixed:
                _move_content(temp_folder, place, last_name)
            else:
                if place.exists():
                    os.replace(place, old_folder)
                os.replace(temp_folder, place)
            _flush_to_disk(parent)
    finally:
        if old_folder.exists() and not place.exists():
            os.replace(old_folder, place)
        for leftover in (old_folder, temp_folder):
            remove_folder(leftover)
        own_writers.discard(writer)


def _move_content(source: Path, target: Path, last_name: str | None) -> None:
    for old_path in sorted(list_content(target), key=lambda path: path.name != last_name):
        shutil.rmtree(old_path) if old_path.is_dir() and not old_path.is_symlink() else old_path.unlink()
    for new_path in sorted(source.iterdir(), key=lambda path: path.name == last_name):
        os.replace(new_path, target / new_path.name)


def can_be_renamed(folder: Path) -> bool:
    """Whether a folder is no mount point, such as a Docker volume, and the folder above it can be written."""
    mounts = list[str]()
    with contextlib.suppress(OSError):  # has folders mounted from the same disk too, unlike `ismount`; a blank is \040
        mounts = [line.split(" ")[4] for line in MOUNTS.read_text().splitlines()]
    is_mounted = os.path.ismount(folder) or str(folder).replace(" ", "\\040") in mounts
    return not is_mounted and os.access(folder.parent, os.W_OK)


def check_replaceable(path: Path) -> None:
    """Raises UserError if `replace_directory` could not write a folder. Call it before long work."""
    place = path.resolve()
    is_fixed = place.exists() and not can_be_renamed(place)
    folder = place if is_fixed else next(parent for parent in place.parents if parent.exists())
    if not os.access(folder, os.W_OK):
        raise UserError(f"{path}: cannot be written (no permission to write in {folder})")


def list_content(folder: Path) -> list[Path]:
    """Returns what is in a folder, without temporary files, locks, and what the system puts there."""
    return [path for path in folder.iterdir() if not is_leftover(path) and path.name not in OF_THE_SYSTEM]


def list_files(folder: Path) -> list[Path]:
    """Returns all files below a folder, sorted, without what the system puts there."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in OF_THE_SYSTEM)


def _flush_to_disk(path: Path) -> None:
    """Flushes a file or a folder to the disk. Without this a power cut can undo a rename."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise  # some network disks cannot flush folders
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temp_path:
        temp_path.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: Any) -> None:
    """Writes `content` with sorted keys, so that equal content gives equal bytes."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """Returns what `write_json` wrote. Raises UserError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error) from error


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text that are not blank, without blanks around them and the mark of UTF-8 before them.

    Raises UserError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            lines = re.split(r"\r\n|\r|\n", file.read().decode("utf-8-sig"))
        return [text for line in lines if (text := line.strip(" \t"))]
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error) from error


def refuse_pipe(path: Path) -> None:
    """Raises UserError for what is no plain file, such as a pipe, which may never answer."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is not a plain file")


def compute_checksum(path: Path) -> str:
    """Returns the SHA-256 of a file's content. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unreadable_error(path: Path, error: Exception) -> UserError:
    """Returns the UserError to raise for an error of reading a file."""
    return UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})")


def make_folder(folder: Path) -> None:
    """Creates a folder and its parents. Raises UserError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be created ({error.strerror})") from error


def remove_folder(folder: Path) -> None:
    """Deletes a folder with its content. Errors are ignored."""
    shutil.rmtree(folder, ignore_errors=True)


def is_leftover(path: Path) -> bool:
    """Whether a file is a lock or a temporary file of a killed process."""
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(PARTIAL))


def remove_partials(folder: Path, target_name: str | None = None) -> None:
    """Deletes the temporary files and folders of killed processes, not those of processes that still run.

    Finishes a replacement that was killed between its two renames (`replace_directory`). `target_name`: the name of the
    file or folder that they were to become; None for all names, which is safe only while `folder` is locked.
    """
    # Old folders are deleted first, so a new one beside an old one is always complete.
    partials = sorted(_list_partials(folder, target_name), reverse=True)
    for path in partials:
        _finish_replacement(path)
    for path in partials:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _list_partials(folder: Path, target_name: str | None) -> list[Path]:
    """Returns what killed processes left in a folder, of the file or folder `target_name` or, if it is None, of all."""
    partials = [path for path in folder.glob(f".*{PARTIAL}") if not _may_be_in_use(path)]
    if target_name is None:
        return partials
    return [path for path in partials if (name := _PARTIAL_NAME.fullmatch(path.name)) and name["name"] == target_name]


def finish_replacement(path: Path) -> None:
    """Makes the second rename of `replace_directory` for `path` if its process was killed after the first.

    Deletes nothing, and does nothing where it may not write.
    """
    place = path.resolve()
    if not place.exists():
        for partial in _list_partials(place.parent, place.name):
            with contextlib.suppress(OSError):
                _finish_replacement(partial)


def _finish_replacement(new: Path) -> None:
    """Makes the second rename of `replace_directory` if its process was killed after the first.

    Then both temporary folders exist and their target does not. The new one is complete, because it is flushed to the
    disk before the old one is moved.
    """
    name = _PARTIAL_NAME.fullmatch(new.name)
    if name and name["part"] == "new":
        place, old = new.with_name(name["name"]), new.with_name(f".{name['name']}.{name['writer']}.old{PARTIAL}")
        if old.is_dir() and new.is_dir() and not os.path.lexists(place):
            os.replace(new, place)
            _flush_to_disk(place.parent)


def _may_be_in_use(path: Path) -> bool:
    """Whether a process may still write a temporary file; on another machine, it may for ABANDONED_SECONDS."""
    name = _PARTIAL_NAME.fullmatch(path.name)
    if name is None:
        return False
    if name["host"] != get_host_code():
        with contextlib.suppress(OSError):
            return time.time() - path.stat().st_mtime < ABANDONED_SECONDS
    if int(name["pid"]) == os.getpid():  # or an earlier process with this id, as in a container that starts again
        return name["writer"] in own_writers
    return os.name != "nt" and is_running(int(name["pid"]))


class ScratchFolder:
    """A temporary folder, which is deleted with this object, or when the process ends.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="bert4rec-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class FolderLock:
    """A lock on a folder. The system releases it when the process ends, even if the process is killed.

    Locking creates the folder, and removes the temporary files of killed processes. The lock is reentrant; entering it
    again removes nothing.

    `busy_message`: error message if another process has the lock; None to wait for that process.
    """

    def __init__(self, folder: Path, busy_message: str | None = None) -> None:
        self.folder = folder
        self.busy_message = busy_message
        self._lock = filelock.FileLock(folder / LOCK)

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Holds the lock inside the block. Yields whether this is the outermost entry.

        Raises UserError if another process has the lock and `busy_message` is given, or the folder cannot be written.
        """
        make_folder(self.folder)
        with report_write_errors(self.folder):
            self._acquire()
        try:
            first = self._lock.lock_counter == 1
            if first:
                remove_partials(self.folder)
            yield first
        finally:
            self._lock.release()

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            if self.busy_message is not None:
                raise UserError(f"{self.folder}: {self.busy_message}") from None
            warn(f"{self.folder}: another process works in it; waiting for that one", FileWarning)
            self._lock.acquire()
        except NotImplementedError as error:
            raise UserError(f"{self.folder}: cannot be locked, for its disk has no locks") from error
