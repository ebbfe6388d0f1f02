"""Names of processes that write, whether such a process still runs, and which process may use TensorFlow."""

import contextlib
import functools
import hashlib
import os
import secrets
import socket
from pathlib import Path

from bert4rec_tf.foundation.errors import UserError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

own_writers = set[str]()
"""The names that `make_writer_name` has given out in this process, and whose writes have not ended."""


@functools.cache
def get_host_code() -> str:
    """Returns a code of what gives out the process ids: this machine since its start, or one of its containers.

    Containers may share a name and have the same process ids. On Linux the code tells them apart.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts += [BOOT_ID.read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:6]


def make_writer_name() -> str:
    """Returns a new name for a writer: process, machine and a random part. No two writers share one."""
    name = f"{os.getpid()}-{get_host_code()}-{secrets.token_hex(4)}"
    own_writers.add(name)
    return name


def is_running(process: int) -> bool:
    """Returns whether this machine runs a process with this id. Not for Windows, where asking would end it."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return process != 0


_user_of_tensorflow: int | None = None


def claim_tensorflow() -> None:
    """Call it before TensorFlow computes anything. Raises UserError in a process that was forked after that.

    A fork does not copy TensorFlow's threads, so its first operation there would wait for them for ever.
    """
    global _user_of_tensorflow
    if _user_of_tensorflow not in (None, os.getpid()):
        raise UserError(
            "This process was forked from one that had used TensorFlow, which does not work after a fork. Open or "
            'train the model in the forked process alone, or start it with multiprocessing.get_context("spawn")'
        )
    _user_of_tensorflow = os.getpid()
