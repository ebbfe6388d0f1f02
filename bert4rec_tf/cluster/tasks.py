"""What single tasks of a cluster do, on files in folders that all machines see. Knows no engine.

Any machine may do a task, and may do it again: a file gets its name only when it is complete, and every attempt writes
the same bytes.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bert4rec_tf.data.reading.conversion import read_tables
from bert4rec_tf.data.reading.rows import Findings, Rows
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.foundation import files

ROW_BITS = 40
"""A row's place among those of all files is the number of its file x 2^40 + its number in the file."""


@dataclass(frozen=True)
class FileSummary:
    """What was met in a file, whether all times are whole, and their zones (`Times.zones`)."""

    findings: Findings
    times_are_whole: bool
    zones: set[str]


def find_kind_of_times(paths: list[Path], reader: Rows) -> str | None:
    """Returns the kind of the first time that has one (`Times.kind`). All files are read with it."""
    reader = _start_anew(reader)
    for path in paths:
        for _ in read_tables(path, reader):
            if reader.times.kind is not None:
                return reader.times.kind
    return None


def _start_anew(reader: Rows) -> Rows:
    return replace(reader, times=Times(reader.times.kind), findings=Findings())


def read_file(number: int, path: Path, reader: Rows, folder: Path) -> FileSummary:
    """Writes the good rows of a file as Parquet: `user`, `item`, `place`, and `time` as a whole and as a fraction."""
    reader, num_rows, are_whole = _start_anew(reader), 0, True
    fields = {"user": pa.string(), "item": pa.string(), "place": pa.int64()}
    if reader.layout.times:
        fields |= {"time": pa.int64(), "fraction": pa.float64()}
    schema = pa.schema(list(fields.items()))
    with files.atomic_write(folder / f"{number:06d}.parquet") as file, parquet.ParquetWriter(file, schema) as writer:
        for table in read_tables(path, reader):
            columns = {role: table[role].cast(pa.string()) for role in ("user", "item")}
            begin = (number << ROW_BITS) + num_rows
            columns["place"] = np.arange(begin, begin + len(table))
            if "time" in fields:
                values = table["time"].to_numpy()
                is_whole = values.dtype.kind == "i"
                columns["time"] = values if is_whole else np.zeros(len(values), np.int64)
                columns["fraction"] = values.astype(np.float64)
                are_whole &= is_whole or not len(values)
            writer.write_table(pa.table([columns[name] for name in fields], schema))
            num_rows += len(table)
    return FileSummary(reader.findings, are_whole, reader.times.zones)
