"""What single tasks of a cluster do, on files in folders that all machines see. Knows no engine.

Any machine may do a task, and may do it again: a file gets its name only when it is complete, and every attempt writes
the same bytes.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.run import MaskingSettings
from bert4rec_tf.data.examples import tfrecords
from bert4rec_tf.data.examples.cloze import Windows, cut
from bert4rec_tf.data.examples.preparation import Plan
from bert4rec_tf.data.parts import training_part
from bert4rec_tf.data.reading import conversion
from bert4rec_tf.data.reading.columns import Layout
from bert4rec_tf.data.reading.conversion import Report
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import Sequences, Vocabulary, take_rows
from bert4rec_tf.evaluation import candidates
from bert4rec_tf.foundation import files, npz

ROW_BITS = 40
"""A row's place among those of all files is the number of its file x 2^40 + its number in the file."""

VOCABULARY = "vocabulary.npz"


@dataclass(frozen=True)
class Source:
    """The files of a conversion in order, the layout that all must have, and the kind of their times (`Times.kind`)."""

    asked: Interactions
    paths: tuple[Path, ...]
    layout: Layout
    kind: str | None = None

    def tables(self, number: int, times: Times, bad: dict[str, tuple[int, str]]) -> Iterator[pa.Table]:
        """Yields the good rows of a file (`conversion.tables_of`)."""
        first = self.paths[0], self.layout
        return conversion.tables_of(self.paths[number], first, self.asked, times, bad, len(self.paths) > 1)


@dataclass(frozen=True)
class Read:
    """What was in a file: kind of bad row -> how many and where the first is; whether all times are whole."""

    bad: dict[str, tuple[int, str]]
    times_are_whole: bool


def kind_of_times(source: Source) -> str | None:
    """Returns the kind of the first time that has one. All files are read with it."""
    times = Times()
    for number in range(len(source.paths)):
        for _ in source.tables(number, times, {}):
            if times.kind is not None:
                return times.kind
    return None


def read_file(number: int, source: Source, folder: Path) -> Read:
    """Writes the good rows of a file as Parquet: `user`, `item`, `place`, and `time` as a whole and as a fraction."""
    times, bad, rows, are_whole = Times(), dict[str, tuple[int, str]](), 0, True
    times.kind = source.kind
    fields = {"user": pa.string(), "item": pa.string(), "place": pa.int64()}
    if source.layout.time is not None:
        fields |= {"time": pa.int64(), "fraction": pa.float64()}
    schema = pa.schema(list(fields.items()))
    with files.atomic_write(folder / f"{number:06d}.parquet") as aside, parquet.ParquetWriter(aside, schema) as writer:
        for table in source.tables(number, times, bad):
            columns = {role: table[role].cast(pa.string()) for role in ("user", "item")}
            begin = (number << ROW_BITS) + rows
            columns["place"] = np.arange(begin, begin + len(table))
            if "time" in fields:
                found = table["time"].to_numpy()
                is_whole = found.dtype.kind == "i"
                columns["time"] = found if is_whole else np.zeros(len(found), np.int64)
                columns["fraction"] = found.astype(np.float64)
                are_whole &= is_whole or not len(found)
            writer.write_table(pa.table([columns[name] for name in fields], schema))
            rows += len(table)
    return Read(bad, are_whole)


def merged(reads: Sequence[Read]) -> dict[str, tuple[int, str]]:
    """Returns kind of bad row -> how many all files have, and where the first is."""
    bad: dict[str, tuple[int, str]] = {}
    for read in reads:
        for kind, (count, first) in read.bad.items():
            known, place = bad.get(kind, (0, first))
            bad[kind] = (known + count, place)
    return bad


