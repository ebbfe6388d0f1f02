"""The `bert4rec` command: its first word names what to do, the rest are that thing's flags."""

import runpy
import sys

from bert4rec_tf.errors import unknown_name

COMMANDS = {"run": "bert4rec_tf.run"}
USAGE = """usage: bert4rec COMMAND [flags]

commands:
  run   prepare, train and evaluate a model (the same as python -m bert4rec_tf.run)

bert4rec COMMAND --help tells the flags of a command."""


def main() -> None:
    """Runs the module behind a command as a program of its own."""
    if len(sys.argv) > 1 and sys.argv[1] in ("help", "--help", "-h"):
        print(USAGE)
        return
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(f"error: {unknown_name('command', ' '.join(sys.argv[1:2]), COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    module = COMMANDS[sys.argv.pop(1)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
