"""Model versions: finds the newest complete one in a folder, and switches to it while requests are answered."""

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert4rec_tf.export.layout import MODEL, Stamp, find_versions
from bert4rec_tf.foundation.errors import UserError, format_error
from bert4rec_tf.foundation.warning import ServingWarning, warn

LOOK_SECONDS = 5.0
"""A check waits this long for a version to load. Then it returns, so that the next one can notice a newer version."""

SLOW_SECONDS = 600.0
"""After this time, as if its disk did not answer, a version that still loads no longer holds up older ones."""


@dataclass(frozen=True)
class Loading:
    """A version that is being loaded by a thread, which may never end: a disk that hangs cannot be interrupted."""

    stamp: Stamp
    result: Future = field(default_factory=Future)
    begin: float = field(default_factory=time.monotonic)


class Versions:
    """The versions in a folder with TensorFlow Serving's layout: numbered folders with one SavedModel each.

    A folder that is a SavedModel itself is version 1, and `refresh` does nothing.

    Args:
        folder: of the versions, or of one SavedModel.
        load: takes a folder and its number, and returns an object whose `version` is that number. If it raises, the
            version is not served, and `status` says why.

    Attributes:
        current: the version in use. Copy the reference before you work with it: `refresh` may replace it at any time.

    Raises UserError if no version can be loaded.
    """

    def __init__(self, folder: Path, load: Callable[[Path, int], Any]) -> None:
        self._folder = folder
        self._load = load
        self._seen_stamps: dict[int, Stamp] = {}
        self._refusals: dict[int, tuple[Stamp, str]] = {}
        self._jobs: dict[int, Loading] = {}
        self._is_single = (folder / MODEL).exists()
        self._stamp: Stamp | None = None  # of the current version, unless it is single
        self.current = self._load_first()

    def _load_first(self) -> Any:
        if self._is_single:
            result: Future = Future()
            self._load_version(1, result)
            return result.result()
        stamps = find_versions(self._folder)
        if not stamps:
            raise UserError(f"{self._folder}: holds neither a SavedModel nor numbered folders that do")
        for number in sorted(stamps, reverse=True):
            patience = None if number == min(stamps) else SLOW_SECONDS
            if (version := self._try_to_load(number, stamps[number], patience)) is not None:
                self._stamp = stamps[number]
                return version
        reason = self._refusals[max(stamps)][1] if max(stamps) in self._refusals else "does not answer"
        raise UserError(f"{self._folder}: no version can be loaded; the newest: {reason}")

    def refresh(self) -> None:
        """Checks the folder once, and loads the newest complete version if it is not the current one.

        A version is complete if its folder has not changed since the previous check. A version that cannot be loaded is
        tried again when its folder changes, and so is the current one, which serves until it is whole. If the current
        version's folder is deleted, the newest other version replaces it; if there is none, the current one stays in
        use. A version that takes long to load goes on loading while later checks look for newer ones.
        """
        if self._is_single:
            return
        stamps, old_stamps = find_versions(self._folder), self._seen_stamps
        self._seen_stamps = stamps
        self._refusals = {number: refusal for number, refusal in self._refusals.items() if number in stamps}
        self._jobs = {number: job for number, job in self._jobs.items() if stamps.get(number) == job.stamp}
        for number in sorted(stamps, reverse=True):
            is_current = number == self.current.version
            if is_current and stamps[number] == self._stamp:
                return
            is_refused = number in self._refusals and self._refusals[number][0] == stamps[number]
            if is_refused or stamps[number] != old_stamps.get(number):
                if is_current:
                    return
                continue
            if (version := self._try_to_load(number, stamps[number], LOOK_SECONDS)) is not None:
                old_version = "that of before" if is_current else f"version {self.current.version}"
                warn(f"version {number} replaces {old_version}", ServingWarning)
                self.current, self._stamp = version, stamps[number]
                self._jobs = {other: job for other, job in self._jobs.items() if other > number}
                gc.collect()  # The old version's graph is large and has reference cycles.
                return
            if is_current:
                return
            if number in self._jobs and time.monotonic() - self._jobs[number].begin < SLOW_SECONDS:
                return

    def _try_to_load(self, number: int, stamp: Stamp, patience: float | None) -> Any:
        """Returns a loaded version; None if it is refused, or still loads after so many seconds (None: no limit)."""
        if number not in self._jobs:
            self._jobs[number] = job = Loading(stamp)
            # A daemon, because the end of the process must not wait for it.
            threading.Thread(target=self._load_version, args=(number, job.result), daemon=True).start()
        try:
            version = self._jobs[number].result.result(patience)
        except TimeoutError:
            return None
        except UserError as error:
            self._refusals[number] = (stamp, str(error))
            warn(f"version {number} cannot be served: {error}", ServingWarning)
            version = None
        else:
            self._refusals.pop(number, None)
        del self._jobs[number]
        return version

    def _load_version(self, number: int, result: Future) -> None:
        """Puts the loaded version, or the UserError that says why it cannot be loaded, into `result`."""
        folder = self._folder if self._is_single else self._folder / str(number)
        try:
            result.set_result(self._load(folder, number))
        except UserError as error:
            result.set_exception(error)
        except Exception as error:
            result.set_exception(UserError(f"{folder}: cannot be loaded ({format_error(error)})"))

    def status(self) -> list[dict[str, Any]]:
        """Returns the state of each version, newest first, in TensorFlow Serving's format."""
        states = {number: ("END", "UNKNOWN", reason) for number, (_, reason) in dict(self._refusals).items()}
        states |= {number: ("LOADING", "OK", "") for number in tuple(self._jobs)}
        states[self.current.version] = ("AVAILABLE", "OK", "")
        return [
            {"version": str(number), "state": state, "status": {"error_code": code, "error_message": message}}
            for number, (state, code, message) in sorted(states.items(), reverse=True)
        ]
