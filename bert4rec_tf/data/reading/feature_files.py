"""Reads features of items or users: a CSV or Parquet file, a pandas DataFrame or an Arrow table."""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bert4rec_tf.config.model_settings import ITEM_FEATURES, USER_FEATURES
from bert4rec_tf.data.feature_values import Features, attach_features
from bert4rec_tf.data.reading.columns import DATE_LIKE, ITEM_NAMES, JSON, LITERALS, ROW_NUMBERS, USER_NAMES
from bert4rec_tf.data.reading.records import parse_text
from bert4rec_tf.data.reading.rows import MISSING
from bert4rec_tf.data.reading.small_tables import VALUE_SEPARATOR, has_fraction, read_columns
from bert4rec_tf.data.reading.tables import describe_index
from bert4rec_tf.data.reading.times import BLANKS
from bert4rec_tf.data.sequences import Sequences, find_bad_id
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.foundation.warning import DataNote, DataWarning, warn

ID_NAMES = {ITEM_FEATURES: (*ITEM_NAMES, "id"), USER_FEATURES: (*USER_NAMES, "id")}
"""Common names of the column of ids, preferred names first."""

BINS = 10
"""A column with more different numbers than this is cut into this many quantiles."""

FEW_ODD = 0.1
"""A column of numbers may have this share of other cells."""

CURRENCY_OR_THOUSANDS = re.compile(r"^[$\u20ac\u00a3] ?|(?<=\d),(?=\d{3}(?:\D|$))")

SURE_SEPARATOR = re.compile(re.escape(VALUE_SEPARATOR))
GUESSED_SEPARATOR = re.compile(r";|(?<!\d),|,(?!\d)")
"""A semicolon or a comma, but none within a number."""

MIN_IDS_PER_VALUE = 2
"""A value that fewer ids have is left out, because it says nothing about other ids."""

MIN_MATCHED_SHARE = 0.5
"""A warning is given if fewer of the data's ids than this share have features or titles."""


def with_features(
    sequences: Sequences,
    item_features: Any = None,
    user_features: Any = None,
    new_items: bool = False,
    silent: bool = False,
) -> Sequences:
    """Returns the sequences with features of their items, their users or both.

    Examples:
        >>> data = b4r.with_features(b4r.load("ml-1m"), item_features="movies.csv")
        >>> result = b4r.execute(b4r.make_run("ml-1m", use_item_features="add"), sequences=data)

    Args:
        sequences: the data.
        item_features, user_features: a path, a DataFrame, an Arrow table, or `Features`; None for none. The column of
            ids has a common name, or the name that it has in the data.
        new_items: whether items that occur only among the features are added to the vocabulary, and so recommended.
            Those of `Features` always are.
        silent: whether to print nothing about the ids that match.

    Raises:
        UserError: as in `read_features`, and if no id of the data has features.
    """
    refuse_unused_new_items(new_items, item_features)
    known_ids = {ITEM_FEATURES: sequences.vocabulary.items, USER_FEATURES: sequences.users}
    features = {}
    for kind, role, source in ((ITEM_FEATURES, "item", item_features), (USER_FEATURES, "user", user_features)):
        if source is None:
            continue
        features[kind] = read_features(source, kind, sequences.columns.get(role, {}).get("name"))
        if isinstance(source, Features):
            continue
        line = check_matches(kind, features[kind].ids, known_ids[kind])
        if not silent:
            print(line, flush=True)
        if kind == ITEM_FEATURES and not new_items:
            features[kind] = features[kind].select_rows(list(known_ids[kind]))
    return attach_features(sequences, features)


def refuse_unused_new_items(new_items: bool, item_features: Any) -> None:
    """Raises UserError if items of features are asked for, and there are no features."""
    if new_items and item_features is None:
        raise UserError("`new_items` needs `item_features`, which name these items. Received: new_items=True")


