"""Spark writes what one machine writes."""

import contextlib
import importlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from support import commands, exports, spark
from support.interaction_files import as_parquet, write

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving import batch

FLAGS = ("--interactions=rows/*.csv", "--max_length=8")
FILTER = ("--min_user_actions=3", "--min_item_actions=4", "--k_core", "--bad_rows=skip")


def write_rows(folder, users=90, rows=1_200):
    """Three files: whole times, fractions among them, repeated and bad rows, users with one action, and a cut item."""
    draw = random.Random(7)
    made = [
        (f"u{draw.randint(1, users)}", f"i{int(draw.expovariate(0.06))}", draw.randint(1, 300)) for _ in range(rows)
    ]
    made[700] = ("u1", "i1", 12.5)
    made[1_100] = ("", "i1", 1)
    made += [*made[30:90], *((f"once{number}", f"i{number}", number) for number in range(9))]
    made += [("café", "i1", 5), ("cafe\u0301", "i2", 6), ("café", "i3", 7)]
    (folder / "rows").mkdir(parents=True)
    for number in range(3):
        lines = ["timestamp,user_id,item_id", *(f"{time},{user},{item}" for user, item, time in made[number::3])]
        (folder / "rows" / f"{number}.csv").write_text("\n".join(lines) + ("\n" if number < 2 else "\n300,u1,i"))


@pytest.fixture
def local_spark(monkeypatch, tmp_path):
    spark.needed()
    for name, value in spark.environment(tmp_path).items():
        monkeypatch.setenv(name, value)


def prepared(folder, name, *flags, data=FLAGS):
    """Runs in a folder and returns what was written to its folder `name`, and what was printed about the data."""
    places = f"--workdir={name}/work", f"--data_dir={name}/data"
    ended = commands.finished("--mode=prepare", *data, *flags, *places, cwd=folder)
    content = {path: hash(found) for path, found in commands.contents(folder / name).items()}
    return content, ended.stdout.split("Model")[0].splitlines()


BY_TIME = ("--test_from=200", "--bad_rows=skip")


@pytest.mark.parametrize("flags", [FILTER, pytest.param(BY_TIME, marks=pytest.mark.slow)])
def test_spark_prepares_the_same_bytes(flags, tmp_path, local_spark):
    write_rows(tmp_path)
    content, said = prepared(tmp_path, "here", *flags)
    again, said_again = prepared(tmp_path, "there", *flags, "--engine=spark", "--master=local[2]")
    assert again == content and said_again == said
    names = " ".join(content)
    assert "data/converted/rows-" in names and "candidates" in names
    for words in (
        *("skipped 1 bad rows", "rows that repeat user, item and time", "1 ids were not in Unicode's form NFC"),
        "2.csv, row 426 has no line end, and no other row has its item 'i': the file may be cut short",
    ):
        assert words in "".join(said)
    assert not list((tmp_path / "there").rglob("*.parts"))


@pytest.mark.slow
def test_spark_cuts_at_a_date_in_the_zone_of_the_files(tmp_path, local_spark):
    moments = pd.date_range("2024-06-01 20:00", periods=6, freq="6h", tz="US/Pacific")
    for number in range(2):
        pairs = [(user, place) for user in range(number, 9, 2) for place in range(6)]
        rows = [(f"u{user}", f"i{(user + place) % 9}", moments[place]) for user, place in pairs]
        write(tmp_path, f"zoned/{number}.parquet", as_parquet(rows))
    data = ("--interactions=zoned/*.parquet", "--test_from=2024-06-03")
    content, _ = prepared(tmp_path, "here", data=data)
    assert prepared(tmp_path, "there", "--engine=spark", "--master=local[2]", data=data)[0] == content


@pytest.fixture
def fake_spark(monkeypatch):
    """What keeps conversions, without a cluster: it maps here."""
    spark.needed()
    cluster = importlib.import_module("bert4rec_tf.cluster.spark")
    monkeypatch.setattr(cluster.Spark, "map", lambda self, *arguments: list(map(*arguments)))
    return cluster.Spark.__new__(cluster.Spark)


def test_a_kept_conversion_is_that_of_one_machine_and_of_the_same_folders(tmp_path, fake_spark, monkeypatch):
    for user in "12":
        rows = [(item, time) for time, item in enumerate("xyz")]
        write(tmp_path, f"hive/user={user}/0.parquet", as_parquet(rows, ("item", "time")))
    asked = Interactions(tmp_path / "hive")
    expected, _ = conversion.convert_once(asked, tmp_path / "data")
    monkeypatch.setattr("bert4rec_tf.cluster.spark.Conversion.convert", lambda self: conversion.convert(asked))
    assert fake_spark.load(asked, tmp_path / "data")[0].fingerprint == expected.fingerprint
    assert len(list((tmp_path / "data" / "converted").glob("*.npz"))) == 1
    (tmp_path / "hive" / "user=1").rename(tmp_path / "hive" / "user=007")
    assert set(fake_spark.load(asked, tmp_path / "data")[0].users) == {"007", "2"}


