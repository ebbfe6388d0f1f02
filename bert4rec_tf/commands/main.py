"""The `bert4rec` command: its first word names what to do, the rest is that thing's own."""

import importlib
import sys

from bert4rec_tf.foundation.errors import unknown_name
from bert4rec_tf.foundation.startup import exit_on_error

COMMANDS = {
    "run": "prepare, train, evaluate and export a model (the same as python -m bert4rec_tf.run)",
    "compare": "compare two evaluated work directories user by user",
    "data": "print the statistics of data (the same as python -m bert4rec_tf.data)",
    "recommend": "recommend items to one history, or to every user of a file, from an exported model",
    "serve": "serve an exported model over HTTP, with a page to try it",
}
"""Names of the modules in `commands`, with a line on each; only the one that is asked for is imported."""


def usage() -> str:
    lines = [f"  {name:<9} {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(["usage: bert4rec COMMAND ...", "", *lines, "", "bert4rec COMMAND --help tells more."])


def main() -> None:
    """Does what the command line says."""
    name, *arguments = sys.argv[1:] or [""]
    if name in ("help", "--help", "-h"):
        print(usage())
        return
    exit_on_error(lambda: _command(name, arguments), stopped="Stopped. The same command goes on where it was.")


def _command(name: str, arguments: list[str]) -> None:
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    importlib.import_module(f"bert4rec_tf.commands.{name}").main(arguments)
