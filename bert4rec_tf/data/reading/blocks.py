"""A file in blocks of whole lines, so that memory does not grow with it and a bad line spoils one block only."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bert4rec_tf.foundation.errors import UserError

SIZE = 8 << 20
"""Bytes read at once. What is larger comes fresh from the system each time, which costs more than reading it."""

LONGEST_LINE = 64 << 20
BOM = b"\xef\xbb\xbf"
WIDE = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Block:
    """Whole lines of a file.

    Attributes:
        content: their bytes; a mark of the byte order is not among them.
        first: the number of the first, from 1.
    """

    content: bytes
    first: int

    @property
    def num_lines(self) -> int:
        """How many lines there are, ended by `\\n`, `\\r\\n` and `\\r`, also mixed; the last one needs no end."""
        return _line_ends(self.content) + (not self.content.endswith((b"\n", b"\r")))


def _line_ends(content: bytes) -> int:
    ends = content.count(b"\n")
    return ends + content.count(b"\r") - content.count(b"\r\n") if b"\r" in content else ends


def read(stream: BinaryIO, path: Path, quoted: bool = False) -> Iterator[Block]:
    """Cuts a stream into blocks.

    Args:
        stream: to read from.
        path: its file, for messages.
        quoted: whether an end of line between quotes belongs to its field.

    Raises:
        UserError: for text of 16 bits per character, and a line beyond LONGEST_LINE.
    """
    number, rest = 1, _without_mark(stream.read(len(BOM)), path)
    at_end = False
    while not at_end:
        piece = stream.read(SIZE)
        content, at_end = rest + piece, len(piece) < SIZE
        end = len(content) if at_end else _last_end(content, quoted)
        if not end and len(content) > LONGEST_LINE:
            raise UserError(f"{path}, line {number}: longer than {LONGEST_LINE:,} bytes")
        if end:
            block = Block(content[:end], number)
            yield block
            number += block.num_lines
        rest = content[end:]


def _without_mark(start: bytes, path: Path) -> bytes:
    if start.startswith(WIDE):
        raise UserError(f"{path}: is text of 16 bits per character; save it as UTF-8")
    return start.removeprefix(BOM)


def _last_end(content: bytes, quoted: bool) -> int:
    """Returns where the last whole line ends, outside of quotes if possible; 0 where there is none."""
    end = content.rfind(b"\n") + 1
    if not end:
        return content.rfind(b"\r", 0, len(content) - 1) + 1
    if not quoted or content.count(b'"', 0, end) % 2 == 0:
        return end
    letters = np.frombuffer(content, np.uint8, end)
    ends, quotes = np.flatnonzero(letters == ord("\n")), np.flatnonzero(letters == ord('"'))
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else end
