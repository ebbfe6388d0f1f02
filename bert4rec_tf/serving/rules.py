"""Rules for what may be recommended: a condition on the attributes of items, and a list of blocked items in a file."""

import ast
import functools
import itertools
import keyword
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.data.id_texts import normalize_id
from bert4rec_tf.data.reading.rows import MISSING
from bert4rec_tf.data.reading.small_tables import VALUE_SEPARATOR, read_columns
from bert4rec_tf.data.reading.tables import describe_index
from bert4rec_tf.export.layout import ITEM_ID
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.foundation.lines import Lines, encode_text
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.foundation.warning import DataWarning, FileWarning, UnknownIdWarning, warn
from bert4rec_tf.serving.ids import pad_ids
from bert4rec_tf.serving.titles import IDS

ALLOWED = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Invert, ast.Compare),
    *(ast.In, ast.NotIn, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
)
"""What a condition may consist of, with COMPARISONS. It calls no functions, because conditions come over HTTP too."""

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge},
}
_PARTS = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|`([^`]*)`|([&|])""")
"""What differs from Python, as in pandas: names in backticks, & and |. Also texts, in which nothing differs."""

NO_ITEM = "\n"
"""No item has this id. It stands for candidates of which a rule leaves none: no candidates would mean all items."""

MAX_CONDITIONS = 16
MAX_OPERATORS = 1_000
"""Of one condition: each takes time for all items."""

MAX_LOOKS = 3
"""How often a file that changes is looked at before it is read."""

LARGEST_EXACT = 2**53
"""From here on, floats cannot hold every whole number."""

TRUTHS = {"true": True, "false": False}
NUMBERS, TEXTS, TRUE_OR_FALSE = "numbers", "texts", "true and false"
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")
KINDS = {"string": TEXTS, "boolean": TRUE_OR_FALSE, **dict.fromkeys(_NUMBERS, NUMBERS)}
"""What pandas infers of a column -> the kind of its values; other columns are compared as they are."""
Content = TypeVar("Content")


class Selection(NamedTuple):
    """The model's items, and for which of them a condition holds, bool [items]. The lists of their ids are large."""

    items: Lines
    mask: np.ndarray

    @property
    def num_forbidden(self) -> int:
        return int(np.count_nonzero(~self.mask))

    def list_allowed(self) -> list[str]:
        return self.items.select(self.mask)


class Attributes:
    """The attributes of items, of which `where` speaks: `in_stock and category == 'toys'`.

    Names that are no Python names are in backticks: `` `in stock` ``. To `and`, `or` and `not`, numbers but 0 are true.
    A missing value is false, differs from all values, and is neither less nor greater: `not price < 20` holds for an
    item without a price. A text is compared with texts alone; a day is a text: `day > '2020-06-01'`. A cell may hold
    several values, in a list or with `|` between them, as features do: `'drama' in genres`.

    `source`: a file or a table with a column of ids (`small_tables.read_columns`). Texts that are all numbers, or all
    true or false, become these, and words such as N/A beside them missing values. Rows without an id are left out, and
    if an id occurs twice, its last row counts. Raises UserError as `read_columns`, or if no row has an id.
    """

    def __init__(self, source: Any, id_name: str | None = None) -> None:
        title = str(source) if isinstance(source, (str, Path, Url)) else "`attributes`"
        id_column, columns = read_columns(source, title, (ITEM_ID, *IDS), id_name)
        if id_column is None:
            received = ", ".join(columns)[:300] + describe_index(source)
            raise UserError(f"{title}: must have a column of ids, such as `id`. Received: {received}")
        ids = columns[id_column]
        if not any(ids):
            received = f"{len(ids):,} without an id" if ids else "none"
            raise UserError(f"{title}: must have rows. Received: {received}")
        if num_lost := sum(not raw_id for raw_id in ids):
            warn(f"{title}: {num_lost:,} rows have no id and are left out", DataWarning)
            columns = {name: list(itertools.compress(cells, ids)) for name, cells in columns.items()}
        frame = pd.DataFrame({name: _convert(cells) for name, cells in columns.items() if name != id_column})
        frame.index = pd.Index(columns[id_column], dtype=object, name=id_column)
        is_earlier = frame.index.duplicated(keep="last")
        if num_earlier := int(is_earlier.sum()):
            warn(f"{title}: {num_earlier:,} rows have the id of a later one, which counts", DataWarning)
        self.frame = frame[~is_earlier]
        self.select = functools.lru_cache(MAX_CONDITIONS)(self._select)

    def _select(self, where: str, model_items: Lines) -> Selection:
        """Returns the items for which a condition holds. Raises UserError if it cannot be computed.

        The answers to the last MAX_CONDITIONS conditions are kept.
        """
        received = f"Received: where={where[:200]!r}"
        condition = self._parse(where, received)
        try:
            ids = set(self.frame.index[self._compute_truths(condition)])
        except Exception as error:  # pandas raises anything for values that cannot be compared
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"`where` cannot be computed ({reason}). {received}") from error
        return Selection(model_items, np.fromiter((item in ids for item in model_items), bool, len(model_items)))

    def _parse(self, where: str, received: str) -> ast.expr:
        """Returns a condition as a tree of ALLOWED nodes. Raises UserError with `received` for what is no condition."""
        quoted_names = dict[str, str]()

        def write_python(part: re.Match) -> str:
            text, name, sign = part.groups()
            if name is None:
                return text or (" and " if sign == "&" else " or ")
            quoted_names[f"attribute_{len(quoted_names)}_"] = name
            return f" {[*quoted_names][-1]} "

        try:
            tree = ast.parse(_PARTS.sub(write_python, where).strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            hint = ", in which == compares" if re.search("(?<![=!<>])=(?!=)", where) else ""
            for name in map(_quote_name, self.frame):
                if name[0] == "`" and any(map(str.isalpha, name)) and name[1:-1] in where and name not in where:
                    hint = f", with the attribute {name} in backticks"
            raise UserError(f"`where` must be a condition{hint}. {received}") from error
        nodes = list(ast.walk(tree))
        if any(isinstance(node, ast.Constant) and node.value is None for node in nodes):
            raise UserError(f"`where` must not have None; price == price holds for items with a price. {received}")
        for node in nodes:
            if not isinstance(node, (*ALLOWED, *COMPARISONS)):
                raise UserError(
                    f"`where` must consist of attributes, values, comparisons, in, and, or, not. {received}"
                )
            if isinstance(node, ast.Name):
                node.id = quoted_names.get(node.id, node.id)
                if node.id not in self.frame:
                    raise unknown_name_error("attribute", node.id[:60], map(_quote_name, self.frame))
        if not any(isinstance(node, ast.Name) for node in nodes):
            raise UserError(f"`where` must be a condition on an attribute. {received}")
        sizes = (len(getattr(node, "values", ())) + isinstance(node, (ast.UnaryOp, ast.cmpop)) for node in nodes)
        if sum(sizes) > MAX_OPERATORS:
            raise UserError(f"`where` may have {MAX_OPERATORS:,} operators; `in` takes more values. {received}")
        return tree.body

    def _compute(self, node: ast.expr) -> Any:
        """Returns the value of a part of a condition: a column, a constant or a list."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.frame[node.id]
            case ast.List() | ast.Tuple():
                return [self._compute(element) for element in node.elts]
            case ast.UnaryOp(op=ast.USub()):
                return -self._compute(node.operand)
            case ast.UnaryOp():
                return ~self._compute_truths(node.operand)
            case ast.BoolOp():
                combine = operator.and_ if isinstance(node.op, ast.And) else operator.or_
                return functools.reduce(combine, map(self._compute_truths, node.values))
            case ast.Compare():
                pairs = itertools.pairwise(map(self._compute, (node.left, *node.comparators)))
                truths = [self._to_truths(_compare(sign, *pair)) for sign, pair in zip(node.ops, pairs)]
                return functools.reduce(operator.and_, truths)

    def _compute_truths(self, node: ast.expr) -> pd.Series:
        return self._to_truths(self._compute(node))

    def _to_truths(self, value: Any) -> pd.Series:
        """Returns whether a value, or each of a column, is true. Raises TypeError for texts: "no" would be true."""
        column = value if isinstance(value, pd.Series) else pd.Series(value, self.frame.index)
        if pd.api.types.infer_dtype(column, skipna=True) == "string":
            raise TypeError("a text must be compared, as in category == 'toys'")
        return column.notna() & column.astype("boolean" if column.dtype in ("Int64", "UInt64") else bool).fillna(False)


def _compare(sign: ast.cmpop, left: Any, right: Any) -> Any:
    column, values = (left, right) if isinstance(left, pd.Series) else (right, left)
    is_search = isinstance(column, pd.Series) and column is right and isinstance(sign, (ast.In, ast.NotIn))
    is_search = is_search and not isinstance(left, list)
    if not is_search:
        _refuse_lists(left, right)
    _refuse_other_kind(column.explode() if is_search else column, values)
    if type(sign) in COMPARISONS and not isinstance(left, list) and not isinstance(right, list):
        truths = COMPARISONS[type(sign)](left, right)
        return truths.fillna(isinstance(sign, ast.NotEq)) if getattr(truths, "dtype", None) == "boolean" else truths
    if not isinstance(column, pd.Series) or not isinstance(sign, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
        raise TypeError("a list can hold the values of an attribute, as in category in ['toys', 'books']")
    is_in = column.isin(_list_values(column, values))
    if is_search:
        is_in |= column.map(functools.partial(_has_value, left)).astype(bool)
    return is_in if isinstance(sign, (ast.Eq, ast.In)) else ~is_in


def _list_values(column: pd.Series, values: Any) -> Any:
    """Returns values for `isin`: texts as the moments that a column holds, and numbers of Python, which are exact."""
    if isinstance(values, pd.Series):
        values = values.dropna().tolist()
    values = values if isinstance(values, list) else [values]
    if pd.api.types.is_datetime64_any_dtype(column):
        moments = [pd.Timestamp(value) for value in values if isinstance(value, (str, datetime))]
        zone = column.dt.tz
        return [moment.tz_localize(zone) if moment.tz is None and zone is not None else moment for moment in moments]
    return np.array([*values, None], object)[:-1]


def _find_kind(values: Any) -> str | None:
    return KINDS.get(pd.api.types.infer_dtype(values, skipna=True))


def _refuse_lists(*sides: Any) -> None:
    """Raises TypeError for a column of lists, which no value equals."""
    for column in sides:
        if isinstance(column, pd.Series) and _find_kind(column) is None and column.map(pd.api.types.is_list_like).any():
            raise TypeError(f"`{column.name}` holds lists; look for a value in them, as in 'toys' in {column.name}")


def _refuse_other_kind(column: Any, value: Any) -> None:
    """Raises TypeError if texts would be compared with other values alone, from which they differ whatever they say."""
    if not isinstance(column, pd.Series) or (kind := _find_kind(column)) is None:
        return
    values = value if isinstance(value, list) else [value]
    kinds = [_find_kind(value if isinstance(value, pd.Series) else [value]) for value in values]
    if not kinds or any(other_kind is None or (kind == TEXTS) == (other_kind == TEXTS) for other_kind in kinds):
        return
    if isinstance(value, pd.Series):
        raise TypeError(f"`{column.name}` holds {kind}, and `{value.name}` {kinds[0]}")
    cells = column[column.notna()]
    if kind == TEXTS:  # a cell that is the reason
        is_other = pd.to_numeric(cells, errors="coerce").isna() & ~cells.str.strip().isin(MISSING)
        cells = cells[is_other] if is_other.any() else cells
    example = cells.tolist()[0]
    raise TypeError(f"`{column.name}` holds {kind}, such as {example!r}. Received: {values[0]!r}")


def _has_value(value: Any, cell: Any) -> bool:
    """Returns whether a cell has a value among several: in a list, or between `|`."""
    values = cell.split(VALUE_SEPARATOR) if isinstance(cell, str) else cell
    return pd.api.types.is_list_like(values) and value in list(values)


def _quote_name(name: str) -> str:
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"`{name}`"


def _convert(cells: Sequence[Any]) -> pd.Series:
    cells = [None if isinstance(cell, str) and not cell.strip() else cell for cell in cells]
    cells = [_to_number(cell) if isinstance(cell, Decimal) else cell for cell in cells]
    cells = [[*map(_write_day, cell)] if isinstance(cell, (list, tuple)) else _write_day(cell) for cell in cells]
    values = pd.Series(cells, dtype=object)
    if not all(isinstance(cell, str | None) for cell in cells):
        return _restore_large(values.infer_objects(), values)
    column = pd.Series([None if (cell or "").strip() in MISSING else cell.strip() for cell in cells], dtype=object)
    texts = set(column.dropna())
    if not texts:
        return column
    if {text.lower() for text in texts} <= TRUTHS.keys():
        truths = [None if cell is None else TRUTHS[cell.lower()] for cell in column]
        return pd.Series(truths, dtype=object if None in truths else bool)
    numbers = pd.to_numeric(column, errors="coerce")
    return _restore_large(numbers, column) if numbers.count() == column.count() else values


def _to_number(decimal: Decimal) -> float:
    return int(decimal) if decimal.is_finite() and decimal == decimal.to_integral_value() else float(decimal)


def _write_day(cell: Any) -> Any:
    return str(cell) if isinstance(cell, date) and not isinstance(cell, datetime) else cell


def _restore_large(numbers: pd.Series, cells: pd.Series) -> pd.Series:
    """Returns the numbers; whole ones beyond floats' precision, such as ids, as they were: exact, or texts."""
    is_large = numbers.dtype == float and (numbers.abs() >= LARGEST_EXACT).any()
    if not is_large or any(isinstance(cell, float) and cell == cell for cell in cells):
        return numbers
    try:
        integers = [pd.NA if pd.isna(cell) else int(cell) for cell in cells]
    except ValueError:  # such as 1e20
        return numbers
    for kind, minimum, maximum in (("Int64", -(2**63), 2**63), ("UInt64", 0, 2**64)):
        if all(cell is pd.NA or minimum <= cell < maximum for cell in integers):
            return pd.Series(integers, dtype=kind)
    return pd.Series([None if cell is pd.NA else str(cell) for cell in integers], dtype=object)


