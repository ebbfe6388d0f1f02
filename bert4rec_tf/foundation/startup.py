"""How a command starts: it turns errors into one line, and imports TensorFlow quietly."""

import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import NoReturn

from bert4rec_tf.foundation import xla_cache
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import print_warnings

BROKEN_PIPE = 141
"""The exit code of a program that the signal SIGPIPE has ended."""


def exit_on_error(main: Callable[[], None]) -> None:
    """Runs a command. A user's mistake, an OSError or too little memory prints one line and exits with code 2.

    Ctrl-C exits with 130, and an output whose reader has ended, as in `| head`, with 141. This is the one place where
    errors end.
    """
    _open_standard_error()
    if sys.stderr is None:  # else what is printed to it would be printed to the standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of titles that the terminal cannot show
    if os.getpid() == 1:  # in a container, where the system ignores signals without a handler
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with print_warnings():
            main()
        if sys.stdout is not None:
            sys.stdout.flush()
    except UserError as error:
        exit_with_error(str(error))
    except BrokenPipeError:
        _end_output()
        sys.exit(BROKEN_PIPE)
    except OSError as error:
        _end_output()
        exit_with_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("\nStopped. Run the same command again to resume.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "ResourceExhaustedError":
            raise
        exit_with_error(
            f"There is not enough memory for these settings; reduce the largest of them ({str(error)[:200]})"
        )


def _end_output() -> None:
    """Writes what is left of the output; if that fails, Python does not try again at its end."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_with_error(message: str) -> NoReturn:
    """Prints an error on one line and exits with code 2."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


KEPT_MEMORY = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(1 << 30)}
"""Lets TensorFlow keep the memory of large tensors for the next ones, up to 1 PB, so without a limit.
Otherwise the memory goes back to the system after every operation, and new pages take up to 40 % of a step."""


GROWING_MEMORY = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""Lets TensorFlow take a GPU's memory as it needs it. Otherwise it takes all of it at the start."""


def import_tensorflow() -> None:
    """Imports TensorFlow without its start-up messages, which no setting turns off. A failed import shows them.

    The devices are listed too, for a machine without a GPU gets another message then. TensorFlow's warnings are turned
    off; most are for its own developers. Sets what TensorFlow reads at its first operation: KEPT_MEMORY,
    GROWING_MEMORY and `xla_cache`; the user's own values stay. Products of float32 matrices are exact, on GPUs too.
    """
    for name, value in {"TF_CPP_MIN_LOG_LEVEL": "3", **KEPT_MEMORY, **GROWING_MEMORY}.items():
        os.environ.setdefault(name, value)
    xla_cache.set_flags()
    with _hide_messages():
        tensorflow = importlib.import_module("tensorflow")
        tensorflow.config.list_physical_devices()
    tensorflow.config.experimental.enable_tensor_float_32_execution(False)
    tensorflow.get_logger().setLevel(logging.ERROR)  # in a notebook, its import has set INFO


def _open_standard_error() -> None:
    """Sends the standard error nowhere if it is closed, as in some services: else the next open file would be it."""
    try:
        os.fstat(2)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != 2:
            os.dup2(nowhere, 2)
            os.close(nowhere)


@contextlib.contextmanager
def _hide_messages() -> Iterator[None]:
    """Hides what libraries write to the standard error inside the block, unless the block ends with an error."""
    _open_standard_error()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as messages:
        os.dup2(messages.fileno(), 2)
        try:
            yield
        except BaseException:
            messages.seek(0)
            os.write(stderr, messages.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
