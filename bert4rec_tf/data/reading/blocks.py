"""Reads a file in blocks of whole lines, so that memory does not grow with the file."""

from collections.abc import Iterator
from typing import IO

from bert4rec_tf.foundation.errors import UserError

BLOCK_SIZE = 8 << 20
"""Bytes per read. The system allocates a larger buffer anew each time, which costs more than the read."""

LONGEST_LINE = 64 << 20
BOM = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

Block = tuple[bytes, int]
"""Whole lines, and the number of the first, from 1."""


def read_blocks(
    stream: IO[bytes], source: str, block_size: int = BLOCK_SIZE, longest_line: int = LONGEST_LINE
) -> Iterator[Block]:
    """Yields the blocks of a file, named `source` in messages, without its byte order mark.

    Raises UserError for UTF-16, or a line longer than `longest_line` bytes.
    """
    rest, number = stream.read(len(BOM)), 1
    if rest.startswith(UTF16_MARKS):
        raise UserError(f"{source}: is UTF-16 text; save it as UTF-8")
    rest = rest.removeprefix(BOM)
    while piece := stream.read(block_size):
        content = rest + piece
        end = content.rfind(b"\n") + 1 or content.rfind(b"\r", 0, -1) + 1  # a `\n` may follow the last `\r`
        if not end and len(content) > longest_line:
            raise UserError(f"{source}, line {number}: longer than {longest_line:,} bytes")
        whole, rest = content[:end], content[end:]
        if whole:
            yield whole, number
            number += whole.count(b"\n") + (whole.count(b"\r") - whole.count(b"\r\n") if b"\r" in whole else 0)
    if rest:
        yield rest, number


def split_lines(block: Block) -> Iterator[tuple[int, str]]:
    """Yields the number of each line of a block, and its text with its end. What is not UTF-8 becomes U+FFFD."""
    content, first = block
    for number, line in enumerate(content.splitlines(keepends=True), first):
        yield number, line.decode("utf-8", "replace")
