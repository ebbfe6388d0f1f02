"""Names of processes that write, and whether such a process still runs."""

import hashlib
import os
import secrets
import socket


def host_code() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def new_writer_name() -> str:
    """Returns a new name for a writer: process, machine and a random part. No two writers share one."""
    return f"{os.getpid()}-{host_code()}-{secrets.token_hex(4)}"


def is_running(process: int) -> bool:
    """Returns whether this machine runs a process with this id. Not for Windows, where asking would end it."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return process != 0
