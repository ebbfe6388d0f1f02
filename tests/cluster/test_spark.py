"""Spark writes what one machine writes."""

import random

import pytest
from support import commands, spark

from bert4rec_tf.data.examples import preparation
from bert4rec_tf.evaluation import candidates

FLAGS = ("--interactions=rows/*.csv", "--max_length=8")
FILTER = ("--min_user_actions=3", "--min_item_actions=4", "--k_core", "--bad_rows=skip")


def write_rows(folder):
    """Three files: whole times, fractions among them, and bad rows."""
    draw = random.Random(7)
    rows = [(f"u{draw.randint(1, 90)}", f"i{int(draw.expovariate(0.06))}", draw.randint(1, 300)) for _ in range(1_200)]
    rows[700] = ("u1", "i1", 12.5)
    rows[1_100] = ("", "i1", 1)
    (folder / "rows").mkdir(parents=True)
    for number in range(3):
        lines = ["user_id,item_id,timestamp", *(",".join(map(str, row)) for row in rows[number * 400 :][:400])]
        (folder / "rows" / f"{number}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def small_blocks(monkeypatch, tmp_path):
    """Several blocks of users and of candidates, and several shards, in little data."""
    spark.needed()
    for name, value in spark.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    from bert4rec_tf.cluster import spark as engine

    monkeypatch.setattr(engine, "USERS_OF_A_BLOCK", 32)
    monkeypatch.setattr(preparation, "SHARD_SIZE", 500)
    monkeypatch.setattr(candidates, "BLOCK_ELEMENTS", 2_000)


def prepared(folder, name, *flags):
    """Runs in a folder and returns what was written to its folder `name`, and what was printed about the data."""
    places = f"--workdir={name}/work", f"--data_dir={name}/data"
    ended = commands.finished("--mode=prepare", *FLAGS, *flags, *places, cwd=folder)
    content = {path: hash(found) for path, found in commands.contents(folder / name).items()}
    return content, ended.stdout.split("Model")[0].splitlines()


def test_spark_prepares_the_same_bytes(tmp_path, small_blocks):
    write_rows(tmp_path)
    flags = (*FILTER, "--mask_copies=3", "--prefix_copies=2")
    content, said = prepared(tmp_path, "here", *flags)
    again, said_again = prepared(tmp_path, "there", *flags, "--engine=spark", "--master=local[2]")
    assert again == content and said_again == said
    names = " ".join(content)
    assert "-of-00006" in names and "candidates" in names and "skipped 1 bad rows" in "".join(said)
