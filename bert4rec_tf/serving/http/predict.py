"""TensorFlow Serving's REST predict protocol: turns a request's JSON into a call, and the outputs into JSON.

It follows TensorFlow Serving's documentation ("RESTful API"); docs/http.md lists the extensions.
"""

import difflib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bert4rec_tf.data.id_texts import normalize_id
from bert4rec_tf.export.functions import INPUTS as INPUT_SPECS
from bert4rec_tf.export.functions import SCALARS
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.serving import rules
from bert4rec_tf.serving.client import Choices
from bert4rec_tf.serving.explanation import MOST_ROWS
from bert4rec_tf.serving.http.batching import PADDED, Call, Outputs
from bert4rec_tf.serving.http.server_settings import ServerSettings
from bert4rec_tf.serving.ids import pad_ids
from bert4rec_tf.serving.rules import NOTHING_BLOCKED, Attributes, BlockedIds, WatchedFile
from bert4rec_tf.serving.signatures import LoadedModel, Signature

HISTORIES, USERS = PADDED, "users"
WHERE, EXPLAIN = "where", "explain"
"""Inputs that the server itself takes (`list_server_inputs`), as it takes `users` in place of histories."""

FOR_ALL_ROWS = {*SCALARS, WHERE, EXPLAIN}

DEFAULT_SIGNATURE, SIMILAR = "serving_default", "similar"
RECOMMENDING = (DEFAULT_SIGNATURE, "recommend")
INSTANCES, INPUTS, SIGNATURE = "instances", "inputs", "signature_name"

MAX_SHOWN = 60

MAX_MESSAGE = 200
"""An error message shows at most this many characters of one that quotes what was received."""


