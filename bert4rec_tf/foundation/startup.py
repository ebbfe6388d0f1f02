"""How a command begins: its arguments, and TensorFlow without the notes that nobody asked for."""

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from bert4rec_tf.foundation.errors import UserError, of_system
from bert4rec_tf.foundation.files import expanded_path


class Parser(argparse.ArgumentParser):
    """A mistake is a UserError, as all mistakes of the user are."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def path_argument(text: str) -> Path:
    """Returns the path that an argument names (`files.expanded_path`). What is wrong with it reaches the user so."""
    try:
        return expanded_path(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def exit_on_error(main: Callable[[], None], stopped: str = "Stopped.") -> None:
    """Does what a command line says. A mistake of the user, and what the system refuses, end in one line with exit code
    2, Ctrl-C in 130."""
    try:
        main()
    except UserError as error:
        end(str(error))
    except BrokenPipeError:
        # Whoever read the output has enough; nothing is to be told when the interpreter closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        end(of_system(error))
    except KeyboardInterrupt:
        print(f"\n{stopped}", file=sys.stderr)
        sys.exit(130)


def end(message: str) -> NoReturn:
    """Ends the process with an error in one line and exit code 2."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def import_tensorflow() -> None:
    """Imports TensorFlow without the notes that it writes at its start past every setting; a failure shows them."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            importlib.import_module("tensorflow")
        except BaseException:
            notes.seek(0)
            os.write(stderr, notes.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
