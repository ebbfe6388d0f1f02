"""Users and labels in the tables that callers pass."""

from typing import Any

import numpy as np

from bert4rec_tf.data.id_texts import to_texts
from bert4rec_tf.data.reading import tables
from bert4rec_tf.data.reading.columns import ITEM_NAMES, USER_NAMES, guess_column
from bert4rec_tf.data.reading.small_tables import read_columns
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.serving.client import SavedRecommender


def list_users(users: Any, saved: SavedRecommender) -> list[str]:
    """Returns users as texts: a list, or the column of a table that has the name it had in the data or a usual one.

    A user of several rows of a table counts once. Raises UserError for a table without such a column.
    """
    if not hasattr(type(users), "columns"):  # asking a LazyFrame of polars itself would take long, and warn
        return to_texts("users", users, saved.knows_user)
    frame = tables.load_frame(users, "`users`")
    names = tables.list_names(frame)
    column = guess_column(names, USER_NAMES, saved.columns.get("user", {}).get("name"))
    if column is None:
        received = ", ".join(names) + tables.describe_index(frame)
        raise UserError(f"`users` must have a column of users, such as {USER_NAMES[0]!r}. Received: {received}")
    ids = tables.select_columns(frame, [column], "`users`").column(column).to_pylist()
    return list(dict.fromkeys(to_texts("users", ids, saved.knows_user)))


def label_cases(sequences: Sequences, by: str, attributes: Any) -> np.ndarray:
    """Returns the value of an attribute for each test case, texts [cases]: of its item, or of its user; None for none.

    Raises UserError if the table does not have the attribute, or has no ids of the data.
    """
    split, title = LeaveOneOut(sequences), "`attributes`"
    sides = {
        "item": ((*ITEM_NAMES, "id"), sequences.vocabulary.decode(split.targets("test"))),
        "user": ((*USER_NAMES, "id"), sequences.users[split.users].tolist()),
    }
    labels: dict[str, np.ndarray] = {}
    for role, (common_names, ids) in sides.items():
        id_column, columns = read_columns(attributes, title, common_names, sequences.columns.get(role, {}).get("name"))
        if id_column is None:
            continue
        if by not in columns:
            raise unknown_name_error("attribute", by, columns)
        values = dict(zip(columns[id_column], map(_write_label, columns[by])))
        if values.keys() & set(ids):
            if id_column in labels:
                raise UserError(
                    f"`attributes` must have ids of items or of users, in a column `item` or `user`. Those of the "
                    f"column {id_column!r} may be either"
                )
            labels[id_column] = np.array([values.get(raw_id) for raw_id in ids], object)
    if not labels:
        hint = tables.describe_index(attributes)
        raise UserError(f"`attributes` must have a column with ids of the data's items or users, beside {by!r}{hint}")
    labels_of_cases = next(iter(labels.values()))  # items come first
    if all(label is None for label in labels_of_cases):
        raise UserError(f"`attributes` must have a value of {by!r} for the item or the user of some test case")
    return labels_of_cases


def _write_label(value: Any) -> str | None:
    """Returns a value as a text; 2.0 as "2", because pandas makes fractions of whole numbers with gaps."""
    if value is None or (isinstance(value, float) and value != value):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