class RequestError(Exception):
    """A request that cannot be answered: one line that says why, and the HTTP `status`."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Rules:
    """The attributes of items, None for those in the model, and the blocked items: files that are read again."""

    attributes: WatchedFile[Attributes] | None = None
    blocked: WatchedFile[BlockedIds] | None = None

    @property
    def blocked_ids(self) -> BlockedIds:
        return NOTHING_BLOCKED if self.blocked is None else self.blocked.content

    def list_files(self) -> list[WatchedFile]:
        return [file for file in (self.attributes, self.blocked) if file is not None]


@dataclass(frozen=True)
class Request:
    """What a body asks for.

    Attributes:
        call: of the model.
        by_rows: whether the request, and so the response, is in the row format.
        explain: whether each recommended item gets its reasons.
        filter_outputs: removes what the rules forbid from the outputs of the call.
    """

    call: Call
    by_rows: bool
    explain: bool
    filter_outputs: Callable[[Outputs], Outputs]


def parse(body: bytes, model: LoadedModel, settings: ServerSettings, item_rules: Rules) -> Request:
    """Returns what a body asks for.

    Raises RequestError if the body is not valid JSON, has another form or exceeds a limit.
    """
    try:
        content = json.loads(body.decode())
    except RecursionError:
        raise RequestError("The body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"The body must be JSON in UTF-8: {error}") from None
    if not isinstance(content, dict):
        raise RequestError(f"The body must be a JSON object. Received: {_show(content)}")
    signature = _find_signature(content.get(SIGNATURE, DEFAULT_SIGNATURE), model)
    for name in sorted(content.keys() - {SIGNATURE, INPUTS, INSTANCES}):
        if name in INPUT_SPECS or name in (WHERE, EXPLAIN):
            place = f"`{INPUTS}`" if name in FOR_ALL_ROWS else f"`{INPUTS}` or `{INSTANCES}`"
            raise RequestError(f"`{name}` is an input of a signature, so it goes into {place}")
        raise RequestError(str(unknown_name_error("key", name[:60], (SIGNATURE, INPUTS, INSTANCES))))
    columns: Mapping[str, Any]
    by_rows = INSTANCES in content
    if by_rows == (INPUTS in content):
        raise RequestError(f"The body must have either `{INSTANCES}` or `{INPUTS}`, and not both")
    if by_rows:
        columns = _read_rows(content[INSTANCES], signature, settings)
    elif isinstance(content[INPUTS], dict):
        columns = content[INPUTS]
    else:
        columns = {_name_only_input(signature, INPUTS): content[INPUTS]}
    nullable = {*signature.inputs, WHERE, EXPLAIN}
    columns = {name: value for name, value in columns.items() if value is not None or name not in nullable}
    where, explain = columns.pop(WHERE, None), columns.pop(EXPLAIN, False)
    if not isinstance(explain, bool) or (explain and signature.name not in RECOMMENDING):
        names = " or ".join(RECOMMENDING)
        raise RequestError(f"`{EXPLAIN}` must be true or false, and needs the signature {names}")
    arrays = _make_arrays(_add_histories(columns, signature, model, settings), signature, settings, model)
    rows = _count_rows(arrays, signature, settings)
    if HISTORIES in columns and (length := arrays[HISTORIES].shape[1]) > settings.max_history:
        raise RequestError(f"A history may have at most {settings.max_history} items. Received: {length}")
    candidates = columns.get("candidates", ()) if signature.name in RECOMMENDING else ()
    if not all(any(cell != "" for cell in row) for row in candidates):
        raise RequestError("`candidates` must have at least one item; leave it out for all. Received a row of none")
    if explain and rows * MOST_ROWS > settings.max_rows:
        raise RequestError(f"`{EXPLAIN}` takes at most {settings.max_rows // MOST_ROWS} rows. Received: {rows}")
    _check_answer_size(rows, {**signature.inputs, **arrays}, signature, model, settings)
    signature, inputs_of_rules, filter_outputs = _apply_rules(columns, where, signature, model, settings, item_rules)
    arrays |= inputs_of_rules
    is_widened = signature.name == SIMILAR and "k" in inputs_of_rules
    if is_widened and rows > 1 and (num_values := rows * int(arrays["k"])) > settings.max_answer:
        raise RequestError(
            f"With these rules, `{SIMILAR}` looks at {num_values:,} items for {rows:,} rows, of at most "
            f"{settings.max_answer:,}: ask for fewer rows",
            413,
        )
    block_list = item_rules.blocked_ids.row
    shared = {name for name, array in arrays.items() if not array.ndim or len(array) != rows or array is block_list}
    defaults = {
        name: default for name, default in signature.inputs.items() if default is not None and name not in arrays
    }
    arrays |= defaults
    call = Call(model, signature.name, arrays, rows, frozenset(shared | defaults.keys()))
    return Request(call, by_rows, explain, filter_outputs)


def _apply_rules(
    columns: Mapping[str, Any],
    where: Any,
    signature: Signature,
    model: LoadedModel,
    settings: ServerSettings,
    item_rules: Rules,
) -> tuple[Signature, dict[str, np.ndarray], Callable[[Outputs], Outputs]]:
    """Returns the signature to call, the inputs to change, and what to do with the outputs, so that all rules hold."""
    blocked_ids = item_rules.blocked_ids
    if signature.name not in (*RECOMMENDING, SIMILAR):
        if where is not None:
            raise RequestError(f"`{WHERE}` needs the signature recommend or similar. Received: {signature.name}")
        blocked_ids = NOTHING_BLOCKED
    if where is None and not blocked_ids:
        return signature, {}, keep_outputs
    try:
        attributes = model.attributes if item_rules.attributes is None else item_rules.attributes.content
        if where is not None and attributes is None:
            raise RequestError(f"`{WHERE}`: this server has no attributes of the items (--attributes)")
        selection = rules.select_allowed(attributes, where, model.items)
    except UserError as error:
        raise RequestError(str(error)) from None
    if signature.name == SIMILAR:
        k = int(columns.get("k", signature.inputs["k"]))
        return (
            signature,
            Choices(rules.widen_similar(k, len(model.items), selection, blocked_ids)).to_scalars(),
            partial(rules.filter_similar, k=k, selection=selection, blocked=blocked_ids),
        )
    exclude, candidates = (
        [[_to_text(name, one) for one in row] for row in columns.get(name, ())] for name in ("exclude", "candidates")
    )
    if len(exclude) > 1:
        note = f" with {len(blocked_ids):,} blocked items in each row" if blocked_ids else ""
        _check_size("exclude", len(exclude), max(map(len, exclude)) + len(blocked_ids), settings, note)
    lists = rules.restrict(exclude, candidates, selection)
    inputs_of_rules = {name: pad_ids(rows) for name, rows in zip(("exclude", "candidates"), lists) if rows}
    if blocked_ids:
        rows = inputs_of_rules.get("exclude")
        row = blocked_ids.row
        inputs_of_rules["exclude"] = row if rows is None else np.hstack([rows, row.repeat(len(rows), axis=0)])
    return model.signatures["recommend"], inputs_of_rules, keep_outputs


def keep_outputs(outputs: Outputs) -> Outputs:
    return outputs


def _check_answer_size(
    rows: int,
    arrays: Mapping[str, np.ndarray | None],
    signature: Signature,
    model: LoadedModel,
    settings: ServerSettings,
) -> None:
    """Raises RequestError, before anything is computed, if the answer would have more values than allowed."""
    k, candidates = arrays.get("k"), arrays.get("candidates")
    if signature.name == DEFAULT_SIGNATURE:
        k = model.card.get("k")
    width = 0 if k is None else min(int(k), len(model.items))
    if candidates is not None:
        width = max(width, candidates.shape[1])
    if rows * width > settings.max_answer:
        raise RequestError(
            f"An answer may have at most {settings.max_answer:,} values. Received: {rows:,} rows of {width:,}", 413
        )


def _find_signature(name: Any, model: LoadedModel) -> Signature:
    if not isinstance(name, str):
        raise RequestError(f"`{SIGNATURE}` must be a string. Received: {_show(name)}")
    if name not in model.signatures:
        names = ", ".join(model.signatures)
        raise RequestError(f"`{SIGNATURE}` must be one of {names}. Received: {_show(name)}")
    return model.signatures[name]


def list_server_inputs(signature: Signature, model: LoadedModel) -> list[str]:
    """Returns the inputs that the server itself takes for a signature."""
    is_taken = {
        USERS: HISTORIES in signature.inputs and model.histories is not None,
        WHERE: signature.name in (*RECOMMENDING, SIMILAR),
        EXPLAIN: signature.name in RECOMMENDING,
    }
    return [name for name in is_taken if is_taken[name]]


def _describe_inputs(signature: Signature, server_inputs: Iterable[str] = ()) -> str:
    names = [name if default is None else f"{name} (optional)" for name, default in signature.inputs.items()]
    names += [f"{name} (optional)" for name in server_inputs if name not in signature.inputs]
    return f"the inputs of {signature.name} are {', '.join(names)}"


def _add_histories(
    columns: Mapping[str, Any], signature: Signature, model: LoadedModel, settings: ServerSettings
) -> Mapping[str, Any]:
    """Returns the columns with the export's histories of `users`, if there are `users` and no `histories`.

    They are whole if the request has space for them, however long, because their items are left out of the answer.
    """
    if USERS not in columns or USERS not in list_server_inputs(signature, model):
        return columns
    if HISTORIES in columns:
        if USERS not in signature.inputs:
            raise RequestError(f"Give either `{USERS}` or `{HISTORIES}`, not both")
        return columns
    users = columns[USERS]
    if not isinstance(users, list):
        raise RequestError(f"`{USERS}` must be a list of ids. Received: {_show(users)}")
    _check_rows(len(users), settings)
    texts = [_to_text(USERS, user) for user in users]
    limit = settings.max_rows * settings.max_history // max(len(texts), 1)
    histories = [model.get_history(user)[-limit:] for user in texts]
    added = {**columns, HISTORIES: histories}
    return {name: value for name, value in added.items() if name != USERS or name in signature.inputs}


def find_history(user: Any, model: LoadedModel, settings: ServerSettings) -> list[str]:
    """Returns a user's last items, oldest first. Raises RequestError if the model does not hold this user's history."""
    user_id = _to_text(USERS, user)
    if not model.knows_user(user_id):
        raise RequestError(f"This model does not know the user {_show(user_id)}.")
    return model.get_history(user_id)[-settings.max_history :]


def _read_rows(instances: Any, signature: Signature, settings: ServerSettings) -> Mapping[str, list | None]:
    """Returns the columns of a request in the row format; None for one that is null in all rows."""
    if not isinstance(instances, list) or not instances:
        raise RequestError(f"`{INSTANCES}` must be a list of at least one. Received: {_show(instances)}")
    _check_rows(len(instances), settings)
    if not isinstance(instances[0], dict):
        if any(isinstance(instance, dict) for instance in instances):
            raise RequestError(f"`{INSTANCES}` must be either all objects or all values")
        return {_name_only_input(signature, INSTANCES): instances}
    names = instances[0].keys()
    for number, instance in enumerate(instances):
        if not isinstance(instance, dict) or instance.keys() != names:
            raise RequestError(f"`{INSTANCES}` must be objects with the same keys; number {number} is not")
    for name in names & FOR_ALL_ROWS:
        raise RequestError(f"`{name}` has one value for all rows: use the column format, `{INPUTS}`")
    columns = {name: [instance[name] for instance in instances] for name in names}
    for name in names & signature.inputs.keys():
        if signature.inputs[name] is not None and any(value is not None for value in columns[name]):
            columns[name] = [[] if value is None else value for value in columns[name]]
    return {name: None if all(value is None for value in values) else values for name, values in columns.items()}


def _name_only_input(signature: Signature, key: str) -> str:
    if len(signature.inputs) != 1:
        raise RequestError(f"`{key}` must name its values: {_describe_inputs(signature)}")
    return next(iter(signature.inputs))


def _count_rows(arrays: Mapping[str, np.ndarray], signature: Signature, settings: ServerSettings) -> int:
    """Returns the number of rows. Raises RequestError if inputs differ in it, or there are too many or none."""
    sizes = {name: len(array) for name, array in arrays.items() if array.ndim}
    rows = max(sizes.values())
    _check_rows(rows, settings)
    for name, size in sizes.items():
        if size != rows and (size != 1 or name == PADDED):
            raise RequestError(f"`{name}` must have as many rows as the other inputs, {rows}. Received: {size}")
    if not rows:
        raise RequestError(f"There must be at least one row: {_describe_inputs(signature)}")
    return rows


def _check_rows(rows: int, settings: ServerSettings) -> None:
    if rows > settings.max_rows:
        raise RequestError(f"A request may have at most {settings.max_rows} rows. Received: {rows}")


def _make_arrays(
    columns: Mapping[str, Any], signature: Signature, settings: ServerSettings, model: LoadedModel
) -> dict[str, np.ndarray]:
    """Converts JSON to the inputs of a signature. Inputs with a default may be missing."""
    for name in columns:
        if name not in signature.inputs:
            names = [key for key, entry in model.signatures.items() if name in entry.inputs]
            server_inputs = list_server_inputs(signature, model)
            suggestions = difflib.get_close_matches(name[:60], [*signature.inputs, *server_inputs], n=1)
            hint = f". Did you mean `{suggestions[0]}`?" if suggestions else ""
            if names:
                hint = f'. To give `{name}`, add "{SIGNATURE}": "{names[0]}"'
            raise RequestError(f"Unknown input {_show(name)}: {_describe_inputs(signature, server_inputs)}{hint}")
    for name, default in signature.inputs.items():
        if name not in columns and default is None:
            raise RequestError(f"`{name}` is missing: {_describe_inputs(signature)}")
    choices = {name: columns[name] for name in SCALARS if name in columns}
    for name, value in choices.items():
        if isinstance(value, (list, dict)):
            raise RequestError(f"`{name}` must be one value. Received: {_show(value)}")
    try:
        scalars = Choices(**choices).to_scalars()
    except UserError as error:
        raise RequestError(str(error)[:MAX_MESSAGE]) from None
    texts = {name: _pad_texts(name, value, settings) for name, value in columns.items() if name not in SCALARS}
    return {**texts, **scalars}


def _pad_texts(name: str, value: Any, settings: ServerSettings) -> np.ndarray:
    """Converts a list, or lists of unequal length, to an input, padded with empty strings."""
    rank = INPUT_SPECS[name].shape.rank
    lists = [value] if rank == 1 else value
    if not isinstance(lists, list) or not all(isinstance(ids, list) for ids in lists):
        form = "a list of ids" if rank == 1 else "a list of lists of ids"
        raise RequestError(f"`{name}` must be {form}. Received: {_show(value)}")
    _check_size(name, len(lists), max(map(len, lists), default=0), settings)
    array = pad_ids([[_to_text(name, value) for value in row] for row in lists])
    return array[0] if rank == 1 else array


def _check_size(name: str, rows: int, width: int, settings: ServerSettings, note: str = "") -> None:
    size, limit = rows * width, settings.max_rows * settings.max_history
    if size > limit:
        raise RequestError(f"`{name}`{note} may have at most {limit} values with its padding. Received: {size}")


def _to_text(name: str, value: Any) -> str:
    """Returns an id as a text. Raises RequestError if it is neither a text nor a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise RequestError(f"`{name}` must hold strings or whole numbers. Received: {_show(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"`{name}` must be text that UTF-8 can hold. Received: {_show(value)}") from None
    return normalize_id(value)


def _show(value: Any) -> str:
    """Returns a value as JSON, cut at MAX_SHOWN characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise RequestError("The body is nested too deeply") from None
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def make_response(by_rows: bool, outputs: Outputs) -> dict[str, Any]:
    """Returns the response in the request's format: values of JSON's types, and NumPy arrays of finite numbers."""
    columns = {name: _to_json_values(array) for name, array in outputs.items()}
    if not by_rows:
        return {"outputs": columns}
    return {"predictions": [dict(zip(columns, row)) for row in zip(*columns.values())]}


def _to_json_values(array: np.ndarray) -> Any:
    """Converts an output to values that JSON can hold. There -Infinity is a string, as in protobuf's JSON."""
    if isinstance(array, list):
        return array
    if array.dtype == object:
        return np.array([text.decode() for text in array.ravel()], object).reshape(array.shape).tolist()
    if array.dtype != np.float32:
        return array.tolist()
    if np.isfinite(array).all():
        return np.ascontiguousarray(array)
    # Through text, so that 0.2 in float32 becomes 0.2 and not 0.20000000298.
    rows = array.astype(str).astype(np.float64).tolist()
    return [[value if math.isfinite(value) else json.dumps(value) for value in row] for row in rows]
