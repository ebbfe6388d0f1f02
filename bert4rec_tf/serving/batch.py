"""Recommends to many users, part by part, so that an interrupted job can resume."""

import csv
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import tensorflow as tf
from pyarrow import parquet

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.foundation.progress import Progress, warn
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.serving.batch_inputs import Row, Users
from bert4rec_tf.serving.client import Choices, SavedRecommender

BATCH_USERS = 256
"""Users per call of the model."""

PART_BATCHES = 32
"""Batches per part. A killed process loses at most one part."""

SCHEMA = pyarrow.schema(
    {"user": pyarrow.string(), "rank": pyarrow.int32(), "item": pyarrow.string(), "score": pyarrow.float32()}
)
COLUMNS = SCHEMA.names
BUSY = "another process writes this file; wait for it, or name another --output"

Line = tuple[str, int, str, np.float32, str]
"""User, rank from 1, item, score, title."""


@dataclass
class Counts:
    """Numbers of users, of ids in their histories, of unknown ids among these, and of users without a known id."""

    users: int = 0
    ids: int = 0
    unknown: int = 0
    without_known: int = 0

    def add(self, rows: Sequence[Row], items: Lines) -> None:
        """Adds users with their histories. `items`: those that the model knows."""
        histories = [[item for item in history if item] for _, history in rows]
        lengths = [len(history) for history in histories]
        is_known = items.contains_each(itertools.chain.from_iterable(histories))
        num_known = np.bincount(np.repeat(np.arange(len(rows)), lengths), is_known, len(rows))
        self.users += len(rows)
        self.ids += len(is_known)
        self.unknown += len(is_known) - int(is_known.sum())
        self.without_known += int((num_known == 0).sum())

    def __str__(self) -> str:
        return (
            f"{self.unknown:,} of {self.ids:,} ids are unknown and were skipped; {self.without_known:,} of "
            f"{self.users:,} users have no known item"
        )


def recommend_file(
    model: SavedRecommender,
    users: Users,
    target: Path,
    choices: Choices,
    titles: Mapping[str, str] | None = None,
    cluster: Any = None,
) -> Counts:
    """Recommends to every user and writes one line per recommended item.

    Finished parts are kept beside the target until the target is written. After an interruption, the same call computes
    only the missing parts, and the result is identical.

    Args:
        model, choices: the exported model, and the options of its `recommend`.
        users: the users with their histories (`serving.batch_inputs`).
        target: ends in one of WRITERS (`check_target`); written atomically.
        titles: raw id -> title, for a title column; None for no such column.
        cluster: computes the parts in other processes (`cluster.spark.Spark`); None to use this one.

    Returns the counts of users and ids, finished parts included.

    Raises UserError if a file cannot be read or written, or a line is not CSV.
    """
    folder = model.local_folder
    model_files = sorted(path for path in folder.rglob("*") if path.is_file())
    job = {
        "source": users.checksum,
        "model": {str(path.relative_to(folder)): files.compute_checksum(path) for path in model_files},
        "choices": json.loads(json.dumps(asdict(choices))),
        "titles": None if titles is None else hashlib.sha256(json.dumps(titles).encode()).hexdigest(),
        "users_of_a_part": PART_BATCHES * BATCH_USERS,
    }
    parts = target.with_name(f".{target.name}.parts")
    with files.FolderLock(parts, BUSY).lock():
        _discard_other_parts(job, parts)
        part = Part(model.folder.absolute(), model.trusted, choices, titles)
        paths, counts = _make_parts(model, users, parts, part, cluster)
        files.remove_partials(target.parent, of=target.name)
        with files.atomic_write(target) as aside:
            WRITERS[target.suffix](paths, aside, part.schema)
    files.remove_folder(parts)
    return counts


def _discard_other_parts(job: dict, parts: Path) -> None:
    """Keeps the finished parts of the same job, and deletes those of any other."""
    job_file = parts / "job.json"
    with suppress(UserError):
        if job_file.exists() and files.read_json(job_file) == job:
            return
    old = [path for path in parts.iterdir() if path.name.startswith("part-")]
    if old:
        warn(f"{parts}: holds parts of another job; starting again")
    for path in old:
        path.unlink()
    files.write_json(job_file, job)