def check_matches(name: str, ids: Iterable[str], known_ids: Iterable[str]) -> str:
    """Returns a line that says how many of the data's `known_ids` have features or titles. Warns if they are few.

    Raises UserError if none has any. `name`: of the argument. `ids`: those that have features or titles.
    """
    ids, known_ids = set(ids), set(known_ids)
    num_shared = len(ids & known_ids)
    if ids and known_ids and not num_shared:
        raise UserError(
            f"`{name}` must have ids of the data, such as {min(known_ids)!r}. Received: {len(ids):,} others, such as "
            f"{min(ids)!r}"
        )
    line = f"{name}: {num_shared:,} of the {len(known_ids):,} ids of the data match; {len(ids) - num_shared:,} others"
    if num_shared < MIN_MATCHED_SHARE * len(known_ids):
        warn(line, DataWarning)
    return line


def read_features(source: Any, kind: str = ITEM_FEATURES, id_name: str | None = None) -> Features:
    """Reads features: one column has the ids, every other column is a feature.

    A cell holds one value, or several: a list, or a text with `|` between them; or with commas or semicolons, if these
    cut a column's cells into fewer different values than there are different cells (with a warning). A column of more
    than BINS different numbers is cut at its quantiles into BINS categories. An empty cell is no value. An id has the
    values of all its rows. Values that fewer than MIN_IDS_PER_VALUE ids have are left out.

    A column is one of vectors if any cell is a list with a fraction: floats in Parquet and Arrow, lists or NumPy arrays
    of them in a DataFrame, JSON in CSV. Then every cell is empty or such a list, and all are equally long.

    Args:
        source: a path to CSV (in UTF-8 with a header; `.gz` or not) or Parquet; a DataFrame; an Arrow table; or
            `Features`, which are returned as they are.
        kind: ITEM_FEATURES or USER_FEATURES, whose ids the source has.
        id_name: the column of ids, if the source has it; else it is guessed by its name.

    Raises UserError if it cannot be read, has no column of ids, has a bad id or a bad vector, or no value is left.
    """
    if isinstance(source, Features):
        return source
    title = str(source) if isinstance(source, (str, Path, Url)) else f"`{kind}`"
    id_column, columns = read_columns(source, title, ID_NAMES[kind], id_name)
    if id_column is None:
        received = ", ".join(columns)[:300] + describe_index(source)
        raise UserError(
            f"{title}: no column has a known name for ids; name one {ID_NAMES[kind][0]!r}. Received: {received}"
        )
    ids = ["" if raw_id is None else raw_id for raw_id in columns[id_column]]
    if isinstance(source, (str, Path, Url)):  # as the ids of texts with actions
        ids = [raw_id.strip(BLANKS) for raw_id in ids]
    rows, unique_ids = pd.factorize(np.array(ids, object))
    bad_id = find_bad_id(unique_ids)
    if bad_id is not None:
        raise UserError(f"{title}: an id must not be empty and contain no line break. Received: {bad_id!r}")
    names, pairs = list[str](), [np.empty((0, 2), np.int64)]
    numbers, vectors = list[str](), list[np.ndarray]()
    for column, cells in columns.items():
        if column == id_column:
            continue
        if ROW_NUMBERS.match(column) and _count_up(cells):
            warn(f"{title}: column {column!r} has row numbers, and is ignored", DataNote)
            continue
        if any(map(has_fraction, parsed_cells := [_parse_cell(cell) for cell in cells])):
            prefix = f"{title}, column {column}, {'item' if kind == ITEM_FEATURES else 'user'}"
            vectors.append(_stack_vectors(parsed_cells, rows, unique_ids, prefix))
            numbers += [f"{' '.join(column.split())}[{number}]" for number in range(vectors[-1].shape[1])]
        else:
            column_names, entries = _list_entries(column, parsed_cells, rows, title)
            if not column_names:
                warn(
                    f"{title}: column {column} is ignored, because no value of it is shared by {MIN_IDS_PER_VALUE} ids",
                    DataWarning,
                )
            pairs.append(entries + np.array([0, len(names)]))
            names += column_names
    if not names and not numbers:
        raise UserError(f"{title}: no column has a value that {MIN_IDS_PER_VALUE} rows share; are rows missing?")
    entries = np.unique(np.concatenate(pairs), axis=0)
    splits = np.searchsorted(entries[:, 0], np.arange(len(unique_ids) + 1))
    values, all_names = entries[:, 1].astype(np.int32), np.array(names + numbers, object)
    return Features(unique_ids, splits, values, all_names, np.hstack(vectors) if vectors else None)


