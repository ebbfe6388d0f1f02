"""The statistics of data against counting by hand, and the program that prints them."""

import numpy as np
import pytest

from bert4rec_tf.commands import data as program
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data import statistics
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.errors import UserError


def test_statistics_equal_those_counted_by_hand(tmp_path):
    sequences = datasets.load("synthetic")
    found = statistics.compute_statistics(sequences)
    counts = np.bincount(sequences.items)[1:]
    assert found["lengths"][50] == np.median([len(sequences[user]) for user in range(sequences.num_users)])
    assert found["popularity"][100] == counts.max() and found["popularity"][0] == counts.min()
    tenth = sorted(counts.tolist(), reverse=True)[: round(len(counts) / 10)]
    assert found["top"][0.1] == pytest.approx(sum(tenth) / counts.sum())
    pairs = np.abs(counts[:, None] - counts).mean()
    assert found["gini"] == pytest.approx(pairs / (2 * counts.mean())) and found["gini"] > 0


def test_test_items_never_trained_are_counted(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\na,1\na,2\na,3\na,4\nb,1\nb,2\nb,3\nb,1\nc,1\nc,2\n")
    sequences = datasets.load(Interactions(tmp_path / "a.csv"), tmp_path)
    found = statistics.compute_statistics(sequences)
    split = LeaveOneOut(sequences)
    assert found["evaluated"] == len(split.users) == 2
    assert found["never_trained"] == {"with_validation": 0.5, "without_validation": 0.5}
    assert found["rare"] == {1: 1, 5: 4}


def test_beauty_has_the_known_share_of_items_never_trained(real_data):
    found = statistics.compute_statistics(real_data("beauty"))["never_trained"]
    assert found == {"with_validation": 3_133 / 40_226, "without_validation": 4_018 / 40_226}


def test_data_without_test_items_have_statistics(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\na,1\na,2\n")
    found = statistics.compute_statistics(datasets.load(Interactions(tmp_path / "a.csv"), tmp_path))
    assert found["never_trained"]["with_validation"] is None
    assert "No user has a test item" in statistics.format_table(found)


def test_the_program_prints_table_1(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("who,item\na,1\na,2\na,2\nb,1\nb,3\nx,9\n")
    program.main([f"--interactions={tmp_path / 'a.csv'}", "--user_column=who", f"--data_dir={tmp_path}"])
    printed = capsys.readouterr().out
    for words in (
        "read: 3 users, 4 items, 6 actions",
        "own-a-",
        "mean length",
        "percentile",
        "Gini",
        "1 of 3 users have one action: they get recommendations",
    ):
        assert words in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Give either --dataset or --interactions"),
        (["--dataset=synthetic", "--interactions=a.csv"], "Give either --dataset or --interactions"),
        (["--dataset=synthetic", "--min_user_actions=5"], "--min_user_actions needs --interactions"),
        (["--interactions=a.csv", "--source=raw"], "--source cannot be used with --interactions"),
        (["--interactions=absent.csv"], "absent.csv: no such file"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        program.main(arguments)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert not any(tmp_path.iterdir())
