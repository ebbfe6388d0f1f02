"""The `bert4rec` command. Its first argument names a subcommand, which parses the rest."""

import importlib
import sys

import bert4rec_tf
from bert4rec_tf.foundation.errors import unknown_name_error
from bert4rec_tf.foundation.startup import exit_on_error

COMMANDS = {
    "run": "prepare, train, evaluate and export a model (the same as python -m bert4rec_tf.run)",
    "compare": "compare two evaluated work directories user by user",
    "data": "print statistics of data",
    "recommend": "recommend items for one history, for known users, or for every user in a file",
    "update": "take new actions into an exported model, without training",
    "similar": "find the items that are most similar to others",
    "serve": "serve an exported model over HTTP, with a page to try it",
}
"""Subcommand -> summary. Each is a module in `commands`; only the one that runs is imported."""


def make_usage() -> str:
    lines = [f"  {name:<9} {summary}" for name, summary in COMMANDS.items()]
    begin = "To begin: bert4rec run --interactions=FILE.csv, or --dataset=synthetic for built-in data"
    return "\n".join(["usage: bert4rec COMMAND ...", "", *lines, "", begin, "For details: bert4rec COMMAND --help"])


def main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("help", "--help", "-h"):
        print(make_usage())
        return
    if name == "--version":
        print(f"bert4rec_tf {bert4rec_tf.__version__}")
        return
    exit_on_error(lambda: _run_command(name, arguments))


def _run_command(name: str, arguments: list[str]) -> None:
    if name not in COMMANDS:
        raise unknown_name_error("command", name, COMMANDS)
    importlib.import_module(f"bert4rec_tf.commands.{name}").main(arguments)
