"""Files in a store give the same as files in a folder."""

import gzip
import subprocess
import sys

import pytest
from support.interaction_files import LAYOUTS, ROWS, as_csv, as_parquet, histories, plainly, read, write

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion
from bert4rec_tf.data.reading.feature_files import read_features
from bert4rec_tf.foundation.errors import UserError


@pytest.mark.parametrize("name", ["ratings.csv", "ratings.csv.gz", "reviews.jsonl.gz", "ratings.parquet"])
def test_every_layout_is_read_from_a_store(memory, tmp_path, name):
    local = write(tmp_path, name, LAYOUTS[name.removesuffix(".gz")](ROWS))
    memory.pipe_file(f"/data/{name}", local.read_bytes())
    sequences, report = read(f"memory://data/{name}")
    expected, its_report = read(local)
    assert histories(sequences) == plainly(ROWS)
    assert sequences.fingerprint == expected.fingerprint
    assert (report.columns, report.read) == (its_report.columns, its_report.read)


def test_many_files_are_read_in_the_order_of_their_names(memory):
    later = [("dan", "lamp", 1), ("dan", "x", 1), ("dan", "7", 1)]
    for name, rows in (("b/2.csv", later), ("a/1.csv", ROWS), ("a/1.txt", later)):
        memory.pipe_file(f"/logs/{name}", as_csv(rows))
    memory.mkdir("/logs/c.csv")
    assert histories(read("memory://logs/*/*.csv")[0]) == plainly(ROWS + later)
    assert histories(read("memory://logs/[b]/2.csv")[0]) == plainly(later)
    assert histories(read("memory://[l]*/b/2.csv")[0]) == plainly(later)
    for unfinished in ("b/_temporary/0.csv", "b/.1.csv", ".old/2.csv"):
        memory.pipe_file(f"/logs/{unfinished}", as_csv([("nobody", "z", 1)]))
    for pattern in ("memory://logs/**/*.csv", "memory://logs/[ab]/*.csv", "memory://logs/*/[!x]*.csv"):
        assert histories(read(pattern)[0]) == plainly(ROWS + later)
    memory.pipe_file("/logs/.d/3.csv", as_csv(later))
    assert histories(read("memory://logs/.d/*.csv")[0]) == plainly(later)
    for number, rows in enumerate((ROWS, later)):
        memory.pipe_file(f"/tables/part-{number}.parquet", as_parquet(rows))
    memory.pipe_file("/tables/_SUCCESS", b"")
    assert histories(read("memory://tables/")[0]) == plainly(ROWS + later)


def test_a_conversion_from_a_store_is_stored_and_equals_a_local_one(memory, tmp_path):
    local = write(tmp_path, "mine.csv", as_csv(ROWS))
    memory.pipe_file("/data/mine.csv", local.read_bytes())
    first, _ = conversion.convert_once(Interactions("memory://data/mine.csv"), tmp_path / "kept")
    (kept,) = (tmp_path / "kept" / "converted").iterdir()
    inode = kept.stat().st_ino
    for path in ("memory://data/mine.csv", str(local)):
        again, report = conversion.convert_once(Interactions(path), tmp_path / "kept")
        assert again.fingerprint == first.fingerprint and report.path == path and kept.stat().st_ino == inode
    assert Interactions("memory://data/mine.csv").name == "own-mine"
    assert Interactions("memory://data/mine.csv").to_dict()["path"] == "memory://data/mine.csv"


def test_features_are_read_from_a_store(memory, tmp_path):
    rows = [("7", "red"), ("007", "red"), ("lamp", "blue"), ("a b", "blue")]
    for name, content in (("f.csv", as_csv(rows, ("item", "colour"))), ("f.csv.gz", None)):
        content = content or gzip.compress(as_csv(rows, ("item", "colour")))
        memory.pipe_file(f"/{name}", content)
        assert read_features(f"memory://{name}").names.tolist() == ["colour=blue", "colour=red"]
    memory.pipe_file("/f.parquet", as_parquet([(*row, 0) for row in rows], ("item", "colour", "n")))
    found = read_features("memory://f.parquet")
    assert found.names.tolist() == ["colour=blue", "colour=red", "n=0"]
    assert found.fingerprint == read_features(write(tmp_path, "f.parquet", memory.cat("/f.parquet"))).fingerprint


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("memory://data/none.csv", "memory://data/none.csv: no such file"),
        ("memory://data/*.tsv", "memory://data/*.tsv: no such file"),
        ("memory://data/cut.csv.gz", "memory://data/cut.csv.gz: cut short"),
        ("memory://data", "memory://data: a folder without .parquet files"),
        ("memory://cut.parquet", "memory://cut.parquet: cut short or damaged"),
        ("nostore://bucket/a.csv", "nostore://bucket: unknown scheme 'nostore'. Known: "),
    ],
)
def test_errors_name_the_url(memory, tmp_path, path, message):
    memory.pipe_file("/data/cut.csv.gz", gzip.compress(as_csv(ROWS * 1000))[:200])
    memory.pipe_file("/cut.parquet", as_parquet(ROWS)[:100])
    with pytest.raises(UserError) as error:
        conversion.convert_once(Interactions(path), tmp_path)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_a_missing_fsspec_names_the_extra(tmp_path):
    (tmp_path / "fsspec.py").write_text("raise ImportError('not here')")
    code = "from bert4rec_tf.commands.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "data", "--interactions=s3://bucket/a.csv"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: URLs need fsspec: pip install 'bert4rec-tf[stores]'\n"
