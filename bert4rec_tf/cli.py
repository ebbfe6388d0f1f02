"""The `bert4rec` command: its first word names what to do, the rest are that thing's flags."""

import runpy
import sys

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
        received = sys.argv[1] if len(sys.argv) > 1 else "no command"
        print(f"error: unknown command: {received}; known: {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    module = COMMANDS[sys.argv.pop(1)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
