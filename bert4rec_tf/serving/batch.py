"""Recommendations to all users of a file, part by part, so that a stopped work goes on where it was."""

import csv
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Progress, warn
from bert4rec_tf.serving.client import Choices, SavedRecommender

BATCH_USERS = 256
"""Users who are recommended to at once."""

PART_BATCHES = 32
"""Batches that are written at once: what a killed process loses at most."""

COLUMNS = ("user", "rank", "item", "score")
BUSY = "another process writes this file; wait for it, or name another --output"

Row = tuple[str, list[str]]
"""A user and the history."""

Line = tuple[str, int, str, np.float32, str]
"""User, rank from 1, item, score, title."""


def recommend_file(
    model: SavedRecommender,
    source: Path,
    target: Path,
    choices: Choices,
    titles: Mapping[str, str] | None = None,
    silent: bool = False,
) -> int:
    """Recommends to every user of a file, and writes one line for each recommended item.

    Finished parts lie beside the target until the whole is written. The same call after a stop makes the missing ones
    alone, and the target then has the bytes of one that was not stopped.

    Args:
        model: what recommends.
        source: CSV without a header, packed where its name ends in `.gz`: the user, then the items, oldest first.
        target: a name that ends in `.csv` or `.parquet`; appears whole or not at all.
        choices: what is asked.
        titles: raw id -> title, for one more column; None for none.
        silent: show no progress.

    Returns:
        The number of users.

    Raises:
        UserError: for a file that cannot be read or written, a line that is no CSV, or another ending.
    """
    check_target(target)
    writer = WRITERS[target.suffix]((*COLUMNS, "title") if titles is not None else COLUMNS)
    checksum, lines = _scan(source)
    job = {
        "source": checksum,
        "model": _checksum_of_folder(model.folder),
        "choices": json.loads(json.dumps(choices.to_dict())),
        "titles": None if titles is None else hashlib.sha256(json.dumps(titles).encode()).hexdigest(),
        "users_of_a_part": PART_BATCHES * BATCH_USERS,
    }
    parts = target.with_name(f".{target.name}.parts")
    with files.FolderLock(parts, BUSY).lock():
        _keep_parts_of(job, parts)
        paths, users = _make_parts(model, source, parts, choices, titles or {}, writer, lines, silent)
        with files.atomic_write(target) as aside:
            writer.join(paths, aside)
    shutil.rmtree(parts, ignore_errors=True)
    return users


def _keep_parts_of(job: dict, parts: Path) -> None:
    """Keeps the finished parts of this very job, and deletes those of any other."""
    known = parts / "job.json"
    try:
        if known.exists() and json.loads(known.read_text(encoding="utf-8")) == job:
            return
    except ValueError:
        pass
    old = [path for path in parts.iterdir() if path.name.startswith("part-")]
    if old:
        warn(f"{parts}: holds parts of another job; beginning anew")
    for path in old:
        path.unlink()
    files.write_json(known, job)


def _make_parts(
    model: SavedRecommender,
    source: Path,
    folder: Path,
    choices: Choices,
    titles: Mapping[str, str],
    writer: "CsvWriter | ParquetWriter",
    lines: int,
    silent: bool,
) -> tuple[list[Path], int]:
    """Writes the parts that are missing. Returns the files of all, and the number of users."""
    done = PART_BATCHES * len(list(folder.glob("part-*")))
    progress = Progress("recommending", -(-lines // BATCH_USERS), done, BATCH_USERS, silent=silent)
    paths, users, rows = [], 0, _rows(source)
    try:
        while part := list(itertools.islice(rows, PART_BATCHES * BATCH_USERS)):
            users += len(part)
            paths.append(folder / f"part-{len(paths):06d}")
            if not paths[-1].exists():
                with files.atomic_write(paths[-1]) as aside:
                    writer.write(list(_recommended(model, part, choices, titles, progress)), aside)
    finally:
        progress.close()
    return paths, users


def _recommended(
    model: SavedRecommender, rows: Sequence[Row], choices: Choices, titles: Mapping[str, str], progress: Progress
) -> Iterator[Line]:
    """Recommends to the users of a part; those with histories of similar length go together."""
    order = np.argsort([len(history) for _, history in rows], kind="stable")
    found = [None] * len(rows)
    for start in range(0, len(rows), BATCH_USERS):
        batch = [rows[number] for number in order[start : start + BATCH_USERS]]
        answer = model.recommend([history for _, history in batch], [user for user, _ in batch], choices)
        for number, items, scores in zip(order[start : start + BATCH_USERS], answer.items, answer.scores):
            found[number] = (items, scores)
        progress.advance()
    for (user, _), (items, scores) in zip(rows, found, strict=True):
        for rank, (item, score) in enumerate(zip(items, scores), start=1):
            yield user, rank, item, score, titles.get(item, "")


def _rows(source: Path) -> Iterator[Row]:
    """Reads the users and histories of a file; empty lines are passed over."""
    with files.open_binary(source) as file:
        # Of the first line the mark of the byte order is no part.
        encodings = itertools.chain(["utf-8-sig"], itertools.repeat("utf-8"))
        lines = csv.reader((line.decode(encoding) for encoding, line in zip(encodings, file)), strict=True)
        try:
            for fields in lines:
                if fields:
                    yield fields[0], fields[1:]
        except (csv.Error, UnicodeDecodeError) as error:
            # The line at fault is counted once it has been decoded.
            number = lines.line_num + isinstance(error, UnicodeDecodeError)
            raise UserError(f"{source}:{number}: is no CSV in UTF-8 ({error})") from error


def _scan(source: Path) -> tuple[str, int]:
    """Returns a SHA-256 of a file's content, and how many lines it has."""
    digest, lines = hashlib.sha256(), 0
    try:
        with files.open_binary(source) as file:
            while block := file.read(1 << 20):
                digest.update(block)
                lines += block.count(b"\n")
    except files.UNREADABLE as error:
        raise files.unreadable(source, error) from error
    return digest.hexdigest(), lines


def _checksum_of_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode())
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def check_target(target: Path) -> None:
    """Raises UserError for a file that `recommend_file` could not write."""
    if target.suffix not in WRITERS:
        raise UserError(f"--output must end in {' or '.join(WRITERS)}. Received: {target}")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: is not a folder")


class CsvWriter:
    """Lines of CSV under a header, in UTF-8."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns

    def write(self, lines: Sequence[Line], path: Path) -> None:
        """Writes a part."""
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(line[: len(self.columns)] for line in lines)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Writes the whole of its parts."""
        with open(path, "wb") as file:
            file.write((",".join(self.columns) + "\n").encode())
            for part in parts:
                with open(part, "rb") as read:
                    shutil.copyfileobj(read, file)


class ParquetWriter:
    """A Parquet file with a row group for each part."""

    def __init__(self, columns: Sequence[str]) -> None:
        types = {"rank": pyarrow.int32(), "score": pyarrow.float32()}
        self._schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in columns])

    def write(self, lines: Sequence[Line], path: Path) -> None:
        """Writes a part."""
        columns = [list(column) for column in zip(*lines)] or [[] for _ in self._schema]
        arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, self._schema)]
        parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=self._schema), path)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Writes the whole of its parts."""
        with parquet.ParquetWriter(path, self._schema) as whole:
            for part in parts:
                whole.write_table(parquet.read_table(part))


WRITERS: dict[str, type[CsvWriter] | type[ParquetWriter]] = {".csv": CsvWriter, ".parquet": ParquetWriter}
"""Ending -> what writes such a file."""