class WatchedFile(Generic[Content]):
    """The `content` of a file, which `refresh` reads again if the file has changed.

    It waits while a local file changes from call to call, as one that is being written, but for at most MAX_LOOKS. If
    it cannot be read, a warning says so once, and the content of before stays. `parse`: path -> content. Raises
    UserError if it cannot be read at first.
    """

    def __init__(self, path: Path, parse: Callable[[Path], Content]) -> None:
        self._path, self._parse = path, parse
        self._stamp = self._read_stamp()
        self._new_stamps: list[Any] = []  # at the looks since it changed
        self.content = parse(path)

    def _read_stamp(self) -> Any:
        try:
            if isinstance(self._path, Url):
                return self._path.call_store("info")
            return (status := self._path.stat()).st_mtime_ns, status.st_size
        except OSError:
            return None

    def refresh(self) -> None:
        stamp = self._read_stamp()
        if stamp == self._stamp:
            self._new_stamps = []
            return
        is_whole = self._new_stamps[-1:] == [stamp] or isinstance(self._path, Url)
        self._new_stamps.append(stamp)
        if not is_whole and len(self._new_stamps) < MAX_LOOKS:
            return
        self._stamp, self._new_stamps = stamp, []
        try:
            content = self._parse(self._path)
        except UserError as error:
            warn(f"{error}; what it held before still counts", FileWarning)
            return
        if self.content and not content:
            warn(f"{self._path}: is empty now; what it held before no longer counts", FileWarning)
        self.content = content


