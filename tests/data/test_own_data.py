"""Whole runs on a file or a table of one's own, from the command line and from Python."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from support import commands
from support.interaction_files import as_csv, write
from support.mistakes import TINY
from support.ranking_oracle import make_sequences
from support.trainings import small_and_quick

import bert4rec_tf as b4r
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.export.layout import CARD_OF_SAVED_MODEL
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.files import read_json

pytestmark = pytest.mark.usefixtures("quick")
ROWS = [
    (f"user {user}", f"item {1 + (7 * user + 3 * place) % 30}", 1_000 - place)
    for user in range(1, 41)
    for place in range(6)
]
PREFIXES = TINY.replace("--window_step=0.5 ", "")
"""Own short histories become prefixes, and no windows slide."""

OWN = f"--interactions=ratings.csv --min_user_actions=2 {PREFIXES}"


@pytest.fixture(scope="session")
def finished(shared_folders):
    def make(folder):
        (folder / "ratings.csv").write_bytes(as_csv(ROWS))
        with small_and_quick():
            commands.finished(*OWN.split(), "--workdir=work", cwd=folder)

    return shared_folders.get("own", make)


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.mark.long
def test_a_run_leaves_all_that_one_on_a_data_set_leaves(finished):
    work = finished / "work"
    metrics = json.loads((work / "metrics.json").read_text())
    assert metrics["users"] == 40 and metrics["run"]["dataset"].startswith("own-ratings-")
    assert "paper" not in metrics
    assert "item 8" in npz.decode_lines(npz.read(work / "vocabulary.npz")["items"])
    assert (work / "saved_model" / "saved_model.pb").exists()
    assert len(list((finished / "cache" / "bert4rec_tf" / "converted").iterdir())) == 1


@pytest.mark.long
def test_the_work_directory_alone_is_enough_to_evaluate_and_export(copy):
    before = (copy / "work" / "metrics.json").read_bytes()
    (copy / "work" / "metrics.json").unlink()
    config = json.loads((copy / "work" / "config.json").read_text())
    assert config["interactions"]["path"].endswith("own/ratings.csv")
    commands.finished("--mode=evaluate", "--workdir=work", cwd=copy)
    assert (copy / "work" / "metrics.json").read_bytes() == before
    commands.finished("--mode=export", "--workdir=work", "--export_dir=new", "--k=99", cwd=copy)
    assert (copy / "new" / "saved_model.pb").exists()
    assert read_json(copy / "new" / CARD_OF_SAVED_MODEL)["k"] == 30  # There are no more items.


@pytest.mark.long
def test_the_same_command_again_trains_nothing_and_gives_the_same_metrics(copy):
    before = (copy / "work" / "metrics.json").read_bytes()
    checkpoints = sorted((copy / "work" / "select").glob("step-*.npz"))
    stamps = [path.stat().st_mtime_ns for path in checkpoints]
    commands.finished(*OWN.split(), "--workdir=work", cwd=copy)
    assert (copy / "work" / "metrics.json").read_bytes() == before
    assert stamps and [path.stat().st_mtime_ns for path in checkpoints] == stamps


def test_a_table_trains_a_model_as_its_file_does_and_other_tables_are_refused_in_its_folder(tmp_path):
    frame = pd.DataFrame(ROWS, columns=["customer", "sku", "bought_at"])
    options = {"user": "customer", "item": "sku", "time": "bought_at"}
    sequences = b4r.interactions(frame, **options, min_user_actions=2)
    path = write(tmp_path, "shop.csv", as_csv(ROWS))
    assert sequences.fingerprint == b4r.load(b4r.Interactions(path), tmp_path).fingerprint
    small = {"steps": 4, "warmup_steps": 1, "hidden_dim": 8, "num_layers": 1, "max_length": 8, "batch_size": 8}
    run = b4r.make_run("own-shop", **small, patience=0, protocol="fixed")
    result = b4r.execute(run, sequences=sequences, workdir=tmp_path / "work", silent=True)
    assert result.metrics["users"] == 40 and result.metrics["run"]["dataset"] == "own-shop"
    again = b4r.execute(run, sequences=b4r.interactions(frame, **options), workdir=tmp_path / "work", silent=True)
    assert again.metrics["test"] == result.metrics["test"]
    with pytest.raises(b4r.UserError, match="was made from other data"):
        others = b4r.interactions(frame[6:], **options)
        b4r.execute(run, sequences=others, workdir=tmp_path / "work", silent=True)


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
def test_rows_without_a_known_column_of_times_are_a_warning(tmp_path):
    frame = pd.DataFrame(ROWS, columns=["customer", "sku", "wann"])
    guess = "no column has a known name for times, so the rows count as in order"
    with pytest.warns(b4r.DataWarning, match=f"{guess}.*Name one with time=, of: wann; or give time=none"):
        b4r.interactions(frame)
    path = write(tmp_path, "shop.csv", frame.to_csv().encode())
    for _ in range(2):  # the second time, from the kept conversion
        with pytest.warns(b4r.DataWarning, match=f"{guess}.*--time_column=none"):
            b4r.load(b4r.Interactions(path), tmp_path)
    b4r.interactions(frame, time="none")
    b4r.interactions(frame[["customer", "sku"]])
    b4r.interactions(frame.rename(columns={"wann": "bought_at"}))


def test_home_folders_are_found_from_python(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BERT4REC_DATA", "~/data")
    monkeypatch.chdir(tmp_path)
    histories = make_sequences([1 + (np.arange(6) + user) % 9 for user in range(20)], 9)
    run = b4r.make_run("synthetic", "pop")
    opened = b4r.open_experiment(run, sequences=histories, workdir="~/work", prepared_dir="~/prepared")
    assert (opened.workdir.path, opened.workdir.prepared) == (tmp_path / "work", tmp_path / "prepared")
    assert not (tmp_path / "~").exists()
    assert datasets.resolve_data_folder() == tmp_path / "data"
    monkeypatch.delenv("BERT4REC_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/cache")
    assert datasets.resolve_data_folder() == tmp_path / "cache" / "bert4rec_tf"
