"""Converts files of interactions to `Sequences`, and keeps the result for the next time."""

import glob
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import archives, bad_rows, blocks, grouping, layouts, parquet, records, text
from bert4rec_tf.data.reading.bad_rows import BadRows
from bert4rec_tf.data.reading.checks import Checker
from bert4rec_tf.data.reading.columns import PARQUET, TEXT, Columns, Layout
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Transfer, warn

FORMAT = 2
"""The version of kept conversions: raise it when conversion changes, so that older ones are not read."""

FOLDER = "converted"


@dataclass(frozen=True)
class Report:
    """What a conversion read, kept and skipped.

    Attributes:
        path: the files as the user named them.
        columns: the columns of users, items and times.
        read, kept: users, items and actions before and after the filter.
        min_user_actions, min_item_actions: the filter.
        bad: kind of bad row -> how many were skipped, and where the first is.
    """

    path: str
    columns: str
    read: dict[str, int]
    kept: dict[str, int]
    min_user_actions: int = 1
    min_item_actions: int = 1
    bad: dict[str, tuple[int, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.columns}", *bad_rows.summary(self.bad)]
        sizes = [", ".join(f"{count:,} {name}" for name, count in found.items()) for found in (self.read, self.kept)]
        lines.append(f"read: {sizes[0]}")
        lines.append(
            f"kept: {sizes[1]} (users with at least {self.min_user_actions}, items with at least "
            f"{self.min_item_actions} actions)"
        )
        return "\n".join(lines)


def files_of(asked: Interactions) -> list[Path]:
    """Returns the files to read, sorted: single ones, those that match a pattern, and the Parquet files of a folder.

    Raises:
        UserError: if a folder has no Parquet file, or no file matches a pattern.
    """
    found: set[Path] = set()
    for path in asked.files:
        if path.is_dir():
            matches = list(path.glob("*.parquet"))
            if not matches:
                raise UserError(f"{path}: a folder without .parquet files; name others by a pattern: '{path}/*.csv'")
        elif glob.has_magic(str(path)) and not path.exists():
            matches = [Path(match) for match in glob.glob(str(path)) if Path(match).is_file()]
            if not matches:
                raise UserError(f"{path}: no such file")
        else:
            matches = [path]
        found.update(matches)
    return sorted(found)


def convert(asked: Interactions, member: str | None = None) -> tuple[Sequences, Report]:
    """Reads interactions from files.

    Args:
        asked: the files and how to read them.
        member: the name of the file in it, if it is an archive.

    Raises:
        UserError: if a file is missing, damaged or empty, its columns cannot be found or differ from the first file's,
            a row is bad and not skipped, or nothing can be learnt from what is left.
    """
    paths = files_of(asked)
    tables: list[pa.Table] = []
    times, bad = Times(), dict[str, tuple[int, str]]()
    first: Layout | None = None
    for path in paths:
        layout = _layout(path, asked, member)
        first = first or layout
        if str(layout) != str(first):
            raise UserError(f"{path}: its columns are {layout}; those of {paths[0]} are {first}")
        unit = "row" if layout.kind == PARQUET else "line"
        policy = BadRows(str(path), asked.bad_rows == "skip", unit, path.name if len(paths) > 1 else None, bad)
        tables += _tables(path, layout, Checker(policy, times, layout.kind == TEXT), member)
    return sequences_of(tables, asked, str(first), bad)


def _layout(path: Path, asked: Interactions, member: str | None) -> Layout:
    with archives.opened(path, member) as stream:
        return layouts.find(path, Columns.asked(str(path), asked), stream.read(layouts.SAMPLE), member)


def _tables(path: Path, layout: Layout, checker: Checker, member: str | None) -> Iterator[pa.Table]:
    """Yields the good rows of one file."""
    if layout.kind == PARQUET:
        yield from parquet.read(path, layout, checker)
        return
    reader = (text if layout.kind == TEXT else records).Reader(layout, checker)
    shown = Transfer(f"reading {path.name}", 0, path.stat().st_size)
    with shown, archives.opened(path, member, watch=shown.advance) as stream:
        for block in blocks.read(stream, str(path), layout.separator if layout.quoted else None):
            yield from reader.read(block)


def sequences_of(
    tables: list[pa.Table], asked: Interactions, columns: str, bad: dict[str, tuple[int, str]]
) -> tuple[Sequences, Report]:
    """Makes sequences from the parts of a table. Empties `tables`, to save memory.

    Raises:
        UserError: if nothing can be learnt from what is left.
    """
    least = asked.min_user_actions, asked.min_item_actions
    whole = [grouping.table_of(tables)]
    tables.clear()
    sequences, sizes = grouping.to_sequences(whole.pop(), *least)
    why = "".join(f"; {line}" for line in bad_rows.summary(bad))
    if sequences.num_users == 0:
        raise UserError(f"{asked.title}: no user has two actions left, so there is nothing to learn from{why}")
    if sequences.num_items == 1:
        raise UserError(f"{asked.title}: there is only one item left, so there is nothing to recommend{why}")
    return sequences, Report(asked.title, columns, sizes["read"], sizes["kept"], *least, bad)


def converted(asked: Interactions, folder: Path, member: str | None = None) -> tuple[Sequences, Report]:
    """Returns what `convert` does, read from `folder` if it is kept there. Replaces a damaged file."""
    checksums = [checksum(path) for path in files_of(asked)]
    key = {"format": FORMAT, "sources": checksums, "member": member, "options": asked.options}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / FOLDER / f"{asked.name.removeprefix('own-')}-{digest}.npz"
    if path.exists():
        try:
            sequences, report = load(path)
            return sequences, replace(report, path=asked.title)
        except npz.CorruptFileError as error:
            warn(f"{error}; converted again")
    sequences, report = convert(asked, member)
    try:
        files.make_folder(path.parent)
        save(path, sequences, report)
    except UserError as error:
        warn(f"{error}; the converted data are not kept")
    return sequences, report


def checksum(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises UserError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def save(path: Path, sequences: Sequences, report: Report) -> None:
    """Writes sequences and their report to one `.npz` file."""
    texts = {
        "users": "\n".join(sequences.users.tolist()),
        "names": "\n".join(sequences.vocabulary.items.tolist()),
        "report": json.dumps(asdict(report)),
    }
    content: dict[str, Any] = {name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()}
    numbers = {"items": sequences.items, "splits": sequences.splits, "counts": sequences.vocabulary.counts}
    npz.write(path, {**content, **numbers, "left_out": np.array(sequences.num_left_out)})


def load(path: Path) -> tuple[Sequences, Report]:
    """Reads what `save` wrote. Raises `npz.CorruptFileError` if it cannot be read."""
    found = npz.read(path)
    try:
        users, names, report = (found[name].tobytes().decode() for name in ("users", "names", "report"))
        vocabulary = Vocabulary(np.array(names.split("\n"), object), found["counts"])
        raw_users = np.array(users.split("\n"), object)
        sequences = Sequences(found["items"], found["splits"], raw_users, vocabulary, int(found["left_out"]))
        content = json.loads(report)
        content["bad"] = {kind: tuple(counts) for kind, counts in content["bad"].items()}
        return sequences, Report(**content)
    except (KeyError, ValueError, TypeError) as error:
        raise npz.CorruptFileError(f"{path}: not a kept conversion ({error})") from error
