"""The items of a model with their titles, and a search among them that is quick for a million."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bert4rec_tf.foundation.errors import UserError

MOST_LINES = 50_000
"""Lines that one search looks at: more hold its rarest word only where that says little."""

_NO_WORD = re.compile(r"[^\w\n]+")
_ACCENTS = re.compile("[\u0300-\u036f]")


def read_items(path: Path) -> list[str]:
    """Reads the raw ids of a SavedModel's vocabulary."""
    try:
        return path.read_bytes().decode().split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error


class Catalogue:
    """Items that can be found by their ids and by words of their titles.

    Args:
        items: raw ids, the most popular first.
        titles: of some of them.
    """

    def __init__(self, items: Sequence[str], titles: Mapping[str, str]) -> None:
        self.items = items
        self.titles = titles
        self._rows = {item: row for row, item in enumerate(items)}
        lines = (f"{item} {titles.get(item, '')}".replace("\n", " ") for item in items)
        # A space before every word, so that the beginning of one is found at once.
        self._text = _folded("".join(f"\n {line}" for line in lines)).encode() + b"\n"
        self._ends = np.flatnonzero(np.frombuffer(self._text, np.uint8) == ord("\n"))

    def title(self, item: str) -> str:
        return self.titles.get(item, "")

    def search(self, query: str, limit: int) -> list[str]:
        """Returns at most `limit` items, popular ones first.

        The item with the very id comes first, then those which have all words of the query at the beginning of a
        word, then those which have them anywhere. Case and accents do not matter. An empty query finds all.
        """
        query = query.strip()
        if not query:
            return list(self.items[:limit])
        words = [word.encode("utf-8", "ignore") for word in _folded(query.replace("\n", " ")).split()]
        found = [self._rows[query]] if query in self._rows else []
        for needles in ([b" " + word for word in words], words):
            for row in self._rows_with(needles):
                if len(found) >= limit:
                    break
                if row not in found:
                    found.append(row)
        return [self.items[row] for row in found[:limit]]

    def _rows_with(self, needles: Sequence[bytes]) -> Iterator[int]:
        """Yields the lines that hold all of the needles, in their order."""
        if not needles:
            return
        rarest = min(needles, key=self._text.count)
        place = self._text.find(rarest)
        looked_at = 0
        while place >= 0 and looked_at < MOST_LINES:
            row = int(np.searchsorted(self._ends, place)) - 1
            line = self._text[self._ends[row] : self._ends[row + 1]]
            if all(needle in line for needle in needles):
                yield row
            looked_at += 1
            place = self._text.find(rarest, self._ends[row + 1])


def _folded(text: str) -> str:
    """Returns lower case without accents, with one space for all that is no letter or digit."""
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold())
    return _NO_WORD.sub(" ", plain)
