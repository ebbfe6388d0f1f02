"""The `bert4rec` command: its first word names what to do, the rest is that thing's own."""

import importlib
import os
import sys
from typing import NoReturn

from bert4rec_tf.errors import UserError, of_system, unknown_name

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
    try:
        if name not in COMMANDS:
            raise unknown_name("command", name, COMMANDS)
        importlib.import_module(f"bert4rec_tf.commands.{name}").main(arguments)
    except UserError as error:
        end(str(error))
    except BrokenPipeError:
        # Whoever read the output has enough; nothing is to be told when the interpreter closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        end(of_system(error))
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on where it was.", file=sys.stderr)
        sys.exit(130)


def end(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
