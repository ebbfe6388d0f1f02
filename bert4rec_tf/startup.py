"""How a command begins: its arguments, and TensorFlow without the notes that nobody asked for."""

import argparse
import importlib
import os
import tempfile
from typing import NoReturn

from bert4rec_tf.errors import UserError


class Parser(argparse.ArgumentParser):
    """A mistake is a UserError, as all mistakes of the user are."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


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
