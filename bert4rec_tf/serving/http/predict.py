"""TensorFlow Serving's REST predict protocol: turns a request's JSON into a call, and the outputs into JSON.

It follows TensorFlow Serving's documentation ("RESTful API"); docs/http.md lists the extensions.
"""

import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.http.batching import PADDED, Call, Outputs
from bert4rec_tf.serving.http.settings import ServerSettings
from bert4rec_tf.serving.signatures import INPUT_TYPES, LoadedModel, Signature

HISTORIES, USERS = PADDED, "users"

DEFAULT_SIGNATURE = "serving_default"
INSTANCES, INPUTS, SIGNATURE = "instances", "inputs", "signature_name"


class RequestError(Exception):
    """A request that cannot be answered: one line that says why, and the HTTP `status`."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def parse(body: bytes, model: LoadedModel, settings: ServerSettings) -> tuple[Call, bool]:
    """Returns the call that a body asks for, and whether the request, and so the response, is in the row format.

    Raises:
        RequestError: if the body is not valid JSON, has another form or exceeds a limit.
    """
    try:
        content = json.loads(body.decode())
    except RecursionError:
        raise RequestError("The body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"The body must be JSON in UTF-8: {error}") from None
    if not isinstance(content, dict):
        raise RequestError(f"The body must be a JSON object. Received: {_shown(content)}")
    signature = _signature(content.get(SIGNATURE, DEFAULT_SIGNATURE), model)
    for name in sorted(content.keys() - {SIGNATURE, INSTANCES, INPUTS}):
        if any(name in one.inputs for one in model.signatures.values()):
            raise RequestError(f"`{name}` is an input of a signature, so it goes into `{INPUTS}` or `{INSTANCES}`")
    by_rows = INSTANCES in content
    if by_rows == (INPUTS in content):
        raise RequestError(f"The body must have either `{INSTANCES}` or `{INPUTS}`, and not both")
    given = _with_histories(content[INSTANCES if by_rows else INPUTS], signature, model, settings)
    if by_rows:
        columns = _by_rows(given, signature)
    else:
        columns = given if isinstance(given, dict) else {_only_input(signature, INPUTS): given}
    for name in columns:
        if name not in signature.inputs:
            raise RequestError(f"Unknown input {_shown(name)}: {_wanted(signature)}")
    for name, default in signature.inputs.items():
        if name not in columns and default is None:
            raise RequestError(f"`{name}` is missing: {_wanted(signature)}")
    arrays = {name: _array(name, value, settings) for name, value in columns.items()}
    rows = _rows(arrays, signature, settings)
    shared = {name for name, array in arrays.items() if not array.ndim or len(array) != rows}
    for name in signature.inputs.keys() - arrays.keys():
        arrays[name] = signature.inputs[name]
        shared.add(name)
    _check_answer(rows, arrays, model, settings)
    return Call(model, signature.name, arrays, rows, frozenset(shared)), by_rows


def _check_answer(rows: int, arrays: Mapping[str, np.ndarray], model: LoadedModel, settings: ServerSettings) -> None:
    """Raises RequestError, before anything is computed, if the answer would have more values than allowed."""
    k, candidates = arrays.get("k"), arrays.get("candidates")
    width = 0 if k is None else min(int(k), len(model.items))
    if candidates is not None:
        width = max(width, candidates.shape[1])
    if rows * width > settings.max_answer:
        raise RequestError(
            f"An answer may have at most {settings.max_answer:,} values. Received: {rows:,} rows of {width:,}", 413
        )


def _signature(name: Any, model: LoadedModel) -> Signature:
    if not isinstance(name, str):
        raise RequestError(f"`{SIGNATURE}` must be a string. Received: {_shown(name)}")
    if name not in model.signatures:
        known = ", ".join(model.signatures)
        raise RequestError(f"`{SIGNATURE}` must be one of {known}. Received: {_shown(name)}")
    return model.signatures[name]


def _wanted(signature: Signature) -> str:
    names = [name if default is None else f"{name} (optional)" for name, default in signature.inputs.items()]
    return f"the inputs of {signature.name} are {', '.join(names)}"


def _with_histories(given: Any, signature: Signature, model: LoadedModel, settings: ServerSettings) -> Any:
    """Returns rows or columns, with the export's histories added where only `users` are named.

    Input of another form is returned as it is, and refused later.
    """
    if isinstance(given, list):
        _check_rows(len(given), settings)
        return [_with_histories(one, signature, model, settings) if isinstance(one, dict) else one for one in given]
    names_users_alone = isinstance(given, dict) and USERS in given and HISTORIES not in given
    if not names_users_alone or HISTORIES not in signature.inputs or model.histories is None:
        return given
    users = given[USERS]
    if isinstance(users, list):
        _check_rows(len(users), settings)
        histories = [history_of(one, model, settings) for one in users]
    else:
        histories = history_of(users, model, settings)
    kept = {name: value for name, value in given.items() if name != USERS or name in signature.inputs}
    return {**kept, HISTORIES: histories}


def history_of(user: Any, model: LoadedModel, settings: ServerSettings) -> list[str]:
    """Returns a user's last items, oldest first. Raises RequestError if the model does not hold this user's history."""
    if model.histories is None:
        raise RequestError("This model holds no users' histories")
    try:
        return model.history_of(_text(USERS, user).decode())[-settings.max_history :]
    except UserError as error:
        raise RequestError(str(error)) from None


def _by_rows(instances: Any, signature: Signature) -> Mapping[str, list]:
    if not isinstance(instances, list) or not instances:
        raise RequestError(f"`{INSTANCES}` must be a list of at least one. Received: {_shown(instances)}")
    if not isinstance(instances[0], dict):
        if any(isinstance(one, dict) for one in instances):
            raise RequestError(f"`{INSTANCES}` must be either all objects or all values")
        return {_only_input(signature, INSTANCES): instances}
    names = instances[0].keys()
    for number, one in enumerate(instances):
        if not isinstance(one, dict) or one.keys() != names:
            raise RequestError(f"`{INSTANCES}` must be objects with the same keys; number {number} is not")
    for name in names:
        if name in signature.inputs and INPUT_TYPES[name][1] == 0:
            raise RequestError(f"`{name}` has one value for all rows: use the column format, `{INPUTS}`")
    return {name: [one[name] for one in instances] for name in names}


def _only_input(signature: Signature, key: str) -> str:
    if len(signature.inputs) != 1:
        raise RequestError(f"`{key}` must name its values: {_wanted(signature)}")
    return next(iter(signature.inputs))


def _rows(arrays: Mapping[str, np.ndarray], signature: Signature, settings: ServerSettings) -> int:
    """Returns the number of rows."""
    sizes = {name: len(array) for name, array in arrays.items() if array.ndim}
    rows = max(sizes.values())
    _check_rows(rows, settings)
    for name, size in sizes.items():
        if size != rows and (size != 1 or name == PADDED):
            raise RequestError(f"`{name}` must have as many rows as the other inputs, {rows}. Received: {size}")
    if not rows:
        raise RequestError(f"There must be at least one row: {_wanted(signature)}")
    return rows


def _check_rows(rows: int, settings: ServerSettings) -> None:
    if rows > settings.max_rows:
        raise RequestError(f"A request may have at most {settings.max_rows} rows. Received: {rows}")


def _array(name: str, value: Any, settings: ServerSettings) -> np.ndarray:
    """Converts JSON to an input. Lists of unequal length are padded with empty strings."""
    dtype, rank = INPUT_TYPES[name]
    if not rank:
        return np.array(_CONVERTERS[dtype](name, value), dtype.as_numpy_dtype)
    lists = [value] if rank == 1 else value
    if not isinstance(lists, list) or not all(isinstance(one, list) for one in lists):
        wanted = "a list of strings" if rank == 1 else "a list of lists of strings"
        raise RequestError(f"`{name}` must be {wanted}. Received: {_shown(value)}")
    width = max(map(len, lists), default=0)
    _check_size(name, len(lists), width, settings)
    array = np.full([len(lists), width], b"", object)
    for row, texts in enumerate(lists):
        array[row, : len(texts)] = [_text(name, one) for one in texts]
    return array[0] if rank == 1 else array


def _check_size(name: str, rows: int, width: int, settings: ServerSettings) -> None:
    if name == HISTORIES and width > settings.max_history:
        raise RequestError(f"A history may have at most {settings.max_history} items. Received: {width}")
    limit = settings.max_rows * settings.max_history
    if rows * width > limit:
        raise RequestError(f"`{name}` may have at most {limit} values with its padding. Received: {rows * width}")


def _text(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise RequestError(f"`{name}` must hold strings. Received: {_shown(value)}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"`{name}` must be text that UTF-8 can hold. Received: {_shown(value)}") from None


def _truth(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise RequestError(f"`{name}` must be true or false. Received: {_shown(value)}")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and tf.int32.min <= value <= tf.int32.max:
        return value
    raise RequestError(f"`{name}` must be a whole number that fits into int32. Received: {_shown(value)}")


def _real(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and not abs(value) > float(tf.float32.max):
        return value
    raise RequestError(f"`{name}` must be a number that fits into float32. Received: {_shown(value)}")


_CONVERTERS = {tf.bool: _truth, tf.int32: _whole, tf.float32: _real}


class _Repr(reprlib.Repr):
    """Shows a value on one line, shortened, with JSON's names of constants."""

    def repr_NoneType(self, value: None, level: int) -> str:
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:
        return str(value).lower()


_REPR = _Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60
_REPR.maxlevel = 3
_REPR.maxlist = _REPR.maxdict = 4

_shown = _REPR.repr


def answer(by_rows: bool, outputs: Outputs) -> dict[str, Any]:
    """Returns the response in the request's format: values of JSON's types, and NumPy arrays of finite numbers."""
    columns = {name: _listed(array) for name, array in outputs.items()}
    if not by_rows:
        return {"outputs": columns}
    return {"predictions": [dict(zip(columns, row)) for row in zip(*columns.values())]}


def _listed(array: np.ndarray) -> Any:
    """Converts an output to values that JSON can hold. There -Infinity is a string, as in protobuf's JSON."""
    if array.dtype == object:
        return [[item.decode() for item in row] for row in array.tolist()]
    if array.dtype != np.float32:
        return array.tolist()
    if np.isfinite(array).all():
        return np.ascontiguousarray(array)
    # Through text, so that 0.2 in float32 becomes 0.2 and not 0.20000000298.
    listed = array.astype(str).astype(np.float64).tolist()
    return [[value if math.isfinite(value) else json.dumps(value) for value in row] for row in listed]
