"""TensorFlow Serving's REST predict protocol: turns a request's JSON into a call, and the outputs into JSON.

It follows TensorFlow Serving's documentation ("RESTful API"); docs/http.md lists the extensions.
"""

import base64
import binascii
import json
import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.http.batching import PADDED, Call, Outputs
from bert4rec_tf.serving.http.settings import ServerSettings
from bert4rec_tf.serving.signatures import LoadedModel, Signature, TensorInfo

HISTORIES, USERS = PADDED, "users"

DEFAULT_SIGNATURE = "serving_default"
BINARY_SUFFIX = "_bytes"
"""Outputs with this suffix are sent in base64."""

INSTANCES, INPUTS, SIGNATURE, B64 = "instances", "inputs", "signature_name", "b64"


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
        columns = given if _is_named(given) else {_only_input(signature, INPUTS): given}
    for name in columns:
        if name not in signature.inputs:
            raise RequestError(f"Unknown input {_shown(name)}: {_wanted(signature)}")
    arrays = {name: _array(name, value, signature.inputs[name], settings) for name, value in columns.items()}
    rows = _rows(arrays, signature, settings)
    shared = {name for name, array in arrays.items() if not signature.inputs[name].has_rows or len(array) != rows}
    for name, info in signature.inputs.items():
        if name not in arrays:
            if info.default is None:
                raise RequestError(f"`{name}` is missing: {_wanted(signature)}")
            arrays[name] = info.default
            shared.add(name)
    _check_answer(rows, arrays, model, settings)
    return Call(model, signature.name, arrays, rows, frozenset(shared)), by_rows


def _check_answer(rows: int, arrays: Mapping[str, np.ndarray], model: LoadedModel, settings: ServerSettings) -> None:
    """Raises RequestError, before anything is computed, if the answer would have more values than allowed."""
    k, candidates = arrays.get("k"), arrays.get("candidates")
    width = 0
    if k is not None and k.ndim == 0 and np.issubdtype(k.dtype, np.integer):
        width = min(int(k), settings.max_answer if model.items is None else len(model.items))
    if candidates is not None and candidates.ndim == 2:
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
    names = [f"{name} (optional)" if info.default is not None else name for name, info in signature.inputs.items()]
    return f"the inputs of {signature.name} are {', '.join(names)}"


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() != {B64}


def _with_histories(given: Any, signature: Signature, model: LoadedModel, settings: ServerSettings) -> Any:
    """Returns rows or columns, with the export's histories added where only `users` are named.

    Input of another form is returned as it is, and refused later.
    """
    if isinstance(given, list):
        _check_rows(len(given), settings)
        return [_with_histories(one, signature, model, settings) if _is_named(one) else one for one in given]
    names_users_alone = _is_named(given) and USERS in given and HISTORIES not in given
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
    name = _text(USERS, user).decode("utf-8", "surrogateescape")
    try:
        return model.history_of(name)[-settings.max_history :]
    except UserError as error:
        raise RequestError(str(error)) from None


def _by_rows(instances: Any, signature: Signature) -> Mapping[str, list]:
    if not isinstance(instances, list) or not instances:
        raise RequestError(f"`{INSTANCES}` must be a list of at least one. Received: {_shown(instances)}")
    if not _is_named(instances[0]):
        if any(_is_named(one) for one in instances):
            raise RequestError(f"`{INSTANCES}` must be either all objects or all values")
        return {_only_input(signature, INSTANCES): instances}
    names = instances[0].keys()
    for number, one in enumerate(instances):
        if not _is_named(one) or one.keys() != names:
            raise RequestError(f"`{INSTANCES}` must be objects with the same keys; number {number} is not")
    for name in names:
        if name in signature.inputs and not signature.inputs[name].has_rows:
            raise RequestError(f"`{name}` has one value for all rows: use the column format, `{INPUTS}`")
    return {name: [one[name] for one in instances] for name in names}


def _only_input(signature: Signature, key: str) -> str:
    if len(signature.inputs) != 1:
        raise RequestError(f"`{key}` must name its values: {_wanted(signature)}")
    return next(iter(signature.inputs))


def _rows(arrays: Mapping[str, np.ndarray], signature: Signature, settings: ServerSettings) -> int:
    """Returns the number of rows; 0 if no input has rows."""
    sizes = {name: len(array) for name, array in arrays.items() if signature.inputs[name].has_rows}
    rows = max(sizes.values(), default=0)
    _check_rows(rows, settings)
    for name, size in sizes.items():
        if size != rows and (size != 1 or name == PADDED):
            raise RequestError(f"`{name}` must have as many rows as the other inputs, {rows}. Received: {size}")
    if sizes and not rows:
        raise RequestError(f"There must be at least one row: {_wanted(signature)}")
    return rows


def _check_rows(rows: int, settings: ServerSettings) -> None:
    if rows > settings.max_rows:
        raise RequestError(f"A request may have at most {settings.max_rows} rows. Received: {rows}")


