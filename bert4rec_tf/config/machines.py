"""The machines of a training, as TF_CONFIG names them. Kubernetes' training operator and others set it."""

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bert4rec_tf.foundation.errors import UserError

VARIABLE = "TF_CONFIG"
CHIEF, WORKER = "chief", "worker"

WAIT_SECONDS = 600.0
"""How long a machine waits for the others."""

LOST = "Another worker has ended or does not answer. Run the same command on all workers again to resume"
CHECK_SECONDS, LOST_SECONDS = 2.0, 20.0
"""How often a training machine asks others whether they still run, and how long one may not answer."""


@dataclass(frozen=True)
class Machines:
    """The machines of a training, `count` in all. This one has number `index`; number 0 is the chief.

    `addresses`: host:port of each machine.
    """

    index: int
    count: int
    addresses: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def read(cls) -> "Machines | None":
        """Returns the machines of TF_CONFIG; None if it is not set or names at most one machine.

        Raises UserError if it cannot be understood, has several chiefs or other roles than "chief" and "worker", or its
        task is not one of its machines, or an address is not host:port or occurs twice.
        """
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        try:
            content: Any = json.loads(text)
            jobs = content.get("cluster", {})
            if any(isinstance(addresses, str) for addresses in jobs.values()):
                raise TypeError("the addresses must be a list")
            sizes = {role: len(addresses) for role, addresses in jobs.items()}
            role, number = str(content.get("task", {}).get("type")), int(content.get("task", {}).get("index", -1))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"`{VARIABLE}` must be JSON with a cluster and a task. Received: {text}") from error
        count, chiefs = sum(sizes.values()), sizes.get(CHIEF, 0)
        if count <= 1:
            return None
        if not set(sizes) <= {CHIEF, WORKER} or chiefs > 1 or not 0 <= number < sizes.get(role, 0):
            raise UserError(
                f"`{VARIABLE}` must have workers, at most one chief, and a task that is one of them. Received: {text}"
            )
        addresses = [*jobs.get(CHIEF, ()), *jobs[WORKER]]
        for address in addresses:
            if not _is_address(address) or addresses.count(address) > 1:
                raise UserError(
                    f"`{VARIABLE}` must name each machine once, as host:port with a port from 1 to 65535. "
                    f"Received: {address!r}"
                )
        return cls(number if role == CHIEF else chiefs + number, count, tuple(addresses))

    def wait_for_others(self, seconds: float = WAIT_SECONDS) -> None:
        """Waits until all machines listen at their addresses. TensorFlow would wait for them without an end.

        Raises UserError if this machine's port is taken, or after `seconds`, with the machines that are missing.
        """
        port, is_dual = int(self.addresses[self.index].rpartition(":")[2]), socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        try:
            listener = socket.create_server(("", port), family=family, dualstack_ipv6=is_dual)
        except OSError as error:
            raise UserError(
                f"`{VARIABLE}`: this machine cannot listen on port {port} ({os.strerror(error.errno or 0)})"
            ) from error
        end, missing_addresses = time.monotonic() + seconds, {*self.addresses} - {self.addresses[self.index]}
        with listener:
            while missing_addresses := {address for address in missing_addresses if not _answers(address)}:
                if time.monotonic() >= end:
                    names = ", ".join(sorted(missing_addresses))
                    raise UserError(f"`{VARIABLE}`: no answer within {seconds:g} seconds from {names}")
                time.sleep(0.2)

    @contextlib.contextmanager
    def watch_others(self, check_seconds: float = CHECK_SECONDS, lost_seconds: float = LOST_SECONDS) -> Iterator[None]:
        """Inside the block, ends this process with one line if the chief does not answer; the chief, if any does not.

        TensorFlow tells so only at the end of a step, and compiling the first one can take minutes.
        """
        is_over, peers = threading.Event(), self.addresses[:1] if self.index else self.addresses[1:]

        def watch() -> None:
            last_answers = dict.fromkeys(peers, time.monotonic())
            while not is_over.wait(check_seconds):
                last_answers |= {address: time.monotonic() for address in peers if _answers(address)}
                for address, last_answer in last_answers.items():
                    if time.monotonic() - last_answer > lost_seconds and not is_over.is_set():
                        print(f"error: {LOST} (no answer from {address})", file=sys.stderr, flush=True)
                        os._exit(2)  # the main thread may be compiling

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            is_over.set()


def _is_address(address: Any) -> bool:
    match = re.fullmatch(r".+:(\d{1,5})", address, re.ASCII) if isinstance(address, str) else None
    return match is not None and 1 <= int(match[1]) <= 65_535


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except (OSError, UnicodeError):  # UnicodeError: for a name that cannot be one
        return False
    return True
