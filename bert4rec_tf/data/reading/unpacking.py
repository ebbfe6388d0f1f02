"""Opens plain and `.gz` files."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tqdm.utils import CallbackIOWrapper

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import unreadable_error


@contextlib.contextmanager
def open_unpacked(path: Path, watch: Callable[[int], Any] = lambda count: None) -> Iterator[IO[bytes]]:
    """Yields a file opened for reading, a `.gz` unpacked while it is read.

    `watch`: called with the number of bytes of each read from the disk. Raises UserError if the file is missing, cut
    short or damaged (also while it is read).
    """
    try:
        with path.open("rb") as stored:
            file: Any = CallbackIOWrapper(watch, stored)
            yield io.BufferedReader(gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: cut short or damaged ({error})") from error
    except OSError as error:
        raise unreadable_error(path, error) from error
