"""The batches of several networks that are trained side by side."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from bert4rec_tf.data.examples.rows import Feed, Tables
from bert4rec_tf.foundation.types import Batch, Tensor

Column = TypeVar("Column")


def join_columns(parts: Mapping[str, Mapping[str, Column]]) -> dict[str, Column]:
    """Returns the columns of all parts in one batch: "items" of the part "sasrec" becomes "sasrec/items"."""
    return {f"{part}/{name}": column for part, columns in parts.items() for name, column in columns.items()}


def split_columns(batch: Mapping[str, Column], parts: Collection[str]) -> dict[str, dict[str, Column]]:
    """Returns the columns of each of `parts`, by their own names: what `join_columns` joined. Drops all others."""
    return {
        part: {name.removeprefix(f"{part}/"): column for name, column in batch.items() if name.startswith(f"{part}/")}
        for part in parts
    }


@dataclass(frozen=True, eq=False)
class JoinedFeed:
    """The batches of several feeds, step by step, each with the columns of all.

    Attributes:
        feeds: by the names of their networks.
    """

    feeds: Mapping[str, Feed]

    @property
    def tables(self) -> Mapping[str, np.ndarray]:
        return join_columns({part: feed.tables for part, feed in self.feeds.items()})

    @property
    def batch_size(self) -> int:
        """Examples in a step, of all feeds together."""
        return sum(feed.batch_size for feed in self.feeds.values())

    @property
    def steps_per_epoch(self) -> int:
        """Steps until every example of every feed was in a batch."""
        return max(feed.steps_per_epoch for feed in self.feeds.values())

    def read(self, first_step: int, count: int) -> dict[str, Any]:
        """Returns what `Feed.read` returns, of all feeds."""
        return join_columns({part: feed.read(first_step, count) for part, feed in self.feeds.items()})

    def lay_out(self, tables: Tables, columns: Mapping[str, Tensor]) -> Batch:
        """Returns what `Feed.lay_out` returns, of all feeds."""
        own_tables, own_columns = split_columns(tables, self.feeds), split_columns(columns, self.feeds)
        return join_columns(
            {part: feed.lay_out(own_tables[part], own_columns[part]) for part, feed in self.feeds.items()}
        )


def make_model_feed(model: Any, batch_size: int, make_feed: Callable[[Any, int], Feed]) -> Feed | JoinedFeed:
    """Returns the feed of a model: what `make_feed(model, batch_size)` returns, or that of each of its `networks`."""
    if not model.networks:
        return make_feed(model, batch_size)
    sizes = model.choose_batch_sizes(batch_size)
    return JoinedFeed({name: make_feed(model.networks[name], size) for name, size in sizes.items()})
