"""Converts files of interactions to `Sequences`, and stores the result for the next time."""

import contextlib
import glob
import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec_tf.config.data_names import Interactions, PublishedFile
from bert4rec_tf.data.reading import blocks, layouts, records, tables, text
from bert4rec_tf.data.reading.columns import ANY_BLANKS, PARQUET, TEXT, Layout
from bert4rec_tf.data.reading.grouping import make_sequences
from bert4rec_tf.data.reading.report import Report
from bert4rec_tf.data.reading.rows import Rows
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import ActionTimes, Sequences, Vocabulary
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import show_transfer
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.foundation.warning import FileWarning, warn

CONVERSION_FORMAT = 14
"""The version of stored conversions. Raise it when the conversion changes, so that older ones are not read."""

FOLDER = "converted"

TABLE_FORMATS = {"_delta_log/*": "Delta", ".hoodie/*": "Hudi", "metadata/*.metadata.json": "Iceberg"}
"""What a folder of Parquet files has -> whose table it is. Such a folder keeps rows that were deleted or changed."""


def open_first(interactions: Interactions, paths: Sequence[Path]) -> Rows:
    """Returns what reads the rows of files with the layout of the first. Raises UserError as `read_layout`."""
    layout = read_layout(paths[0], interactions)
    return Rows(str(paths[0]), Times(), layout, interactions, is_one_of_many=len(paths) > 1)


def read_tables(path: Path, reader: Rows) -> Iterator[pa.Table]:
    """Yields the good rows of a file, and adds what else is met to the findings of `reader` (`open_first`).

    Raises UserError as `convert`.
    """
    layout = read_layout(path, reader.options)
    if str(layout) != str(reader.layout):
        raise UserError(f"{path}: its columns are {layout}; those of {reader.file_name} are {reader.layout}")
    reader = replace(reader, file_name=str(path), layout=layout)
    if layout.kind == PARQUET:
        yield from tables.read_rows(path, reader)
        return
    progress = show_transfer(f"reading {path.name}", path.stat().st_size)
    with progress, blocks.open_unpacked(path, watch=progress.update) as stream:
        yield from (text if layout.kind == TEXT else records).read_rows(stream, reader)


def list_files(interactions: Interactions) -> list[Path]:
    """Returns the files to read, sorted: single ones, those that match a pattern, and the Parquet files of a folder.

    A file that matches several of them is read once. Raises UserError if a folder has no Parquet file or is of
    TABLE_FORMATS, no file matches a pattern, or a path is no plain file.
    """
    paths: dict[Path | str, Path] = {}
    for path in interactions.files:
        if glob.has_magic(str(path)) and (isinstance(path, Url) or not path.exists()):
            matches = _match_files(path)
            _refuse_table(tables.find_root(path), matches)
        elif path.is_dir():
            matches = [file for file in _glob(path, "**/*.parquet") if file.is_file() and not _is_hidden(file, path)]
            _refuse_table(path, matches)
            if not matches:
                raise UserError(f"{path}: a folder without .parquet files; name others by a pattern: '{path}/*.csv'")
        else:
            files.refuse_pipe(path)
            matches = [path]
        if not matches:
            raise UserError(f"{path}: no such file")
        paths |= {path if isinstance(path, Url) else os.path.realpath(path): path for path in matches}
    names = set(map(str, paths.values()))
    if duplicates := sorted(name for name in names if f"{name}.gz" in names):
        raise UserError(f"{duplicates[0]}: is there twice, packed too ({duplicates[0]}.gz). Name only one of them")
    return sorted(paths.values(), key=lambda path: (isinstance(path, Url), path))


def _match_files(pattern: Path) -> list[Path]:
    """Returns the files that match a pattern; `**` passes over unfinished ones, as a folder does."""
    if isinstance(pattern, Url):
        matches = [path for path in pattern.glob_files() if _may_match(path, pattern)]
    else:
        matches = [path for match in glob.glob(str(pattern), recursive=True) if (path := Path(match)).is_file()]
    if not re.search(r"(^|[/\\])\*\*([/\\]|$)", str(pattern)):
        return matches
    return [path for path in matches if not _is_hidden(path, tables.find_root(pattern))]


def _may_match(path: Url, pattern: Url) -> bool:
    """Returns whether `glob` would let a path match: a part that begins with `.` only one that does so too."""
    pairs = zip(str(path).split("/"), str(pattern).split("/"))
    return not any(part.startswith(".") and not pattern_part.startswith(".") for part, pattern_part in pairs)


def _is_hidden(path: Path, folder: Path) -> bool:
    """Returns whether a file in a folder, or a folder on the way, begins with `_` or `.`, as unfinished ones do."""
    is_url = isinstance(path, Url)
    parts = str(path).removeprefix(str(folder)).split("/") if is_url else path.relative_to(folder).parts
    return any(part.startswith(("_", ".")) for part in parts)


def _glob(folder: Path, pattern: str) -> Iterable[Path]:
    return (folder / pattern).glob_files() if isinstance(folder, Url) else folder.glob(pattern)


def _refuse_table(root: Path, paths: Iterable[Path]) -> None:
    """Raises UserError if Parquet files are of TABLE_FORMATS, in the folder `root` or a part of such a table.

    A store is only asked about `root`: each question takes time, and others may be forbidden.
    """
    parents = {parent for path in paths if path.suffix == ".parquet" for parent in path.absolute().parents}
    if not parents:
        return
    root = root.absolute()
    while ("=" in root.name or root.name == "data") and root.parent != root:  # a folder of a table
        root = root.parent
    below_root = set() if isinstance(root, Url) else {folder for folder in parents if root in folder.parents}
    for folder, (pattern, kind) in itertools.product(sorted({root, *below_root}), TABLE_FORMATS.items()):
        holds_files = not glob.has_magic(str(folder)) and (kind != "Iceberg" or folder / "data" in parents)
        with contextlib.suppress(OSError):
            if holds_files and any(_glob(folder, pattern)):
                raise UserError(f"{folder}: a table of {kind}, whose files keep deleted rows; export its present rows")