def _array(name: str, value: Any, info: TensorInfo, settings: ServerSettings) -> np.ndarray:
    """Converts nested lists to an input. Lists of strings of unequal length are padded with empty strings."""
    if info.shape is None or info.dtype not in _CONVERTERS:
        raise RequestError(f"`{name}` cannot be given as JSON: {info.dtype.name}, shape {info.shape}")
    convert = _CONVERTERS[info.dtype]
    values, shape = [value], []
    for axis, size in enumerate(info.shape):
        if not all(isinstance(one, list) for one in values):
            raise RequestError(f"`{name}` must be {_describe(info)}. Received: {_shown(value)}")
        widths = {len(one) for one in values}
        width = max(widths, default=0)
        shape.append(width)
        _check_size(name, shape, axis, settings)
        if len(widths) > 1:
            if axis < len(info.shape) - 1 or info.dtype != tf.string:
                raise RequestError(f"`{name}` must have lists of equal lengths. Received: {sorted(widths)[:2]}")
            values = [[*one, *[""] * (width - len(one))] for one in values]
        if size is not None and width != size:
            raise RequestError(f"`{name}` must be {_describe(info)}. Received: {width} in dimension {axis}")
        values = [element for one in values for element in one]
    array = np.empty(len(values), info.dtype.as_numpy_dtype)
    array[:] = [convert(name, element, info.dtype) for element in values]
    return array.reshape(shape)


def _check_size(name: str, shape: list[int], axis: int, settings: ServerSettings) -> None:
    if name == PADDED and axis == 1 and shape[1] > settings.max_history:
        raise RequestError(f"A history may have at most {settings.max_history} items. Received: {shape[1]}")
    limit = settings.max_rows * settings.max_history
    if math.prod(shape) > limit:
        raise RequestError(f"`{name}` may have at most {limit} values with its padding. Received: {math.prod(shape)}")


def _describe(info: TensorInfo) -> str:
    shape = ", ".join("any" if size is None else str(size) for size in info.shape)
    return f"{info.dtype.name} [{shape}]" if shape else f"a single {info.dtype.name}"


def _text(name: str, value: Any, dtype: tf.DType = tf.string) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"`{name}` must be text that UTF-8 can hold. Received: {_shown(value)}") from None
    if isinstance(value, dict) and value.keys() == {B64} and isinstance(value[B64], str):
        try:
            return base64.b64decode(value[B64], validate=True)
        except (binascii.Error, ValueError):
            raise RequestError(f"`{name}` must hold base64 under {B64!r}. Received: {_shown(value)}") from None
    raise RequestError(f"`{name}` must hold strings. Received: {_shown(value)}")


def _truth(name: str, value: Any, dtype: tf.DType) -> bool:
    if isinstance(value, bool):
        return value
    raise RequestError(f"`{name}` must hold true or false. Received: {_shown(value)}")


def _whole(name: str, value: Any, dtype: tf.DType) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and dtype.min <= value <= dtype.max:
        return value
    raise RequestError(f"`{name}` must hold whole numbers that fit into {dtype.name}. Received: {_shown(value)}")


def _real(name: str, value: Any, dtype: tf.DType) -> float:
    number = float(value) if isinstance(value, str) and value in NOT_FINITE else value
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if is_number and (number != number or abs(number) <= _LARGEST[dtype] or abs(number) == math.inf):
        return float(number)
    raise RequestError(f"`{name}` must hold numbers that fit into {dtype.name}. Received: {_shown(value)}")


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""As protobuf's JSON names them; bare words are Python's own."""

_LARGEST = {dtype: float(dtype.max) for dtype in (tf.float32, tf.float64)}
_CONVERTERS: dict[tf.DType, Callable[[str, Any, tf.DType], Any]] = {
    tf.string: _text,
    tf.bool: _truth,
    **dict.fromkeys((tf.int8, tf.uint8, tf.int16, tf.int32, tf.uint32, tf.int64, tf.uint64), _whole),
    **dict.fromkeys(_LARGEST, _real),
}


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


def answer(call: Call, by_rows: bool, outputs: Outputs) -> dict[str, Any]:
    """Returns the response in the request's format: values of JSON's types, and NumPy arrays of finite numbers.

    In the row format, raises RequestError if an output does not have one row for each row of the request.
    """
    columns = {name: _listed(array, name.endswith(BINARY_SUFFIX)) for name, array in outputs.items()}
    single = next(iter(columns)) if len(columns) == 1 else None
    if not by_rows:
        return {"outputs": columns if single is None else columns[single]}
    for name, array in outputs.items():
        if array.shape[:1] != (call.rows,):
            raise RequestError(f"The output {name!r} has one value for all rows: use the column format, `{INPUTS}`")
    if single is not None:
        return {"predictions": columns[single]}
    return {"predictions": [{name: column[row] for name, column in columns.items()} for row in range(call.rows)]}


def _listed(array: np.ndarray, binary: bool) -> Any:
    """Converts an array to nested lists of values that JSON can hold."""
    if array.dtype == object:
        return _mapped(array.tolist(), _encoded if binary else _decoded)
    if array.dtype.kind == "V":  # bfloat16 and smaller, which NumPy does not know as numbers
        array = array.astype(np.float32)
    if not np.issubdtype(array.dtype, np.floating):
        return array.tolist()
    if np.isfinite(array).all():
        return np.ascontiguousarray(array)
    # Through text, so that 0.2 in float32 becomes 0.2 and not 0.20000000298.
    listed = array.astype(str).astype(np.float64).tolist()
    return _mapped(listed, lambda value: value if math.isfinite(value) else json.dumps(value))


def _mapped(nested: Any, function: Callable[[Any], Any]) -> Any:
    return [_mapped(one, function) for one in nested] if isinstance(nested, list) else function(nested)


def _decoded(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _encoded(value)


def _encoded(value: bytes) -> dict[str, str]:
    return {B64: base64.b64encode(value).decode()}
