"""A file in blocks of whole rows, so that memory does not grow with the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from bert4rec_tf.foundation.errors import UserError

SIZE = 8 << 20
"""Bytes read at once. Larger buffers come from the system anew each time, which costs more than reading them."""

LONGEST_LINE = 64 << 20
BOM = b"\xef\xbb\xbf"
WIDE = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Block:
    """Whole rows of a file.

    Attributes:
        content: their bytes, without the file's byte order mark.
        first: the number of the first line, from 1.
    """

    content: bytes
    first: int


def line_ends(content: bytes) -> np.ndarray:
    """Returns the places of the last byte of every `\\n`, `\\r\\n` and `\\r`, int64."""
    letters = np.frombuffer(content, np.uint8)
    ends = letters == ord("\n")
    if b"\r" in content:
        alone = letters == ord("\r")
        alone[:-1] &= ~ends[1:]
        ends |= alone
    return np.flatnonzero(ends)


def outside_quotes(content: bytes, places: np.ndarray) -> np.ndarray:
    """Returns which places have an even number of quotes before them, bool."""
    quotes = np.flatnonzero(np.frombuffer(content, np.uint8) == ord('"'))
    return np.searchsorted(quotes, places) % 2 == 0


def read(stream: BinaryIO, source: str, quoted: bool = False) -> Iterator[Block]:
    """Cuts a stream into blocks.

    Args:
        stream: to read from.
        source: its file, for messages.
        quoted: whether an end of line between quotes belongs to its field.

    Raises:
        UserError: for UTF-16, a line beyond LONGEST_LINE, and a quote that is never closed.
    """
    rest, number = stream.read(len(BOM)), 1
    if rest.startswith(WIDE):
        raise UserError(f"{source}: is text of 16 bits per character; save it as UTF-8")
    rest, at_end = rest.removeprefix(BOM), False
    while not at_end:
        piece = stream.read(SIZE)
        content, at_end = rest + piece, len(piece) < SIZE
        end = _end_of_rows(content, quoted)
        if at_end:
            if quoted and content.count(b'"') % 2:
                line = number + _num_lines(content[:end])
                raise UserError(f"{source}, line {line}: a quote is never closed")
            end = len(content)
        elif not end and len(content) > LONGEST_LINE:
            quote = ", or a quote is never closed" if quoted else ""
            raise UserError(f"{source}, line {number}: longer than {LONGEST_LINE:,} bytes{quote}")
        if end:
            yield Block(content[:end], number)
            number += _num_lines(content[:end])
        rest = content[end:]


def _num_lines(content: bytes) -> int:
    ends = content.count(b"\n")
    return ends + content.count(b"\r") - content.count(b"\r\n") if b"\r" in content else ends


def _end_of_rows(content: bytes, quoted: bool) -> int:
    """Returns where the last whole row ends; 0 where none does. A `\\r` at the end may be half a line end."""
    if quoted and content.count(b'"'):
        ends = line_ends(content.removesuffix(b"\r"))
        ends = ends[outside_quotes(content, ends)]
        return int(ends[-1]) + 1 if len(ends) else 0
    return content.rfind(b"\n") + 1 or content.rfind(b"\r", 0, len(content) - 1) + 1