class BlockedIds(frozenset[str]):
    """Ids of items that are never recommended.

    Attributes:
        row: the same ids, sorted, as one row of an input of the model. It is made once, because it may be long.
    """

    @functools.cached_property
    def row(self) -> np.ndarray:
        return pad_ids([sorted(self)])


NOTHING_BLOCKED = BlockedIds()


def read_blocked(path: Path, items: Lines) -> BlockedIds:
    """Returns the ids in a file, one on each line. Warns of those that are not among the model's `items`.

    Raises UserError if it cannot be read.
    """
    ids = list(dict.fromkeys(map(normalize_id, files.read_lines(path))))
    unknown_ids = list(itertools.compress(ids, ~items.contains_each(ids)))
    if unknown_ids:
        counts = f"{len(unknown_ids):,} of {len(ids):,} blocked ids are no items of the model"
        warn(f"{path}: {counts}, such as {unknown_ids[0]!r}", UnknownIdWarning)
    return BlockedIds(ids)


def select_allowed(attributes: Attributes | None, where: str | None, model_items: Lines) -> Selection | None:
    """Returns the items for which `where` holds; None for no condition.

    Raises UserError if it holds for none of these, or there are no attributes.
    """
    if where is None:
        return None
    received = f"Received: where={where!r:.200}"
    if not isinstance(where, str):
        raise UserError(f"`where` must be a text. {received}")
    if attributes is None:
        raise UserError(f"`where` needs attributes of the items: give --attributes=TABLE. {received}")
    selection = attributes.select(where, model_items)
    if selection.mask.any():
        return selection
    ids = attributes.frame.index
    if not any(item in ids for item in model_items):
        raise UserError(
            f"--attributes must have ids of the model's items, such as {model_items[0]!r}, in its column {ids.name!r}. "
            f"Received: {len(ids):,} others, such as {next(iter(ids), None)!r}"
        )
    raise UserError(f"`where` must leave items of the model. {received}, which leaves none")


