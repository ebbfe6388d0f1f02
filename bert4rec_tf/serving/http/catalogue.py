"""The items of a model with their titles, and a search that is fast for a million items."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

MAX_LINES = 50_000
"""A search looks at so many lines at most. Only words that say little occur in more lines."""

_NO_WORD = re.compile(r"[^\w\n]+")
_ACCENTS = re.compile("[\u0300-\u036f]")


class Catalogue:
    """Items that can be searched by id and by the words of their titles.

    Args:
        items: raw ids, the most popular first.
        titles: raw id -> title; items may lack one.
    """

    def __init__(self, items: Sequence[str], titles: Mapping[str, str]) -> None:
        self.items = items
        self.titles = titles
        self._rows = {item: row for row, item in enumerate(items)}
        lines = (f"{item} {titles.get(item, '')}".replace("\n", " ") for item in items)
        # A space before every word, so that searching for " x" finds the words that begin with x.
        self._text = _folded("".join(f"\n {line}" for line in lines)).encode() + b"\n"
        self._ends = np.flatnonzero(np.frombuffer(self._text, np.uint8) == ord("\n"))

    def title(self, item: str) -> str:
        return self.titles.get(item, "")

    def search(self, query: str, limit: int) -> list[str]:
        """Returns at most `limit` items.

        First the item with exactly this id, then the items with words that begin with the words of the query, then
        those that contain them anywhere; within each group the most popular first. Case and accents are ignored. An
        empty query returns all items.
        """
        query = query.strip()
        if not query:
            return list(self.items[:limit])
        words = [word.encode("utf-8", "ignore") for word in _folded(query.replace("\n", " ")).split()]
        rows = [self._rows[query]] if query in self._rows else []
        for needles in ([b" " + word for word in words], words):
            for row in self._rows_with(needles):
                if len(rows) >= limit:
                    break
                if row not in rows:
                    rows.append(row)
        return [self.items[row] for row in rows[:limit]]

    def _rows_with(self, needles: Sequence[bytes]) -> Iterator[int]:
        """Yields the lines that contain all of the needles, in ascending order."""
        if not needles:
            return
        rarest = min(needles, key=self._text.count)
        position = self._text.find(rarest)
        lines = 0
        while position >= 0 and lines < MAX_LINES:
            row = int(np.searchsorted(self._ends, position)) - 1
            line = self._text[self._ends[row] : self._ends[row + 1]]
            if all(needle in line for needle in needles):
                yield row
            lines += 1
            position = self._text.find(rarest, self._ends[row + 1])


def _folded(text: str) -> str:
    """Returns the text in lower case and without accents; everything but letters and digits becomes one space."""
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold())
    return _NO_WORD.sub(" ", plain)
