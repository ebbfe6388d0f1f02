"""A lock for stores, which have none of their own."""

import contextlib
import os
import threading
import time

import filelock

from bert4rec_tf.foundation.processes import get_host_code, is_running, make_writer_name
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.foundation.stores import Url

BEAT_SECONDS = 10.0
"""Seconds between an owner's signs of life."""

SILENT_SECONDS = 60.0
"""After this time without a sign of life, an owner is taken to be dead."""

POLL_SECONDS = 1.0


class StoreLock:
    """A lock shared by several machines: an object in a store that is created only if it is absent.

    It has the interface of `filelock.FileLock`, and is reentrant. While it is held, a thread keeps writing new numbers
    into the object. If the number stays the same, a killed process left the object behind, and it is replaced. The
    machines' clocks are not compared. Two processes may both continue if they replace the object at the same moment, or
    if one was stopped for long. Both then write the same bytes, because a run decides them.
    """

    def __init__(self, url: Url) -> None:
        self.lock_counter = 0
        self._url = url
        self._name = ""
        self._released = threading.Event()

    def acquire(self, timeout: float = -1) -> None:
        """Takes the lock. If there is another owner, waits until it has released the lock.

        With a timeout of 0 it waits only until the other gives a sign of life, and then raises filelock.Timeout. Raises
        OSError if the store cannot be written.
        """
        if not self.lock_counter:
            self._name = make_writer_name()
            while not self._create():
                owner = self._read()
                if owner is None:
                    continue
                is_dead = _has_ended(owner)
                if not is_dead and timeout == 0:
                    warn(f"{self._url}: another process may work here; waiting for a sign of life")
                if not is_dead and self._shows_life(owner):
                    if timeout == 0:
                        raise filelock.Timeout(str(self._url))
                elif self._read() == owner:
                    self._url.unlink(missing_ok=True)
            self._released.clear()
            self._thread = threading.Thread(target=self._beat, daemon=True)
            self._thread.start()
        self.lock_counter += 1

    def release(self) -> None:
        self.lock_counter -= 1
        if self.lock_counter:
            return
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._is_mine():
                self._url.unlink(missing_ok=True)

    def _create(self) -> bool:
        """Returns whether the object was absent. Then it is ours."""
        try:
            self._url.create(self._make_content(0))
        except FileExistsError:
            return False
        return True

    def _shows_life(self, owner: bytes) -> bool:
        """Returns whether the owner changes the object within SILENT_SECONDS; False also if it deletes it."""
        begin = time.monotonic()
        while time.monotonic() - begin <= SILENT_SECONDS:
            time.sleep(POLL_SECONDS)
            current = self._read()
            if current != owner:
                return current is not None
        return False

    def _make_content(self, number: int) -> bytes:
        return f"{self._name} {number}\n".encode()

    def _read(self) -> bytes | None:
        try:
            return self._url.read_bytes()
        except FileNotFoundError:
            return None

    def _is_mine(self) -> bool:
        return (self._read() or b"").split(b" ")[0].decode() == self._name

    def _beat(self) -> None:
        number = 0
        while not self._released.wait(BEAT_SECONDS):
            number += 1
            with contextlib.suppress(OSError):  # A store that is unavailable for a moment is tried again.
                if not self._is_mine():
                    warn(f"{self._url}: another process has taken over this folder")
                    return
                self._url.write_bytes(self._make_content(number))


def _has_ended(owner: bytes) -> bool:
    """Returns whether the owner was a process of this machine that no longer runs."""
    process, host = owner.decode().split("-")[:2]
    return host == get_host_code() and int(process) != os.getpid() and os.name != "nt" and not is_running(int(process))