def _count_up(cells: Sequence[Any]) -> bool:
    """Returns whether cells are different whole numbers."""
    texts = {str(cell) for cell in cells}
    return len(texts) == len(cells) and all(map(str.isdecimal, texts))


def _parse_cell(cell: Any) -> Any:
    """Returns the list that a text in JSON, or Python's form of it, holds; None if it is empty; else it as it is."""
    if _is_empty(cell):
        return None
    if isinstance(cell, str) and cell.startswith("["):
        for kind in (JSON, LITERALS):
            with contextlib.suppress(ValueError):
                return parse_text(kind, cell)
    return cell


def _stack_vectors(cells: Sequence[Any], rows: np.ndarray, ids: np.ndarray, prefix: str) -> np.ndarray:
    """Returns the vector of each id, float32 [ids, width]; zeros for an id without one. Raises UserError for a bad one.

    `rows`: the place of each cell's id in `ids`. `prefix`: how a message begins, before the id.
    """
    vectors: dict[int, np.ndarray] = {}
    for row, cell in zip(rows.tolist(), cells):
        if cell is None or (isinstance(cell, (list, tuple, np.ndarray)) and not len(cell)):
            continue
        vector, fault = _parse_vector(cell), ""
        width = len(next(iter(vectors.values()), vector))
        if not np.isfinite(vector).all():
            fault = f"a vector must be a list of finite numbers. Received: {' '.join(str(cell).split())[:100]}"
        elif len(vector) != width:
            fault = f"a vector must have {width} numbers, as the first one. Received: {len(vector)} numbers"
        elif not np.array_equal(vectors.setdefault(row, vector), vector):
            fault = "must have one vector. Received: two different ones"
        if fault:
            raise UserError(f"{prefix} {ids[row]}: {fault}")
    zeros = np.zeros(len(next(iter(vectors.values()))), np.float32)
    return np.stack([vectors.get(row, zeros) for row in range(len(ids))])


def _parse_vector(cell: Any) -> np.ndarray:
    """Returns a list of numbers, float32 [width]; NaN for anything else."""
    with np.errstate(over="ignore"), contextlib.suppress(ValueError):  # of lists of several lengths
        numbers = np.asarray(cell)
        if numbers.ndim == 1 and numbers.dtype.kind in "fiu":
            return numbers.astype(np.float32, copy=False)
    return np.array([np.nan], np.float32)


def _list_entries(column: str, cells: Sequence[Any], rows: np.ndarray, title: str) -> tuple[list[str], np.ndarray]:
    """Returns the names of a column's values, sorted, and pairs of row and place of its name, int64 [entries, 2]."""
    prefix = f"{title}: column {column}"
    numbers = _parse_numbers(cells, prefix)
    texts = _split_texts(cells, prefix) if numbers is None else _bin_numbers(numbers)
    pairs = {(row, value) for row, values in zip(rows.tolist(), texts) for value in values}
    counts = Counter(value for _, value in pairs)
    shared_values = sorted(value for value, count in counts.items() if count >= MIN_IDS_PER_VALUE)
    places = {value: place for place, value in enumerate(shared_values)}
    entries = [(row, places[value]) for row, value in pairs if value in places]
    return [f"{' '.join(column.split())}={value}" for value in places], np.array(entries, np.int64).reshape(-1, 2)


