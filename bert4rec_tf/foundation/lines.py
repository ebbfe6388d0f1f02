"""The lines of a file as texts, kept in the file's bytes and not as Python objects."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

END = b"\n"

SMALL_SHARE = 0.05
"""Up to this share of all lines, decoding each is faster than decoding and splitting all."""

FEW_TEXTS = 16
"""Up to this number of texts, searching for each is faster than a table of all lines."""


def encode_text(text: str) -> bytes:
    """Returns a text as UTF-8. Bytes escaped as surrogates become bytes again; other surrogates, invalid UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a letter, which JSON can write
        return text.encode("utf-8", "surrogatepass")


class Lines(Sequence[str]):
    """Different texts without line breaks. A text becomes a Python object only when it is read.

    `content`: UTF-8, each text followed by a line break. Raises ValueError if the last line break is missing, or the
    content is not UTF-8 (UnicodeDecodeError).
    """

    def __init__(self, content: bytes) -> None:
        if content and not content.endswith(END):
            raise ValueError("the last line is cut short")
        if not content.isascii():
            content.decode()
        self.content = content
        self._begins = np.append(0, np.flatnonzero(np.frombuffer(content, np.uint8) == ord(END)) + 1)

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> "Lines":
        return cls("".join(f"{text}\n" for text in texts).encode())

    def __len__(self) -> int:
        return len(self._begins) - 1

    def get_bytes(self, row: int) -> bytes:
        """Returns text number `row`, from 0, as UTF-8."""
        return self.content[self._begins[row] : self._begins[row + 1] - 1]

    def __getitem__(self, row: Any) -> Any:
        rows = range(len(self))[row]
        return [self[number] for number in rows] if isinstance(rows, range) else self.get_bytes(rows).decode()

    def __iter__(self) -> Iterator[str]:
        return (self.get_bytes(row).decode() for row in range(len(self)))

    def select(self, mask: np.ndarray) -> list[str]:
        """Returns the texts whose place in `mask`, bool [texts], is True."""
        if np.count_nonzero(mask) <= SMALL_SHARE * len(mask):
            return [self.get_bytes(row).decode() for row in np.flatnonzero(mask).tolist()]
        return list(itertools.compress(self.content.decode().split("\n"), mask))

    def __contains__(self, text: object) -> bool:
        if not isinstance(text, str) or "\n" in text:
            return False
        line = encode_text(text) + END
        return self.content.startswith(line) or END + line in self.content

    def contains_each(self, texts: Iterable[str]) -> np.ndarray:
        """Returns whether each of `texts` is a line, bool [texts]. Pass many at once: each call reads all content."""
        texts = list(texts)
        if len(texts) <= FEW_TEXTS:
            return np.array([text in self for text in texts], bool)
        import pyarrow  # `data.sequences` needs NumPy alone.
        from pyarrow import compute

        lines = [encode_text(text) + END for text in texts]
        buffers = [None, pyarrow.py_buffer(self._begins), pyarrow.py_buffer(self.content)]
        own_lines = pyarrow.LargeBinaryArray.from_buffers(pyarrow.large_binary(), len(self), buffers)
        return np.asarray(compute.is_in(pyarrow.array(lines, pyarrow.large_binary()), value_set=own_lines))