Rows = Sequence[Sequence[str]]


def restrict(exclude: Rows, candidates: Rows, selection: Selection | None) -> tuple[Rows, Rows]:
    """Returns `exclude` and `candidates`, rows of ids, such that only allowed items come back."""
    if selection is None:
        return exclude, candidates
    if any(candidates):
        allowed_items = selection.list_allowed()
        ids = set(allowed_items)
        allowed_candidates = [[item for item in row if item in ids] if row else allowed_items for row in candidates]
        return exclude, [row or [NO_ITEM] for row in allowed_candidates]
    if len(exclude) > 1 or len(selection.mask) <= 2 * selection.num_forbidden:
        return exclude, [selection.list_allowed()]
    return [[*(exclude[0] if exclude else ()), *selection.items.select(~selection.mask)]], candidates


def widen_similar(k: int, num_items: int, selection: Selection | None, blocked: BlockedIds = NOTHING_BLOCKED) -> int:
    """Returns how many similar items to ask for, such that the rules leave k if there are as many."""
    return min(num_items, k + len(blocked) + (0 if selection is None else selection.num_forbidden))


def filter_similar(
    outputs: Mapping[str, np.ndarray], k: int, selection: Selection | None, blocked: BlockedIds = NOTHING_BLOCKED
) -> dict[str, np.ndarray]:
    """Returns the outputs of `similar` for `widen_similar` items with the first k of each row that the rules leave."""
    items, scores = outputs["items"], outputs["scores"]
    cells = pd.Series(items.ravel())
    is_left = ~cells.isin([b"", *blocked.row[0]])
    if selection is not None:
        is_left &= cells.isin([*map(encode_text, selection.list_allowed())])
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
    return _make_storable(Attributes(features, columns.get("item", {}).get("name")).frame)


