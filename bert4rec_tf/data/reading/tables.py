"""Reads tables whose columns have types: Parquet files, pandas DataFrames and Arrow tables."""

import contextlib
import glob
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from numbers import Integral
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pyarrow.interchange
import pyarrow.parquet

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading.columns import PARQUET, SAMPLE_ROWS, Columns, Layout
from bert4rec_tf.data.reading.grouping import make_sequences
from bert4rec_tf.data.reading.rows import Rows
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.errors import UserError, speak_python, unknown_name_error
from bert4rec_tf.foundation.files import unreadable_error
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.foundation.warning import DataWarning, warn

ROWS_PER_BATCH = 1 << 20
TITLE = "the table"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

OPTIONS = (
    *("min_user_actions", "min_item_actions", "k_core", "keep_missing_words", "duplicates"),
    *("event_column", "events", "future_times", "test_from"),
)
"""The arguments of `interactions` that `Interactions` has too."""


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """Yields a Parquet file. Raises UserError if it is missing or damaged (also while it is read)."""
    try:
        source = path.open("rb") if isinstance(path, Url) else path
        with pyarrow.parquet.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
            yield file
    except FileNotFoundError as error:
        raise unreadable_error(path, error) from error
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise UserError(f"{path}: cut short or damaged ({' '.join(str(error).split())[:200]})") from error


def read_head(path: Path, options: Interactions) -> pa.Table:
    """Returns the first rows of a Parquet file, with the columns that its folders name. Raises UserError if damaged."""
    partition = read_partition(path, options)
    with open_parquet(path) as file:
        head = next(file.iter_batches(SAMPLE_ROWS), None)
        return pa.table(_add_partition(head or pa.RecordBatch.from_pylist([], schema=file.schema_arrow), partition))


