"""Converts files of interactions to `Sequences`, and keeps the result for the next time."""

import glob
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import archives, layouts, records, tables, text
from bert4rec_tf.data.reading.columns import PARQUET, TEXT, Columns, Layout, warn_without_times
from bert4rec_tf.data.reading.grouping import bound_user_actions, make_sequences
from bert4rec_tf.data.reading.rows import Rows, summarize_bad_rows
from bert4rec_tf.data.reading.text import ANY_BLANKS
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Transfer, warn
from bert4rec_tf.foundation.stores import Url

FORMAT = 5
"""The version of kept conversions: raise it when conversion changes, so that older ones are not read."""

FOLDER = "converted"


@dataclass(frozen=True)
class Report:
    """What a conversion read, kept and skipped.

    Attributes:
        path, columns: the files as the user named them, and the columns of users, items and times.
        read, kept: users, items and actions before and after the filter.
        bad: kind of bad row -> how many were skipped, and where the first is.
        others: as in `columns.Layout`.
    """

    path: str
    columns: str
    read: dict[str, int]
    kept: dict[str, int]
    min_user_actions: int = 1
    min_item_actions: int = 1
    bad: dict[str, tuple[int, str]] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    def warn_without_times(self) -> None:
        warn_without_times(self.path, self.others)

    def warn_of_skipped(self) -> None:
        for line in summarize_bad_rows(self.bad):
            warn(f"{self.path}: {line}")

    def __str__(self) -> str:
        read, kept = (
            ", ".join(f"{count:,} {name}" for name, count in found.items()) for found in (self.read, self.kept)
        )
        bounds = f"users with at least {self.min_user_actions}, items with at least {self.min_item_actions} actions"
        lines = [
            f"{self.path}: {self.columns}",
            *summarize_bad_rows(self.bad),
            f"read: {read}",
            f"kept: {kept} ({bounds})",
        ]
        return "\n".join(lines)


def list_files(asked: Interactions) -> list[Path]:
    """Returns the files to read, sorted: single ones, those that match a pattern, and the Parquet files of a folder.

    A file that is named in several ways is read once. Raises UserError if a folder has no Parquet file, or no file
    matches a pattern.
    """
    found: dict[Path | str, Path] = {}
    for path in asked.files:
        if isinstance(path, Url) and glob.has_magic(str(path)):
            matches = path.glob_files()
        elif path.is_dir():
            matches = list(path.glob("*.parquet"))
            if not matches:
                raise UserError(f"{path}: a folder without .parquet files; name others by a pattern: '{path}/*.csv'")
        elif glob.has_magic(str(path)) and not path.exists():
            matches = [Path(match) for match in glob.glob(str(path)) if Path(match).is_file()]
        else:
            matches = [path]
        if not matches:
            raise UserError(f"{path}: no such file")
        found |= {path if isinstance(path, Url) else os.path.realpath(path): path for path in matches}
    return sorted(found.values(), key=lambda path: (isinstance(path, Url), path))


def convert(asked: Interactions, member: str | None = None, least: int = 2) -> tuple[Sequences, Report]:
    """Returns the sequences in files of interactions, and a report.

    Args:
        asked: the files and how to read them.
        member: if the file is an archive, the name of the member to read.
        least: users with fewer actions are left out.

    Raises UserError if a file is missing, damaged or empty, its columns cannot be found or differ from the first
    file's, a row is bad and not skipped, or nothing can be learnt from what is left.
    """
    paths = list_files(asked)
    first = read_layout(paths[0], asked, member)
    parts: list[pa.Table] = []
    times, bad = Times(), dict[str, tuple[int, str]]()
    for path in paths:
        parts += read_tables(path, (paths[0], first), asked, times, bad, len(paths) > 1, member)
    sequences, sizes = make_sequences(parts, asked, bad, least, times)
    bounds = bound_user_actions(asked, least), asked.min_item_actions
    report = Report(asked.title, str(first), sizes["read"], sizes["kept"], *bounds, bad, first.others)
    report.warn_without_times()
    return sequences, report