def join_attributes(attributes: Attributes | None, new_frame: pd.DataFrame | None) -> pd.DataFrame | None:
    """Returns the attributes of all items, of which new rows replace the known ones; None for none at all."""
    if attributes is None or new_frame is None:
        return new_frame if attributes is None else attributes.frame
    parts = attributes.frame[~attributes.frame.index.isin(new_frame.index)], new_frame
    cells = pd.concat([part.astype(object).where(part.notna(), None) for part in parts])  # as floats, ids were rounded
    frame = pd.DataFrame({name: _convert(column.tolist()) for name, column in cells.items()})
    return _make_storable(frame.set_index(cells.index))


def _make_storable(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with texts in place of values of several kinds, as a Parquet file needs it."""
    objects = frame.loc[:, frame.dtypes == "object"]
    return frame.assign(**{name: objects[name].map(_write_cell) for name in objects if not _has_lists(objects[name])})


def _has_lists(column: pd.Series) -> bool:
    """Returns whether all cells are lists, or missing, and their values of one kind: a Parquet file keeps these."""
    cells = [cell for cell in column if pd.api.types.is_list_like(cell) or not pd.isna(cell)]
    return all(map(pd.api.types.is_list_like, cells)) and _find_kind([*itertools.chain(*cells)]) is not None


def _write_cell(cell: Any) -> str | None:
    """Returns a cell as a text: several values with `|` between them, midnight as its day; None for a missing one."""
    if pd.api.types.is_list_like(cell):
        return VALUE_SEPARATOR.join(map(str, cell))
    if isinstance(cell, datetime) and not pd.isna(cell):
        return str(cell).removesuffix(" 00:00:00")
    return None if pd.isna(cell) else str(cell)
