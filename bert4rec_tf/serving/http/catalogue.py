"""The items of a model with their titles and tags, and a search among them."""

import re
import unicodedata
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyarrow import compute

MAX_WORDS = 8
"""A search looks for at most this many different words."""

BLOCK = 1 << 16
"""A search goes through this many items at a time, until enough have words that begin with the query's."""

_NO_WORD = re.compile(r"\W+")
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
        # Every word has a blank before it, so " word" finds the beginnings of words.
        texts = (" " + _fold(f"{item} {titles.get(item, '')}") for item in items)
        self._table = pa.table({"row": range(len(items)), "text": pa.array(texts, pa.large_string())})

    def describe(self, item: str) -> dict[str, str | Sequence[str]]:
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
        matches = [query] if query in self.items else []
        words = list(dict.fromkeys(_fold(query).split()))[:MAX_WORDS]
        first: list[int] = []
        rest: list[int] = []
        for begin in range(0, len(self.items) if words else 0, BLOCK):
            candidates = _filter_containing(self._table.slice(begin, BLOCK), words)
            first += _filter_containing(candidates, [f" {word}" for word in words])["row"].to_pylist()
            rest += candidates["row"][: 2 * limit].to_pylist()
            if len(first) >= limit:
                break
        matches += [self.items[row] for row in first[:limit] + rest[: 2 * limit]]
        return list(dict.fromkeys(matches))[:limit]


def _filter_containing(table: pa.Table, parts: Sequence[str]) -> pa.Table:
    """Returns the rows whose text contains all `parts`."""
    for part in parts:
        table = table.filter(compute.match_substring(table["text"], part))
    return table


def _fold(text: str) -> str:
    """Returns the text in lower case and without accents; everything but letters and digits becomes one space."""
    plain_text = text.lower() if text.isascii() else _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold())
    return _NO_WORD.sub(" ", plain_text)
