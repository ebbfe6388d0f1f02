"""Opens plain and `.gz` files, and single members of `.zip` archives that pass safety checks."""

import contextlib
import gzip
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tqdm.utils import CallbackIOWrapper

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import unreadable_error

LIMIT = 8 << 30
"""Most bytes that a member of an archive may have when unpacked."""

MOST_PACKED = 200
"""A member may unpack to this many times its size. Ratings grow about 4 times; deflate allows 1,032 times."""

DAMAGE_ERRORS: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error)
"""What reading a damaged file raises."""

with contextlib.suppress(ImportError):  # some builds of Python lack it
    from lzma import LZMAError

    DAMAGE_ERRORS += (LZMAError,)


@contextlib.contextmanager
def open_unpacked(
    path: Path, member: str | None = None, watch: Callable[[int], None] = lambda count: None
) -> Iterator[IO[bytes]]:
    """Yields a file opened for reading, which is unpacked while it is read.

    Args:
        path: a plain file, a `.gz`, or an archive that has `member`, named without its folders.
        watch: called with the number of bytes of each read from the disk.

    Raises UserError if the file is missing, cut short or damaged (also while it is read), or the archive has no such
    member or is not safe to unpack.
    """
    try:
        with contextlib.ExitStack() as stack:
            file: Any = CallbackIOWrapper(watch, stack.enter_context(path.open("rb")))
            if member is not None:
                archive = stack.enter_context(zipfile.ZipFile(file))
                yield stack.enter_context(_open_member(path, archive, member))
            elif path.suffix == ".gz":
                yield stack.enter_context(io.BufferedReader(gzip.GzipFile(fileobj=file)))
            else:
                yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except DAMAGE_ERRORS as error:
        raise UserError(f"{path}: cut short or damaged ({error})") from error
    except OSError as error:
        raise unreadable_error(path, error) from error


def _open_member(path: Path, archive: zipfile.ZipFile, member: str) -> IO[bytes]:
    matches = [info for info in archive.infolist() if PurePosixPath(info.filename).name == member]
    if len(matches) != 1:
        raise UserError(f"{path}: expected one member {member!r}, found {len(matches)}")
    (info,) = matches
    if info.file_size > LIMIT or info.file_size > max(info.compress_size, 1 << 10) * MOST_PACKED:
        raise UserError(
            f"{path}: refused, because its member {info.filename!r} would unpack from {info.compress_size:,} to "
            f"{info.file_size:,} bytes (at most {LIMIT:,}, and {MOST_PACKED} times as much)"
        )
    try:
        return archive.open(info)
    except RuntimeError as error:  # encrypted, or packed by a method that Python does not support
        raise UserError(f"{path}: {info.filename!r} cannot be unpacked ({error})") from error
