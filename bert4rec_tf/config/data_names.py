"""The names of data: a data set, its raw source, or a user's own files."""

import csv
import dataclasses
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bert4rec_tf.config.setting_fields import Settings, setting
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.foundation.stores import expand_path

SOURCES = ("processed", "raw")
RAW = "-raw"
"""Suffix of the name of a data set that is read from its publisher's file."""

OWN = "own-"
"""Prefix of the names of a user's own data."""


def add_source(dataset: str, source: str) -> str:
    """Returns the name of a data set from one of SOURCES. Raises UserError for another source, and what is no name."""
    if not isinstance(dataset, str):
        kind = type(dataset).__name__
        raise UserError(f"`dataset` must be a name; pass a table to `fit` or `interactions`. Received: {kind}")
    if source not in SOURCES:
        raise unknown_name_error("source", source, SOURCES)
    return dataset if source == "processed" or dataset.endswith(RAW) else dataset + RAW


def remove_source(name: str) -> str:
    """Returns the name without its source, as presets and published numbers use it."""
    return name.removesuffix(RAW)


def join_names(names: Iterable[str]) -> str:
    """Returns names with commas between them. A name with a comma is in double quotes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def split_names(text: str) -> list[str]:
    """Returns the names that `join_names` has joined, without blanks around them.

    Raises UserError if there is more than one line, or a name is longer than 131,072 characters.
    """
    try:
        return [name.strip(" \t") for name in next(csv.reader([text], skipinitialspace=True)) or [""]]
    except csv.Error as error:
        raise UserError(f"Names and ids must be separated by commas on one line. Received: {text[:100]!r}") from error


def is_own(name: str) -> bool:
    return name.startswith(OWN)


@dataclass(frozen=True)
class Interactions(Settings):
    """A user's own files, one action per row, and how to read them (docs/data.md).

    Attributes:
        path: a file, a pattern such as `logs/*.csv`, a folder of Parquet files, or several of these.
    """

    path: str | tuple[str, ...]
    user_column: str | None = setting(None, "column of the users (default: by common names)")
    item_column: str | None = setting(None, "column of the items (default: by common names)")
    time_column: str | None = setting(
        None,
        "column of the times (default: by common names); date,time or year,month,day joins columns; none: the rows "
        "are in order",
    )
    min_user_actions: int = setting(1, "leave out users with fewer actions", at_least=1)
    min_item_actions: int = setting(1, "leave out items with fewer actions", at_least=1)
    bad_rows: str = setting("refuse", "what to do with a row that cannot be read", choices=("refuse", "skip"))
    test_from: str | None = setting(
        None,
        "hold out what happened from then on: a date (in the zone of the times, or UTC), or a number like the times "
        "(default: the last actions of each user)",
    )
    keep_missing_words: bool = setting(False, "read NA, null, - and other words for a missing value as ids")
    k_core: bool = setting(False, "repeat the filters of users and items until all that are left have enough actions")
    columns: str | None = setting(
        None, "names of the columns of a text file without a header: user,item,time, and _ for others"
    )
    separator: str | None = setting(
        None, "what separates the columns of a text file: a character, :: or \\t (default: found in the first rows)"
    )
    duplicates: str = setting(
        "drop", "what to do with rows that repeat user, item and time of another", choices=("drop", "keep")
    )
    event_column: str | None = setting(None, "column of the kinds of events, of which --events selects some")
    events: str | None = setting(
        None, "the kinds of events to keep, separated by commas: purchase,cart; one with a comma in double quotes"
    )
    future_times: bool = setting(False, "read times in the future")

    is_published: ClassVar[bool] = False
    """Whether these are a data set's own files. They are read as published: see `PublishedFile`."""

    def __post_init__(self) -> None:
        is_list = isinstance(self.path, (list, tuple))
        paths = tuple(self.path if is_list else [self.path])
        for path in paths:
            if not isinstance(path, (str, os.PathLike)):
                kind = type(path).__name__
                raise UserError(f"`interactions` must name files; `b4r.interactions` reads a table. Received: a {kind}")
        paths = tuple(map(str, paths))
        object.__setattr__(self, "path", paths if is_list else paths[0])
        if isinstance(self.events, (list, tuple)):
            object.__setattr__(self, "events", join_names(map(str, self.events)))
        if self.test_from is not None:
            object.__setattr__(self, "test_from", str(self.test_from))  # a number, or a date of Python or pandas
        super().__post_init__()
        if not paths or not all(paths):
            raise UserError(f"`interactions` must name a file. Received: interactions={self.path!r}")
        if self.k_core and max(self.min_user_actions, self.min_item_actions) <= 1:
            raise UserError("`k_core` needs `min_user_actions` or `min_item_actions` above 1. Received: k_core=True")
        if self.separator is not None and not re.fullmatch(r"[\t !#-~]|::|\\t", self.separator):
            raise UserError(f"`separator` must be one character, :: or \\t. Received: separator={self.separator!r}")
        if (self.event_column is None) != (self.events is None):
            raise UserError(f"`event_column` and `events` need each other. Received: events={self.events}")
        if self.events is not None and not any(split_names(self.events)):
            raise UserError(f"`events` must name kinds of events. Received: events={self.events!r}")

    @property
    def files(self) -> tuple[Path, ...]:
        """The paths as given: files, patterns and folders."""
        return tuple(expand_path(path) for path in ((self.path,) if isinstance(self.path, str) else self.path))

    @property
    def title(self) -> str:
        """The paths, for messages."""
        return ", ".join(map(str, self.files))

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults. The files and these decide the sequences."""
        fields = list_column_options()
        return {name: value for name, field in fields.items() if (value := getattr(self, name)) != field.default}

    @property
    def name(self) -> str:
        """`own-<stem>` of the first path, then six digits of a hash of `options` unless they are empty."""
        name = self.files[0].name.split(".")[0] or self.files[0].name
        if not re.search(r"\w", name.replace("*", ""), flags=re.ASCII) and self.files[0].parent.name:
            name = self.files[0].parent.name  # logs/*.csv
        stem = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:40]
        digest = hashlib.sha256(json.dumps(self.options, sort_keys=True).encode()).hexdigest()[:6]
        return f"{OWN}{stem}-{digest}" if self.options else f"{OWN}{stem}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the record in JSON's types; paths are absolute."""
        paths = [str(path.resolve()) for path in self.files]
        return {**dataclasses.asdict(self), "path": paths[0] if isinstance(self.path, str) else paths}


class PublishedFile(Interactions):
    """A data set's file: any word may be an id, and ids are numbered by first appearance, as in published results."""

    is_published = True


def list_column_options() -> dict[str, dataclasses.Field]:
    """Returns the options of `Interactions` by name. Each is a flag of the command line."""
    return {field.name: field for field in dataclasses.fields(Interactions) if field.name != "path"}
