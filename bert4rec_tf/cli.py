"""The `bert4rec` command: its first word names what to do, the rest is that thing's own."""

import argparse
import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import NoReturn

from bert4rec_tf import comparison, summary
from bert4rec_tf.config import field_type
from bert4rec_tf.errors import UserError, unknown_name
from bert4rec_tf.progress import warn
from bert4rec_tf.serving.settings import ServerSettings
from bert4rec_tf.startup import import_tensorflow
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


def recommend(arguments: list[str]) -> None:
    """recommend items to one history, or to every user of a file, from an exported model"""
    parser = Parser(prog="bert4rec recommend", description=recommend.__doc__, allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True, help="folder of a SavedModel (saved_model in a workdir)")
    parser.add_argument("--history", help="raw item ids, oldest first, separated by commas")
    parser.add_argument("--user", default="", help="raw user id, for models that know users")
    parser.add_argument("--input", type=Path, help="CSV without a header: a user, then the items, oldest first")
    parser.add_argument("--output", type=Path, help="file to write for --input; ends in .csv or .parquet")
    parser.add_argument("-k", type=int, help="how many items (default: as many as the export says)")
    parser.add_argument("--keep_seen", action="store_true", help="recommend items of the history too")
    parser.add_argument("--exclude", default="", help="raw item ids to leave out, separated by commas")
    parser.add_argument("--candidates", default="", help="raw item ids to rank alone, separated by commas")
    parser.add_argument("--titles", type=Path, help="CSV with a line `id,title` for each item")
    named = parser.parse_args(arguments)
    if (named.history is None) == (named.input is None) or (named.input is None) != (named.output is None):
        raise UserError("Either --history, or --input and --output must be given")
    import_tensorflow()
    from bert4rec_tf.serving import batch, client

    listed = {name: tuple(client.split_ids(getattr(named, name))) for name in ("exclude", "candidates")}
    choices = client.Choices(k=named.k, exclude_seen=not named.keep_seen, **listed)
    titles = client.read_titles(named.titles) if named.titles else None
    model = client.SavedRecommender(named.model)
    if named.input is not None:
        users = batch.recommend_file(model, named.input, named.output, choices, titles)
        print(f"{named.output}: recommendations to {users:,} users")
        return
    history = client.split_ids(named.history)
    found = model.recommend([history], [named.user], choices)
    if found.unknown[0]:
        warn(f"{found.unknown[0]} of the {len(history)} ids of the history are not known, and were passed over")
    for rank, (item, score) in enumerate(zip(found.items[0], found.scores[0]), start=1):
        print(f"{rank:>4}  {score:>10.4f}  {(titles or {}).get(item, item)}")


def serve(arguments: list[str]) -> None:
    """serve an exported model over HTTP, with a page to try it"""
    parser = Parser(prog="bert4rec serve", description=serve.__doc__)
    for one in fields(ServerSettings):
        given = {"required": True} if one.default is MISSING else {"default": one.default}
        shown = "" if given.get("default") is None else " (default: %(default)s)"
        parser.add_argument(f"--{one.name}", type=field_type(one), help=one.metadata["help"] + shown, **given)
    settings = ServerSettings(**vars(parser.parse_args(arguments)))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from bert4rec_tf.serving import web
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise UserError("The server needs aiohttp: pip install 'bert4rec-tf[serve]'") from error
    web.serve(settings)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "run": run,
    "compare": compare,
    "data": data,
    "recommend": recommend,
    "serve": serve,
}


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
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on where it was.", file=sys.stderr)
        sys.exit(130)


def end(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