def read_tables(
    path: Path,
    first: tuple[Path, Layout],
    asked: Interactions,
    times: Times,
    bad: dict[str, tuple[int, str]],
    is_one_of_several: bool,
    member: str | None = None,
) -> Iterator[pa.Table]:
    """Yields the good rows of one file, and counts the others in `bad`.

    Args:
        first: path and layout of the first file. All files must have this layout.
        bad: as `Rows.found`.
        is_one_of_several: whether `bad` must name the file.
        asked, member: as for `convert`, and so are the errors.
    """
    layout = read_layout(path, asked, member)
    if str(layout) != str(first[1]):
        raise UserError(f"{path}: its columns are {layout}; those of {first[0]} are {first[1]}")
    unit, among = "row" if layout.kind in (PARQUET, TEXT) else "line", path.name if is_one_of_several else None
    rows = Rows(str(path), times, asked.bad_rows == "skip", layout.kind == TEXT, False, unit, among, bad)
    if layout.kind == PARQUET:
        yield from tables.read_rows(path, layout, rows)
        return
    shown = Transfer(f"reading {path.name}", path.stat().st_size)
    with shown, archives.open_unpacked(path, member, watch=shown.advance) as stream:
        yield from (text if layout.kind == TEXT else records).read_rows(stream, layout, rows)


def read_layout(path: Path, asked: Interactions, member: str | None = None) -> Layout:
    """Returns the layout of a file. Raises UserError if it cannot be read or its columns cannot be found."""
    columns = Columns(str(path), asked.user_column, asked.item_column, asked.time_column)
    with archives.open_unpacked(path, member) as stream:
        return layouts.find_layout(path, columns, stream.read(layouts.SAMPLE_BYTES), member)


def read_bytes(path: Path, member: str | None = None) -> bytes:
    """Returns a file's unpacked content. Raises UserError if it is missing, damaged or empty."""
    with archives.open_unpacked(path, member) as file:
        content = file.read()
    if not content.strip():
        raise UserError(f"{path}: the file is empty")
    return content


def parse_pairs(content: bytes, path: Path) -> Sequences:
    """Reads the authors' processed files: lines of `user item`, integers, oldest first within a user.

    Raises UserError if a line is not two integers, no user has two actions, or there is only one item.
    """
    layout, rows = Layout(TEXT, 0, 1, separator=ANY_BLANKS, width=2), Rows(str(path), Times(), integers=True)
    return make_sequences(list(text.read_rows(io.BytesIO(content), layout, rows)), Interactions(str(path)), {})[0]


def convert_once(asked: Interactions, folder: Path, member: str | None = None) -> tuple[Sequences, Report]:
    """Does what `convert` does, and keeps the result in `folder`, where the next call reads it unless it is damaged."""
    path = locate_conversion(folder, asked, [compute_checksum(path) for path in list_files(asked)], member)
    return load_or_convert(path, asked, lambda: convert(asked, member))


def load_or_convert(
    path: Path, asked: Interactions, convert: Callable[[], tuple[Sequences, Report]]
) -> tuple[Sequences, Report]:
    """Returns the conversion that is kept at `path`. Calls `convert`, and keeps what it returns, if none is."""
    if path.exists():
        try:
            sequences, report = load(path)
            report = replace(report, path=asked.title)
            report.warn_without_times()
            return sequences, report
        except npz.CorruptFileError as error:
            warn(f"{error}; converted again")
    sequences, report = convert()
    try:
        files.make_folder(path.parent)
        save(path, sequences, report)
    except UserError as error:
        warn(f"{error}; the converted data are not kept")
    return sequences, report


def locate_conversion(folder: Path, asked: Interactions, checksums: list[str], member: str | None = None) -> Path:
    """Returns where a conversion is kept. `checksums`: of the files, in order."""
    key = {"format": FORMAT, "sources": checksums, "member": member, "options": asked.options}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return folder / FOLDER / f"{asked.name.removeprefix('own-')}-{digest}.npz"


def compute_checksum(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises UserError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
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
    content |= {"counts": sequences.vocabulary.counts, "left_out": np.array(sequences.num_left_out)}
    npz.write(path, content)


def load(path: Path) -> tuple[Sequences, Report]:
    """Reads what `save` wrote. Raises `npz.CorruptFileError` if it cannot be read."""
    found = npz.read(path)
    try:
        names, report = (found[name].tobytes().decode() for name in ("names", "report"))
        vocabulary = Vocabulary(np.array(names.split("\n"), object), found["counts"])
        raw_users = np.array(npz.decode_lines(found["users"]), object)
        left_out, later = int(found["left_out"]), found.get("num_later")
        sequences = Sequences(found["items"], found["splits"], raw_users, vocabulary, left_out, later)
        content = json.loads(report)
        content["bad"] = {kind: tuple(counts) for kind, counts in content["bad"].items()}
        content["others"] = tuple(content.get("others", ()))
        return sequences, Report(**content)
    except (KeyError, ValueError, TypeError) as error:
        raise npz.CorruptFileError(f"{path}: not a kept conversion ({error})") from error
