"""How command lines are read."""

import argparse
from typing import NoReturn

from bert4rec_tf.errors import UserError


class Parser(argparse.ArgumentParser):
    """A mistake is a UserError, as all mistakes of the user are."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)
