"""Loads an exported SavedModel, reads its signatures and calls them."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from bert4rec_tf.data.reading.feature_files import check_matches
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.export.functions import FUNCTIONS, INPUTS, OPTIONAL, find_inputs
from bert4rec_tf.export.histories import HISTORIES, read_histories
from bert4rec_tf.export.layout import (
    ASSETS,
    ATTRIBUTES,
    CARD_OF_SAVED_MODEL,
    MODEL,
    TITLES,
    USERS,
    VOCABULARY,
    make_histories_command,
)
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.foundation.processes import claim_tensorflow
from bert4rec_tf.foundation.stores import LocalCopy
from bert4rec_tf.serving.rules import Attributes
from bert4rec_tf.serving.titles import read_titles, read_titles_and_tags
from bert4rec_tf.serving.trust import check_only_computes

SERVING = tf.saved_model.SERVING

IDENTITY = ("data", "items", "checksums")
"""Entries of the model card that differ if the lists of ids, or what was counted, do."""

MANY_HISTORIES = 1_000
"""From so many on, a table of all pairs of items pays, which takes a second for 10,000 items."""

Arrays = Mapping[str, np.ndarray]


class ModelError(Exception):
    """A call that failed. `is_client_error`: because its inputs are wrong; else the model or the machine failed."""

    def __init__(self, message: str, is_client_error: bool) -> None:
        super().__init__(message)
        self.is_client_error = is_client_error


@dataclass(frozen=True)
class Signature:
    """A function of the model. `inputs`: name -> default value, sorted by name; None for an input that is required."""

    name: str
    inputs: Mapping[str, np.ndarray | None]


class LoadedModel:
    """An exported SavedModel in memory. `is_trusted`: whether it may do more than compute (`serving.trust`).

    Attributes:
        local_folder: the folder on this machine; a copy if the model is in a store.
        signatures: name -> signature; `description` has them in the JSON format of TensorFlow Serving.
        card: the model card.
        needs_users: whether histories need the users' ids beside them.
        items: the items' raw ids, the most popular first.
        users: the users whom a model knows that needs to know users; else none.

    Raises UserError if there is no SavedModel, it cannot be read, it is not one of `saved_model.export`, or it could do
    more than compute.
    """

    def __init__(self, folder: Path, is_trusted: bool = False) -> None:
        self.folder, self.is_trusted = folder, is_trusted
        self._copy = LocalCopy(folder)
        self.local_folder = self._copy.folder
        try:
            self._load(self.local_folder)
        except UserError as error:
            raise UserError(str(error).replace(str(self.local_folder), str(folder))) from error

    def __reduce__(self) -> NoReturn:
        raise UserError("A model cannot be pickled or copied; save it, and open the folder where it is needed")

    def _load(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise UserError(f"{path}: is not a plain file")
        claim_tensorflow()
        content = _read_saved_model(folder)
        definitions = _find_definitions(content)
        if not _is_export(definitions):
            raise UserError(
                f"{folder}: was not exported by this version of bert4rec_tf; export it again, or serve it with "
                "TensorFlow Serving"
            )
        if not self.is_trusted:
            check_only_computes(folder, content)
        self.signatures = dict[str, Signature]()
        for name, spec in sorted(definitions.items()):
            defaults = {key: tf.make_ndarray(default) for key, default in spec.defaults.items()}
            self.signatures[name] = Signature(name, {key: defaults.get(key) for key in sorted(spec.inputs)})
        self.needs_users = "users" in self.signatures["encode"].inputs
        options = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
        self.description = {name: json_format.MessageToDict(spec, **options) for name, spec in definitions.items()}
        self.card = _read_card(folder / CARD_OF_SAVED_MODEL)
        try:
            with _make_plain(folder) as path:
                self._module = tf.saved_model.load(str(path), tags=[SERVING])
        except Exception as error:  # A damaged graph, or an op that is missing here, can raise anything.
            raise UserError(f"{folder}: cannot be loaded ({_explain(error)})") from error
        # After TensorFlow has read them.
        self.items = self._read_ids(folder, VOCABULARY)
        self.users = self._read_ids(folder, USERS) if self.needs_users else Lines(b"")

    def _read_ids(self, folder: Path, name: str) -> Lines:
        """Returns raw ids. Raises UserError if their list is damaged, or not that of the export."""
        path = folder / ASSETS / name
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() == self.card.get("checksums", {}).get(name):
                return Lines(content)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from error
        raise UserError(f"{path}: was changed since the export: its SHA-256 is not that in its model card")

    def locate(self, name: Path) -> Path:
        """Returns the path of a file. Raises UserError if another model has taken the place of this one."""
        card = self.local_folder / CARD_OF_SAVED_MODEL
        now = _read_card(card) if card.exists() else self.card
        if any(now.get(entry) != self.card.get(entry) for entry in IDENTITY):
            raise UserError(f"{self.folder}: was replaced since it was opened; open it again")
        return self.local_folder / name

    @cached_property
    def histories(self) -> Sequences | None:
        """The users' histories; None if the export holds none. Raises UserError if their file is damaged."""
        path = self.locate(HISTORIES)
        return read_histories(path, self.items) if path.exists() else None

    @cached_property
    def _user_rows(self) -> dict[str, int]:
        """User -> their place in the histories; empty if the export holds none."""
        return {} if self.histories is None else {user: row for row, user in enumerate(self.histories.users)}

    def knows_user(self, user: str) -> bool:
        return user in self._user_rows

    @cached_property
    def titles(self) -> dict[str, str]:
        """The titles that the export holds: raw id -> title; empty for none. Raises UserError if they are damaged."""
        path = self.locate(TITLES)
        return read_titles(path) if path.exists() else {}

    @cached_property
    def attributes(self) -> Attributes | None:
        """The items' attributes that the export holds; None for none. Raises UserError if they are damaged."""
        path = self.locate(ATTRIBUTES)
        return Attributes(path) if path.exists() else None

    @cached_property
    def columns(self) -> dict[str, dict[str, str]]:
        """The columns of the data (`Sequences.columns`), as the model card has them; empty if it does not."""
        return self.card.get("columns", {})

    @property
    def item_column(self) -> str | None:
        """The column that had the items in the data. In tables of items this name counts before usual ones."""
        return self.columns.get("item", {}).get("name")

    def choose_titles(self, source: Any) -> tuple[Mapping[str, str], Mapping[str, list[str]]]:
        """Returns titles and tags of items by their raw ids (`read_titles_and_tags`); without a source, the model's.

        Raises UserError if they cannot be read, or none is of one of the model's items.
        """
        if source is None:
            return self.titles, {}
        titles, tags = read_titles_and_tags(source, self.item_column)
        check_matches("titles", titles, self.items)
        return titles, tags

    def require_histories(self) -> Sequences:
        """Returns the users' histories. Raises UserError if the export has none, or their file is damaged."""
        if self.histories is None:
            raise UserError(
                f"{self.folder}: holds no histories of users; to add them: {make_histories_command(self.folder)}"
            )
        return self.histories

    def get_history(self, user: str) -> list[str]:
        """Returns the raw ids of a user's last items, oldest first; none of an unknown user.

        Raises UserError as `require_histories`.
        """
        histories = self.require_histories()
        return histories.vocabulary.decode(histories[self._user_rows[user]]) if self.knows_user(user) else []

    def read_weights(self) -> list[tuple[str, np.ndarray]]:
        """Returns the names and values of the model's weights, in their order."""
        return [(weight.name.partition(":")[0], weight.numpy()) for weight in self._module._weights]

    def select_histories(self, users: Sequence[str]) -> Sequences:
        """Returns the histories of users, in this order, without times; empty ones of unknown users."""
        histories = self.require_histories()
        empty_row = histories.num_users
        rows = np.array([self._user_rows.get(user, empty_row) for user in users], np.int64)
        all_histories = replace(
            histories, splits=np.append(histories.splits, histories.num_actions), users=np.append(histories.users, "")
        )
        return replace(all_histories.select_users(rows), users=np.array(users, object))

    def call(self, signature: str, arrays: Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature, by name.

        Inputs that are not given have their default values.

        Raises:
            ModelError: if the model cannot compute them.
            UserError: in a process that was forked after the model was loaded.
        """
        claim_tensorflow()
        defaults = self.signatures[signature].inputs
        inputs = {**{name: default for name, default in defaults.items() if default is not None}, **arrays}
        try:
            tensors = {name: tf.constant(array, INPUTS[name].dtype, array.shape) for name, array in inputs.items()}
            outputs = self._module.signatures[signature](**tensors)
            return {name: outputs[name].numpy() for name in sorted(outputs)}
        except tf.errors.OpError as error:
            raise ModelError(_explain(error), isinstance(error, tf.errors.InvalidArgumentError)) from error

    @contextlib.contextmanager
    def sum_by_table(self, num_histories: int) -> Iterator[None]:
        """Inside the block, evidence is summed by a table of all pairs, if that is quicker for so many histories.

        The scores are the same to the bit. The table takes half a gigabyte at most (`nn.evidence.DENSE_ITEMS`).
        """
        table = getattr(self._module, "pair_table", None)
        is_slower = num_histories < MANY_HISTORIES or bool(tf.config.list_logical_devices("GPU"))
        if table is None or is_slower or tf.size(table) > 0:
            yield
            return
        table.assign(self._module.make_pair_table())
        try:
            yield
        finally:
            table.assign(tf.zeros([0, 0]))

    def warm_up(self) -> None:
        """Calls every signature once, because TensorFlow's first call is slow."""
        for name, signature in self.signatures.items():
            names = [key for key, default in signature.inputs.items() if default is None]
            self.call(name, {key: np.full([1] * INPUTS[key].shape.rank, b"", object) for key in names})


@contextlib.contextmanager
def _make_plain(folder: Path) -> Iterator[Path]:
    """Yields a folder, or a link to it if TensorFlow would take its name for a pattern."""
    signs = {"[", "\\"} - {os.sep}
    if not signs & set(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(dir="/tmp" if signs & set(tempfile.gettempdir()) else None) as temp_folder:
        link = Path(temp_folder, "model")
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link


def _read_saved_model(folder: Path) -> saved_model_pb2.SavedModel:
    content = saved_model_pb2.SavedModel()
    try:
        content.ParseFromString((folder / MODEL).read_bytes())
    except OSError as error:
        raise UserError(f"{folder / MODEL}: cannot be read ({error.strerror or error})") from error
    except DecodeError as error:
        raise UserError(f"{folder / MODEL}: is damaged") from error
    return content


def _find_definitions(content: saved_model_pb2.SavedModel) -> dict[str, Any]:
    """Returns the signatures that can be served, by name."""
    graphs = [graph for graph in content.meta_graphs if SERVING in graph.meta_info_def.tags]
    return {
        name: spec for graph in graphs[:1] for name, spec in graph.signature_def.items() if not name.startswith("__")
    }


def _is_export(definitions: Mapping[str, Any]) -> bool:
    """Returns whether a model has the signatures of an export, with the same inputs and outputs."""
    if not FUNCTIONS.keys() - OPTIONAL <= definitions.keys() <= FUNCTIONS.keys():
        return False
    needs_users = "users" in definitions["encode"].inputs
    for name, definition in definitions.items():
        specs = {spec.name: (spec.dtype, spec.shape.rank) for spec in find_inputs(name, needs_users)}
        inputs = {key: (info.dtype, tf.TensorShape(info.tensor_shape).rank) for key, info in definition.inputs.items()}
        if inputs != specs or definition.outputs.keys() != FUNCTIONS[name][1]:
            return False
    return True


def _read_card(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        # The server sends it as JSON in UTF-8, which can hold neither NaN nor half a letter.
        json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: must be a JSON file ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold a JSON object")
    for name, default in (("checksums", {}), ("columns", {}), ("data", {}), ("histories", None)):
        part = content.get(name, default)
        parts = [part, *part.values()] if name == "columns" and isinstance(part, dict) else [part]
        if part is not default and not all(isinstance(entry, dict) for entry in parts):
            raise UserError(f"{path}: `{name}` must be what an export writes. Received: {part!r:.60}")
    return content


def _explain(error: Exception) -> str:
    """Returns the line of a TensorFlow error that says what is wrong. It comes before the node's name."""
    message = getattr(error, "message", None) or str(error)
    lines = [line.strip() for line in message.split("[[{{node")[0].splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    line = lines[-1] if lines[0].startswith("Graph execution error") else lines[0]
    assertion = line.removeprefix("assertion failed: ")
    return line if assertion == line else re.sub(r"[\s\[\]]+", " ", assertion).strip()
