"""Rules for what may be recommended: a condition on the attributes of items, and a list of blocked items in a file."""

import ast
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.data.reading.small_tables import read_columns
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.foundation.lines import Lines, encode_text
from bert4rec_tf.foundation.warning import FileWarning, UnknownIdWarning, warn
from bert4rec_tf.serving.titles import IDS

ALLOWED = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Invert, ast.Compare, ast.BinOp),
    *(ast.BitAnd, ast.BitOr, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Name),
    *(ast.Load, ast.Constant, ast.List, ast.Tuple),
)
"""What a condition may consist of. pandas' own conditions could call functions, and conditions come over HTTP too."""

NO_ITEM = "\n"
"""No item has this id. It stands for candidates of which a rule leaves none: no candidates would mean all items."""

MAX_CONDITIONS = 16
TRUTHS = {"true": True, "false": False}
Content = TypeVar("Content")


class Allowed(NamedTuple):
    """The items for which a condition holds: all `ids`, and those `items` and `others` that the model has, in order."""

    ids: frozenset[str]
    items: list[str]
    others: list[str]


class Attributes:
    """The attributes of items, of which `where` speaks: `in_stock and category == 'toys'`.

    `source`: a file or a table with a column of ids (`small_tables.read_columns`). Texts that are all numbers, or all
    true or false, become these. If an id occurs twice, its last row counts. Raises UserError as `read_columns`.
    """

    def __init__(self, source: Any, id_name: str | None = None) -> None:
        title = str(source) if isinstance(source, (str, Path)) else "`attributes`"
        id_column, columns = read_columns(source, title, IDS, id_name)
        if id_column is None:
            raise UserError(f"{title}: must have a column of ids, such as `id`. Received: {', '.join(columns)[:300]}")
        frame = pd.DataFrame({name: _convert(cells) for name, cells in columns.items() if name != id_column})
        frame.index = pd.Index(columns[id_column], dtype=object, name=id_column)
        self.frame = frame[~frame.index.duplicated(keep="last")]
        self.select = functools.lru_cache(MAX_CONDITIONS)(self._select)

    def _select(self, where: str, known: Sequence[str]) -> Allowed:
        """Returns the items for which a condition holds. Raises UserError if it cannot be computed.

        `known`: the model's items, `Lines`. The answers to the last MAX_CONDITIONS conditions are kept.
        """
        try:
            tree = ast.parse(where.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UserError(f"`where` must be a condition. Received: where={where[:200]!r}") from error
        for node in ast.walk(tree):
            if not isinstance(node, ALLOWED):
                raise UserError(
                    "`where` must consist of attributes, values, comparisons, in, and, or, not. "
                    f"Received: where={where[:200]!r}"
                )
            if isinstance(node, ast.Name) and node.id not in self.frame:
                raise unknown_name_error("attribute", node.id, map(str, self.frame))
        try:
            holds = self.frame.eval(where.strip(), engine="python")
            ids = frozenset(self.frame.index[holds.fillna(False).astype(bool).to_numpy()])
        except Exception as error:  # pandas raises anything for values that cannot be compared
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"`where` cannot be computed ({reason}). Received: where={where[:200]!r}") from error
        parts: tuple[list[str], list[str]] = [], []
        for item in known:
            parts[item not in ids].append(item)
        return Allowed(ids, *parts)


def _convert(cells: Sequence[Any]) -> pd.Series:
    cells = [None if isinstance(cell, str) and not cell.strip() else cell for cell in cells]
    values = pd.Series(cells, dtype=object)
    texts = {cell for cell in cells if isinstance(cell, str)}
    if texts and texts | {None} == {*cells, None}:
        if {text.strip().lower() for text in texts} <= TRUTHS.keys():
            return values.map(lambda cell: cell is not None and TRUTHS[cell.strip().lower()]).astype(bool)
        numbers = pd.to_numeric(values, errors="coerce")
        return numbers if not (numbers.isna() & values.notna()).any() else values
    return values.infer_objects()


