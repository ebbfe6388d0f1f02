"""Calls in a forked process."""

import os
import signal
import time

SECONDS = 60


def call_in_fork(function):
    """Calls a function in a forked process. Returns the text of its error; "" if there is none.

    Fails if the process does not end: then it is killed.
    """
    read_end, write_end = os.pipe()
    process = os.fork()
    if not process:
        try:
            function()
        except Exception as error:
            os.write(write_end, f"{type(error).__name__}: {error}".encode()[:4_000])
        finally:
            os._exit(0)
    os.close(write_end)
    until = time.monotonic() + SECONDS
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise AssertionError("the forked process hangs")
        time.sleep(0.01)
    with open(read_end, "rb") as pipe:
        return pipe.read().decode()