def _parse_numbers(cells: Sequence[Any], prefix: str) -> np.ndarray | None:
    """Returns a column of more than BINS different numbers or dates, float64 with NaN for empty cells; else None.

    Warns of a few other cells, which have no value then. `prefix`: how a message begins.
    """
    numbers = np.array([_parse_number(cell) for cell in cells])
    values = numbers[~np.isnan(numbers)]
    odd = [cell for cell, number in zip(cells, numbers) if cell is not None and math.isnan(number)]
    if len(odd) > FEW_ODD * (len(odd) + len(values)) or len(np.unique(values)) <= BINS:
        return None
    if odd:
        warn(f"{prefix} has numbers; {len(odd):,} other cells are left out, such as {str(odd[0])[:40]!r}", DataWarning)
    return numbers


def _parse_number(cell: Any) -> float:
    """Returns a number, such as 7, "$1,200.5", or 20200131 for a date; NaN for anything else."""
    if isinstance(cell, date):
        cell = cell.isoformat()
    if isinstance(cell, str):
        cell = CURRENCY_OR_THOUSANDS.sub("", cell.strip())
        cell = re.sub("[-/]", "", cell[:10]) if DATE_LIKE.match(cell) else cell
    try:
        is_number = not isinstance(cell, bool) and "_" not in str(cell)  # Python reads 38_40 as 3840
        number = float(cell) if is_number else math.nan
    except (TypeError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _bin_numbers(numbers: np.ndarray) -> list[list[str]]:
    """Returns each number's bin as a text such as `1995..1997`: the least and the greatest number in the bin."""
    edges = np.unique(np.nanquantile(numbers, np.arange(1, BINS) / BINS))
    bins = np.searchsorted(edges, numbers, side="right")
    spans = pd.Series(numbers).groupby(bins).agg(["min", "max"]).dropna()
    for digits in range(6, 18):  # as few as give the bins different names
        names = {span.Index: f"{span.min:.{digits}g}..{span.max:.{digits}g}" for span in spans.itertuples()}
        if len(set(names.values())) == len(names):
            break
    return [[] if math.isnan(number) else [names[place]] for number, place in zip(numbers, bins.tolist())]


def _split_texts(cells: Sequence[Any], prefix: str) -> Iterator[list[str]]:
    """Yields the values of each cell of a column. `prefix`: how a message begins."""
    separator = _find_separator([cell for cell in cells if isinstance(cell, str)], prefix)
    for cell in cells:
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)  # pandas makes fractions of whole numbers with gaps
        values = cell if isinstance(cell, (list, np.ndarray)) else [] if cell is None else separator.split(str(cell))
        yield [text for value in values if not _is_empty(value) and (text := " ".join(str(value).split()))]


def _find_separator(texts: Collection[str], prefix: str) -> re.Pattern:
    """Returns what separates the values in a column's texts. Warns of commas or semicolons, if texts or parts repeat.

    Authors and places (`Tolkien, J. R. R.`, `Lyon, France`) have more parts than there are texts, genres fewer.
    """
    example = next((text for text in sorted(texts) if GUESSED_SEPARATOR.search(text)), None)
    if example is None or any(map(SURE_SEPARATOR.search, texts)):
        return SURE_SEPARATOR
    parts, num_different = {part.strip() for text in texts for part in GUESSED_SEPARATOR.split(text)}, len(set(texts))
    is_list = len(parts) < num_different
    if is_list or num_different < len(texts):
        meaning = "several values, because these repeat" if is_list else "one value; put | between several"
        warn(f"{prefix}: a cell with commas or semicolons, such as {example[:40]!r}, is read as {meaning}", DataWarning)
    return GUESSED_SEPARATOR if is_list else SURE_SEPARATOR


def _is_empty(cell: Any) -> bool:
    if isinstance(cell, str):
        return cell.strip() in MISSING
    return cell is None or (isinstance(cell, float) and cell != cell)
