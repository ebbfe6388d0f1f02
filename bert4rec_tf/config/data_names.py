"""What a run's data are called: a data set by its name, its raw source, or a file of one's own."""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec_tf.config.settings import Settings, setting
from bert4rec_tf.foundation.errors import UserError, unknown_name
from bert4rec_tf.foundation.files import expanded_path

SOURCES = ("processed", "raw")
RAW = "-raw"
"""Ends the name of a data set that comes from its publisher."""

OWN = "own-"
"""Begins the name of data that a user brought."""


def named(dataset: str, source: str) -> str:
    """Returns the name of a data set from one of SOURCES. Raises UserError for another source."""
    if source not in SOURCES:
        raise unknown_name("source", source, SOURCES)
    return dataset if source == "processed" or dataset.endswith(RAW) else dataset + RAW


def family(name: str) -> str:
    """Returns the data set that a name means, whatever its source: what presets and published numbers go by."""
    return name.removesuffix(RAW)


def is_own(name: str) -> bool:
    """Tells whether data of this name are a user's own."""
    return name.startswith(OWN)


@dataclass(frozen=True)
class Interactions(Settings):
    """A file of one's own, one action per row, and how to read it (docs/data.md)."""

    path: str
    user_column: str | None = setting(None, "column of the users: its name, or its number from 1 (default: guessed)")
    item_column: str | None = setting(None, "column of the items, likewise")
    time_column: str | None = setting(None, "column of the times, likewise; `none`: the order of the file counts")
    min_user_actions: int = setting(1, "leave out users with fewer actions", at_least=1)
    min_item_actions: int = setting(1, "leave out items with fewer actions", at_least=1)
    bad_rows: str = setting("refuse", "what to do at a row that cannot be read", choices=("refuse", "skip"))

    def __post_init__(self) -> None:
        if isinstance(self.path, Path):
            object.__setattr__(self, "path", str(self.path))
        super().__post_init__()
        if not self.path:
            raise UserError("`interactions` must name a file. Received: interactions=''")

    @property
    def file(self) -> Path:
        return expanded_path(self.path)

    @property
    def options(self) -> dict[str, Any]:
        """What decides the sequences beside the file itself: the options that are not the default."""
        fields = [field for field in dataclasses.fields(self) if field.name != "path"]
        return {field.name: value for field in fields if (value := getattr(self, field.name)) != field.default}

    @property
    def name(self) -> str:
        """`own-<stem>`, with six digits that depend on the options where one is not the default."""
        stem = re.sub(r"[^\w.-]+", "_", self.file.name.split(".")[0] or self.file.name, flags=re.ASCII)[:40]
        digest = hashlib.sha256(json.dumps(self.options, sort_keys=True).encode()).hexdigest()[:6]
        return f"{OWN}{stem}-{digest}" if self.options else f"{OWN}{stem}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the record as JSON can hold it; the path is absolute."""
        return {**dataclasses.asdict(self), "path": str(self.file.resolve())}


def column_options() -> dict[str, dataclasses.Field]:
    """The options of `Interactions` by their names: what command lines offer as flags."""
    return {field.name: field for field in dataclasses.fields(Interactions) if field.name != "path"}
