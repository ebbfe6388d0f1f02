"""Converts interactions on Spark. The file is that of one machine, byte for byte.

Tasks read the files, and Spark filters, joins and sorts their rows. Only at the end does the driver read the histories.
All machines see the folders of the input and the data under the same paths.
"""

import contextlib
import glob
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
from pyarrow import parquet

from bert4rec_tf.cluster import tasks
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion, grouping
from bert4rec_tf.data.reading.report import Report, describe_cut_rows, describe_findings, describe_repeats
from bert4rec_tf.data.reading.rows import Rows
from bert4rec_tf.data.reading.times import EARLIEST, LATEST, PER_SECOND
from bert4rec_tf.data.sequences import ActionTimes, Sequences, Vocabulary, make_splits
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import Url

try:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import functions as f
except ImportError as error:
    raise UserError("--engine=spark needs pyspark: pip install 'bert4rec-tf[spark]'") from error

SAMPLED_TIMES = 10_000
"""So many times are looked at for dates whose numbers are not in the order of time."""


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
        task_interactions = replace(interactions, path=tuple(map(_make_absolute, interactions.files)))
        paths = conversion.list_files(task_interactions)
        sources = self.map(partial(conversion.identify_source, interactions=task_interactions), paths)
        target = conversion.locate_conversion(folder.absolute(), interactions, sources)
        stage = target.with_name(f".{target.name}.parts")

        def convert() -> tuple[Sequences, Report]:
            sequences, report = Conversion(self, task_interactions, paths, stage).convert()
            return sequences, replace(report, path=interactions.title)  # as the user named them

        with files.FolderLock(stage).lock():
            try:
                return conversion.load_or_convert(target, interactions, convert)
            finally:
                files.remove_folder(stage)


