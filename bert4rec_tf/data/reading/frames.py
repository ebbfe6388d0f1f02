"""Converts tables in memory to `Sequences`: a pandas DataFrame or an Arrow table."""

from typing import Any

import pyarrow as pa

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import parquet
from bert4rec_tf.data.reading.bad_rows import BadRows
from bert4rec_tf.data.reading.checks import Checker
from bert4rec_tf.data.reading.columns import PARQUET, Columns
from bert4rec_tf.data.reading.conversion import sequences_of
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.errors import UserError

TITLE = "the table"


def interactions(
    frame: Any,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    min_user_actions: int = 1,
    min_item_actions: int = 1,
    bad_rows: str = "refuse",
) -> Sequences:
    """Makes sequences from a table with one action per row.

    Example:
        sequences = b4r.interactions(frame, user="customer", item="sku", time="bought_at", min_user_actions=5)
        result = b4r.execute(b4r.make_run("own-shop"), sequences=sequences, workdir="runs/shop")

    Args:
        frame: a pandas DataFrame, or a `pyarrow.Table` or `RecordBatch`.
        user: the column of the users' ids, texts or whole numbers; None to guess it by its name.
        item: the column of the items' ids, in the same way.
        time: the column of the times: numbers, dates, timestamps, or texts of these; None to guess it, "none" if the
            rows are in order.
        min_user_actions: leave out users with fewer actions.
        min_item_actions: leave out items with fewer actions.
        bad_rows: "refuse" or "skip" rows whose user, item or time is missing or cannot be read.

    Raises:
        UserError: for an unknown column, a bad row (counted from 1) that is not skipped, and a table from which nothing
            can be learnt.
    """
    asked = Interactions(TITLE, user, item, time, min_user_actions, min_item_actions, bad_rows)
    if not (is_arrow := isinstance(frame, (pa.Table, pa.RecordBatch))) and not hasattr(frame, "iloc"):
        raise UserError(f"`frame` must be a pandas DataFrame or an Arrow table. Received: {type(frame).__name__}")
    names = [str(name) for name in (frame.schema.names if is_arrow else frame.columns)]
    layout = Columns(TITLE, user, item, time, option="{}=").of_names(PARQUET, names)
    policy = BadRows(TITLE, bad_rows == "skip", "row")
    batches = _arrow(frame, names, list(layout.roles.values())).to_batches(parquet.ROWS)
    tables = list(parquet.of_batches(batches, layout, Checker(policy, Times())))
    return sequences_of(tables, asked, str(layout), policy.found)[0]


def _arrow(frame: Any, names: list[str], wanted: list[str]) -> pa.Table:
    """Returns the wanted columns."""
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return frame.select(wanted)
    columns = {}
    for name in wanted:
        try:
            columns[name] = _column(frame.iloc[:, names.index(name)])
        except (pa.ArrowException, UnicodeError) as error:
            raise UserError(f"{TITLE}: column {name!r} has values of several types ({error})") from error
    return pa.table(columns)


def _column(series: Any) -> pa.ChunkedArray:
    found = pa.array(series, from_pandas=True)
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found], found.type)
