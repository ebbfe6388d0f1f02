"""Checkpoints: one `.npz` file each, with every variable and the state of the training. No pickle."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np

from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.foundation.progress import warn

HEADER = "header"
KEPT = 2
"""How many of the newest checkpoints stay, so that one is left where the other is damaged."""

Groups = Mapping[str, list[keras.Variable]]
"""Prefix -> variables, all of them, also the state of random generators."""

Result = TypeVar("Result")


def save(path: Path, groups: Groups, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint; the file appears whole or not at all.

    Args:
        path: ends in `.npz`.
        groups: what to keep.
        state: whatever JSON can hold.
    """
    values = {name: np.asarray(variable) for name, variable in _named(groups)}
    header = {"shapes": {name: value.shape for name, value in values.items()}, "state": state}
    npz.write(path, {HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8), **values})


def read_state(path: Path) -> dict[str, Any]:
    """Returns the state in a checkpoint. Raises CorruptFileError where the file is, be it only in a variable."""
    return _header_in(npz.read(path))["state"]


def restore(path: Path, groups: Groups) -> dict[str, Any]:
    """Puts a checkpoint back into variables, all or none, and returns its state.

    A checkpoint may hold more groups than asked for.

    Raises:
        CorruptFileError: where the file is.
        UserError: where a variable is missing or of another shape: it is of another model.
    """
    named, header = _named(groups), _read_header(path)
    for name, variable in named:
        found, wanted = header["shapes"].get(name), list(variable.shape)
        if found != wanted:
            raise UserError(f"{path}: is of another model ({name} must have the shape {wanted}. Found: {found})")
    values = npz.read(path, [name for name, _ in named])
    for name, variable in named:
        variable.assign(values[name])
    return header["state"]


class Series:
    """The newest checkpoints of a training, one file per step. Where one is damaged the one before it serves.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[Path] = set()

    def paths(self) -> list[Path]:
        """The checkpoints, newest first."""
        return sorted(self.folder.glob("step-*.npz"), reverse=True)

    def save(self, groups: Groups, step: int, state: Mapping[str, Any]) -> None:
        """Writes a checkpoint, and then deletes the damaged ones and all but the newest KEPT."""
        newest = self.folder / f"step-{step:09d}.npz"
        save(newest, groups, state)
        self._damaged.discard(newest)
        whole = [path for path in self.paths() if path not in self._damaged]
        for path in [*self._damaged, *whole[KEPT:]]:
            path.unlink(missing_ok=True)
        self._damaged.clear()

    def restore(self, groups: Groups) -> dict[str, Any] | None:
        """Puts the newest checkpoint that is whole into variables and returns its state; None where there is none.

        Raises:
            CorruptFileError: where there are checkpoints and none can be read.
            UserError: where they are of another model.
        """
        return self._newest(lambda path: restore(path, groups))

    def read_state(self) -> dict[str, Any] | None:
        """Returns the state of the newest checkpoint that is whole; None where there is none."""
        return self._newest(read_state)

    def _newest(self, read: Callable[[Path], Result]) -> Result | None:
        failure = None
        for path in self.paths():
            try:
                found = read(path)
            except CorruptFileError as error:
                self._damaged.add(path)
                failure = failure or error
                continue
            if failure:
                warn(f"{failure}; going on from {path.name}")
            return found
        if failure:
            raise CorruptFileError(f"{failure}, and there is none before it; delete {self.folder} to begin again")
        return None


def _named(groups: Groups) -> list[tuple[str, keras.Variable]]:
    """Names variables by group and place: Keras numbers its own names by what else the process has made."""
    return [
        (f"{group}/{number:03d}", variable)
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    ]


def _read_header(path: Path) -> dict[str, Any]:
    return _header_in(npz.read(path, [HEADER]))


def _header_in(content: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return json.loads(content[HEADER].tobytes())
