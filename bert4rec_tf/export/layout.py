"""Names of the files of an exported model, and how to find its folder."""

import contextlib
import re
import shlex
from pathlib import Path
from typing import Any

from bert4rec_tf.config.data_names import is_own
from bert4rec_tf.foundation import files, stores
from bert4rec_tf.foundation.errors import UserError

SAVED_MODEL = "saved_model"
FORMATS = (SAVED_MODEL, "onnx", "litert")
"""What a trained model can be exported as, and the names of these exports' folders in a work directory."""

MODEL = "saved_model.pb"
"""A folder is a SavedModel if it holds this file."""

VOCABULARY, USERS = "vocabulary.txt", "users.txt"
"""Raw ids, one per line: line i for item i, and line u + 1 for user u."""

ASSETS = "assets"
"""The folder of these two files in a SavedModel."""

CARD = "model_card.json"

CARD_OF_SAVED_MODEL = Path("assets.extra", CARD)
TITLES = CARD_OF_SAVED_MODEL.with_name("titles.csv")
ATTRIBUTES = TITLES.with_name("attributes.parquet")
"""TensorFlow reserves the folder `assets.extra` for the user's own files."""

ITEM_ID = "bert4recitemid"
"""The column of ids in the attributes: a name that no attribute has, as `id` may be one."""

VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
"""The name of a folder that holds a version of a model."""

Stamp = tuple[Any, ...]
"""The names of all files in a folder, and what changes when they change: sizes and times."""

CONFIG = "config.json"
"""A folder is a work directory if it holds this file."""


def has_model(folder: Path) -> bool:
    """Returns whether a folder holds a SavedModel that is not empty, as one that a full disk cut may be."""
    file = folder / MODEL
    return file.is_file() and file.stat().st_size > 0


def find_model_folder(path: Path) -> Path:
    """Returns the SavedModel's folder in a work directory, or any other folder as it is.

    Finishes replacements of both that were killed. Raises UserError if the work directory has no SavedModel.
    """
    stores.finish_replacement(path)
    if (path / MODEL).exists() or not (path / CONFIG).exists():
        return path
    folder = path / SAVED_MODEL
    stores.finish_replacement(folder)
    if not (folder / MODEL).exists():
        raise UserError(
            f"{path}: has no exported model yet; run bert4rec run --mode=export --workdir={path}, or what began it, if "
            "that was stopped"
        )
    return folder


def find_newest_version(folder: Path) -> int | None:
    """Returns the highest number of a folder's numbered SavedModels; None if there is none."""
    return max(find_versions(folder), default=None)


def find_versions(folder: Path) -> dict[int, Stamp]:
    """Returns the number of each of a folder's numbered SavedModels -> a stamp of its files."""
    stamps: dict[int, Stamp] = {}
    if isinstance(folder, stores.Url):
        for name, stamp in sorted(folder.list_stamps().items()):
            number, _, subpath = name.partition("/")
            if VERSION.fullmatch(number):
                stamps[int(number)] = (*stamps.get(int(number), ()), (subpath, stamp))
        return {number: stamp for number, stamp in stamps.items() if MODEL in dict(stamp)}
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):  # The folder is being moved or deleted.
            if VERSION.fullmatch(path.name) and (path / MODEL).is_file():
                stamps[int(path.name)] = _read_stamp(path)
    return stamps


def _read_stamp(folder: Path) -> Stamp:
    paths = files.list_files(folder)
    return tuple((str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)


def make_histories_command(folder: Path) -> str:
    """Returns what exports the model at `folder` again, with all histories: a command, or `fit` for a table's data."""
    workdir, path = "WORKDIR", folder.parent / CONFIG
    if not isinstance(folder, stores.Url) and path.exists():
        workdir, config = str(folder.parent), files.read_json(path)
        if config.get("interactions") is None and is_own(config["run"]["dataset"]):
            return f"call b4r.fit(data, ..., workdir={workdir!r}) again, with the same data and settings"
    return f"bert4rec run --mode=export --workdir={shlex.quote(workdir)} --with_histories={1_000_000}"


def require_saved_model(path: Path) -> None:
    """Raises UserError unless `path` is a SavedModel or a work directory that has one.

    Commands call it before they import TensorFlow, which takes seconds.
    """
    file = find_model_folder(path) / MODEL
    if not file.exists():
        version = find_newest_version(path)
        raise UserError(
            f"{path}: holds versions of a model; name one of them, such as {path / str(version)}"
            if version is not None
            else f"{file}: cannot be read (no such file)"
        )
