"""The items of a model with their titles and tags, and a search that is fast for a million items."""

import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bert4rec_tf.foundation.lines import Lines

MAX_WORDS = 8
"""A search looks for so many different words; further ones do not count."""

MAX_LINES = 10_000
"""A search within words looks at so many lines at most. Only parts of words that say little occur in more lines."""

_NO_WORD = re.compile(r"[^\w\n]+")
_PLAIN = bytes(ord(" ") if _NO_WORD.fullmatch(chr(code)) else code for code in range(256))
_ACCENTS = re.compile("[\u0300-\u036f]")


class Catalogue:
    """Items that can be searched by id and by the words of their titles.

    Args:
        items: raw ids, the most popular first.
        titles: raw id -> title; items may lack one.
        tags: raw id -> its tags; items may lack them.
    """

    def __init__(
        self, items: Sequence[str], titles: Mapping[str, str], tags: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.items = items
        self.titles = titles
        self.tags = tags or {}
        self._row_of = items.find if isinstance(items, Lines) else {item: row for row, item in enumerate(items)}.get
        self._text = _text_of(items, titles) + b"\n"
        self._ends = np.flatnonzero(np.frombuffer(self._text, np.uint8) == ord("\n"))
        self._words = _Words(self._text, self._ends)

    def described(self, item: str) -> dict[str, str | Sequence[str]]:
        """Returns the `id`, `title` and `tags` of an item."""
        return {"id": item, "title": self.titles.get(item, ""), "tags": self.tags.get(item, ())}

    def search(self, query: str, limit: int) -> list[str]:
        """Returns at most `limit` items.

        First the item with exactly this id, then the items with words that begin with the words of the query, then
        those that contain them anywhere; within each group the most popular first. Case and accents are ignored. An
        empty query returns all items.
        """
        query = query.strip()
        if not query:
            return list(self.items[:limit])
        words = list(dict.fromkeys(_folded(query.replace("\n", " ")).encode("utf-8", "ignore").split()))[:MAX_WORDS]
        same = self._row_of(query)
        rows = [] if same is None else [same]
        if words:
            beginnings = [self._words.lines(word) for word in words]
            found = np.zeros(len(self.items), bool)
            found[beginnings[0]] = True
            for others in beginnings[1:]:
                also = np.zeros_like(found)
                also[others] = True
                found &= also
            rows += np.flatnonzero(found)[: limit + 1].tolist()
            if len(rows) <= limit:
                rarest = min(range(len(words)), key=lambda place: (len(beginnings[place]), -len(words[place])))
                rows += itertools.islice(self._lines_with(words, words[rarest]), limit + len(rows))
        return [self.items[row] for row in list(dict.fromkeys(rows))[:limit]]

    def _lines_with(self, words: Sequence[bytes], rarest: bytes) -> Iterator[int]:
        """Yields the lines that contain all of the words, in ascending order."""
        position = self._text.find(rarest)
        lines = 0
        while position >= 0 and lines < MAX_LINES:
            end = self._text.index(b"\n", position)
            line = self._text[self._text.rindex(b"\n", 0, position) : end]
            if all(word in line for word in words):
                yield int(np.searchsorted(self._ends, position)) - 1
            lines += 1
            position = self._text.find(rarest, end)


def _text_of(items: Sequence[str], titles: Mapping[str, str]) -> bytes:
    """Returns the folded words of each item in a line, after a line end and a blank."""
    if titles or not isinstance(items, Lines) or not items.content.isascii():
        lines = (f"{item} {titles.get(item, '')}".replace("\n", " ") for item in items)
        return _folded("".join(f"\n {line}" for line in lines)).encode()
    plain = items.content[:-1].lower().translate(_PLAIN)
    return b"\n " + plain.replace(b"\n", b"\n ") if items else b""


class _Words:
    """The words of a text in alphabetical order, so that the lines with a beginning of a word are found at once.

    Args:
        text: UTF-8, its words separated by blanks and line ends.
        ends: the positions of the line ends.
    """

    def __init__(self, text: bytes, ends: np.ndarray) -> None:
        self._letters = np.frombuffer(text + bytes(_KEY), np.uint8)
        is_letter = (self._letters != ord(" ")) & (self._letters != ord("\n")) & (self._letters != 0)
        starts = np.flatnonzero(is_letter[1:] & ~is_letter[:-1]) + 1
        windows = np.lib.stride_tricks.sliding_window_view(self._letters, _KEY)
        keys = windows[starts].view(">u8")[:, 0].astype(np.uint64)
        order = np.argsort(keys)
        self._keys, self._starts = keys[order], starts[order]
        self._lines = (np.searchsorted(ends, starts) - 1).astype(np.int32)[order]

    def lines(self, beginning: bytes) -> np.ndarray:
        """Returns the line of every word that begins with this, int32 from 0, in any order."""
        key = beginning[:_KEY]
        first, last = (int.from_bytes(key.ljust(_KEY, filler)) for filler in (b"\0", b"\xff"))
        low = np.searchsorted(self._keys, np.uint64(first))
        high = np.searchsorted(self._keys, np.uint64(last), side="right")
        starts, lines = self._starts[low:high], self._lines[low:high]
        for place in range(_KEY, len(beginning)):
            matches = self._letters[np.minimum(starts + place, len(self._letters) - 1)] == beginning[place]
            starts, lines = starts[matches], lines[matches]
        return lines


_KEY = 8
"""Words are sorted by so many bytes; further ones are compared one by one."""


def _folded(text: str) -> str:
    """Returns the text in lower case and without accents; everything but letters and digits becomes one space."""
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold())
    return _NO_WORD.sub(" ", plain)
