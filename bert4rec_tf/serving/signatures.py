"""Loads a SavedModel, reads its signatures and calls them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from bert4rec_tf.export.histories import HISTORIES, Histories
from bert4rec_tf.export.layout import ASSETS, CARD_OF_SAVED_MODEL, MODEL, USERS, VOCABULARY
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.foundation.stores import LocalCopy
from bert4rec_tf.serving.trust import check_only_computes

SERVING = tf.saved_model.SERVING

Arrays = Mapping[str, np.ndarray]


class ModelError(Exception):
    """A call that failed. `is_client_error`: because its inputs are wrong; else the model or the machine failed."""

    def __init__(self, message: str, is_client_error: bool) -> None:
        super().__init__(message)
        self.is_client_error = is_client_error


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of a signature.

    In `shape`, None is a dimension of any size; the `shape` None is any rank. An input without a `default` is required.
    """

    dtype: tf.DType
    shape: tuple[int | None, ...] | None
    default: np.ndarray | None = None

    @property
    def has_rows(self) -> bool:
        """Whether the first dimension may have any size."""
        return self.shape is None or (len(self.shape) > 0 and self.shape[0] is None)


@dataclass(frozen=True)
class Signature:
    """A function of the model with its inputs and outputs, sorted by name."""

    name: str
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]


class LoadedModel:
    """A SavedModel in memory.

    Args:
        folder: of the SavedModel.
        trusted: whether it may do more than compute (`serving.trust`).

    Attributes:
        folder: the folder on this machine; a copy if the model is in a store.
        signatures: name -> signature; `description` has them in the JSON format of TensorFlow Serving.
        card: the model card; empty if there is none.

    Raises:
        UserError: if there is no SavedModel, it cannot be read, or it could do more than compute.
    """

    def __init__(self, folder: Path, trusted: bool = False) -> None:
        self._copy = LocalCopy(folder)
        self.folder = self._copy.folder
        try:
            self._load(self.folder, trusted)
        except UserError as error:
            raise UserError(str(error).replace(str(self.folder), str(folder))) from error

    def _load(self, folder: Path, trusted: bool) -> None:
        content = _content(folder)
        if not trusted:
            check_only_computes(folder, content)
        graphs = [graph for graph in content.meta_graphs if SERVING in graph.meta_info_def.tags]
        if not graphs:
            raise UserError(f"{folder / MODEL}: has no graph with the tag {SERVING!r}")
        definitions = graphs[0].signature_def
        self.signatures = {
            name: _signature(name, one) for name, one in sorted(definitions.items()) if not name.startswith("__")
        }
        options = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
        self.description = {name: json_format.MessageToDict(one, **options) for name, one in definitions.items()}
        self.card = _card(folder / CARD_OF_SAVED_MODEL)
        try:
            self._loaded = tf.saved_model.load(str(folder), tags=[SERVING])
        except Exception as error:  # A damaged graph, or an op that is missing here, can raise anything.
            raise UserError(f"{folder}: cannot be loaded ({_reason(error)})") from error
        for name, expected in ((VOCABULARY, "items"), (USERS, "users")):
            _check_lines(folder / ASSETS / name, self.card.get(expected))

    @cached_property
    def items(self) -> Lines | None:
        """The items' raw ids, the most popular first; None without a list. Raises UserError if the list is damaged."""
        path = self.folder / ASSETS / VOCABULARY
        try:
            return Lines(path.read_bytes()) if path.is_file() else None
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from error

    @cached_property
    def histories(self) -> Histories | None:
        """The users' histories; None if the export holds none. Raises UserError if their file is damaged."""
        path = self.folder / HISTORIES
        return Histories.read(path, len(self.items or ())) if path.exists() else None

    def history_of(self, user: str) -> list[str]:
        """Returns the raw ids of a user's last items, oldest first. Raises UserError for an unknown user."""
        return [self.items[int(number) - 1] for number in self.histories[user]]

    def call(self, signature: str, arrays: Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature, by name. Raises ModelError if the model cannot compute them.

        Inputs that are not given have their default values.
        """
        infos = self.signatures[signature].inputs
        defaults = {name: info.default for name, info in infos.items() if info.default is not None}
        inputs = {**defaults, **arrays}
        try:
            tensors = {name: tf.constant(array, infos[name].dtype, array.shape) for name, array in inputs.items()}
            outputs = self._loaded.signatures[signature](**tensors)
            return {name: outputs[name].numpy() for name in sorted(outputs)}
        except tf.errors.OpError as error:
            raise ModelError(_reason(error), isinstance(error, _CLIENT_ERRORS)) from error

    def function(self, signature: str) -> Any:
        """Returns a signature as a TensorFlow function, which takes inputs by name."""
        return self._loaded.signatures[signature]

    def warm_up(self) -> None:
        """Calls every signature once, because TensorFlow's first call is slow."""
        for name, signature in self.signatures.items():
            arrays = {key: _example(info) for key, info in signature.inputs.items()}
            try:
                self.call(name, arrays)
            except ModelError:
                continue  # The inputs are made up, and the model may reject them.


_CLIENT_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.OutOfRangeError,
    tf.errors.NotFoundError,
    tf.errors.FailedPreconditionError,
    tf.errors.UnimplementedError,
)


