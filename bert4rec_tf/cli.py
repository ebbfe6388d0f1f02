"""The `bert4rec` command: its first word names what to do, the rest is that thing's own."""

import argparse
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from bert4rec_tf import comparison, summary
from bert4rec_tf.errors import UserError, unknown_name
from bert4rec_tf.workdir import WorkDirectory


class Parser(argparse.ArgumentParser):
    """A mistake ends in one line and exit code 2, as all mistakes of the user do."""

    def error(self, message: str) -> NoReturn:
        end(message)


def run(arguments: list[str]) -> None:
    """prepare, train, evaluate and export a model (the same as python -m bert4rec_tf.run)"""
    sys.argv[1:] = arguments
    runpy.run_module("bert4rec_tf.run", run_name="__main__", alter_sys=True)


def compare(arguments: list[str]) -> None:
    """compare two evaluated work directories user by user"""
    parser = Parser(prog="bert4rec compare", description=compare.__doc__)
    parser.add_argument("first", type=Path, help="work directory of one run")
    parser.add_argument("second", type=Path, help="work directory of another run on the same data")
    named = parser.parse_args(arguments)
    found = comparison.compare(named.first, named.second)
    evaluation = WorkDirectory(named.first).read_config()["run"]["evaluation"]
    print(summary.comparison_table(found, evaluation["num_negatives"]))


def data(arguments: list[str]) -> None:
    """print the statistics of data (the same as python -m bert4rec_tf.data)"""
    from bert4rec_tf.data import __main__ as statistics

    statistics.main(arguments)


COMMANDS: dict[str, Callable[[list[str]], None]] = {"run": run, "compare": compare, "data": data}


def usage() -> str:
    lines = [f"  {name:<9} {command.__doc__}" for name, command in COMMANDS.items()]
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
        COMMANDS[name](arguments)
    except UserError as error:
        end(str(error))


def end(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
