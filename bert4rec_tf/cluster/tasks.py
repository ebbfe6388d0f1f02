"""What single tasks of a cluster do, on files in folders that all machines see. Knows no engine.

Any machine may do a task, and may do it again: a file gets its name only when it is complete, and every attempt writes
the same bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion
from bert4rec_tf.data.reading.columns import Layout
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import ActionTimes, Sequences, Vocabulary
from bert4rec_tf.foundation import files, npz

ROW_BITS = 40
"""A row's place among those of all files is the number of its file x 2^40 + its number in the file."""


@dataclass(frozen=True)
class Source:
    """The files of a conversion in order, the layout that all must have, and the kind of their times (`Times.kind`)."""

    interactions: Interactions
    paths: tuple[Path, ...]
    layout: Layout
    kind: str | None = None

    def read_tables(self, number: int, times: Times, bad: dict[str, tuple[int, str]]) -> Iterator[pa.Table]:
        """Yields the good rows of a file (`conversion.read_tables`)."""
        first = self.paths[0], self.layout
        return conversion.read_tables(self.paths[number], first, self.interactions, times, bad, len(self.paths) > 1)


@dataclass(frozen=True)
class FileSummary:
    """What was in a file: kind of bad row -> how many and where the first is; whether all times are whole."""

    bad: dict[str, tuple[int, str]]
    times_are_whole: bool


def find_kind_of_times(source: Source) -> str | None:
    """Returns the kind of the first time that has one. All files are read with it."""
    times = Times()
    for number in range(len(source.paths)):
        for _ in source.read_tables(number, times, {}):
            if times.kind is not None:
                return times.kind
    return None


def read_file(number: int, source: Source, folder: Path) -> FileSummary:
    """Writes the good rows of a file as Parquet: `user`, `item`, `place`, and `time` as a whole and as a fraction."""
    times, bad, rows, are_whole = Times(), dict[str, tuple[int, str]](), 0, True
    times.kind = source.kind
    fields = {"user": pa.string(), "item": pa.string(), "place": pa.int64()}
    if source.layout.time is not None:
        fields |= {"time": pa.int64(), "fraction": pa.float64()}
    schema = pa.schema(list(fields.items()))
    with files.atomic_write(folder / f"{number:06d}.parquet") as aside, parquet.ParquetWriter(aside, schema) as writer:
        for table in source.read_tables(number, times, bad):
            columns = {role: table[role].cast(pa.string()) for role in ("user", "item")}
            begin = (number << ROW_BITS) + rows
            columns["place"] = np.arange(begin, begin + len(table))
            if "time" in fields:
                values = table["time"].to_numpy()
                is_whole = values.dtype.kind == "i"
                columns["time"] = values if is_whole else np.zeros(len(values), np.int64)
                columns["fraction"] = values.astype(np.float64)
                are_whole &= is_whole or not len(values)
            writer.write_table(pa.table([columns[name] for name in fields], schema))
            rows += len(table)
    return FileSummary(bad, are_whole)


def merge_bad_rows(summaries: Sequence[FileSummary]) -> dict[str, tuple[int, str]]:
    """Returns kind of bad row -> how many all files have, and where the first is."""
    bad: dict[str, tuple[int, str]] = {}
    for summary in summaries:
        for kind, (count, first) in summary.bad.items():
            total, place = bad.get(kind, (0, first))
            bad[kind] = (total + count, place)
    return bad


def block_path(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.npz"


def write_block(table: pa.Table, folder: Path, first_later: float | None) -> int:
    """Orders the actions of a block's users by user, time and row, and writes them. Returns the block's number.

    Args:
        table: `block`, `number` (of the user), `user` (its id), `item` (its number), `place` and perhaps `time`.
        folder: where to write the block.
        first_later: time from which actions are held out; None for the last action of each user.
    """
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "user"}
    rows = np.argsort(columns["place"])
    users = columns["number"][rows] - columns["number"].min()
    times = columns["time"][rows] if "time" in columns else None
    order = np.lexsort((users,) if times is None else (times, users))
    rows, users, times = rows[order], users[order], None if times is None else times[order]
    lengths = np.bincount(users)
    ids = npz.encode_lines(table["user"].take(pa.array(rows[np.cumsum(lengths) - lengths])).to_pylist())
    content = {"items": columns["item"][rows].astype(np.int32), "lengths": lengths.astype(np.int64), "users": ids}
    if times is not None:
        content["times"] = times
    if first_later is not None:
        content["later"] = np.bincount(users[np.asarray(times) >= first_later], minlength=len(lengths))
    number = int(columns["block"][0])
    npz.write(block_path(folder, number), content)
    return number


def join_blocks(
    numbers: Sequence[int], folder: Path, vocabulary: Vocabulary, num_left_out: int, times: str
) -> Sequences:
    """Returns the sequences of all blocks, in this order. `times`: what they mean (`times.describe_times`)."""
    blocks = [npz.read(block_path(folder, number)) for number in numbers]
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0] if name != "users"}
    users = np.array([user for block in blocks for user in npz.decode_lines(block["users"])], object)
    splits = np.concatenate([[0], np.cumsum(columns["lengths"])])
    later, values = columns.get("later"), columns.get("times")
    action_times = None if values is None else ActionTimes(values, times)
    return Sequences(columns["items"], splits, users, vocabulary, num_left_out, later, times=action_times)