class WatchedFile(Generic[Content]):
    """The content of a file, which is read again when the file changes.

    If it cannot be read then, a warning says so once, and the content of before stays. `parse`: path -> content.
    Raises UserError if it cannot be read at first.
    """

    def __init__(self, path: Path, parse: Callable[[Path], Content]) -> None:
        self._path, self._parse = path, parse
        self._stamp = self._read_stamp()
        self._content = parse(path)

    def _read_stamp(self) -> tuple[int, int] | None:
        try:
            return (status := self._path.stat()).st_mtime_ns, status.st_size
        except OSError:
            return None

    def read(self) -> Content:
        if (stamp := self._read_stamp()) != self._stamp:
            self._stamp = stamp
            try:
                content = self._parse(self._path)
            except UserError as error:
                warn(f"{error}; what it held before still counts", FileWarning)
                return self._content
            if self._content and not content:
                warn(f"{self._path}: is empty now; what it held before no longer counts", FileWarning)
            self._content = content
        return self._content


def read_blocked(path: Path, items: Lines) -> frozenset[str]:
    """Returns the ids in a file, one on each line. Warns of those that are not among the model's `items`.

    Raises UserError if it cannot be read.
    """
    ids = list(dict.fromkeys(files.read_lines(path)))
    unknown_ids = list(itertools.compress(ids, ~items.contains_each(ids)))
    if unknown_ids:
        counts = f"{len(unknown_ids):,} of {len(ids):,} blocked ids are no items of the model"
        warn(f"{path}: {counts}, such as {unknown_ids[0]!r}", UnknownIdWarning)
    return frozenset(ids)


def select_allowed(attributes: Attributes | None, where: str | None, known: Sequence[str]) -> Allowed | None:
    """Returns the items for which `where` holds; None for no condition. `known`: the model's items.

    Raises UserError if it holds for none of these, or there are no attributes.
    """
    if where is None:
        return None
    if attributes is None or not isinstance(where, str):
        raise UserError(
            "`where` must be a text, and needs attributes of the items: name a file or a table. "
            f"Received: where={where!r}"
        )
    allowed = attributes.select(where, known)
    if not allowed.items:
        raise UserError(f"`where` must leave items of the model. Received: where={where!r}, which leaves none")
    return allowed


Rows = Sequence[Sequence[str]]


def restrict(exclude: Rows, candidates: Rows, allowed: Allowed | None, blocked: frozenset[str]) -> tuple[Rows, Rows]:
    """Returns `exclude` and `candidates`, rows of ids, such that only allowed items that are not blocked come back."""
    if blocked:
        exclude = [[*row, *sorted(blocked)] for row in exclude or [[]]]
    if allowed is None:
        return exclude, candidates
    if any(candidates):
        left = [[item for item in row if item in allowed.ids] if row else allowed.items for row in candidates]
        return exclude, [row or [NO_ITEM] for row in left]
    if len(exclude) > 1 or len(allowed.items) <= len(allowed.others):
        return exclude, [allowed.items]
    return [[*(exclude[0] if exclude else ()), *allowed.others]], candidates


def filter_similar(
    outputs: Mapping[str, np.ndarray], k: int, allowed: Allowed | None, blocked: frozenset[str]
) -> dict[str, np.ndarray]:
    """Returns the outputs of `similar` for all items with the first k of each row that the rules leave."""
    items, scores = outputs["items"], outputs["scores"]
    cells = pd.Series(items.ravel())
    is_left = ~cells.isin([b"", *map(encode_text, blocked)])
    if allowed is not None:
        is_left &= cells.isin([*map(encode_text, allowed.items)])
    is_left = is_left.to_numpy().reshape(items.shape)
    places = np.argsort(~is_left, axis=1, kind="stable")[:, :k]
    is_left = np.take_along_axis(is_left, places, axis=1)
    return {
        **outputs,
        "items": np.where(is_left, np.take_along_axis(items, places, axis=1), b""),
        "scores": np.where(is_left, np.take_along_axis(scores, places, axis=1), np.float32(-np.inf)),
    }


def read_attributes(features: Any, columns: Mapping[str, Mapping[str, str]]) -> pd.DataFrame | None:
    """Returns a table of features as attributes for rules, indexed by the items' ids; None for what is no table."""
    if features is None or isinstance(features, Features):
        return None
    frame = Attributes(features, columns.get("item", {}).get("name")).frame
    objects = frame.select_dtypes(object)
    return frame.assign(**{name: objects[name].map(str, na_action="ignore") for name in objects})
