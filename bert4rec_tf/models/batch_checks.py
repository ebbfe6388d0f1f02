"""The one check of what Keras' methods get: which columns there are, and whole numbers in their ranges."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.data.examples.joined import join_columns, split_columns
from bert4rec_tf.data.examples.kinds import MASKED
from bert4rec_tf.data.sequences import PAD, mask_token
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.foundation.warning import UnknownIdWarning, warn
from bert4rec_tf.nn.evidence import NOT_COUNTED

TRAINING_COLUMNS = {MASKED: ("items", "mask_positions", "mask_targets"), "shifted": ("items", "targets")}
"""Kind of examples -> the columns that its batches must have. The other kinds need `targets`."""

ITEM_COLUMNS = ("items", "mask_targets", "targets", "negatives", "shared")
"""The columns whose numbers are items."""


UNKNOWN_USER = -1

ROW_COLUMNS = ("users", "lengths")
"""The columns with one number for each row."""


def check_batch(model: Any, batch: Batch | Tensor, to_train: bool) -> tuple[dict[str, Tensor], Tensor | int]:
    """Returns the columns of a batch as int32, and how many item numbers were out of range.

    Outside a graph there are none: they are an error. Inside a graph, where values are not known, they become 0, as
    unknown items. Users out of range become unknown users there, if the model can score these.

    Args:
        model: the `Recommender` that gets the batch.
        batch: columns by their names, or `items [b, n]` alone.
        to_train: whether it is for `training_loss`, or else for `score`.

    Raises:
        UserError: if a column is missing, is not of numbers or has another shape; outside a graph also for what is not
            whole or out of range.
    """
    if to_train and model._compile_loss is not None:
        raise UserError(
            "`loss` in `compile` is for histories with their next items, `(x, y)`. Leave it out for other batches: "
            f"{type(model).__name__} has its own, `training_loss`"
        )
    if to_train and model.networks:
        return _check_joined(model, batch)
    batch = batch if isinstance(batch, Mapping) else {"items": batch}
    columns = {name: _read_column(name, column) for name, column in batch.items()}
    _require_columns(model, columns, to_train)
    _check_shapes(columns)
    if to_train:
        _check_width(model, columns)
    num_unknown: Tensor | int = 0
    for name, (minimum, maximum) in _list_ranges(model, columns, to_train).items():
        if tf.executing_eagerly():
            columns[name] = check_numbers(name, columns[name], minimum, maximum)
            continue
        replacement = PAD if name in ITEM_COLUMNS else UNKNOWN_USER if minimum == UNKNOWN_USER else None
        columns[name], count = hide_bad_numbers(name, columns[name], minimum, maximum, replacement)
        num_unknown += count if name in ITEM_COLUMNS else 0
    return columns, num_unknown


def _read_column(name: str, column: Any) -> Tensor:
    """Returns a column as an array, inside a graph as a tensor. Raises UserError for rows of several lengths."""
    if not tf.executing_eagerly():
        return tf.convert_to_tensor(column)
    try:
        array = np.asarray(column.to_list() if isinstance(column, tf.RaggedTensor) else column)
        return np.array(array.tolist()) if array.dtype == object else array  # such as whole numbers of pandas
    except ValueError as error:
        raise UserError(f"`{name}` must have rows of one length; fill them up with 0. Received: {error}") from error


def _check_joined(model: Any, batch: Batch | Tensor) -> tuple[dict[str, Tensor], Tensor | int]:
    """Does what `check_batch` does to train several networks, each with its own columns."""
    columns = batch if isinstance(batch, Mapping) else {}
    parts = split_columns(columns, model.networks)
    results = {name: check_batch(network, parts[name], to_train=True) for name, network in model.networks.items()}
    joined = join_columns({name: part for name, (part, _) in results.items()})
    return joined, sum(count for _, count in results.values())


def check_arrays(
    model: Any, x: Any, y: Any = None, to_train: bool = True, may_be_empty: bool = False
) -> tuple[Any, Any]:
    """Returns what `fit`, `evaluate` or `predict` got, as int32, after `check_batch`; other data than arrays as it is.

    `y`: the next items, with which `x` is histories; None if `x` alone is to train on (`to_train`) or to score.
    """
    if not to_train and model.evidence is not None and not model.evidence.built:
        raise UserError(NOT_COUNTED)  # here, because Keras rewrites errors of `call`
    columns = list(x.values()) if isinstance(x, Mapping) else [x]
    if not tf.executing_eagerly() or not all(map(_has_values, columns)):
        return x, y
    batch, _ = check_batch(model, x, to_train and y is None)
    if not may_be_empty and not all(map(len, batch.values())):
        raise UserError("`x` must have at least one row. Received: no rows")
    if y is not None and _has_values(y) and np.shape(y)[1:] in ((), (1,)):
        y = check_numbers("y", y, PAD, model.num_items).reshape(-1)
    return batch if isinstance(x, Mapping) else batch["items"], y


def check_numbers(name: str, values: Any, minimum: int, maximum: int) -> np.ndarray:
    """Returns `values` as int32. Raises UserError unless all are whole numbers from `minimum` to `maximum`."""
    array = np.asarray(values)
    received: Any = array.dtype
    if array.dtype.kind in "iuf":
        is_good = (array >= minimum) & (array <= maximum)
        if array.dtype.kind == "f":
            is_good &= array == np.floor(array)
        if is_good.all():
            return array.astype(np.int32)
        received = array[~is_good].flat[0]
    raise UserError(f"`{name}` must be whole numbers from {minimum} to {maximum}. Received: {received}")


def check_targets(model: Any, targets: Any) -> tuple[Any, Tensor | int]:
    """Returns next items, [b] or [b, 1], as int32 [b], and how many were out of range, as `check_batch` does.

    Other targets, which a `loss` of one's own may take, stay as they are.
    """
    if not tf.is_tensor(targets):
        return targets, 0
    if targets.shape.rank is None and model._compile_loss is None:  # traced for [b] and for [b, 1]
        targets = tf.reshape(targets, [-1])
    rank = targets.shape.rank
    if rank not in (1, 2) or (rank == 2 and targets.shape[1] != 1):
        return targets, 0
    column = targets[:, 0] if rank == 2 else targets
    if tf.executing_eagerly():
        return tf.constant(check_numbers("y", column, PAD, model.num_items)), 0
    return hide_bad_numbers("y", column, PAD, model.num_items, replacement=PAD)


def hide_bad_numbers(
    name: str, values: Tensor, minimum: int, maximum: int, replacement: int | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `values` as int32, `replacement` (None: unchanged) for what `check_numbers` refuses, and how many, []."""
    kind = values.dtype
    if not (kind.is_integer or kind.is_floating):
        raise UserError(f"`{name}` must be whole numbers from {minimum} to {maximum}. Received: {kind.name}")
    array = tf.cast(values, tf.float64 if kind.is_floating else tf.int64)
    is_good = (array >= minimum) & (array <= maximum)
    if kind.is_floating:
        is_good &= array == tf.floor(array)
    numbers = array if replacement is None else tf.where(is_good, array, tf.cast(replacement, array.dtype))
    return tf.cast(numbers, tf.int32), tf.math.count_nonzero(~is_good)


