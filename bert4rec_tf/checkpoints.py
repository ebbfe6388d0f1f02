"""Checkpoints: one `.npz` file each, with every variable and the state of the training. No pickle."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bert4rec_tf import files
from bert4rec_tf.errors import UserError

STATE = "state"


def save(path: Path, groups: Mapping[str, list[keras.Variable]], state: Mapping[str, Any]) -> None:
    """Writes a checkpoint; the file appears whole or not at all.

    Args:
        path: ends in `.npz`.
        groups: prefix -> variables, all of them, also the state of random generators.
        state: whatever JSON can hold.
    """
    arrays = {name: np.asarray(variable) for name, variable in _named(groups)}
    arrays[STATE] = np.frombuffer(json.dumps(state, sort_keys=True).encode(), np.uint8)
    with files.whole_file(path) as aside, open(aside, "wb") as file:
        np.savez(file, **arrays)


def read_state(path: Path) -> dict[str, Any]:
    """Returns the state in a checkpoint. Raises UserError where the file is damaged."""
    return json.loads(_read(path, [STATE])[STATE].tobytes())


def restore(path: Path, groups: Mapping[str, list[keras.Variable]]) -> dict[str, Any]:
    """Puts a checkpoint back into variables, and returns its state.

    Raises:
        UserError: where the file is damaged, or a variable is missing or of another shape: it is of another model.
    """
    named = _named(groups)
    arrays = _read(path, [STATE, *(name for name, _ in named)])
    for name, variable in named:
        if arrays[name].shape != tuple(variable.shape):
            raise UserError(f"{path}: {name} must have the shape {tuple(variable.shape)}. Found: {arrays[name].shape}")
    for name, variable in named:
        variable.assign(arrays[name])
    return json.loads(arrays[STATE].tobytes())


def _read(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in names}
    except KeyError as error:
        raise UserError(f"{path}: is of another model ({error.args[0]})") from error
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as a checkpoint ({error}); delete it to begin again") from error


def _named(groups: Mapping[str, list[keras.Variable]]) -> list[tuple[str, keras.Variable]]:
    """Names variables by group and place: Keras numbers its own names by what else the process has made."""
    return [
        (f"{group}/{number:03d}", variable)
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    ]