@dataclass(frozen=True, eq=False)
class Part:
    """What all parts of a job share: how to load the model, the choices and the titles."""

    folder: Path
    trusted: bool
    choices: Choices
    titles: Mapping[str, str] | None

    @property
    def schema(self) -> pyarrow.Schema:
        return SCHEMA if self.titles is None else SCHEMA.append(pyarrow.field("title", pyarrow.string()))

    def write(self, model: SavedRecommender, rows: Sequence[Row], path: Path, progress: Progress) -> None:
        """Recommends to some users and writes their part, a Parquet file."""
        columns = list(zip(*recommend_rows(model, rows, self.choices, self.titles or {}, progress))) or [()] * 5
        schema = self.schema
        with files.atomic_write(path) as aside:
            parquet.write_table(pyarrow.table(columns[: len(schema)], schema), aside)


def _make_parts(
    model: SavedRecommender, users: Users, folder: Path, part: Part, cluster: Any
) -> tuple[list[Path], Counts]:
    """Writes the missing parts. Returns the paths of all parts, and the counts of all users."""
    num_finished = PART_BATCHES * len(list(folder.glob("part-*")))
    paths, counts, rows = [], Counts(), users.rows()
    waiting: list[tuple[Sequence[Row], Path]] = []

    def write_waiting() -> None:
        if cluster is None:
            for some, path in waiting:
                part.write(model, some, path, progress)
        elif waiting:
            cluster.map(write_part_in_worker, [part] * len(waiting), *zip(*waiting))
            for _ in range(sum(-(-len(some) // BATCH_USERS) for some, _ in waiting)):
                progress.advance()
        waiting.clear()

    with closing(Progress("recommending", -(-users.most // BATCH_USERS), num_finished, BATCH_USERS)) as progress:
        while some := list(itertools.islice(rows, PART_BATCHES * BATCH_USERS)):
            counts.add(some, model.items)
            paths.append(folder / f"part-{len(paths):06d}")
            if not paths[-1].exists():
                waiting.append((some, paths[-1].absolute()))
            if cluster is None or len(waiting) >= cluster.tasks_in_flight:
                write_waiting()
        write_waiting()
    return paths, counts


@functools.cache
def _load_with_one_thread(folder: Path, trusted: bool) -> SavedRecommender:
    """Returns the model, which each process of a cluster loads once."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return SavedRecommender(folder, trusted)


def write_part_in_worker(part: Part, rows: Sequence[Row], path: Path) -> None:
    """Does what `Part.write` does, in a process of a cluster, with one thread."""
    part.write(_load_with_one_thread(part.folder, part.trusted), rows, path, Progress("", 1, silent=True))


def recommend_rows(
    model: SavedRecommender, rows: Sequence[Row], choices: Choices, titles: Mapping[str, str], progress: Progress
) -> Iterator[Line]:
    """Yields the lines of some users, in their order. Histories of similar length share a batch."""
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


def check_target(target: Path) -> None:
    """Raises UserError if `recommend_file` cannot write to `target`."""
    if target.suffix not in WRITERS:
        raise UserError(f"--output must end in {' or '.join(WRITERS)}. Received: {target}")
    if not isinstance(target, Url) and not target.parent.is_dir():
        raise UserError(f"{target.parent}: is not a folder")


def _write_csv(parts: Sequence[Path], path: Path, schema: pyarrow.Schema) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        plain, quoted = (
            csv.writer(file, lineterminator="\n", quoting=kind) for kind in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        plain.writerow(schema.names)
        for part in parts:
            columns = _read_part(part).columns
            # NumPy's float32 has the shortest text.
            for fields in zip(*(column.to_numpy() for column in columns)):
                # Readers end a line at \r too, but before Python 3.13 the csv module does not quote it.
                (quoted if any("\r" in str(field) for field in fields) else plain).writerow(fields)


def _write_parquet(parts: Sequence[Path], path: Path, schema: pyarrow.Schema) -> None:
    """Writes one row group per part."""
    with parquet.ParquetWriter(path, schema) as whole:
        for part in parts:
            whole.write_table(_read_part(part))


def _read_part(path: Path) -> pyarrow.Table:
    with path.open("rb") as file:
        return parquet.read_table(file)


WRITERS = {".csv": _write_csv, ".parquet": _write_parquet}
"""File name ending -> the function that joins the parts to such a file."""