def test_a_bad_row_leaves_no_files_between_the_steps(tmp_path, fake_spark):
    path = write(tmp_path, "rows/0.csv", b"user,item,timestamp\na,x,1\na,,2\n")
    with pytest.raises(UserError, match="row 3: the item's id is missing"):
        fake_spark.load(Interactions(path), tmp_path / "data")
    assert not list((tmp_path / "data" / "converted").iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--master=local[2]",), "--master needs --engine=spark. Received: engine=local"),
        (("--engine=flink",), "engine"),
        (("--engine=spark", "--mode=train"), "--engine=spark needs --mode=prepare. Received: mode=train"),
        (("--k_core",), "`k_core` needs `min_user_actions` or `min_item_actions` above 1"),
    ],
)
def test_flags_that_exclude_each_other_are_refused(tmp_path, flags, message):
    ended = commands.run("--mode=prepare", *FLAGS, *flags, cwd=tmp_path)
    assert message in commands.refused(ended)


def test_a_missing_pyspark_names_the_extra(tmp_path, monkeypatch):
    write_rows(tmp_path)
    for name in [name for name in sys.modules if name.startswith(("pyspark", "py4j", "bert4rec_tf.cluster"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pyspark", "py4j"):
        monkeypatch.setitem(sys.modules, name, None)
    ended = commands.run("--mode=prepare", *FLAGS, "--bad_rows=skip", "--engine=spark", cwd=tmp_path)
    assert commands.refused(ended).endswith("needs pyspark: pip install 'bert4rec-tf[spark]'")


def test_a_missing_java_is_an_error_in_one_line(tmp_path, monkeypatch):
    spark.needed()
    write_rows(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    ended = commands.run("--mode=prepare", *FLAGS, "--engine=spark", cwd=tmp_path)
    assert "--engine=spark needs Java 17 or newer" in commands.refused(ended)


def write_actions(path, num_users):
    draw = random.Random(3)
    rows = [f"u{user},{item}" for user in range(num_users) for item in draw.choices(exports.NAMES[-6:], k=5)]
    path.write_text("\n".join(["user,item", *rows]) + "\n")


def test_spark_recommends_the_same_bytes(tmp_path, local_spark, monkeypatch):
    monkeypatch.setattr(batch, "PART_BATCHES", 1)
    export(exports.transformer(), exports.VOCABULARY, tmp_path / "model", ExportOptions(exports.K))
    write_actions(tmp_path / "actions.csv", 600)
    said = []
    for name, engine in (("here", ()), ("there", ("--engine=spark", "--master=local[2]"))):
        flags = ("--model=model", "--interactions=actions.csv", f"--output={name}.csv", *engine)
        ended = commands.console("recommend", *flags, cwd=tmp_path)
        said.append((ended.returncode, ended.stdout.replace(name, "")))
    assert said[0] == said[1] and said[0][0] == 0
    lists = (tmp_path / "here.csv").read_bytes()
    assert (tmp_path / "there.csv").read_bytes() == lists and lists.count(b"\n") == 600 * exports.K + 1


def descendants(process):
    """The ids and commands of the processes that a process has started, directly or not."""
    parents, found = {}, {process}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            parents[int(path.name)] = parent, (path / "cmdline").read_text()
    while more := {one for one, (parent, _) in parents.items() if parent in found} - found:
        found |= more
    return [(one, parents[one][1]) for one in found if one != process]


CONSOLE = "from bert4rec_tf.commands.main import main; main()"


def killed(folder, moment, *program):
    """Starts a program on a cluster of two, and kills an executor when a file of this pattern is there."""
    program = [sys.executable, *program, "--engine=spark", "--master=local-cluster[2,1,1024]"]
    with open(folder / "said", "w") as said:
        driver = subprocess.Popen(program, cwd=folder, env=spark.environment(folder), stdout=said, stderr=said)
    while driver.poll() is None and not list(folder.glob(moment)):
        time.sleep(0.02)
    executors = [one for one, command in descendants(driver.pid) if "CoarseGrainedExecutorBackend" in command]
    os.kill(executors[0], signal.SIGKILL)
    assert driver.wait(timeout=500) == 0, (folder / "said").read_text()


@pytest.mark.slow
def test_an_executor_killed_while_converting_changes_nothing(tmp_path):
    spark.needed()
    write_rows(tmp_path)
    flags, moment = ("--mode=prepare", *FLAGS, *FILTER), "there/data/converted/.*.parts/rows/*.parquet"
    commands.finished(*flags, "--workdir=here/work", "--data_dir=here/data", cwd=tmp_path)
    killed(tmp_path, moment, "-m", "bert4rec_tf.run", *flags, "--workdir=there/work", "--data_dir=there/data")
    digests = [
        {path: hash(found) for path, found in commands.contents(tmp_path / name).items()} for name in ("here", "there")
    ]
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_an_executor_killed_while_recommending_changes_nothing(tmp_path):
    spark.needed()
    export(exports.transformer(), exports.VOCABULARY, tmp_path / "model", ExportOptions(exports.K))
    write_actions(tmp_path / "actions.csv", 50_000)
    flags = ("recommend", "--model=model", "--interactions=actions.csv")
    commands.console(*flags, "--output=here.csv", cwd=tmp_path)
    killed(tmp_path, ".there.csv.parts/part-*", "-c", CONSOLE, *flags, "--output=there.csv")
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
