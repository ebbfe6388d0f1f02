"""Recommends to all users of a file, part by part, so that an interrupted job resumes."""

import csv
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Progress, warn
from bert4rec_tf.serving.client import Choices, SavedRecommender

BATCH_USERS = 256
"""Users per call of the model."""

PART_BATCHES = 32
"""Batches per part. A killed process loses at most one part."""

COLUMNS = ("user", "rank", "item", "score")
BUSY = "another process writes this file; wait for it, or name another --output"

Row = tuple[str, list[str]]
"""A user and their history."""

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
    """Recommends to every user of a file and writes one line per recommended item.

    Finished parts are kept beside the target until the target is written. After an interruption the same call computes
    only the missing parts; the result is identical.

    Args:
        model: the exported model.
        source: CSV without a header, `.gz` or not: the user, then the items, oldest first.
        target: ends in `.csv` or `.parquet`; written atomically.
        choices: options of `recommend`.
        titles: raw id -> title, for a title column; None for no such column.
        silent: show no progress.

    Returns:
        The number of users.

    Raises:
        UserError: if a file cannot be read or written, a line is not CSV, the target has another ending, or the model
            lacks what is chosen.
    """
    check_target(target)
    model.check(choices)
    writer = WRITERS[target.suffix]((*COLUMNS, "title") if titles is not None else COLUMNS)
    checksum, lines = _scan(source)
    job = {
        "source": checksum,
        "model": _checksum_of_folder(model.folder),
        "choices": json.loads(json.dumps(asdict(choices))),
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
    """Keeps the finished parts of the same job, and deletes those of any other."""
    known = parts / "job.json"
    try:
        if known.exists() and json.loads(known.read_text(encoding="utf-8")) == job:
            return
    except ValueError:
        pass
    old = [path for path in parts.iterdir() if path.name.startswith("part-")]
    if old:
        warn(f"{parts}: holds parts of another job; starting again")
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
    """Writes the missing parts. Returns the paths of all parts and the number of users."""
    done = PART_BATCHES * len(list(folder.glob("part-*")))
    progress = Progress("recommending", -(-lines // BATCH_USERS), done, BATCH_USERS, silent=silent)
    paths, users, rows = [], 0, _rows(source)
    try:
        while part := list(itertools.islice(rows, PART_BATCHES * BATCH_USERS)):
            users += len(part)
            paths.append(folder / f"part-{len(paths):06d}")
            if not paths[-1].exists():
                with files.atomic_write(paths[-1]) as aside:
                    writer.write(list(recommended(model, part, choices, titles, progress)), aside)
    finally:
        progress.close()
    return paths, users


def recommended(
    model: SavedRecommender, rows: Sequence[Row], choices: Choices, titles: Mapping[str, str], progress: Progress
) -> Iterator[Line]:
    """Yields the lines of some users. Each batch has histories of similar length."""
    order = np.argsort([len(history) for _, history in rows], kind="stable")
    results = [None] * len(rows)
    for start in range(0, len(rows), BATCH_USERS):
        numbers = order[start : start + BATCH_USERS]
        users, histories = zip(*(rows[number] for number in numbers))
        answer = model.recommend(histories, users, choices)
        for number, items, scores in zip(numbers, answer.items, answer.scores):
            results[number] = (items, scores)
        progress.advance()
    for (user, _), (items, scores) in zip(rows, results, strict=True):
        for rank, (item, score) in enumerate(zip(items, scores), start=1):
            yield user, rank, item, score, titles.get(item, "")


def _rows(source: Path) -> Iterator[Row]:
    """Yields the users and histories of a file. Empty lines are skipped."""
    with files.open_binary(source) as file:
        # Only the first line may begin with a byte order mark.
        encodings = itertools.chain(["utf-8-sig"], itertools.repeat("utf-8"))
        lines = csv.reader((line.decode(encoding) for encoding, line in zip(encodings, file)), strict=True)
        try:
            for fields in lines:
                if fields:
                    yield fields[0], fields[1:]
        except (csv.Error, UnicodeDecodeError) as error:
            # `line_num` does not count a line that could not be decoded.
            number = lines.line_num + isinstance(error, UnicodeDecodeError)
            raise UserError(f"{source}:{number}: is not CSV in UTF-8 ({error})") from error


def _scan(source: Path) -> tuple[str, int]:
    """Returns the SHA-256 of a file's content and its number of lines."""
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
    """Raises UserError if `recommend_file` cannot write to `target`."""
    if target.suffix not in WRITERS:
        raise UserError(f"--output must end in {' or '.join(WRITERS)}. Received: {target}")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: is not a folder")


class CsvWriter:
    """Writes CSV with a header, in UTF-8."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns

    def write(self, lines: Sequence[Line], path: Path) -> None:
        """Writes one part."""
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(line[: len(self.columns)] for line in lines)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Joins the parts into one file."""
        with open(path, "wb") as file:
            file.write((",".join(self.columns) + "\n").encode())
            for part in parts:
                with open(part, "rb") as read:
                    shutil.copyfileobj(read, file)


class ParquetWriter:
    """Writes Parquet with one row group per part."""

    def __init__(self, columns: Sequence[str]) -> None:
        types = {"rank": pyarrow.int32(), "score": pyarrow.float32()}
        self._schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in columns])

    def write(self, lines: Sequence[Line], path: Path) -> None:
        """Writes one part."""
        columns = [list(column) for column in zip(*lines)] or [[] for _ in self._schema]
        arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, self._schema)]
        parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=self._schema), path)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Joins the parts into one file."""
        with parquet.ParquetWriter(path, self._schema) as whole:
            for part in parts:
                whole.write_table(parquet.read_table(part))


WRITERS: dict[str, type[CsvWriter] | type[ParquetWriter]] = {".csv": CsvWriter, ".parquet": ParquetWriter}
"""File name ending -> writer."""
