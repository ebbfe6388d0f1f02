"""Opens plain and `.gz` files, and reads them in blocks of whole lines, so that memory does not grow with a file."""

import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tqdm.utils import CallbackIOWrapper

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import unreadable_error

BLOCK_SIZE = 8 << 20
"""Bytes per read. The system allocates a larger buffer anew each time, which costs more than the read."""

CHECKED_BYTES, MANY_NULS = 4096, 1 / 4
"""If a larger share than this of the first bytes is 0, they are UTF-16, in which half of the bytes of ASCII are."""

LONGEST_LINE = 64 << 20
BOM = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
PARQUET_MARK = b"PAR1"
_PACKED = re.compile(
    rb"PK\x03\x04|PK\x05\x06|.{257}ustar|\x1f\x8b|\xfd7zXZ\0|BZh[1-9]1AY&SY|\x28\xb5\x2f\xfd", re.DOTALL
)
"""The first bytes of archives and packed files: zip, tar, gzip, xz, bzip2, zstandard."""

_EXCEL = re.compile(rb"PK\x03\x04.*xl/wor|\xd0\xcf\x11\xe0", re.DOTALL)
"""What begins an Excel file: a zip archive, or before 2007 a format of its own."""

_BINARY = re.compile(rb"\x80[\x02-\x05]|\x89HDF|SQLite format 3\0|ORC|Obj\x01|ARROW1")
"""What begins binary files: pickles, HDF5, SQLite, ORC, Avro and Arrow."""

Block = tuple[bytes, int]
"""Whole lines, and the number of the first, from 1."""


@contextlib.contextmanager
def open_unpacked(path: Path, watch: Callable[[int], Any] = lambda count: None) -> Iterator[IO[bytes]]:
    """Yields a file opened for reading, a `.gz` unpacked while it is read.

    `watch`: called with the number of bytes of each read from the disk. Raises UserError if the file is missing, cut
    short or damaged (also while it is read).
    """
    try:
        with path.open("rb") as raw_file:
            file: Any = CallbackIOWrapper(watch, raw_file)
            yield io.BufferedReader(gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except EOFError:
        raise UserError(f"{path}: cut short: its packed content has no end; copy or download it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged, or not packed with gzip ({error})") from error
    except OSError as error:
        raise unreadable_error(path, error) from error


def refuse_packed(path: Path, start: bytes) -> None:
    """Raises UserError if a file begins, after unpacking a `.gz`, as an Excel or packed file, or is not in UTF-8."""
    if _EXCEL.match(start):
        raise UserError(f"{path}: is an Excel file; save it as CSV")
    if _PACKED.match(start):
        raise UserError(f"{path}: is packed; unpack it, or pack only the text with gzip, under a name that ends in .gz")
    if _BINARY.match(start):
        raise UserError(f"{path}: is no text; save it as CSV, JSON lines or Parquet")
    if start.startswith(UTF16_MARKS):
        raise UserError(f"{path}: is UTF-16 text; save it as UTF-8")
    head = start[:CHECKED_BYTES]
    if head.count(b"\0") > MANY_NULS * len(head) and not start.startswith(PARQUET_MARK):
        raise UserError(f"{path}: is full of NUL bytes, as UTF-16 text or no text; save it as UTF-8")


def read_blocks(
    stream: IO[bytes], source: str, block_size: int = BLOCK_SIZE, longest_line: int = LONGEST_LINE
) -> Iterator[Block]:
    """Yields the blocks of a file, named `source` in messages, without its byte order mark.

    Raises UserError for a line longer than `longest_line` bytes.
    """
    rest, number = stream.read(len(BOM)).removeprefix(BOM), 1
    while chunk := stream.read(block_size):
        content = rest + chunk
        end = content.rfind(b"\n") + 1 or content.rfind(b"\r", 0, -1) + 1  # a `\n` may follow the last `\r`
        if not end and len(content) > longest_line:
            raise UserError(f"{source}, line {number}: longer than {longest_line:,} bytes")
        block, rest = content[:end], content[end:]
        if block:
            yield block, number
            number += block.count(b"\n") + (block.count(b"\r") - block.count(b"\r\n") if b"\r" in block else 0)
    if rest:
        yield rest, number
