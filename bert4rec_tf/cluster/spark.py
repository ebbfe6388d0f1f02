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
from bert4rec_tf.data.reading.times import EARLIEST, LATEST, NUMBER, PER_SECOND, Times, choose_unit, describe_times
from bert4rec_tf.data.sequences import USERS_OF_A_BLOCK, Sequences, Vocabulary
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

try:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import Column, DataFrame, SparkSession, Window
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

        results = self.session.sparkContext.parallelize(calls, len(calls)).map(attempt).collect()
        for _, mistake in results:
            if mistake is not None:
                raise UserError(mistake)
        return [value for value, _ in results]

    @errors_in_one_line()
    def load(self, interactions: Interactions, folder: Path) -> tuple[Sequences, Report]:
        """Does what `conversion.convert_once` does, with the same file."""
        paths = [path.absolute() for path in conversion.list_files(interactions)]
        target = conversion.locate_conversion(
            folder.absolute(), interactions, self.map(conversion.compute_checksum, paths)
        )
        stage = target.with_name(f".{target.name}.parts")
        with files.FolderLock(stage).lock():
            converted = conversion.load_or_convert(
                target, interactions, Conversion(self, interactions, tuple(paths), stage).convert
            )
        files.remove_folder(stage)
        return converted


@dataclass
class Conversion:
    """Reads, filters, numbers and groups the rows of files. `stage`: a folder for the files between these steps."""

    spark: Spark
    interactions: Interactions
    paths: tuple[Path, ...]
    stage: Path

    def convert(self) -> tuple[Sequences, Report]:
        """Does what `conversion.convert` does."""
        interactions, spark, stage = self.interactions, self.spark, self.stage
        actions, summaries, source = self._read_files()
        if interactions.test_from is not None and "time" not in actions.columns:
            grouping.parse_test_from(interactions.test_from, None, None)  # raises
        sizes_before = self._count_sizes(actions)
        filtered = self._filter_actions(actions)
        sizes_after = self._count_sizes(filtered) if filtered is not actions else sizes_before
        trained_on = self._keep_frequent(filtered, "user", 2)
        vocabulary = self._make_vocabulary(trained_on)
        numbers = self._number_users(trained_on.select("user").distinct())
        num_users = numbers.count()
        grouping.check_trainable(num_users, vocabulary.num_items, interactions, tasks.merge_bad_rows(summaries))
        first_later, unit, times = None, None, Times()
        times.kind = source.kind
        if source.kind == NUMBER:
            unit = choose_unit(self._count_units(filtered), sizes_after["actions"], interactions.title)
        if interactions.test_from is not None:
            first_later = grouping.parse_test_from(interactions.test_from, unit, times)
        codes = pa.table(
            {"item": pa.array(vocabulary.items, pa.string()), "code": np.arange(1, vocabulary.num_items + 1)}
        )
        coded = (
            trained_on.join(spark.session.createDataFrame(codes), "item").drop("item").withColumnRenamed("code", "item")
        )
        grouped = coded.join(numbers, "user").withColumn("block", f.expr(f"number div {USERS_OF_A_BLOCK}"))

        def write(table: pa.Table) -> pa.Table:
            return pa.table({"block": [tasks.write_block(table, stage, first_later)]})

        blocks = [row["block"] for row in grouped.groupBy("block").applyInArrow(write, "block long").collect()]
        bounds = grouping.bound_user_actions(interactions), interactions.min_item_actions
        meaning = describe_times(source.kind, unit) if "time" in actions.columns else ""
        num_left_out = sizes_after["users"] - num_users
        sequences = tasks.join_blocks(sorted(blocks), stage, vocabulary, num_left_out, meaning)
        report = Report(
            interactions.title,
            str(source.layout),
            sizes_before,
            sizes_after,
            *bounds,
            tasks.merge_bad_rows(summaries),
            self._compute_equal_times(filtered, sizes_after),
            meaning,
            source.layout.doubt,
        )
        report.warn_of_doubts(sequences)
        return sequences, report

    def _read_files(self) -> tuple[DataFrame, list[tasks.FileSummary], tasks.Source]:
        """Returns the good rows (`user`, `item`, `place` and perhaps `time`), what each file had, and the source."""
        layout = conversion.read_layout(self.paths[0], self.interactions)
        source = tasks.Source(self.interactions, self.paths, layout)
        if layout.time is not None:
            source = replace(source, kind=self.spark.map(tasks.find_kind_of_times, [source])[0])
        folder = make_empty_folder((self.stage / "rows").absolute())
        summaries = self.spark.map(partial(tasks.read_file, source=source, folder=folder), range(len(self.paths)))
        actions = self._read_stored(folder)
        if layout.time is not None:
            other = "fraction" if all(summary.times_are_whole for summary in summaries) else "time"
            actions = actions.drop(other).withColumnRenamed("fraction", "time")
        return actions, summaries, source

    def _filter_actions(self, actions: DataFrame) -> DataFrame:
        """Does what `grouping.filter_actions` does."""
        bounds = {"user": grouping.bound_user_actions(self.interactions), "item": self.interactions.min_item_actions}
        if max(bounds.values()) <= 1:
            return actions
        before, number = actions.count(), 0
        while True:
            frequent = actions
            for role, bound in bounds.items():
                frequent = self._keep_frequent(frequent, role, bound, actions)
            actions = self._store(self._keep_frequent(frequent, "user", bounds["user"]), f"filtered-{number}")
            after, number = actions.count(), number + 1
            if after == before or not self.interactions.k_core:
                return actions
            before = after

    def _keep_frequent(self, actions: DataFrame, role: str, bound: int, among: DataFrame | None = None) -> DataFrame:
        """Returns the actions whose `role`, user or item, occurs `bound` times in `among`, by default in `actions`."""
        counted = (actions if among is None else among).groupBy(role).count()
        return actions.join(counted.where(f.col("count") >= bound).select(role), role, "left_semi")

    def _count_sizes(self, actions: DataFrame) -> dict[str, int]:
        counts = actions.agg(f.countDistinct("user"), f.countDistinct("item"), f.count("*")).collect()[0]
        return dict(zip(("users", "items", "actions"), counts))

    def _compute_equal_times(self, actions: DataFrame, sizes: dict[str, int]) -> float:
        if "time" not in actions.columns:
            return 0.0
        distinct = actions.agg(f.countDistinct("user", "time")).collect()[0][0]
        return (sizes["actions"] - distinct) / max(sizes["actions"] - sizes["users"], 1)

    def _count_units(self, actions: DataFrame) -> dict[str, int]:
        """Does what `times.count_units` does."""
        bounds = {unit: (EARLIEST * per_second, LATEST * per_second) for unit, per_second in PER_SECOND.items()}
        counts = [
            f.count_if((f.col("time") >= low) & (f.col("time") < high)).alias(unit)
            for unit, (low, high) in bounds.items()
        ]
        return actions.agg(*counts).collect()[0].asDict()

    def _make_vocabulary(self, actions: DataFrame) -> Vocabulary:
        """Returns the items by falling count, then by id."""
        table = actions.groupBy("item").count().orderBy(f.desc("count"), *_list_sort_keys("item")).toArrow()
        return Vocabulary(np.array(table["item"].to_pylist(), object), table["count"].to_numpy().astype(np.int64))

    def _number_users(self, users: DataFrame) -> DataFrame:
        """Returns each `user` with a `number`, in the order of their ids from 0. One task sorts all users."""
        number = f.row_number().over(Window.orderBy(*_list_sort_keys("user"))) - 1
        return self._store(users.select("user", number.cast("long").alias("number")), "users")

    def _store(self, table: DataFrame, name: str) -> DataFrame:
        """Writes a table, and returns it read back from the files."""
        folder = make_empty_folder((self.stage / name).absolute())
        table.write.mode("overwrite").parquet(f"file://{folder}")
        return self._read_stored(folder)

    def _read_stored(self, folder: Path) -> DataFrame:
        return self.spark.session.read.parquet(f"file://{folder}")


def _list_sort_keys(role: str) -> list[Column]:
    """Returns the keys by which `grouping.sort_ids` sorts."""
    is_whole = f.col(role).rlike(grouping.WHOLE)
    return [~is_whole, f.when(is_whole, f.length(role)).otherwise(0), f.col(role)]


def make_empty_folder(folder: Path) -> Path:
    """Makes a folder exist and be empty, and returns it."""
    files.remove_folder(folder)
    files.make_folder(folder)
    return folder
