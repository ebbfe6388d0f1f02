"""Prepares data and measures on Spark. The files are those of one machine, byte for byte.

Spark groups, joins and sorts the rows; the rest is in `tasks`. The driver holds the vocabulary and some numbers per
user, but no row. All machines see the folders of the input, the data and the run under the same paths.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec_tf.cluster import measuring, tasks
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.run import ALL
from bert4rec_tf.data.cooccurrence import Neighbors, block_ends
from bert4rec_tf.data.examples import preparation
from bert4rec_tf.data.examples.cloze import Numbering
from bert4rec_tf.data.examples.preparation import Plan
from bert4rec_tf.data.examples.tfrecords import Shards
from bert4rec_tf.data.parts import actions_fingerprints
from bert4rec_tf.data.reading import conversion, grouping
from bert4rec_tf.data.reading.conversion import Report
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sequences import USERS_OF_A_BLOCK, Sequences, Vocabulary, fingerprint_of
from bert4rec_tf.evaluation import candidates
from bert4rec_tf.evaluation.ranking import Ranked
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import MODELS, ItemCooccurrence, Recommender
from bert4rec_tf.models.construction import needs_users
from bert4rec_tf.runs.pipeline import Experiment, measured_phase, phases

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
        self.data = Path()  # the file of the data that were loaded
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

    def call(self, function: Callable, *arguments: Any) -> Any:
        """Calls a function in one task, and returns its result."""
        return self.map(function, *([argument] for argument in arguments))[0]

    @errors_in_one_line()
    def regroup(
        self,
        make: Callable[[int], Iterable[pa.RecordBatch]],
        number: int,
        columns: str,
        write: Callable[[pa.Table], int],
    ) -> list[int]:
        """Makes rows in `number` tasks, and writes together those with the same value in the first column.

        `make` takes the number of a task, from 0; `columns` describes its rows in Spark's notation. `write` takes all
        rows of a value and returns that value. Returns all values, in any order.
        """

        def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for task in batch["id"].to_pylist():
                    yield from make(task)

        def written(table: pa.Table) -> pa.Table:
            return pa.table({"value": [write(table)]})

        rows = self.session.range(0, number, 1, number).mapInArrow(made, columns)
        groups = rows.groupBy(columns.split()[0]).applyInArrow(written, "value long")
        return [row["value"] for row in groups.collect()]

    @errors_in_one_line()
    def load(self, asked: Interactions, folder: Path) -> tuple[Sequences, Report]:
        """Does what `conversion.converted` does, with the same file, whose path becomes `data`.

        The sequences have no users' ids, and their actions stay in the file, which is read once to verify it.
        """
        paths = [path.absolute() for path in conversion.files_of(asked)]
        target = conversion.path_in(folder.absolute(), asked, self.map(conversion.checksum, paths))
        stage = target.with_name(f".{target.name}.parts")
        if not tasks.is_whole(target):
            with files.FolderLock(stage).lock():
                if not tasks.is_whole(target):
                    Conversion(self, asked, tuple(paths), stage).write(target)
            files.remove_folder(stage)
        self.data = target
        sequences, report = conversion.load(target, mapped=True)
        report = replace(report, path=asked.title)
        report.warn_without_times()
        return sequences, report

    def experiment(self, *arguments: Any, **options: Any) -> "SparkExperiment":
        """Returns an experiment with the data of `load`. The arguments are those of `Experiment`."""
        return SparkExperiment(*arguments, **options, spark=self, data=self.data)


@dataclass
class Conversion:
    """Reads, filters, numbers and groups the rows of files. `stage`: a folder for the files between these steps."""

    spark: Spark
    asked: Interactions
    paths: tuple[Path, ...]
    stage: Path

    def write(self, target: Path) -> None:
        asked, spark, stage = self.asked, self.spark, self.stage
        actions, read, source = self._read()
        if asked.test_from is not None and "time" not in actions.columns:
            grouping.first_later(asked.test_from, None, None)  # raises
        first_places = {role: actions.groupBy(role).agg(f.min("place").alias("first")) for role in ("user", "item")}
        before = self._sizes(actions)
        chosen = self._filtered(actions)
        kept = self._sizes(chosen) if chosen is not actions else before
        left = self._enough(chosen, "user", 2)
        vocabulary = self._vocabulary(left, first_places["item"])
        users = left.select("user").distinct().join(first_places["user"], "user")
        numbers, num_users = self._numbered(users)
        grouping.check_left(num_users, vocabulary.num_items, asked, tasks.merged(read))
        first_later = None
        if asked.test_from is not None:
            times = Times()
            times.kind = source.kind
            latest = chosen.agg(f.max("time")).collect()[0][0]
            first_later = grouping.first_later(asked.test_from, latest, times)
        tasks.write_vocabulary(stage, vocabulary)
        codes = pa.table(
            {"item": pa.array(vocabulary.items, pa.string()), "code": np.arange(1, vocabulary.num_items + 1)}
        )
        coded = left.join(spark.session.createDataFrame(codes), "item").drop("item").withColumnRenamed("code", "item")
        grouped = coded.join(numbers, "user").withColumn("block", f.expr(f"number div {USERS_OF_A_BLOCK}"))

        def write(table: pa.Table) -> pa.Table:
            return pa.Table.from_pylist([tasks.write_block(table, stage, first_later)])

        schema = "number long, users long, actions long, bytes long"
        rows = grouped.groupBy("block").applyInArrow(write, schema).collect()
        blocks = sorted((row.asDict() for row in rows), key=lambda block: block["number"])
        bounds = grouping.least_user_actions(asked), asked.min_item_actions
        report = Report(
            asked.title, str(source.layout), before, kept, *bounds, tasks.merged(read), source.layout.others
        )
        num_left_out = kept["users"] - num_users
        spark.call(tasks.join_blocks, blocks, stage, target, num_left_out, report, first_later is not None)

    def _read(self) -> tuple[DataFrame, list[tasks.Read], tasks.Source]:
        """Returns the good rows (`user`, `item`, `place` and perhaps `time`), what each file had, and the source."""
        layout = conversion.layout_of(self.paths[0], self.asked)
        source = tasks.Source(self.asked, self.paths, layout)
        source = replace(source, kind=self.spark.call(tasks.kind_of_times, source) if layout.time is not None else None)
        folder = emptied((self.stage / "rows").absolute())
        read = self.spark.map(partial(tasks.read_file, source=source, folder=folder), range(len(self.paths)))
        actions = self._stored(folder)
        if layout.time is not None:
            other = "fraction" if all(found.times_are_whole for found in read) else "time"
            actions = actions.drop(other).withColumnRenamed("fraction", "time")
        return actions, read, source

    def _filtered(self, actions: DataFrame) -> DataFrame:
        """Does what `grouping.filtered` does."""
        bounds = {"user": grouping.least_user_actions(self.asked), "item": self.asked.min_item_actions}
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


@dataclass
class SparkExperiment(Experiment):
    """An experiment whose tasks read the data from the file of a conversion, `data`."""

    spark: Any = None
    data: Path = Path()

    def __post_init__(self) -> None:
        if self.sequences.features or needs_users(self.run):
            what = "features" if self.sequences.features else "models that know their users"
            raise UserError(f"--engine=spark cannot be used with {what}. Received: model={self.run.model}")
        learnt = sorted({ALL, *phases(self.run)})
        actions = zip(*self.over_parts(actions_fingerprints, learnt))
        users = hashlib.sha256(npz.mapped(self.data)["users"]).hexdigest()
        ids = users, self.sequences.vocabulary.fingerprint
        self.fingerprints = {phase: fingerprint_of([*blocks, *ids]) for phase, blocks in zip(learnt, actions)}
        # Cached here, because the driver does not hold what they are computed from.
        vars(self.sequences).update(fingerprint=self.fingerprints[ALL], users_fingerprint=users)
        super().__post_init__()

    def rank(
        self, model: Recommender, correction: tuple[np.ndarray, float] | None = None, title: str | None = None
    ) -> Ranked:
        blocks = measuring.blocks_of(self.split, USERS_OF_A_BLOCK)
        with self._stage("ranks") as stage:
            kept = stage / f"{uuid.uuid4().hex}.npz"
            measuring.keep_model(model, kept)
            rank = partial(
                measuring.rank, data=self.data, candidates=self._candidates, model=kept, correction=correction
            )
            self.spark.map(rank, range(len(blocks)), blocks)
            return measuring.joined(blocks, self.sequences.num_items, stage)

    def counted(self, name: str) -> Recommender:
        counts = np.append(0, self.training_counts(measured_phase(self.run)))
        model = MODELS[name](self.sequences.num_items)
        if isinstance(model, ItemCooccurrence):
            with self._stage(name) as stage:
                model.assign(counts, self._neighbors(model, counts, stage))
        else:
            model.assign(counts)
        return model

    def _neighbors(self, model: ItemCooccurrence, counts: np.ndarray, stage: Path) -> Iterator[Neighbors]:
        """Counts the pairs in parts of the users. Yields the strongest neighbours, by blocks of items."""
        npz.write(stage / measuring.COUNTS, {"counts": counts})
        data, ends, users, phase = self.data, block_ends(counts), self.sequences.blocks, measured_phase(self.run)
        settings, most = model.settings, model.neighbors.shape[1]
        found = self.spark.regroup(
            lambda number: measuring.count_pairs(users[number], data, phase, settings.window, ends),
            len(users),
            measuring.PAIRS,
            lambda table: measuring.keep_neighbors(table, settings, most, stage),
        )
        return measuring.kept_neighbors(found, stage)

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[Path]:
        """Yields an empty folder for the files of tasks, and removes it in the end."""
        folder = emptied(self.workdir.path.absolute() / f".{name}.parts")
        try:
            yield folder
        finally:
            files.remove_folder(folder)

    def over_parts(self, function: Callable, *arguments: Any) -> list[Any]:
        data = self.data
        return self.spark.map(lambda users: function(tasks.part_of(data, users), *arguments), self.sequences.blocks)

    def _shards(self, phase: str) -> Shards:
        if phase not in self._prepared:
            masking, length = self.run.masking, self.run.architecture.max_length
            blocks = self.sequences.blocks
            count = partial(tasks.count_windows, path=self.data, phase=phase, masking=masking, max_length=length)
            counts = self.spark.map(count, blocks)
            totals = np.sum(counts, axis=0)
            numbering = Numbering(masking, int(totals[0]), int(totals[1]))
            size = preparation.SHARD_SIZE
            plan = Plan(numbering, length, self.sequences.num_items, self.run.seed, size)
            before = (np.cumsum(counts, axis=0) - counts).tolist()
            data, folder, spark = self.data, self.workdir.prepared.absolute(), self.spark

            def write(shards: Shards, wanted: Sequence[int]) -> None:
                spark.regroup(
                    lambda number: tasks.examples_of(data, blocks[number], phase, plan, tuple(before[number]), wanted),
                    len(blocks),
                    tasks.EXAMPLES,
                    lambda table: tasks.write_shard(table, plan, shards.folder),
                )

            self._prepared[phase] = preparation.written(plan, self.fingerprints[phase], folder, write, self.spark.map)
        return self._prepared[phase]

    def draw_candidates(self) -> None:
        _ = self._candidates

    @cached_property
    def _candidates(self) -> Path:
        """The file of the candidates. They are drawn unless it is there and undamaged."""
        settings, users, folder = self.run.evaluation, self.split.users, self.workdir.prepared.absolute()
        size = min(settings.num_negatives, self.sequences.num_items)
        target = candidates.path_in(folder, self.sequences.fingerprint, size, settings.candidates_seed)
        with files.FolderLock(folder).lock():
            if self.spark.call(tasks.is_whole, target):
                return target
            stage = target.with_name(f".{target.name}.parts")
            files.make_folder(stage)
            at_once = candidates.users_of_a_block(self.sequences.num_items)
            blocks = [users[begin : begin + at_once] for begin in range(0, len(users), at_once)]
            draw = partial(tasks.draw, path=self.data, num_negatives=size, seed=settings.candidates_seed, folder=stage)
            self.spark.map(draw, range(len(blocks)), blocks)
            self.spark.call(tasks.join_drawn, len(blocks), len(users), size, stage, target)
            files.remove_folder(stage)
        return target
