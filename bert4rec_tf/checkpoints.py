"""Checkpoints: one `.npz` file each, with every variable and the state of the training. No pickle."""

import json
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
    """Returns the state in a checkpoint."""
    with np.load(path, allow_pickle=False) as content:
        return json.loads(content[STATE].tobytes())


def restore(path: Path, groups: Mapping[str, list[keras.Variable]]) -> dict[str, Any]:
    """Puts a checkpoint back into variables, and returns its state.

    Raises:
        UserError: where a variable is missing or of another shape: the checkpoint is of another model.
    """
    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    for name, variable in _named(groups):
        if name not in arrays or arrays[name].shape != tuple(variable.shape):
            found = arrays[name].shape if name in arrays else "nothing"
            raise UserError(f"{path}: {name} must have the shape {tuple(variable.shape)}. Found: {found}")
        variable.assign(arrays[name])
    return json.loads(arrays[STATE].tobytes())


def _named(groups: Mapping[str, list[keras.Variable]]) -> list[tuple[str, keras.Variable]]:
    """Names variables by group and place: Keras numbers its own names by what else the process has made."""
    return [
        (f"{group}/{number:03d}", variable)
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    ]
