"""Mistakes that a user can make: how each comes about in a folder, the flags, and what the one line must tell."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = (
    "--steps=4 --warmup_steps=1 --evaluate_every=2 --hidden_dim=8 --num_layers=1 --max_length=8 --window_step=0.5 "
    "--batch_size=8"
)
BEAUTY = f"--dataset=beauty --protocol=select_and_retrain --data_dir=. {TINY}"
SYNTHETIC = f"--dataset=synthetic {TINY}"
AGAIN = f"{BEAUTY} --workdir=work"
EVALUATE = "--mode=evaluate --workdir=work --data_dir=."
EXPORT = "--mode=export --workdir=work"


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        name: what it is.
        flags: the command line.
        words: what the line must hold.
        set_up: makes the folder in which the command runs; what it returns is kept until the command has ended.
        finished: whether that folder already has the data `beauty.txt` and their finished run `work`.
    """

    name: str
    flags: str
    words: tuple[str, ...]
    set_up: Callable[[Path], Any] = lambda folder: None
    finished: bool = False


def lines(users: int = 40, items: int = 30) -> list[str]:
    """Good data: 40 users of six actions."""
    return [f"{user} {1 + (7 * user + 3 * place) % items}" for user in range(1, users + 1) for place in range(6)]


def text(rows: list[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


# Flags


def of_flags(name: str, flags: str, *words: str) -> Mistake:
    return Mistake(name, flags, words)


def of_setting(flags: str, must: str, received: str | None = None) -> Mistake:
    """A value out of its range: the line says what must be, and repeats what came."""
    name = flags.split()[-1].removeprefix("--").split("=")[0]
    value = received or f"{name}={flags.split('=')[-1]}"
    return Mistake(flags, f"{SYNTHETIC} {flags}", (f"`{name}` must be {must}", f"Received: {value}"))


OF_FLAGS = [
    of_flags("no flags", "", "--dataset is required, unless --workdir names a run", "Try --dataset=synthetic"),
    of_flags("two kinds of data", f"{SYNTHETIC} --interactions=a.csv", "--dataset cannot be used with --interactions"),
    of_flags("an option of no file", f"{SYNTHETIC} --min_user_actions=2", "needs --interactions=FILE"),
    of_flags("a mistyped mode", f"{SYNTHETIC} --mode=evalute", "mode: 'evalute'. Did you mean 'evaluate'?"),
    of_flags("a mistyped flag", f"{SYNTHETIC} --hiden_dim=8", "flag 'hiden_dim'. Did you mean: hidden_dim"),
    of_flags("a flag given twice", "--interactions=a.csv --interactions=b.csv", "--interactions must be given once ("),
    of_flags(
        "columns given twice", "--interactions=a.csv --columns=user --columns=item", "--columns must be given once"
    ),
    of_flags("a word that is no flag", f"{SYNTHETIC} extra", "Flags start with --. Received: 'extra'"),
    of_flags("a flag without its value", f"{SYNTHETIC} --workdir", "Missing value for flag --workdir"),
    of_flags(
        "a word for a number", f"{SYNTHETIC} --dropout=high", "`dropout` must be a number. Received: dropout='high'"
    ),
    of_flags("a word for a whole number", f"{SYNTHETIC} --steps=ten", "`steps` must be a whole number", "steps='ten'"),
    of_flags("a word for a switch", f"{SYNTHETIC} --k_core=maybe", "`k_core` must be true or false", "k_core='maybe'"),
    of_flags("a file of flags that is not there", f"{SYNTHETIC} --flagfile=absent", "'absent'", "No such file"),
    of_flags("a setting but no data", "--workdir=work --dropout=0.1", "--dataset is required with --dropout"),
    of_flags("items of no export", f"{SYNTHETIC} --mode=train --k=3", "--k needs --mode=all or export"),
    of_flags("an unknown format", "--mode=export --workdir=work --format=onyx", "format: 'onyx'. Did you mean 'onnx'?"),
    of_flags("a format of no export", f"{SYNTHETIC} --format=onnx", "--format needs --mode=export", "mode=all"),
    of_flags("items of no SavedModel", f"{EXPORT} --format=onnx --k=3", "--k needs --format=saved_model"),
    of_flags(
        "features for another model",
        "--dataset=synthetic --model=bpr_mf --item_features=absent.csv",
        "`item_features` needs model=bert4rec, sasrec, auto. Received: model=bpr_mf",
    ),
    of_flags(
        "no features",
        f"{SYNTHETIC} --use_item_features=add",
        "needs the features: name their file with --item_features",
    ),
    of_flags(
        "a workdir in a store",
        f"{SYNTHETIC} --workdir=memory://bucket/work",
        *("`workdir` must be a folder on this machine", "aws s3 sync", "Received: workdir=memory://bucket/work"),
    ),
    of_flags("a workdir of nobody", f"{SYNTHETIC} --workdir=~nobody-at-all/x", "~nobody-at-all/x: no such user"),
    *(
        of_flags(f"before the data are read: {flags}", f"--interactions=absent.csv {flags}", words)
        for flags, words in {
            "--minutes=x": "`minutes` must be a number. Received: minutes='x'",
            "--minutes=5 --mode=evaluate": "--minutes needs --mode=all or train",
            "--steps=0": "`steps` must be at least 1",
        }.items()
    ),
    of_setting("--seed=-1", "a whole number from 0 to 2^32 - 1"),
    of_setting("--k=0", "at least 1"),
    of_setting("--checkpoint_seconds=-1", "at least 0", "checkpoint_seconds=-1.0"),
    of_setting("--replicas=9 --batch_size=8", "at least `replicas`", "batch_size=8, replicas=9"),
]


# Data files


def of_data(name: str, content: bytes, *words: str) -> Mistake:
    def write(folder: Path) -> None:
        (folder / "beauty.txt").write_bytes(content)

    return Mistake(name, f"{BEAUTY} --workdir=new", words, write)


OF_FILES = [
    of_data(
        "no user with two items to train on", b"1 2\n1 3\n1 4\n2 3\n2 4\n2 9\n", "two items to train on", "=beauty"
    ),
    of_data("one user only, who has seen every item", b"1 2\n1 3\n1 4\n1 2\n", "has seen every item", "dataset=beauty"),
]


# Folders


def full(folder: Path) -> None:
    """A folder of something else."""
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("mine")


def of_folder(name: str, flags: str, *words: str, set_up: Callable[[Path], Any] = full, data: bool = True) -> Mistake:
    def with_data(folder: Path) -> Any:
        if data:
            (folder / "beauty.txt").write_bytes(text(lines()))
        return set_up(folder)

    return Mistake(name, flags, words, with_data)


def folder_for_file(folder: Path) -> None:
    (folder / "beauty.txt").mkdir()


def other_program(folder: Path) -> None:
    full(folder)
    (folder / "full" / "config.json").write_text('{"hidden_size": 64}')
    (folder / "full" / ".notes.partial").write_text("mine")


NO_DATA = ("no such file", "set --data_dir")
OF_FOLDERS = [
    of_folder("no data", f"--dataset=beauty {TINY}", "cache/bert4rec_tf/beauty.txt", *NO_DATA, data=False),
    of_folder("no folder of data", f"{BEAUTY} --data_dir=absent", "absent/beauty.txt", *NO_DATA),
    of_folder("a folder for the file", BEAUTY, "beauty.txt", "Is a directory", set_up=folder_for_file, data=False),
    of_folder(
        "somebody else's folder", f"{BEAUTY} --workdir=full", "full: is not a work directory", "another --workdir"
    ),
    of_folder("a file for the work directory", f"{BEAUTY} --workdir=full/file", "full/file: is not a work directory"),
    of_folder("a work directory where none can be", f"{BEAUTY} --workdir=/proc/new", "/proc/new: cannot be created"),
    of_folder("another program's folder", f"{BEAUTY} --workdir=full", "full/config.json: ", set_up=other_program),
    of_folder("a file for what is prepared", f"{BEAUTY} --prepared_dir=full/file", "full/file: cannot be created"),
    of_folder(
        "one folder for two things", f"{BEAUTY} --workdir=new --prepared_dir=./new", "`prepared_dir` must", "new"
    ),
    of_folder(
        "a folder that a training has", f"{BEAUTY} --workdir=new --prepared_dir=new/select", "`prepared_dir` must"
    ),
    of_folder("nothing to go on with", "--workdir=absent", "absent: no work directory"),
    of_folder("nothing to export", "--mode=export --workdir=full", "full: no work directory"),
]
