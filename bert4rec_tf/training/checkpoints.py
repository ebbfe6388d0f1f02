"""Checkpoints: `.npz` files with every variable and the state of the training. No pickle."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np

from bert4rec_tf.config.run_record import ALL, RETRAIN, SELECT
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.foundation.warning import FileWarning, warn

HEADER = "header"
NUM_CHECKPOINTS = 2
"""How many of the newest checkpoints are kept: if one is damaged, the other still works."""

Groups = Mapping[str, list[keras.Variable]]
"""Prefix -> all variables, including the state of random generators."""

Result = TypeVar("Result")


def save(path: Path, groups: Groups, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint atomically. `path` ends in `.npz`; `state` is JSON with the `step`, a whole number."""
    values = {name: np.asarray(variable) for name, variable in _name_variables(groups)}
    header = {"shapes": {name: value.shape for name, value in values.items()}, "state": state}
    npz.write(path, {HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8), **values})


def read_header(path: Path) -> dict[str, Any]:
    """Returns the `state` in a checkpoint, and the `shapes` of the variables by name ("model/000"), in their order.

    Raises CorruptFileError if anything in the file is damaged.
    """
    return _read_header(path, npz.read(path))


def restore(path: Path, groups: Groups) -> dict[str, Any]:
    """Restores variables from a checkpoint, all or none, and returns its state. Other groups in it are ignored.

    Raises:
        CorruptFileError: if the file is damaged.
        UserError: if a variable is missing or has another shape: the checkpoint belongs to another model.
    """
    variables, header = _name_variables(groups), _read_header(path, npz.read(path, [HEADER]))
    for name, variable in variables:
        shape, model_shape = header["shapes"].get(name), list(variable.shape)
        if shape != model_shape:
            raise UserError(
                f"{path}: belongs to another model ({name} must have the shape {model_shape}. Received: {shape})"
            )
    values = npz.read(path, [name for name, _ in variables])
    for name, variable in variables:
        variable.assign(values[name])
    return header["state"]


class Series:
    """The newest checkpoints of a training, one file each. If the newest is damaged, the one before it is used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged_paths: set[Path] = set()

    def paths(self) -> list[Path]:
        """Returns the checkpoints, newest first."""
        return sorted(self.folder.glob("step-*.npz"), key=lambda path: (len(path.name), path.name), reverse=True)

    def save(self, groups: Groups, step: int, state: Mapping[str, Any]) -> None:
        """Writes a checkpoint, then deletes damaged ones and all but the newest NUM_CHECKPOINTS."""
        new_path = self.folder / f"step-{step:09d}.npz"
        save(new_path, groups, state)
        self._damaged_paths.discard(new_path)
        sound_paths = [path for path in self.paths() if path not in self._damaged_paths]
        for path in [*self._damaged_paths, *sound_paths[NUM_CHECKPOINTS:]]:
            path.unlink(missing_ok=True)
        self._damaged_paths.clear()

    def restore(self, groups: Groups) -> dict[str, Any] | None:
        """Restores the newest undamaged checkpoint and returns its state; None if there are no checkpoints.

        Raises:
            CorruptFileError: if there are checkpoints, but none can be read.
            UserError: if they belong to another model.
        """
        return self._read_newest(lambda path: restore(path, groups))

    def read_header(self) -> dict[str, Any] | None:
        """Returns the header of the newest undamaged checkpoint (`read_header`); None if there are no checkpoints."""
        return self._read_newest(read_header)

    def _read_newest(self, load: Callable[[Path], Result]) -> Result | None:
        failure = None
        for path in self.paths():
            try:
                result = load(path)
            except CorruptFileError as error:
                self._damaged_paths.add(path)
                failure = failure or error
                continue
            if failure:
                warn(f"{failure}; resuming from {path.name}", FileWarning)
            return result
        if failure:
            folders = name_repeated(self.folder)
            raise CorruptFileError(f"{failure}, and there is no older one; delete {folders} to start again")
        return None


def name_repeated(folder: Path) -> str:
    """Returns the folders to delete to repeat a training: its own, and that of a training whose steps it selected."""
    later_folders = [folder.with_name(name) for name in (RETRAIN, ALL)] if folder.name == SELECT else []
    return " and ".join(map(str, [folder, *(path for path in later_folders if path.exists())]))


def _name_variables(groups: Groups) -> list[tuple[str, keras.Variable]]:
    """Names variables by group and index. Keras' own names depend on what else the process has created."""
    return [
        (f"{group}/{number:03d}", variable)
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    ]


def _read_header(path: Path, content: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the header: `shapes`, by name, and `state`. Raises CorruptFileError for any other one."""
    try:
        header = json.loads(content[HEADER].tobytes())
        if isinstance(header["shapes"], dict) and isinstance(header["state"]["step"], int):
            return header
        raise ValueError("no shapes or no step")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path}: cannot be read (its header is damaged: {error!r})") from error
