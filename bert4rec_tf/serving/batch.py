"""Recommends to many users, part by part, so that an interrupted job can resume."""

import functools
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import tensorflow as tf
from pyarrow import compute, csv, parquet

from bert4rec_tf.data.sequences import Sequences, number_within_groups
from bert4rec_tf.export.functions import POPULAR
from bert4rec_tf.foundation import files, stores
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.foundation.warning import FileWarning, UnknownIdWarning, warn
from bert4rec_tf.serving.client import Choices, SavedRecommender

BATCH_USERS = 256
"""Users per call of the model."""

PART_BATCHES = 32
"""Batches per part. A killed process loses at most one part."""

SCHEMA = pyarrow.schema(
    {
        "user": pyarrow.string(),
        "rank": pyarrow.int32(),
        "item": pyarrow.string(),
        "score": pyarrow.float32(),
        "basis": pyarrow.string(),
    }
)
BUSY = "another process writes this file; wait for it, or name another --output"

WRITERS = {".csv": csv.CSVWriter, ".parquet": parquet.ParquetWriter}
"""File name ending -> what writes such a file, part by part."""

Row = tuple[str, list[str]]
"""A user and their history."""


def warn_about_unknown(model: SavedRecommender, sequences: Sequences) -> None:
    """Warns of ids in the histories that the model does not know."""
    is_known = model.items.contains_each(sequences.vocabulary.items)[sequences.items - 1]
    if not is_known.all():
        example = sequences.vocabulary.items[sequences.items[~is_known][0] - 1]
        warn(
            f"{np.count_nonzero(~is_known):,} of {len(is_known):,} ids are unknown and were skipped "
            f"(such as {str(example)!r})",
            UnknownIdWarning,
        )


def recommend_file(
    model: SavedRecommender,
    sequences: Sequences,
    target: Path,
    choices: Choices,
    titles: Mapping[str, str] | None = None,
    cluster: Any = None,
) -> list[str]:
    """Recommends to every user and writes one line per recommended item. Returns the users who got what is popular.

    Finished parts are kept beside the target until the target is written. After an interruption, the same call computes
    only the missing parts, and the result is identical. A target in a store is uploaded at the end, and begins anew.

    Args:
        model, choices: the exported model, and the options of its `recommend`.
        sequences: the users' histories.
        target: ends in one of WRITERS (`check_target`); written atomically.
        titles: raw id -> title, for a title column; None for no such column.
        cluster: computes the parts in other processes (`cluster.spark.Spark`); None to use this one.

    Raises UserError if a file cannot be read or written.
    """
    if isinstance(target, Url):
        if cluster is not None:
            raise UserError(f"--output must be a file on a disk that all machines see. Received: {target}")
        with stores.write_file(target) as temp_path:
            return recommend_file(model, sequences, temp_path, choices, titles)
    folder = model.local_folder
    job = {
        "source": sequences.fingerprint,
        "model": {str(path.relative_to(folder)): files.compute_checksum(path) for path in files.list_files(folder)},
        "choices": json.loads(json.dumps(asdict(choices))),
        "titles": None if titles is None else hashlib.sha256(json.dumps(titles).encode()).hexdigest(),
        "users_of_a_part": PART_BATCHES * BATCH_USERS,
    }
    popular = list[str]()
    parts = target.with_name(f".{target.name}.parts")
    with files.FolderLock(parts, BUSY).lock():
        _discard_other_parts(job, parts)
        part = Part(model.folder.absolute(), model.is_trusted, choices, titles)
        paths = _make_parts(model, sequences, parts, part, cluster)
        files.remove_partials(target.parent, target_name=target.name)
        with files.atomic_write(target) as temp_path, WRITERS[target.suffix](temp_path, part.schema) as writer:
            for path in paths:
                table = _read_part(path)
                writer.write_table(table)
                is_popular = compute.equal(table["basis"], POPULAR)
                popular += table.filter(compute.and_(is_popular, compute.equal(table["rank"], 1)))["user"].to_pylist()
    files.remove_folder(parts)
    return popular


def _read_part(path: Path) -> pyarrow.Table:
    """Returns a finished part. Deletes it and raises UserError if it is damaged."""
    try:
        with path.open("rb") as file:
            return parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        path.unlink(missing_ok=True)
        raise UserError(f"{path}: was damaged and is deleted; run the same command again to compute it anew") from error


def _discard_other_parts(job: dict, parts: Path) -> None:
    """Keeps the finished parts of the same job, and deletes those of any other."""
    job_file = parts / "job.json"
    with suppress(UserError):
        if job_file.exists() and files.read_json(job_file) == job:
            return
    old_paths = [path for path in parts.iterdir() if path.name.startswith("part-")]
    if old_paths:
        warn(f"{parts}: holds parts of another job; starting again", FileWarning)
    for path in old_paths:
        path.unlink()
    files.write_json(job_file, job)


