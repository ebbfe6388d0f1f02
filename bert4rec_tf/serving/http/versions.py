"""The version of a model that is served: the newest complete one of a folder, exchanged while requests are answered."""

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from bert4rec_tf.export.layout import MODEL
from bert4rec_tf.foundation.errors import UserError

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")

ONLY = 1
"""The version of a SavedModel that lies in no numbered folder."""


class Numbered(Protocol):
    """Whatever is loaded from the folder of a version."""

    version: int


Loaded = TypeVar("Loaded", bound=Numbered)
Stamp = tuple[tuple[str, int, int], ...]


class Versions(Generic[Loaded]):
    """The versions in a folder, laid out as TensorFlow Serving's: a SavedModel in each folder whose name is a number.

    A folder that holds a SavedModel itself has the one version 1, which is not looked at again.

    Args:
        folder: of the versions, or of one SavedModel.
        load: makes what is served from the folder of a version. It raises UserError where it cannot.
        tell: is given a line for each thing that happens.

    Attributes:
        current: what is served. Whoever works with it keeps his own reference: it may be another one the next moment.

    Raises:
        UserError: where no version can be loaded.
    """

    def __init__(self, folder: Path, load: Callable[[Path, int], Loaded], tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._load = load
        self._tell = tell
        self._seen: dict[int, Stamp] = {}
        self._refused: dict[int, tuple[Stamp, str]] = {}
        self._loading: int | None = None
        self._is_single = (folder / MODEL).exists()
        self.current = self._first()

    def _first(self) -> Loaded:
        if not self._folder.is_dir():
            raise UserError(f"{self._folder}: there is no such folder")
        if self._is_single:
            return self._load(self._folder, ONLY)
        stamps = self._look()
        if not stamps:
            raise UserError(f"{self._folder}: holds neither a SavedModel nor numbered folders that do")
        for number in sorted(stamps, reverse=True):
            found = self._try(number, stamps[number])
            if found is not None:
                return found
        (_, reason) = self._refused[max(stamps)]
        raise UserError(f"{self._folder}: no version of it can be loaded; of the newest, {reason}")

    def refresh(self) -> None:
        """Looks into the folder once, and loads the newest complete version if that is not the current one.

        A version is complete when nothing in its folder changed since the last look. One that cannot be loaded is
        tried again when its folder changes. Where the current version's folder is gone, the newest of the others
        takes its place; where there are no others, the current one stays.
        """
        if self._is_single:
            return
        stamps, before = self._look(), self._seen
        self._seen = stamps
        self._refused = {number: refusal for number, refusal in self._refused.items() if number in stamps}
        for number in sorted(stamps, reverse=True):
            if number == self.current.version:
                return
            is_refused = number in self._refused and self._refused[number][0] == stamps[number]
            if is_refused or stamps[number] != before.get(number):
                continue
            found = self._try(number, stamps[number])
            if found is not None:
                self._tell(f"version {number} takes the place of version {self.current.version}")
                self.current = found
                gc.collect()  # The graph of the old one is full of cycles, and large.
                return

    def _try(self, number: int, stamp: Stamp) -> Loaded | None:
        self._loading = number
        try:
            found = self._load(self._folder / str(number), number)
        except UserError as error:
            self._refused[number] = (stamp, str(error))
            self._tell(f"version {number} cannot be served: {error}")
            return None
        finally:
            self._loading = None
        self._refused.pop(number, None)
        return found

    def _look(self) -> dict[int, Stamp]:
        """Returns the names, sizes and times of all files of each version that has a SavedModel."""
        stamps = {}
        for path in self._children():
            try:
                if _NUMBER.fullmatch(path.name) and (path / MODEL).is_file():
                    stamps[int(path.name)] = _stamp(path)
            except OSError:
                continue  # It is just being moved or deleted.
        return stamps

    def _children(self) -> list[Path]:
        try:
            return list(self._folder.iterdir())
        except OSError:
            return []

    def status(self) -> list[dict[str, Any]]:
        """Returns the state of each version, newest first, as TensorFlow Serving tells it."""
        states = {number: ("END", "UNKNOWN", reason) for number, (_, reason) in dict(self._refused).items()}
        if self._loading is not None:
            states[self._loading] = ("LOADING", "OK", "")
        states[self.current.version] = ("AVAILABLE", "OK", "")
        return [
            {"version": str(number), "state": state, "status": {"error_code": code, "error_message": message}}
            for number, (state, code, message) in sorted(states.items(), reverse=True)
        ]


def _stamp(folder: Path) -> Stamp:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple((str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
