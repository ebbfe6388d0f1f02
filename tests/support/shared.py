"""Folders that are made once in a session, by whichever worker needs one first."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import filelock


class SharedFolders:
    """Folders below one that all workers of a session see. Who changes such a folder takes a copy."""

    def __init__(self, tmp_path_factory) -> None:
        own = tmp_path_factory.getbasetemp()
        self._root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
        self._root.mkdir(exist_ok=True)

    def get(self, name: str, make: Callable[[Path], object]) -> Path:
        """Returns the folder `name`, which `make` has filled once.

        Args:
            name: of the folder.
            make: fills the new folder that it is called with; what was half made by a failure is made again.
        """
        folder, done = self._root / name, self._root / f"{name}.done"
        with filelock.FileLock(self._root / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder
