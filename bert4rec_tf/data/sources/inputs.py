"""Reads whatever `fit` accepts: a table, a file, a data set's name, or sequences."""

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert4rec_tf.config.data_names import OWN, Interactions, remove_source
from bert4rec_tf.data.reading import conversion, tables
from bert4rec_tf.data.reading.columns import NO_TIME
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import Url

FRAME = f"{OWN}frame"
"""The name of data that do not come from a file."""


def load_any(
    data: Any,
    user: Any = None,
    item: Any = None,
    time: Any = None,
    test_from: str | float | None = None,
    to_train: bool = True,
    needs_order: bool = True,
    known_columns: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[str, Sequences, Interactions | None]:
    """Returns the name of the data, the sequences, and the user's own files if the data came from any.

    Args:
        data: a pandas DataFrame, an Arrow table or another table (`tables.load_frame`); a path, a pattern or several of
            them; the name of a data set; or `Sequences`.
        user, item, time: the columns; None to guess them.
        test_from: what happened from this time on is held out; None to hold out the last actions.
        to_train: whether too little to train on is an error in tables and files.
        needs_order: whether the order of the actions matters. If not, times are only read if named.
        known_columns: the columns of other data (`Sequences.columns`), whose names count before usual ones.

    Raises UserError for a column or a `test_from` of data that have their own.
    """
    is_known = is_data_set(data)
    if is_known or isinstance(data, (Sequences, Interactions)):
        title = f"the data set {data!r}" if is_known else f"`{type(data).__name__}`"
        for name, value in {"user": user, "item": item, "time": time, "test_from": test_from}.items():
            if value is not None:
                raise UserError(f"`{name}` must be left out with {title}, which has its own. Received: {name}={value}")
    columns: dict[str, Any] = {"user_column": user, "item_column": item, "time_column": time, "test_from": test_from}
    if time is None and not needs_order:
        columns["time_column"] = NO_TIME
    if isinstance(data, Sequences):
        return FRAME, data, None
    if is_known:
        return data, datasets.load(data), None
    if isinstance(data, (list, tuple)) and not all(isinstance(path, (str, Path, Url)) for path in data):
        raise UserError(
            f"`data` must be one table, or a list of paths. Received: a {type(data).__name__} of other things"
        )
    names: dict[str, Any] = {f"{role}_column": column["name"] for role, column in (known_columns or {}).items()}
    if isinstance(data, (str, Path, list, tuple)):
        data = Interactions(**{"path": data, **columns})
    if isinstance(data, Interactions):
        data = _name_known_columns(data, names)
        if to_train:
            return data.name, datasets.load(data), data
        sequences, report = conversion.convert(data, to_train)
        report.warn_of_doubts(sequences, needs_order)
        report.warn_of_notes()
        return data.name, replace(sequences, columns=conversion.describe_columns(data)), data
    names = {name: value for name, value in names.items() if columns[name] is None}
    frame = tables.load_frame(data, "`data`")
    columns |= tables.name_columns(frame, user=user, item=item, time=columns["time_column"])
    headers = set(tables.list_names(frame))
    columns |= {name: value for name, value in names.items() if headers >= {value} or headers >= {*value.split(",")}}
    return FRAME, tables.read_frame(frame, Interactions(tables.TITLE, **columns), to_train, needs_order), None


def _name_known_columns(interactions: Interactions, names: Mapping[str, Any]) -> Interactions:
    """Returns interactions with as many of the known names as their files have; other columns are guessed later."""
    pairs = [(name, value) for name, value in names.items() if getattr(interactions, name) is None]
    for size in range(len(pairs), 0, -1):
        for part in itertools.combinations(pairs, size):
            with contextlib.suppress(UserError):
                conversion.describe_columns(candidate := replace(interactions, **dict(part)))
                return candidate
    return interactions


def is_data_set(data: Any) -> bool:
    return isinstance(data, str) and remove_source(data) in datasets.DATASETS