def _has_values(column: Any) -> bool:
    return isinstance(column, (list, tf.RaggedTensor)) or (
        hasattr(column, "__array__") and not keras.backend.is_keras_tensor(column)
    )


def _require_columns(model: Any, columns: Mapping[str, Tensor], to_train: bool) -> None:
    names: tuple[str, ...] = ("items", "users") if type(model).needs_users else ("items",)
    if to_train and model.examples is not None:
        names = TRAINING_COLUMNS.get(model.examples, ("targets",))
    for name in names:
        if name not in columns:
            source = "; `bert4rec_tf.datasets.training_batches` has them" if to_train else ""
            raise UserError(
                f"{type(model).__name__} needs `{'`, `'.join(names)}`{source}. Received: {', '.join(sorted(columns))}"
            )
    if "items" in columns and len(columns["items"].shape) != 2:
        raise UserError(f"`items` must be [b, n]. Received: {tuple(columns['items'].shape)}")


def _check_shapes(columns: Mapping[str, Tensor]) -> None:
    names = [name for name in (*ITEM_COLUMNS, *ROW_COLUMNS, "mask_positions") if name in columns]
    shapes = {name: tf.TensorShape(columns[name].shape) for name in names}
    for name in ROW_COLUMNS:
        if name in shapes and shapes[name].rank not in (None, 1):
            raise UserError(f"`{name}` must be [b]. Received: {tuple(shapes[name])}")
    rows = {name: shape[0] for name, shape in shapes.items() if shape.rank and shape[0] is not None}
    if len(set(rows.values())) > 1:
        received = ", ".join(f"{number} of `{name}`" for name, number in rows.items())
        raise UserError(f"`x` must have as many rows in each column. Received: {received}")


def _check_width(model: Any, columns: Mapping[str, Tensor]) -> None:
    """Raises UserError for rows with more columns than the model has positions."""
    if getattr(model, "positions", None) is None or "items" not in columns:
        return
    max_length, width = getattr(model.settings, "max_length", math.inf), columns["items"].shape[1] or 0
    if width > max_length:
        raise UserError(
            f"`items` must be [b, n], n at most `max_length`, {max_length}. Received: {tuple(columns['items'].shape)}"
        )


def _list_ranges(model: Any, columns: Mapping[str, Tensor], to_train: bool) -> dict[str, tuple[int, int]]:
    """Returns name of a column -> its least and largest number, for the columns that the model reads."""
    num_items, width = model.num_items, columns["items"].shape[1] if "items" in columns else None
    max_item = mask_token(num_items) if to_train and model.examples == MASKED else num_items
    ranges = {"items": (PAD, max_item), **{name: (PAD, num_items) for name in ITEM_COLUMNS[1:]}}
    if model.needs_users:
        ranges["users"] = (UNKNOWN_USER if model.scores_unknown_users else 0, model.num_users - 1)
    if width is not None:
        ranges |= {"lengths": (0, width), "mask_positions": (0, max(width - 1, 0))}
    return {name: span for name, span in ranges.items() if name in columns}


class UnknownItems:
    """Counts the item numbers out of range that graphs have read as unknown items."""

    def __init__(self) -> None:
        synchronization, aggregation = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
        self._number = tf.Variable(0, False, dtype=tf.int64, synchronization=synchronization, aggregation=aggregation)

    def count(self, batch: Batch, number: Tensor | int) -> Batch:
        """Adds what `check_batch` returned. Returns the batch."""
        if tf.is_tensor(number):
            self._number.assign_add(number)
        return batch

    def read(self) -> int:
        return int(self._number.read_value())

    @contextlib.contextmanager
    def report(self) -> Iterator[None]:
        """Warns at the end of the block if there were any in it."""
        old_number = self.read()
        yield
        if number := self.read() - old_number:
            warn(
                f"{number:,} item numbers were out of range, and were read as unknown items (`model.num_unknown`)",
                UnknownIdWarning,
            )