def convert(interactions: Interactions, to_train: bool = True) -> tuple[Sequences, Report]:
    """Returns the sequences in files of interactions, and a report, which has not warned yet.

    Args:
        interactions: the files and how to read them.
        to_train: whether too little to train on is an error.

    Raises UserError if a file is missing, damaged or empty, its columns cannot be found or differ from the first
    file's, a row is bad and not skipped, or too little is left to train on.
    """
    paths = list_files(interactions)
    reader = open_first(interactions, paths)
    parts = [table for path in paths for table in read_tables(path, reader)]
    return make_sequences(parts, reader, to_train)


def read_layout(path: Path, interactions: Interactions) -> Layout:
    """Returns the layout of a file. Raises UserError if it cannot be read or its columns cannot be found."""
    with blocks.open_unpacked(path) as stream:
        return layouts.find_layout(path, interactions, stream.read(layouts.SAMPLE_BYTES))


def describe_columns(interactions: Interactions) -> dict[str, dict[str, str]]:
    """Returns the columns of the first file as `Sequences.columns` has them. Raises UserError as `read_layout`."""
    return read_layout(list_files(interactions)[0], interactions).describe()


def parse_pairs(content: bytes, path: Path) -> Sequences:
    """Reads the authors' processed files: lines of `user item`, integers, oldest first within a user.

    Raises UserError if the file is empty, a line is not two integers, no user has two actions, or there is only one
    item.
    """
    if not content.strip():
        raise UserError(f"{path}: the file is empty")
    layout = Layout(TEXT, "user", "item", separator=ANY_BLANKS, names=("user", "item"))
    reader = Rows(str(path), Times(), layout, PublishedFile(str(path)), integers=True)
    return make_sequences(list(text.read_rows(io.BytesIO(content), reader)), reader)[0]


def convert_once(interactions: Interactions, folder: Path) -> tuple[Sequences, Report]:
    """Does what `convert` does, but stores the result in `folder` and reads it from there, unless it is damaged."""
    sources = [identify_source(path, interactions) for path in list_files(interactions)]
    path = locate_conversion(folder, interactions, sources)
    return load_or_convert(path, interactions, lambda: convert(interactions))


def load_or_convert(
    path: Path, interactions: Interactions, convert: Callable[[], tuple[Sequences, Report]]
) -> tuple[Sequences, Report]:
    """Returns the conversion that is stored at `path`. If there is none, calls `convert` and stores the result.

    The sequences have the columns of the user's own files, which are not stored. Warns of doubts about these files.
    """
    result = None
    try:
        result = load(path) if path.exists() else None
    except npz.CorruptFileError as error:
        warn(f"{error}; converted again", FileWarning)
    if result is None:
        result = convert()
        try:
            files.make_folder(path.parent)
            save(path, *result)
        except UserError as error:
            warn(f"{error}; the converted data are not kept", FileWarning)
    sequences, report = result[0], replace(result[1], path=interactions.title)
    if interactions.is_published:
        return sequences, report
    report.warn_of_doubts(sequences)
    return replace(sequences, columns=describe_columns(interactions)), report


def locate_conversion(folder: Path, interactions: Interactions, sources: list[str]) -> Path:
    """Returns where a conversion is stored. `sources`: `identify_source` of the files, in order."""
    key: dict[str, Any] = {
        "format": CONVERSION_FORMAT,
        "sources": sources,
        "options": interactions.options,
        "published": interactions.is_published,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return folder / FOLDER / f"{interactions.name.removeprefix('own-')}-{digest}.npz"


def identify_source(path: Path, interactions: Interactions) -> str:
    """Returns a file's checksum, and the columns that its folders name. Raises UserError if it cannot be read."""
    partition = tables.read_partition(path, interactions)
    try:
        return files.compute_checksum(path) + (json.dumps(partition) if partition else "")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise files.unreadable_error(path, error) from error


def save(path: Path, sequences: Sequences, report: Report) -> None:
    """Writes sequences and their report to one `.npz` file."""
    content = {
        "users": npz.encode_lines(sequences.users.tolist()),
        "names": npz.encode_lines(sequences.vocabulary.items.tolist()),
        "report": npz.encode_lines([json.dumps(asdict(report))]),
        "items": sequences.items,
        "splits": sequences.splits,
    }
    if sequences.num_later is not None:
        content["num_later"] = sequences.num_later
    if sequences.times is not None:
        content["times"] = sequences.times.values
    npz.write(path, content | {"counts": sequences.vocabulary.counts})


def load(path: Path) -> tuple[Sequences, Report]:
    """Reads what `save` wrote. Raises `npz.CorruptFileError` if it cannot be read."""
    arrays = npz.read(path)
    try:
        users, items = (np.array(npz.decode_lines(arrays[name]), object) for name in ("users", "names"))
        report = Report(**json.loads(arrays["report"].tobytes()))
        times = ActionTimes(arrays["times"], report.times) if "times" in arrays else None
        vocabulary, num_later = Vocabulary(items, arrays["counts"]), arrays.get("num_later")
        return Sequences(arrays["items"], arrays["splits"], users, vocabulary, num_later, times=times), report
    except (KeyError, ValueError, TypeError) as error:
        raise npz.CorruptFileError(f"{path}: not a kept conversion ({error})") from error