@dataclass
class Conversion:
    """Reads, filters, numbers and sorts the rows of files. `stage`: an absolute path, for files between these steps."""

    spark: Spark
    interactions: Interactions
    paths: list[Path]
    stage: Path

    def convert(self) -> tuple[Sequences, Report]:
        """Does what `conversion.convert` does."""
        interactions, reader = self.interactions, conversion.open_first(self.interactions, self.paths)
        layout, times = reader.layout, reader.times
        actions = self._read_files(reader)
        sizes_before = self._count_sizes(actions)
        notes = describe_findings(reader)
        if reader.findings.unended:
            item_counts = self._make_vocabulary(actions)
            notes += describe_cut_rows(reader.findings, item_counts.items.tolist(), item_counts.counts)
        unit, test_from, meaning, doubts = None, None, "", list[str]()
        if layout.times and sizes_before["actions"]:
            latest_time = actions.agg(f.max("time")).collect()[0][0]
            unit, meaning, doubts = times.describe(
                self._count_units(actions),
                sizes_before["actions"],
                latest_time,
                lambda: np.array([row["time"] for row in actions.select("time").head(SAMPLED_TIMES)]),
                interactions,
            )
            if interactions.duplicates == "drop":
                actions, repeat_notes = self._drop_repeats(actions, sizes_before["actions"])
                notes += repeat_notes
        actions = self._filter_actions(actions)
        vocabulary = self._make_vocabulary(actions)
        if interactions.test_from is not None:
            test_from = times.parse_moment(interactions.test_from, unit)
        users = self._list_users(actions, test_from)
        histories = self._sort_actions(actions, vocabulary)
        sequences = Sequences(
            histories["item"].to_numpy(),
            make_splits(users["length"].to_numpy()),
            np.array(users["user"].to_pylist(), object),
            vocabulary,
            None if test_from is None else users["num_later"].to_numpy(),
            times=ActionTimes(histories["time"].to_numpy(), meaning) if layout.times else None,
        )
        return sequences, grouping.make_report(reader, meaning, sizes_before, sequences, doubts, notes, to_train=True)

    def _drop_repeats(self, actions: DataFrame, num_before: int) -> tuple[DataFrame, list[str]]:
        """Does what `grouping.order_actions` does with repeats, and describes them."""
        firsts = actions.groupBy("user", "item", "time").agg(f.min("place").alias("place"))
        firsts = self._read_stored(self._write(firsts, "firsts"))
        number = num_before - firsts.count()
        if not number:
            return actions, []
        repeats = actions.join(firsts.select("place"), "place", "left_anti")
        first = repeats.agg(f.min_by(f.struct("user", "item"), "place")).collect()[0][0]
        return firsts, describe_repeats(number, (first["user"], first["item"]))

    def _read_files(self, reader: Rows) -> DataFrame:
        """Returns the good rows: `user`, `item`, `place` and perhaps `time`. Adds to the findings of `reader`."""
        has_times = bool(reader.layout.times)
        if has_times:
            reader.times.kind = self.spark.map(tasks.find_kind_of_times, [self.paths], [reader])[0]
        folder = self.stage / "rows"
        files.remove_folder(folder)
        files.make_folder(folder)
        read_file = partial(tasks.read_file, reader=reader, folder=folder)
        summaries = self.spark.map(read_file, range(len(self.paths)), self.paths)
        actions = self._read_stored(folder)
        if has_times:
            other_column = "fraction" if all(summary.times_are_whole for summary in summaries) else "time"
            actions = actions.drop(other_column).withColumnRenamed("fraction", "time")
        for summary in summaries:
            reader.findings.add(summary.findings)
            reader.times.zones |= summary.zones
        return actions

    def _filter_actions(self, actions: DataFrame) -> DataFrame:
        """Does what `grouping.filter_actions` does."""
        bounds = {"user": self.interactions.min_user_actions, "item": self.interactions.min_item_actions}
        if max(bounds.values()) <= 1:
            return actions
        num_before, number = actions.count(), 0
        while True:
            frequent_actions = actions
            for role, bound in bounds.items():
                frequent_actions = self._keep_frequent(frequent_actions, role, bound, actions)
            frequent_actions = self._keep_frequent(frequent_actions, "user", bounds["user"])
            actions = self._read_stored(self._write(frequent_actions, f"filtered-{number}"))
            num_after, number = actions.count(), number + 1
            if num_after == num_before or not self.interactions.k_core:
                return actions
            num_before = num_after

    def _keep_frequent(self, actions: DataFrame, role: str, bound: int, sample: DataFrame | None = None) -> DataFrame:
        """Returns the actions whose `role`, user or item, occurs `bound` times in `sample`, by default in `actions`."""
        counts = (actions if sample is None else sample).groupBy(role).count()
        return actions.join(counts.where(f.col("count") >= bound).select(role), role, "left_semi")

    def _count_sizes(self, actions: DataFrame) -> dict[str, int]:
        counts = actions.agg(f.countDistinct("user"), f.countDistinct("item"), f.count("*")).collect()[0]
        return dict(zip(("users", "items", "actions"), counts))

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
        items = actions.groupBy("item").count().orderBy(f.desc("count"), *_list_sort_keys("item"))
        table = self._fetch(items, "items")
        return Vocabulary(np.array(table["item"].to_pylist(), object), table["count"].to_numpy())

    def _list_users(self, actions: DataFrame, test_from: float | None) -> pa.Table:
        """Returns each `user`, in the order of their ids, and `length`, the number of actions.

        With `test_from`, the time from which actions are held out, also `num_later`, the number of these.
        """
        counts = [f.count("*").alias("length")]
        if test_from is not None:
            counts.append(f.count_if(f.col("time") >= test_from).alias("num_later"))
        return self._fetch(actions.groupBy("user").agg(*counts).orderBy(*_list_sort_keys("user")), "users")

    def _sort_actions(self, actions: DataFrame, vocabulary: Vocabulary) -> pa.Table:
        """Returns `item`, its number, and perhaps `time` of all actions, ordered by user, time and place."""
        numbers = np.arange(1, vocabulary.num_items + 1, dtype=np.int32)
        codes = pa.table({"item": pa.array(vocabulary.items, pa.string()), "number": numbers})
        coded_actions = actions.join(self.spark.session.createDataFrame(codes), "item").drop("item")
        times = [name for name in actions.columns if name == "time"]
        histories = coded_actions.orderBy(*_list_sort_keys("user"), *times, "place")
        return self._fetch(histories.select(f.col("number").alias("item"), *times), "histories")

    def _write(self, table: DataFrame, name: str) -> Path:
        """Writes a table to a folder of its own."""
        folder = self.stage / name
        table.write.mode("overwrite").parquet(f"file://{folder}")
        return folder

    def _fetch(self, table: DataFrame, name: str) -> pa.Table:
        """Returns a table on the driver, in order. It is written first, because Spark limits what it sends."""
        return pa.concat_tables(map(parquet.read_table, sorted(self._write(table, name).glob("*.parquet"))))

    def _read_stored(self, folder: Path) -> DataFrame:
        return self.spark.session.read.parquet(f"file://{folder}")


def _make_absolute(path: Path) -> str:
    """Returns a path or a pattern below the working directory, whose own brackets are no pattern."""
    is_whole = isinstance(path, Url) or path.is_absolute() or path.exists()
    return str(path.absolute() if is_whole else Path(glob.escape(os.getcwd()), path))


def _list_sort_keys(role: str) -> list[Column]:
    """Returns the keys by which `grouping.sort_ids` sorts."""
    is_whole = f.col(role).rlike(grouping.WHOLE)
    return [~is_whole, f.when(is_whole, f.length(role)).otherwise(0), f.col(role)]