def read_rows(path: Path, reader: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of a Parquet file. Raises UserError if it is damaged, and as `text.read_rows`."""
    with open_parquet(path) as file:
        names = [name for name in reader.layout.used_columns if name in file.schema_arrow.names]
        partition = read_partition(path, reader.options)
        batches = (_add_partition(batch, partition) for batch in file.iter_batches(ROWS_PER_BATCH, columns=names))
        yield from _select_good_rows(batches, reader)


def find_root(pattern: Path) -> Path:
    """Returns the folder before the first wildcard of a pattern; a path without any as it is."""
    folders = [pattern, *pattern.parents]
    return next((folder for folder in folders if not glob.has_magic(str(folder))), folders[-1])


def read_partition(path: Path, options: Interactions) -> dict[str, str]:
    """Returns the columns that Hive writes as folders: `day=10/a.parquet`. The innermost folder of a name counts.

    They are below what the user named, or directly above the file: others are not of its table.
    """
    folders = path.absolute().parents  # also those above the working directory
    roots = {find_root(pattern).absolute() for pattern in options.files}
    chain = itertools.takewhile(lambda folder: "=" in folder.name, folders)
    subfolders = (folder for folder in folders if "=" in folder.name and not roots.isdisjoint(folder.parents))
    pairs = [folder.name.partition("=") for folder in sorted({*chain, *subfolders})]
    return {name: value for name, _, value in pairs}


def _add_partition(batch: pa.RecordBatch, partition: Mapping[str, str]) -> pa.RecordBatch:
    """Returns a batch with the columns of `read_partition`."""
    for name, value in partition.items():
        if name not in batch.schema.names:
            text = pa.scalar(None if value == NO_VALUE else unquote(value), pa.string())
            batch = batch.append_column(name, pa.repeat(text, batch.num_rows))
    return batch


def _select_good_rows(batches: Iterable[pa.RecordBatch], reader: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of batches whose columns have types. Rows are counted from 1."""
    layout, first = reader.layout, 1
    for batch in batches:
        columns = {name: decode_texts(batch.column(name)) for name in layout.used_columns}
        for name in (layout.user, layout.item):
            columns[name] = convert_ids(columns[name], f"{reader.file_name}, column {name}")
        if layout.event is not None:
            columns[layout.event] = columns[layout.event].cast(pa.string())
        yield reader.select_good(columns, range(first, first + batch.num_rows))
        first += batch.num_rows


def decode_texts(column: pa.Array) -> pa.Array:
    """Returns a column with texts of every kind as strings. What is not UTF-8 becomes U+FFFD."""
    if pa.types.is_dictionary(column.type):
        return decode_texts(column.dictionary).take(column.indices)
    if column.type in (pa.large_string(), pa.string_view()):
        column = column.cast(pa.string())
    try:
        column.validate(full=pa.types.is_string(column.type))
        return column
    except pa.ArrowInvalid:
        cells = column.cast(pa.binary()).to_pylist()
        return pa.array([text if text is None else text.decode("utf-8", "replace") for text in cells], pa.string())


def convert_ids(column: pa.Array, source: str) -> pa.Array:
    """Returns ids as texts. Raises UserError if they are neither texts nor whole numbers."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_null(kind)):
        advice = "make them texts, as in pandas: frame[column].astype(str)"
        if pa.types.is_floating(kind):
            advice = "pandas makes fractions of whole numbers with gaps: use Int64"
        raise UserError(f"{source}: ids must be texts or whole numbers. Found: {kind} ({advice})")
    return column.cast(pa.string())


def check_events(layout: Layout, schema: pa.Schema, options: Interactions, source: str) -> Layout:
    """Returns the layout, without a column of events that holds lists or structs.

    Raises UserError if the user named that column. `source`: for messages.
    """
    if layout.event is None or not pa.types.is_nested(kind := schema.field(layout.event).type):
        return layout
    if options.event_column is not None:
        raise UserError(f"{source}, column {layout.event}: events must be texts or numbers. Found: {kind}")
    return replace(layout, event=None)


def list_integer_types(schema: pa.Schema) -> dict[str, str]:
    """Returns the columns of integers, or of categories that are integers, with their types, such as "int64"."""
    kinds = {field.name: getattr(field.type, "value_type", field.type) for field in schema}
    return {name: str(kind) for name, kind in kinds.items() if pa.types.is_integer(kind)}


@speak_python()
def interactions(
    frame: Any,
    user: Any = None,
    item: Any = None,
    time: Any = None,
    bad_rows: str = "refuse",
    to_train: bool = True,
    **options: Any,
) -> Sequences:
    """Makes sequences from a table with one action per row.

    Examples:
        >>> sequences = b4r.interactions(frame, user="customer", item="sku", time="bought_at", min_user_actions=5)
        >>> result = b4r.execute(b4r.make_run("own-shop"), sequences=sequences, workdir="runs/shop")

    Args:
        frame: a pandas or polars DataFrame, an Arrow table, or another table (`load_frame`).
        user: the column of the users' ids, texts or whole numbers; None to find it by a common name.
        item: the column of the items' ids, in the same way.
        time: the column of the times: numbers, dates, timestamps, or texts of these; `"date,time"` or
            `"year,month,day"` joins columns; None to find it by a common name, "none" if the rows are in order.
        bad_rows: "refuse" or "skip" (with a warning) rows whose user, item or time is missing or cannot be read.
        to_train: whether too little to train on is an error. The few new actions of `update` may be so.
        **options: `min_user_actions`, `min_item_actions`, `k_core`, `keep_missing_words`, `duplicates`,
            `event_column` and `events`, `future_times`, `test_from`: as for `Interactions`.

    Raises:
        UserError: for an unknown column, one that must be named, a bad row (counted from 1) that is not skipped, and a
            table to train on in which no user has two actions or which has only one item.
    """
    if unknown_names := options.keys() - set(OPTIONS):
        raise unknown_name_error("argument", min(unknown_names), OPTIONS)
    frame = load_frame(frame, "`frame`")
    columns = name_columns(frame, user=user, item=item, time=time)
    return read_frame(frame, Interactions(TITLE, **columns, bad_rows=bad_rows, **options), to_train)


def name_columns(frame: Any, **columns: Any) -> dict[str, Any]:
    """Returns `user_column` ... -> the name that was given; as a text (`list_names`) if a column has it.

    Names that are no texts are whole numbers, or tuples in columns of several levels.
    """
    names, options = list_names(frame), {}
    raw_names = list(frame.columns) if isinstance(frame, pd.DataFrame) else []
    for role, name in columns.items():
        if isinstance(name, Integral) and not isinstance(name, bool):
            if str(name) not in names:
                raise UserError(f"`{role}` must be a column, of: {', '.join(names)[:300]}. Received: {role}={name}")
            name = str(name)
        elif isinstance(name, Hashable) and not isinstance(name, str | bool | None) and name in raw_names:
            name = str(name)
        options[f"{role}_column"] = name
    return options


def read_frame(frame: Any, options: Interactions, to_train: bool = True, needs_order: bool = True) -> Sequences:
    """Does what `interactions` does, with what `load_frame` returned.

    `to_train`: whether too little to train on is an error. `needs_order`: whether the order of the actions matters.
    """
    columns = Columns(TITLE, options, flag="{}=", hint=describe_index(frame))
    layout = columns.layout_from_sample(PARQUET, list_names(frame), read_sample(frame))
    for doubt in layout.doubts:  # a wrong column explains the errors of its rows
        warn(f"{TITLE}: {doubt}", DataWarning)
    table = select_columns(frame, layout.used_columns)
    layout = check_events(layout, table.schema, options, TITLE)
    layout = replace(layout, doubts=(), integer_types=list_integer_types(table.schema))
    skip_option, keep_option = (
        _show_call(option, to_train) for option in ('bad_rows="skip"', "keep_missing_words=True")
    )
    reader = Rows(TITLE, Times(), layout, options, skip_option=skip_option, keep_option=keep_option)
    parts = list(_select_good_rows(table.to_batches(ROWS_PER_BATCH), reader))
    sequences, report = make_sequences(parts, reader, to_train)
    report.warn_of_doubts(sequences, needs_order)
    report.warn_of_notes(sequences if to_train else None)
    return replace(sequences, columns=layout.describe())


def _show_call(option: str, to_train: bool) -> str:
    """Returns the call that reads a table with an option, for messages. Not all that take tables have the option."""
    return f"b4r.interactions(..., {option}{'' if to_train else ', to_train=False'})"


def read_sample(frame: pd.DataFrame | pa.Table) -> dict[str, list[str]]:
    """Returns the first values of each column, as texts; empty texts for missing ones, so that rows stay together."""
    names = list_names(frame)
    if isinstance(frame, pa.Table):
        batches = frame.slice(0, SAMPLE_ROWS).to_batches()
        columns = ([_list_texts(batch.column(place)) for batch in batches] for place in range(len(names)))
        return {name: list(itertools.chain(*texts)) for name, texts in zip(names, columns)}
    series = (frame.iloc[:SAMPLE_ROWS, place] for place in range(len(names)))
    return {
        name: ["" if is_missing else str(value) for value, is_missing in zip(column, column.isna())]
        for name, column in zip(names, series)
    }


def _list_texts(column: pa.Array) -> list[str]:
    column = decode_texts(column)
    with contextlib.suppress(pa.ArrowException):
        column = column.cast(pa.string())
    return ["" if value is None else str(value) for value in column.to_pylist()]


def load_frame(frame: Any, title: str) -> pd.DataFrame | pa.Table:
    """Returns a pandas DataFrame as it is, and other tables, such as polars', as Arrow tables.

    Others have `__arrow_c_stream__` or `__dataframe__`. Raises UserError for anything else, and what Arrow cannot take.
    """
    if isinstance(frame, (pa.Table, pd.DataFrame)):
        return frame
    try:
        if isinstance(frame, pa.RecordBatch) or hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
        if hasattr(frame, "__dataframe__"):
            return pyarrow.interchange.from_dataframe(frame)
    except (pa.ArrowException, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{title} cannot be read as a table ({' '.join(str(error).split())[:200]})") from error
    kind = type(frame).__name__
    raise UserError(
        f"{title} must be a pandas DataFrame or an Arrow table, or have `__arrow_c_stream__` or `__dataframe__`. "
        f"Received: {kind}{', which is a table after .collect()' if kind == 'LazyFrame' else ''}"
    )


def list_names(frame: pd.DataFrame | pa.Table) -> list[str]:
    """Returns the names of the columns."""
    return [str(name) for name in (frame.column_names if isinstance(frame, pa.Table) else frame.columns)]


def describe_index(frame: Any) -> str:
    """Returns a hint, for messages on missing columns, if a DataFrame's index has names."""
    names = [str(name) for name in frame.index.names if name is not None] if isinstance(frame, pd.DataFrame) else []
    return f"; pass frame.reset_index(), because the index has {', '.join(names)[:300]}" if names else ""


def select_columns(frame: pd.DataFrame | pa.Table, columns: list[str], title: str = TITLE) -> pa.Table:
    """Returns some columns as an Arrow table. Raises UserError for what Arrow cannot take, after `title`."""
    if isinstance(frame, pa.Table):
        return frame.select(columns)
    names, arrays = list_names(frame), {}
    for name in columns:
        column = frame.iloc[:, names.index(name)]
        moments = [raw for raw in column if isinstance(raw, datetime) and raw == raw] if column.dtype == object else []
        if len({moment.tzinfo is None for moment in moments}) > 1:
            raise UserError(f"{title}: column {name} must have a zone in all of its times or in none. Received: both")
        try:
            if len({str(moment.tzinfo) for moment in moments}) > 1:  # Arrow would take the first one for all
                column = column.map(lambda raw: raw.astimezone(UTC) if isinstance(raw, datetime) else raw, "ignore")
            arrays[name] = pa.Table.from_pandas(column.to_frame(), preserve_index=False).column(0)
        except (pa.ArrowException, UnicodeError, OverflowError, TypeError) as error:
            defect = f"cannot be read ({error})"
            if isinstance(error, (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)):
                values = (
                    "whole numbers beyond 64 bits" if isinstance(error, OverflowError) else "values of several types"
                )
                defect = f"has {values}; make them texts: frame[{name!r}].astype(str)"
            raise UserError(f"{title}: column {name} {defect}") from error
    return pa.table(arrays)
