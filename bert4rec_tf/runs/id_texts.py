"""Ids and titles that callers pass, as texts."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.serving.titles import read_titles

ORDERED = ("history", "histories")
"""Arguments in which the order of the ids matters."""


def to_texts(name: str, raw: Iterable[Any], knows: Callable[[str], bool]) -> list[str]:
    """Returns ids as texts (`to_text`). Raises UserError if `raw` is a single id, such as a text of several letters."""
    if isinstance(raw, (str, bytes)) or not isinstance(raw, Iterable) or getattr(raw, "ndim", 1) != 1:
        raise UserError(f"`{name}` must be a list of ids. Received: {name}={raw!r}")
    if name in ORDERED and isinstance(raw, (set, frozenset)):
        raise UserError(f"`{name}` must have an order, oldest first. Received: a {type(raw).__name__}")
    return [to_text(name, one, knows) for one in raw]


def to_text(name: str, raw: Any, knows: Callable[[str], bool] = lambda text: False) -> str:
    """Returns an id as a text. 54.0 is "54" unless "54.0" is known: pandas makes fractions of numbers with gaps.

    `name`: of the argument. Raises UserError for a missing id, and for a list.
    """
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "replace")
    if pd.api.types.is_list_like(raw) or pd.isna(raw):
        raise UserError(f"`{name}` must have ids alone, and no missing ones. Received: {raw!r}")
    if isinstance(raw, (float, np.floating)) and raw.is_integer() and not knows(str(raw)):
        return str(int(raw))
    return str(raw)


def load_titles(titles: Any) -> dict[str, str]:
    """Returns raw id -> title, from a dictionary or a file (`serving.titles`); empty for None."""
    if titles is None:
        return {}
    if isinstance(titles, Mapping):
        return {to_text("titles", item): str(title) for item, title in titles.items()}
    if isinstance(titles, (str, Path, Url)):
        return read_titles(files.expand_path(titles))
    raise UserError(f"`titles` must be a file or a dictionary. Received: {type(titles).__name__}")