@dataclass(frozen=True, eq=False)
class Part:
    """What all parts of a job share: how to load the model, the choices and the titles."""

    folder: Path
    is_trusted: bool
    choices: Choices
    titles: Mapping[str, str] | None

    @property
    def schema(self) -> pyarrow.Schema:
        return SCHEMA if self.titles is None else SCHEMA.append(pyarrow.field("title", pyarrow.string()))

    def write(self, model: SavedRecommender, rows: Sequence[Row], path: Path, progress: Progress) -> None:
        """Recommends to some users and writes their part, a Parquet file."""
        columns = recommend_rows(model, rows, self.choices, self.titles or {}, progress)
        with files.atomic_write(path) as file:
            parquet.write_table(pyarrow.table({name: columns[name] for name in self.schema.names}, self.schema), file)


def _make_parts(model: SavedRecommender, sequences: Sequences, folder: Path, part: Part, cluster: Any) -> list[Path]:
    """Writes the missing parts. Returns the paths of all parts."""
    size, num_users = PART_BATCHES * BATCH_USERS, sequences.num_users
    paths = {begin: folder / f"part-{begin // size:06d}" for begin in range(0, num_users, size)}
    num_batches = {begin: len(range(begin, min(begin + size, num_users), BATCH_USERS)) for begin in paths}
    starts = [begin for begin, path in paths.items() if not path.exists()]
    total = sum(num_batches.values())
    num_finished = total - sum(num_batches[begin] for begin in starts)
    num_at_once = 1 if cluster is None else cluster.tasks_in_flight
    with closing(Progress("recommending", total, num_finished, BATCH_USERS)) as progress:
        for begins in (starts[place : place + num_at_once] for place in range(0, len(starts), num_at_once)):
            rows = [list_rows(sequences, begin, begin + size) for begin in begins]
            if cluster is None:
                part.write(model, rows[0], paths[begins[0]], progress)
                continue
            targets = [paths[begin].absolute() for begin in begins]
            cluster.map(write_part_in_worker, [part] * len(begins), rows, targets)
            progress.advance(sum(num_batches[begin] for begin in begins))
    return list(paths.values())


def list_rows(sequences: Sequences, begin: int, end: int) -> list[Row]:
    """Returns the users from number `begin` to `end` - 1, with their histories."""
    splits = sequences.splits[begin : end + 1]
    names = sequences.vocabulary.decode(sequences.items[splits[0] : splits[-1]])
    pairs = itertools.pairwise((splits - splits[0]).tolist())
    return [(user, names[first:last]) for user, (first, last) in zip(sequences.users[begin:end], pairs)]


@functools.cache
def _load_with_one_thread(folder: Path, is_trusted: bool) -> SavedRecommender:
    """Returns the model, which each process of a cluster loads once."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return SavedRecommender(folder, is_trusted)


def write_part_in_worker(part: Part, rows: Sequence[Row], path: Path) -> None:
    """Does what `Part.write` does, in a process of a cluster, with one thread."""
    part.write(_load_with_one_thread(part.folder, part.is_trusted), rows, path, Progress("", 1, silent=True))


def recommend_rows(
    model: SavedRecommender,
    rows: Sequence[Row],
    choices: Choices,
    titles: Mapping[str, str],
    progress: Progress,
    has_users: bool = True,
) -> dict[str, Sequence[Any] | np.ndarray]:
    """Returns the columns of SCHEMA and `title`, a row for each item of each user, in the order of the users.

    Histories of similar length share a batch. `has_users`: whether the names of the rows are the ids of users.
    """
    order = np.argsort([len(history) for _, history in rows], kind="stable")
    results: list[Any] = [None] * len(rows)
    with model.sum_by_table(len(rows)):
        for start in range(0, len(rows), BATCH_USERS):
            numbers = order[start : start + BATCH_USERS]
            users, histories = zip(*(rows[number] for number in numbers))
            answer = model.recommend(histories, users if has_users else [""] * len(users), choices)
            for number, *result in zip(numbers, answer.items, answer.scores, answer.basis):
                results[number] = result
            progress.advance()
    lengths = np.array([len(items) for items, _, _ in results], int)
    items = [item for items, _, _ in results for item in items]
    return {
        "user": np.repeat(np.array([user for user, _ in rows], object), lengths),
        "rank": number_within_groups(lengths) + 1,
        "item": items,
        "score": np.concatenate([np.empty(0, np.float32), *(scores for _, scores, _ in results)]),
        "basis": np.repeat(np.array([basis for *_, basis in results], object), lengths),
        "title": [titles.get(item, "") for item in items],
    }


def check_target(target: Path) -> None:
    """Raises UserError if `recommend_file` cannot write to `target`."""
    if target.suffix not in WRITERS:
        raise UserError(f"--output must end in {' or '.join(WRITERS)}. Received: {target}")
    if not isinstance(target, Url) and not target.parent.is_dir():
        raise UserError(f"{target.parent}: is not a folder")
