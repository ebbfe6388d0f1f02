"""Raw ids that callers pass, as texts."""

import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from bert4rec_tf.foundation.errors import UserError

ORDERED = ("history", "histories")
"""Arguments in which the order of the ids matters."""


def to_texts(name: str, ids: Iterable[Any], is_known: Callable[[str], bool]) -> list[str]:
    """Returns ids as texts (`to_text`). Raises UserError if `ids` is a single id, such as a text of several letters."""
    num_dimensions = 2 if hasattr(type(ids), "columns") else getattr(ids, "ndim", 1)
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable) or num_dimensions != 1:
        is_table = num_dimensions != 1
        received = f"a {type(ids).__name__} of {num_dimensions} dimensions" if is_table else f"{name}={ids!r}"
        raise UserError(f"`{name}` must be a list of ids. Received: {received}")
    if name in ORDERED and isinstance(ids, (set, frozenset)):
        raise UserError(f"`{name}` must have an order, oldest first. Received: a {type(ids).__name__}")
    return [to_text(name, raw_id, is_known) for raw_id in ids]


def to_text(name: str, raw: Any, is_known: Callable[[str], bool] = lambda text: False) -> str:
    """Returns an id as a text. 54.0 is "54" unless "54.0" is known: pandas makes fractions of numbers with gaps.

    `name`: of the argument. Raises UserError for a missing id, and for a list.
    """
    raw = raw.as_py() if isinstance(raw, pa.Scalar) else raw.numpy() if hasattr(raw, "numpy") else raw  # of a tensor
    raw = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    if pd.api.types.is_list_like(raw) or pd.isna(raw):
        raise UserError(f"`{name}` must have ids alone, and no missing ones. Received: {raw!r}")
    if isinstance(raw, (float, np.floating)) and raw.is_integer() and not is_known(str(raw)):
        return str(int(raw))
    text = str(raw)
    return text if (normal := normalize_id(text)) != text and is_known(text) else normal


def normalize_id(text: str) -> str:
    """Returns an id in Unicode's form NFC, in which ids in data are read."""
    return unicodedata.normalize("NFC", text)


def normalize_ids(ids: pa.Array) -> pa.Array:
    """Returns texts in Unicode's form NFC, by Python's tables: PyArrow before 26 leaves letters and accents apart."""
    if pc.all(pc.string_is_ascii(ids), min_count=0).as_py():
        return ids
    return pa.array([text and normalize_id(text) for text in ids.to_pylist()], ids.type)