def block_path(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.npz"


def pieces_of(folder: Path, numbers: Iterable[int], name: str) -> Iterator[np.ndarray]:
    """Yields the array of this name from the file of each block."""
    for number in numbers:
        yield npz.read(block_path(folder, number), [name])[name]


def write_block(table: pa.Table, folder: Path, first_later: float | None) -> dict[str, int]:
    """Orders the actions of a block's users by user, time and row, and writes them.

    Returns the block's `number`, how many `users` and `actions` it has, and the `bytes` of the users' ids as lines.

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
    ids = npz.of_lines(table["user"].take(pa.array(rows[np.cumsum(lengths) - lengths])).to_pylist())
    content = {"items": columns["item"][rows].astype(np.int32), "lengths": lengths.astype(np.int64), "users": ids}
    if first_later is not None:
        content["later"] = np.bincount(users[np.asarray(times) >= first_later], minlength=len(lengths))
    number = int(columns["block"][0])
    npz.write(block_path(folder, number), content)
    return {"number": number, "users": len(lengths), "actions": len(rows), "bytes": len(ids)}


def join_blocks(
    blocks: Sequence[dict[str, int]], folder: Path, target: Path, num_left_out: int, report: Report, has_later: bool
) -> None:
    """Writes the conversion from its blocks, piece by piece: the bytes of `conversion.save`."""
    pieces = functools.partial(pieces_of, folder, [block["number"] for block in blocks])

    def users() -> Iterator[np.ndarray]:
        for number, text in enumerate(pieces("users")):
            yield text if number == 0 else np.concatenate([np.frombuffer(b"\n", np.uint8), text])

    num_users = sum(block["users"] for block in blocks)
    numbers = {
        "items": npz.Pieces("<i4", (sum(block["actions"] for block in blocks),), pieces("items")),
        "splits": npz.Pieces("<i8", (num_users + 1,), splits_of(pieces("lengths"))),
    }
    if has_later:
        numbers["num_later"] = npz.Pieces("<i8", (num_users,), pieces("later"))
    num_bytes = sum(block["bytes"] for block in blocks) + len(blocks) - 1
    vocabulary = read_vocabulary(folder)
    lines = npz.Pieces("|u1", (num_bytes,), users())
    conversion.save_parts(target, lines, numbers, vocabulary, num_left_out, report)


def write_vocabulary(folder: Path, vocabulary: Vocabulary) -> None:
    content = {"names": npz.of_lines(vocabulary.items.tolist()), "counts": vocabulary.counts}
    npz.write(folder / VOCABULARY, content)


def read_vocabulary(folder: Path) -> Vocabulary:
    found = npz.read(folder / VOCABULARY)
    return Vocabulary(np.array(npz.lines(found["names"]), object), found["counts"])


@functools.cache
def opened(path: Path) -> Sequences:
    """Returns the sequences of a conversion, whose actions stay on the disk."""
    return conversion.load(path, mapped=True)[0]


def part_of(path: Path, users: range) -> Sequences:
    """Returns some users of a conversion in memory."""
    return opened(path).part(users.start, users.stop)


def splits_of(lengths: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields the splits of users whose lengths come in parts."""
    end = np.zeros(1, np.int64)
    yield end
    for part in lengths:
        end = end[-1] + np.cumsum(part)
        yield end


def windows_of(path: Path, users: range, phase: str, masking: MaskingSettings, max_length: int) -> Windows:
    """Returns the windows of some users. Their `users` are numbers among all users."""
    windows = cut(training_part(part_of(path, users), phase), max_length, masking)
    return replace(windows, users=windows.users + users.start)


def count_windows(users: range, path: Path, phase: str, masking: MaskingSettings, max_length: int) -> tuple[int, int]:
    """Returns how many whole windows and prefixes some users have."""
    windows = windows_of(path, users, phase, masking, max_length)
    return windows.num_whole, windows.num_prefixes


@functools.cache
def shared_plan(plan: Plan) -> Plan:
    """Returns the same plan for all tasks of a process, so that it finds its order once."""
    return plan


def examples_of(
    path: Path, users: range, phase: str, plan: Plan, before: tuple[int, int], wanted: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Yields the examples of some users with their places in the shards (`EXAMPLES`), copy by copy.

    Args:
        path, users, phase: as for `windows_of`.
        plan: the plan of the shards.
        before: how many whole windows and prefixes the earlier users have.
        wanted: the shards to write.
    """
    plan = shared_plan(plan)
    windows = windows_of(path, users, phase, plan.masking, plan.max_length)
    whole, prefixes = np.arange(windows.num_whole), np.arange(windows.num_prefixes)
    is_wanted = np.zeros(len(plan.sizes()), bool)
    is_wanted[list(wanted)] = True
    for numbers in plan.numbering.examples_of(whole + before[0], prefixes + before[1]):
        for own, examples in zip((whole, prefixes + len(whole)), numbers):
            shards, rows = np.divmod(plan.order.places_of(examples), plan.shard_size)
            chosen = is_wanted[shards]
            window = own[: len(examples)][chosen]
            lengths = windows.lengths[window]
            items = windows.rows(window, plan.max_length)[np.arange(plan.max_length) < lengths[:, None]]
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
            columns = [shards[chosen].astype(np.int32), rows[chosen].astype(np.int32), windows.users[window]]
            arrays = [*map(pa.array, columns), pa.ListArray.from_arrays(offsets, pa.array(items))]
            yield pa.RecordBatch.from_arrays(arrays, ["shard", "row", "user", "items"])


EXAMPLES = "shard int, row int, user long, items array<int>"
"""Columns of `examples_of`: the shard, the place in it, the user's number and the window."""


def write_shard(table: pa.Table, plan: Plan, folder: Path) -> int:
    """Writes a shard from its `EXAMPLES` in any order, and returns its number."""
    number, plan = table["shard"][0].as_py(), shared_plan(plan)
    table = table.sort_by("row")
    items = table["items"].combine_chunks()
    lengths = items.value_lengths().to_numpy().astype(np.int64)
    rows = take_rows(items.flatten().to_numpy(), np.cumsum(lengths) - lengths, lengths, plan.max_length)
    content = plan.columns(number, rows, lengths, table["user"].to_numpy())
    tfrecords.write_shard(folder / plan.names()[number], content)
    return number


def draw(number: int, users: np.ndarray, path: Path, num_negatives: int, seed: int, folder: Path) -> None:
    """Draws the negatives of one block of users (`candidates.users_of_a_block`) and writes them."""
    drawn = {
        name: sampler(opened(path), users, num_negatives, seed, number) for name, sampler in candidates.SAMPLERS.items()
    }
    npz.write(block_path(folder, number), drawn)


def is_whole(path: Path) -> bool:
    """Returns whether a file of arrays is there and undamaged, without loading the arrays."""
    try:
        npz.checked(path)
    except npz.CorruptFileError:
        return False
    return True


def join_drawn(num_blocks: int, num_users: int, num_negatives: int, folder: Path, target: Path) -> None:
    """Writes the negatives of all users from those of the blocks: the bytes of `candidates.load_or_draw`."""
    found = {name: pieces_of(folder, range(num_blocks), name) for name in candidates.SAMPLERS}
    shape = num_users, num_negatives
    npz.write_pieces(target, {name: npz.Pieces("<i4", shape, pieces) for name, pieces in found.items()})
