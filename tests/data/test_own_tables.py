"""A run on a table in memory: from a DataFrame to a trained model, and on from its work directory."""

import pandas as pd
import pytest
from support.interaction_files import as_csv, write
from support.trainings import small_and_quick

import bert4rec_tf as b4r

ROWS = [
    (f"user {user}", f"item {1 + (7 * user + 3 * place) % 30}", 1_000 - place)
    for user in range(1, 41)
    for place in range(6)
]
TINY = {"steps": 4, "warmup_steps": 1, "hidden_dim": 8, "num_layers": 1, "max_length": 8, "batch_size": 8}


def test_a_table_trains_a_model_as_its_file_does_and_other_tables_are_refused_in_its_folder(tmp_path):
    frame = pd.DataFrame(ROWS, columns=["customer", "sku", "bought_at"])
    options = {"user": "customer", "item": "sku", "time": "bought_at"}
    sequences = b4r.interactions(frame, **options, min_user_actions=2)
    path = write(tmp_path, "shop.csv", as_csv(ROWS))
    assert sequences.fingerprint == b4r.load(b4r.Interactions(path), tmp_path).fingerprint
    run = b4r.make_run("own-shop", **TINY, patience=0, protocol="fixed")
    with small_and_quick():
        result = b4r.execute(run, sequences=sequences, workdir=tmp_path / "work", silent=True)
    assert result.metrics["users"] == 40 and result.metrics["run"]["dataset"] == "own-shop"
    again = b4r.execute(run, sequences=b4r.interactions(frame, **options), workdir=tmp_path / "work", silent=True)
    assert again.metrics["test"] == result.metrics["test"]
    with pytest.raises(b4r.UserError, match="was made from other data"):
        others = b4r.interactions(frame[6:], **options)
        b4r.execute(run, sequences=others, workdir=tmp_path / "work", silent=True)


def test_rows_without_a_known_column_of_times_are_a_warning(tmp_path, capsys):
    frame = pd.DataFrame(ROWS, columns=["customer", "sku", "wann"])
    b4r.interactions(frame)
    path = write(tmp_path, "shop.csv", frame.to_csv().encode())
    for _ in range(2):  # the second time, from the kept conversion
        b4r.load(b4r.Interactions(path), tmp_path)
    told = capsys.readouterr().err
    assert told.count("no column has a known name for times, so the rows count as in order") == 3
    assert "Name one with time=, of: wann; or give time=none" in told and "--time_column=none" in told
    b4r.interactions(frame, time="none")
    b4r.interactions(frame[["customer", "sku"]])
    b4r.interactions(frame.rename(columns={"wann": "bought_at"}))
    assert capsys.readouterr().err == ""
