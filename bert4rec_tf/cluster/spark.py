"""Converts interactions on Spark. The file is that of one machine, byte for byte.

Spark groups, joins and sorts the rows; the rest is in `tasks`. Only at the end does the driver read the histories. All
machines see the folders of the input and the data under the same paths.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec_tf.cluster import tasks
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion, grouping
from bert4rec_tf.data.reading.conversion import Report
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import USERS_OF_A_BLOCK, Sequences, Vocabulary
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

try:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as f
except ImportError as error:
    raise UserError("--engine=spark needs pyspark: pip install 'bert4rec-tf[spark]'") from error


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turns an error of Spark inside the block into a UserError with the last line that says why."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines() if "Error: " in line or "Exception: " in line]
        raise UserError(f"Spark: {(lines or [str(error)])[-1][:500]}") from error


class Spark:
    """A Spark session, as functions over lists.

    Args:
        master: as Spark names it, such as `spark://host:7077` or `local[2]`; None for Spark's own configuration.
    """

    @errors_in_one_line()
    def __init__(self, master: str | None) -> None:
        home = os.environ.get("JAVA_HOME")
        if not shutil.which("java", path=f"{home}/bin" if home else None):
            raise UserError("--engine=spark needs Java 17 or newer: no `java` in JAVA_HOME or on the PATH")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("bert4rec")
        self.session = (builder.master(master) if master else builder).getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")

    @property
    def tasks_in_flight(self) -> int:
        """How many tasks to give to Spark at once: twice as many as it works on at the same time."""
        return 2 * self.session.sparkContext.defaultParallelism

    @errors_in_one_line()
    def map(self, function: Callable, *arguments: Iterable) -> list[Any]:
        """Like the built-in `map`, with a task for each call. Raises the UserError of the first call that has one."""
        calls = list(zip(*arguments))
        if not calls:
            return []

        def attempt(call: tuple) -> tuple[Any, str | None]:
            try:
                return function(*call), None
            except UserError as error:
                return None, str(error)

        found = self.session.sparkContext.parallelize(calls, len(calls)).map(attempt).collect()
        for _, mistake in found:
            if mistake is not None:
                raise UserError(mistake)
        return [value for value, _ in found]

    @errors_in_one_line()
    def load(self, asked: Interactions, folder: Path) -> tuple[Sequences, Report]:
        """Does what `conversion.convert_once` does, with the same file."""
        paths = [path.absolute() for path in conversion.list_files(asked)]
        target = conversion.locate_conversion(folder.absolute(), asked, self.map(conversion.compute_checksum, paths))
        stage = target.with_name(f".{target.name}.parts")
        with files.FolderLock(stage).lock():
            found = conversion.load_or_convert(target, asked, Conversion(self, asked, tuple(paths), stage).convert)
        files.remove_folder(stage)
        return found


@dataclass
class Conversion:
    """Reads, filters, numbers and groups the rows of files. `stage`: a folder for the files between these steps."""

    spark: Spark
    asked: Interactions
    paths: tuple[Path, ...]
    stage: Path

    def convert(self) -> tuple[Sequences, Report]:
        """Does what `conversion.convert` does."""
        asked, spark, stage = self.asked, self.spark, self.stage
        actions, read, source = self._read()
        if asked.test_from is not None and "time" not in actions.columns:
            grouping.parse_test_from(asked.test_from, None, None)  # raises
        first_places = {role: actions.groupBy(role).agg(f.min("place").alias("first")) for role in ("user", "item")}
        before = self._sizes(actions)
        chosen = self._filtered(actions)
        kept = self._sizes(chosen) if chosen is not actions else before
        left = self._enough(chosen, "user", 2)
        vocabulary = self._vocabulary(left, first_places["item"])
        users = left.select("user").distinct().join(first_places["user"], "user")
        numbers, num_users = self._numbered(users)
        grouping.check_trainable(num_users, vocabulary.num_items, asked, tasks.merged(read))
        first_later = None
        if asked.test_from is not None:
            times = Times()
            times.kind = source.kind
            latest = chosen.agg(f.max("time")).collect()[0][0]
            first_later = grouping.parse_test_from(asked.test_from, latest, times)
        codes = pa.table(
            {"item": pa.array(vocabulary.items, pa.string()), "code": np.arange(1, vocabulary.num_items + 1)}
        )
        coded = left.join(spark.session.createDataFrame(codes), "item").drop("item").withColumnRenamed("code", "item")
        grouped = coded.join(numbers, "user").withColumn("block", f.expr(f"number div {USERS_OF_A_BLOCK}"))

        def write(table: pa.Table) -> pa.Table:
            return pa.table({"block": [tasks.write_block(table, stage, first_later)]})

        blocks = [row["block"] for row in grouped.groupBy("block").applyInArrow(write, "block long").collect()]
        bounds = grouping.bound_user_actions(asked), asked.min_item_actions
        report = Report(
            asked.title, str(source.layout), before, kept, *bounds, tasks.merged(read), source.layout.others
        )
        report.warn_without_times()
        return tasks.join_blocks(sorted(blocks), stage, vocabulary, kept["users"] - num_users), report

    def _read(self) -> tuple[DataFrame, list[tasks.Read], tasks.Source]:
        """Returns the good rows (`user`, `item`, `place` and perhaps `time`), what each file had, and the source."""
        layout = conversion.read_layout(self.paths[0], self.asked)
        source = tasks.Source(self.asked, self.paths, layout)
        if layout.time is not None:
            source = replace(source, kind=self.spark.map(tasks.kind_of_times, [source])[0])
        folder = emptied((self.stage / "rows").absolute())
        read = self.spark.map(partial(tasks.read_file, source=source, folder=folder), range(len(self.paths)))
        actions = self._stored(folder)
        if layout.time is not None:
            other = "fraction" if all(found.times_are_whole for found in read) else "time"
            actions = actions.drop(other).withColumnRenamed("fraction", "time")
        return actions, read, source

    def _filtered(self, actions: DataFrame) -> DataFrame:
        """Does what `grouping.filter_actions` does."""
        bounds = {"user": grouping.bound_user_actions(self.asked), "item": self.asked.min_item_actions}
        if max(bounds.values()) <= 1:
            return actions
        before, number = actions.count(), 0
        while True:
            both = actions
            for role, bound in bounds.items():
                both = self._enough(both, role, bound, actions)
            actions = self._kept(self._enough(both, "user", bounds["user"]), f"filtered-{number}")
            after, number = actions.count(), number + 1
            if after == before or not self.asked.k_core:
                return actions
            before = after

    def _enough(self, actions: DataFrame, role: str, bound: int, among: DataFrame | None = None) -> DataFrame:
        """Returns the actions whose `role`, user or item, occurs `bound` times in `among`, by default in `actions`."""
        counted = (actions if among is None else among).groupBy(role).count()
        return actions.join(counted.where(f.col("count") >= bound).select(role), role, "left_semi")

    def _sizes(self, actions: DataFrame) -> dict[str, int]:
        found = actions.agg(f.countDistinct("user"), f.countDistinct("item"), f.count("*")).collect()[0]
        return dict(zip(("users", "items", "actions"), found))

    def _vocabulary(self, actions: DataFrame, first_places: DataFrame) -> Vocabulary:
        """Returns the items by falling count; ties by first appearance among all rows that were read."""
        counted = actions.groupBy("item").count().join(first_places, "item")
        table = counted.orderBy(f.desc("count"), "first").toArrow()
        return Vocabulary(np.array(table["item"].to_pylist(), object), table["count"].to_numpy().astype(np.int64))

    def _numbered(self, users: DataFrame) -> tuple[DataFrame, int]:
        """Returns each `user` with a `number`, by first appearance from 0, and how many users there are."""
        ordered = users.orderBy("first").select("user", f.monotonically_increasing_id().alias("id"))
        ordered = self._kept(ordered, "users")  # a second computation might cut the partitions elsewhere
        part = f.shiftright("id", 33)
        sizes = {row["part"]: row["count"] for row in ordered.groupBy(part.alias("part")).count().collect()}
        begins, total = [], 0
        for number in sorted(sizes):
            begins.append((number, total - (number << 33)))
            total += sizes[number]
        if not begins:
            return ordered.withColumnRenamed("id", "number"), 0
        shifts = self.spark.session.createDataFrame(begins, "part long, shift long")
        numbered = ordered.withColumn("part", part).join(f.broadcast(shifts), "part")
        return numbered.select("user", (f.col("id") + f.col("shift")).alias("number")), total

    def _kept(self, table: DataFrame, name: str) -> DataFrame:
        """Writes a table, and returns it read back from the files."""
        folder = emptied((self.stage / name).absolute())
        table.write.mode("overwrite").parquet(f"file://{folder}")
        return self._stored(folder)

    def _stored(self, folder: Path) -> DataFrame:
        return self.spark.session.read.parquet(f"file://{folder}")


def emptied(folder: Path) -> Path:
    """Makes a folder exist and be empty, and returns it."""
    files.remove_folder(folder)
    files.make_folder(folder)
    return folder
