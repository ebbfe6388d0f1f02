"""Converts files of interactions to `Sequences`, and stores the result for the next time."""

import glob
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec_tf.config.data_names import Interactions, PublishedFile
from bert4rec_tf.data.reading import layouts, records, tables, text, unpacking
from bert4rec_tf.data.reading.columns import PARQUET, TEXT, Columns, Layout
from bert4rec_tf.data.reading.grouping import bound_user_actions, make_sequences, warn_of_doubts
from bert4rec_tf.data.reading.rows import Rows, summarize_bad_rows
from bert4rec_tf.data.reading.text import ANY_BLANKS
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import ActionTimes, Sequences, Vocabulary
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import show_transfer, warn
from bert4rec_tf.foundation.stores import Url

FORMAT = 7
"""The version of stored conversions. Raise it when the conversion changes, so that older ones are not read."""

FOLDER = "converted"


@dataclass(frozen=True)
class Report:
    """What a conversion read, kept and skipped.

    Attributes:
        path, columns: the files as the user named them, and the columns of users, items and times.
        read, kept: users, items and actions before and after the filter.
        bad: kind of bad row -> how many were skipped, and where the first is.
        doubt: as in `columns.Layout`.
        equal_times: the share of the steps from a user's action to the next in which the time stays the same.
        times: what the times mean; empty if there are none.
    """

    path: str
    columns: str
    read: dict[str, int]
    kept: dict[str, int]
    min_user_actions: int = 1
    min_item_actions: int = 1
    bad: dict[str, tuple[int, str]] = field(default_factory=dict)
    equal_times: float = 0.0
    times: str = ""
    doubt: str = ""

    def warn_of_doubts(self, sequences: Sequences) -> None:
        """Warns if the rows that became `sequences` may mean something else than they say."""
        if self.doubt:
            warn(f"{self.path}: {self.doubt}")
        warn_of_doubts(self.path, sequences, self.equal_times)

    def warn_of_skipped(self) -> None:
        for line in summarize_bad_rows(self.bad):
            warn(f"{self.path}: {line}")

    def __str__(self) -> str:
        sizes_before, sizes_after = (
            ", ".join(f"{count:,} {name}" for name, count in counts.items()) for counts in (self.read, self.kept)
        )
        bounds = f"users with at least {self.min_user_actions}, items with at least {self.min_item_actions} actions"
        lines = [
            f"{self.path}: {self.columns}",
            *([f"times: {self.times}"] if self.times else []),
            *summarize_bad_rows(self.bad),
            f"read: {sizes_before}",
            f"kept: {sizes_after} ({bounds})",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Source:
    """The files to read, in order. All must have the layout of the first."""

    interactions: Interactions
    paths: Sequence[Path]
    layout: Layout

    def read_tables(self, path: Path, times: Times, skipped: dict[str, tuple[int, str]]) -> Iterator[pa.Table]:
        """Yields the good rows of one file, and counts the others in `skipped` (`Rows.skipped`).

        Raises UserError as `convert`.
        """
        layout = read_layout(path, self.interactions)
        if str(layout) != str(self.layout):
            raise UserError(f"{path}: its columns are {layout}; those of {self.paths[0]} are {self.layout}")
        rows = Rows(
            str(path),
            times,
            skip=self.interactions.bad_rows == "skip",
            plain=layout.kind == TEXT,
            unit="row" if layout.kind in (PARQUET, TEXT) else "line",
            among=path.name if len(self.paths) > 1 else None,
            skipped=skipped,
            keep_words=self.interactions.keep_missing_words or self.interactions.is_published,
        )
        if layout.kind == PARQUET:
            yield from tables.read_rows(path, layout, rows)
            return
        progress = show_transfer(f"reading {path.name}", path.stat().st_size)
        with progress, unpacking.open_unpacked(path, watch=progress.update) as stream:
            yield from (text if layout.kind == TEXT else records).read_rows(stream, layout, rows)


def list_files(interactions: Interactions) -> list[Path]:
    """Returns the files to read, sorted: single ones, those that match a pattern, and the Parquet files of a folder.

    A file that matches several of them is read once. Raises UserError if a folder has no Parquet file, no file matches
    a pattern, or a path is no plain file.
    """
    paths: dict[Path | str, Path] = {}
    for path in interactions.files:
        if isinstance(path, Url) and glob.has_magic(str(path)):
            matches = path.glob_files()
        elif path.is_dir():
            inside = (path / "**/*.parquet").glob_files() if isinstance(path, Url) else path.glob("**/*.parquet")
            matches = [file for file in inside if file.is_file() and not tables.is_hidden(file, path)]
            if not matches:
                raise UserError(f"{path}: a folder without .parquet files; name others by a pattern: '{path}/*.csv'")
        elif glob.has_magic(str(path)) and not path.exists():
            matches = [Path(match) for match in glob.glob(str(path)) if Path(match).is_file()]
        else:
            files.refuse_pipe(path)
            matches = [path]
        if not matches:
            raise UserError(f"{path}: no such file")
        paths |= {path if isinstance(path, Url) else os.path.realpath(path): path for path in matches}
    return sorted(paths.values(), key=lambda path: (isinstance(path, Url), path))


def convert(interactions: Interactions, min_actions: int = 2) -> tuple[Sequences, Report]:
    """Returns the sequences in files of interactions, and a report.

    Args:
        interactions: the files and how to read them.
        min_actions: users with fewer actions are left out.

    Raises UserError if a file is missing, damaged or empty, its columns cannot be found or differ from the first
    file's, a row is bad and not skipped, or too little is left to train on.
    """
    paths = list_files(interactions)
    source = Source(interactions, paths, read_layout(paths[0], interactions))
    times, skipped = Times(), dict[str, tuple[int, str]]()
    parts = [table for path in paths for table in source.read_tables(path, times, skipped)]
    sequences, sizes = make_sequences(parts, interactions, skipped, times, min_actions)
    bounds = bound_user_actions(interactions, min_actions), interactions.min_item_actions
    facts = *bounds, skipped, sizes["equal_times"], sizes["times"], source.layout.doubt
    report = Report(interactions.title, str(source.layout), sizes["read"], sizes["kept"], *facts)
    if not interactions.is_published:
        report.warn_of_doubts(sequences)
    return sequences, report


def read_layout(path: Path, interactions: Interactions) -> Layout:
    """Returns the layout of a file. Raises UserError if it cannot be read or its columns cannot be found."""
    columns = Columns(str(path), interactions.user_column, interactions.item_column, interactions.time_column)
    with unpacking.open_unpacked(path) as stream:
        return layouts.find_layout(path, columns, stream.read(layouts.SAMPLE_BYTES))


def describe_columns(interactions: Interactions) -> dict[str, dict[str, str]]:
    """Returns the columns of the first file as `Sequences.columns` has them. Raises UserError as `read_layout`.

    The type of a TEXT's ids is the one that they have if all are whole numbers (`runs.id_texts.check_types`).
    """
    path = list_files(interactions)[0]
    layout = read_layout(path, interactions)
    if layout.kind == PARQUET:
        return tables.describe_columns(layout, tables.read_schema(path))
    names = {role: layout.header[column] if layout.header else column for role, column in layout.roles.items()}
    columns = {role: {"name": name if isinstance(name, str) else str(name + 1)} for role, name in names.items()}
    if layout.kind == TEXT:
        columns["user"]["type"] = columns["item"]["type"] = "int64"
    return columns


def read_bytes(path: Path) -> bytes:
    """Returns a file's unpacked content. Raises UserError if it is missing, damaged or empty."""
    with unpacking.open_unpacked(path) as file:
        content = file.read()
    if not content.strip():
        raise UserError(f"{path}: the file is empty")
    return content


def parse_pairs(content: bytes, path: Path) -> Sequences:
    """Reads the authors' processed files: lines of `user item`, integers, oldest first within a user.

    Raises UserError if a line is not two integers, no user has two actions, or there is only one item.
    """
    layout = Layout(TEXT, 0, 1, separator=ANY_BLANKS, width=2)
    rows = Rows(str(path), Times(), integers=True, keep_words=True)
    tables = list(text.read_rows(io.BytesIO(content), layout, rows))
    return make_sequences(tables, PublishedFile(str(path)), {}, rows.times)[0]


def convert_once(interactions: Interactions, folder: Path) -> tuple[Sequences, Report]:
    """Does what `convert` does, but stores the result in `folder` and reads it from there, unless it is damaged."""
    path = locate_conversion(folder, interactions, [compute_checksum(path) for path in list_files(interactions)])
    return load_or_convert(path, interactions, lambda: convert(interactions))


def load_or_convert(
    path: Path, interactions: Interactions, convert: Callable[[], tuple[Sequences, Report]]
) -> tuple[Sequences, Report]:
    """Returns the conversion that is stored at `path`. If there is none, calls `convert` and stores the result.

    The sequences have the columns of the user's own files, which are not stored.
    """
    if path.exists():
        try:
            sequences, report = load(path)
            report = replace(report, path=interactions.title)
            if not interactions.is_published:
                report.warn_of_doubts(sequences)
            return _add_columns(sequences, interactions), report
        except npz.CorruptFileError as error:
            warn(f"{error}; converted again")
    sequences, report = convert()
    try:
        files.make_folder(path.parent)
        save(path, sequences, report)
    except UserError as error:
        warn(f"{error}; the converted data are not kept")
    return _add_columns(sequences, interactions), report


def _add_columns(sequences: Sequences, interactions: Interactions) -> Sequences:
    return sequences if interactions.is_published else replace(sequences, columns=describe_columns(interactions))


def locate_conversion(folder: Path, interactions: Interactions, checksums: list[str]) -> Path:
    """Returns where a conversion is stored. `checksums`: of the files, in order."""
    # `member` named a file in an archive, which is now unpacked when it is downloaded.
    key: dict[str, Any] = {"format": FORMAT, "sources": checksums, "member": None, "options": interactions.options}
    key["published"] = interactions.is_published
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return folder / FOLDER / f"{interactions.name.removeprefix('own-')}-{digest}.npz"


def compute_checksum(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises UserError if it cannot be read."""
    try:
        return files.compute_checksum(path)
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
    content |= {"counts": sequences.vocabulary.counts, "left_out": np.array(sequences.num_left_out)}
    npz.write(path, content)


def load(path: Path) -> tuple[Sequences, Report]:
    """Reads what `save` wrote. Raises `npz.CorruptFileError` if it cannot be read."""
    arrays = npz.read(path)
    try:
        names, report = (arrays[name].tobytes().decode() for name in ("names", "report"))
        vocabulary = Vocabulary(np.array(names.split("\n"), object), arrays["counts"])
        raw_users = np.array(npz.decode_lines(arrays["users"]), object)
        left_out, num_later = int(arrays["left_out"]), arrays.get("num_later")
        content = json.loads(report)
        times = ActionTimes(arrays["times"], content["times"]) if "times" in arrays else None
        sequences = Sequences(
            arrays["items"], arrays["splits"], raw_users, vocabulary, left_out, num_later, times=times
        )
        content["bad"] = {kind: tuple(counts) for kind, counts in content["bad"].items()}
        return sequences, Report(**content)
    except (KeyError, ValueError, TypeError) as error:
        raise npz.CorruptFileError(f"{path}: not a kept conversion ({error})") from error