def _content(folder: Path) -> saved_model_pb2.SavedModel:
    content = saved_model_pb2.SavedModel()
    try:
        content.ParseFromString((folder / MODEL).read_bytes())
    except OSError as error:
        raise UserError(f"{folder / MODEL}: cannot be read ({error.strerror or error})") from error
    except DecodeError as error:
        raise UserError(f"{folder / MODEL}: is damaged") from error
    return content


def _card(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        # The server sends it as JSON in UTF-8, which can hold neither NaN nor half a letter.
        json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: must be a JSON file ({error})") from error
    return content if isinstance(content, dict) else {}


def _check_lines(path: Path, expected: Any) -> None:
    """Raises UserError if a list has not as many ids as the model card says. TensorFlow would return empty ids.

    Call it after TensorFlow has read the list, so that a list cut short before that is noticed.
    """
    if not isinstance(expected, int) or not path.is_file():
        return
    content = path.read_bytes()
    lines = content.count(b"\n")
    if lines != expected or content[-1:] not in (b"", b"\n"):
        raise UserError(f"{path}: must have {expected} whole lines, as its model card says. Received: {lines}")


def _signature(name: str, definition: Any) -> Signature:
    inputs = {key: _tensor_info(one, definition.defaults.get(key)) for key, one in sorted(definition.inputs.items())}
    return Signature(name, inputs, {key: _tensor_info(one) for key, one in sorted(definition.outputs.items())})


def _tensor_info(definition: Any, default: Any = None) -> TensorInfo:
    shape = tf.TensorShape(definition.tensor_shape)
    array = None if default is None else tf.make_ndarray(default)
    return TensorInfo(tf.as_dtype(definition.dtype), None if shape.rank is None else tuple(shape.as_list()), array)


def _example(info: TensorInfo) -> np.ndarray:
    if info.default is not None:
        return info.default
    shape = [size or 1 for size in info.shape or ()]
    return np.full(shape, b"" if info.dtype == tf.string else 1, info.dtype.as_numpy_dtype)


def _reason(error: Exception) -> str:
    """Returns the line of a TensorFlow error that says what is wrong. It comes before the node's name."""
    message = getattr(error, "message", None) or str(error)
    lines = [line.strip() for line in message.split("[[{{node")[0].splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    line = lines[-1] if lines[0].startswith("Graph execution error") else lines[0]
    asserted = line.removeprefix("assertion failed: ")
    return line if asserted == line else re.sub(r"[\s\[\]]+", " ", asserted).strip()
