"""The command line as a user meets it: whole runs, parts of them, and mistakes in one line with exit code 2."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import tensorflow as tf
from support.commands import Ended, console, finished, refused, run

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.export.histories import HISTORIES
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.client import SavedRecommender

TINY = ["--steps=30", "--warmup_steps=5", "--evaluate_every=10", "--hidden_dim=8", "--num_heads=1", "--num_layers=1"]
WHOLE = ("--dataset=synthetic", "--workdir=work", *TINY)


@pytest.fixture(scope="session")
def whole(shared_folders):
    """The folder of a whole run of the built-in data set, tiny, and how it ended."""

    def make(folder):
        (folder / "user").mkdir()
        ended = finished(*WHOLE, cwd=folder / "user")
        (folder / "printed.json").write_text(json.dumps([ended.stdout, ended.stderr]))

    folder = shared_folders.get("synthetic", make)
    return folder / "user", Ended(0, *json.loads((folder / "printed.json").read_text()))


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole[0], tmp_path / "copy")


def test_a_run_leaves_everything_and_says_where(whole):
    folder, process = whole
    files = ("metrics.json", "config.json", "vocabulary.npz", "ranks-test.npz")
    for name in (*files, "select", "prepared", "saved_model"):
        assert (folder / "work" / name).exists()
    assert "All metrics: work/metrics.json" in process.stdout
    assert (folder / "work" / "select" / "curve.csv").read_text().startswith("step,seconds,loss,hr@1,hr@5,hr@10")
    assert (folder / "work" / "select" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in process.stderr and "I1" not in process.stderr


def test_a_run_is_short_spoken(whole):
    _, process = whole
    start, _, table = process.stdout.partition("The next item of")
    assert "Training on 71,796 actions of 4,000 users." in start and "warm-up" not in start
    rows = [line for line in table.splitlines() if line.startswith(("all unseen items", "100 popular items"))]
    assert len(rows) == 6 and len(table.splitlines()) <= 14


@pytest.mark.slow
def test_the_verbose_table_has_this_run_pop_random_and_the_ceiling(copy):
    process = finished("--mode=evaluate", "--workdir=work", "--verbose", cwd=copy)
    header = next(line for line in process.stdout.splitlines() if line.startswith("metric"))
    assert header.split() == ["metric", "validation", "test", "POP", "item_transitions", "random", "ceiling"]
    lines = [line for line in process.stdout.splitlines() if line.startswith(("among", "hr@", "ndcg@", "mrr"))]
    assert [line for line in lines if line.startswith("among")] == [
        "among 100 popular items",
        "among 100 uniform items",
        "among all unseen items",
    ]
    assert [line.split()[0] for line in lines] == ["among", "hr@1", "hr@5", "hr@10", "ndcg@5", "ndcg@10", "mrr"] * 3


def test_a_run_ends_with_a_command_that_works_and_the_decision(whole):
    folder, process = whole
    command, *_, decision = process.stdout.partition("\nNext: ")[2].splitlines()
    assert "counting transitions" in decision.lower()
    ended = console(*shlex.split(command.removeprefix("bert4rec ")), cwd=folder)
    assert ended.returncode == 0 and ended.stdout.startswith("rank  item") and len(ended.stdout.splitlines()) == 11


@pytest.mark.slow
def test_the_parts_one_after_the_other_equal_the_whole(whole, tmp_path):
    folder, _ = whole
    for mode in ("prepare", "train", "evaluate"):
        finished(*WHOLE, f"--mode={mode}", cwd=tmp_path)
    assert (tmp_path / "work" / "ranks-test.npz").read_bytes() == (folder / "work" / "ranks-test.npz").read_bytes()


def write_pairs(path, users=12, items=30):
    lines = "".join(f"{user} {1 + (user + step) % items}\n" for user in range(1, users + 1) for step in range(6))
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())


@pytest.mark.slow
def test_a_packed_file_from_the_folder_in_the_environment_the_authors_way(tmp_path):
    write_pairs(tmp_path / "beauty.txt.gz")
    flags = ("--dataset=beauty", "--protocol=fixed", "--masking=dynamic", "--verbose", *TINY)
    process = finished(*flags, cwd=tmp_path, data=tmp_path)
    assert "the paper's Table 1" in process.stdout and "54,542" in process.stdout
    work = next((tmp_path / "runs").glob("beauty-bert4rec-*"))
    metrics = json.loads((work / "metrics.json").read_text())
    assert "paper" not in metrics
    assert metrics["retrain"]["steps"] == 30 and "validation" not in metrics
    assert metrics["users_with_fewer_candidates"] == 12 and "12 users have fewer than" in process.stdout
    assert not (work / "select").exists()


@pytest.fixture(scope="session")
def pop(shared_folders):
    """The folder of a whole run of POP."""
    return shared_folders.get("pop", lambda folder: finished(*POP, cwd=folder))


POP = ("--dataset=synthetic", "--model=pop", "--workdir=pop")


@pytest.mark.slow
def test_the_console_command_is_the_same_program_and_keeps_the_threads_with_the_run(pop, tmp_path, monkeypatch):
    command = [str(Path(sysconfig.get_path("scripts")) / "bert4rec"), "run", *POP, "--mode=prepare", "--threads=1"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert json.loads((tmp_path / "pop" / "config.json").read_text())["environment"]["threads"] == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(7), raising=False)
    again = finished(*POP, cwd=tmp_path)
    metrics, expected = (json.loads((folder / "pop" / "metrics.json").read_text()) for folder in (tmp_path, pop))
    assert metrics["test"] == expected["test"] and metrics["digest"] == expected["digest"]
    assert "warning: pop: was started in another environment (there threads=1, now threads=7)" in again.stderr


def test_help_begins_with_what_a_newcomer_needs(tmp_path):
    ended = run("--help", cwd=tmp_path)
    assert ended.returncode == 0 and len(ended.stdout.splitlines()) <= 60
    groups = [line for line in ended.stdout.splitlines() if re.fullmatch(r"\w+:", line)]
    assert groups == ["data:", "model:", "time:", "output:"] and "--helpfull" in ended.stdout
    ended = console(cwd=tmp_path)
    assert ended.returncode == 0 and "bert4rec run --interactions" in ended.stdout and not ended.stderr


def test_a_word_for_a_number_is_refused_by_every_command(tmp_path):
    for command in ("recommend --model=m -k", "similar --model=m --item=a -k", "serve --model=m --timeout"):
        *words, flag = command.split()
        name = flag.lstrip("-")
        line = refused(console(*words, f"{flag}=ten", cwd=tmp_path))
        assert f"`{name}` must be a" in line and f"number. Received: {name}='ten'" in line


def test_unknown_commands_are_answered_with_the_known_ones(tmp_path):
    assert "Unknown command: 'rum'. Did you mean 'run'?" in refused(console("rum", cwd=tmp_path))


def test_a_finished_work_directory_is_exported_without_its_data(copy):
    finished("--mode=export", "--workdir=work", "--export_dir=exported", "--k=3", cwd=copy)
    served = tf.saved_model.load(str(copy / "exported")).signatures["serving_default"]
    rows = served(histories=tf.constant([["item3", "item14"], ["", ""]]))["items"].numpy().tolist()
    assert [len(set(row)) for row in rows] == [3, 3] and not {b"item3", b"item14"} & set(rows[0])


@pytest.mark.slow
def test_histories_are_kept_in_the_export_of_a_finished_run(copy):
    ended = finished("--mode=export", "--workdir=work", "--export_dir=exported", "--with_histories=3", cwd=copy)
    exported = SavedRecommender(copy / "exported")
    sequences = datasets.load("synthetic")
    size = (copy / "exported" / HISTORIES).stat().st_size
    assert f"{HISTORIES}: the last 3 items of every user, {max(1, round(size / 1e3)):,} kB" in ended.stdout
    for row in range(0, sequences.num_users, 97):
        numbers = sequences[row][-3:]
        assert exported.get_history(sequences.users[row]) == sequences.vocabulary.items[numbers - 1].tolist()
    assert exported.card["histories"] == {"users": sequences.num_users, "longest": 3}
    whole = SavedRecommender(copy / "work/saved_model").require_histories()  # as the run that trained has left it
    assert whole.num_actions == sequences.num_actions
    finished("--mode=export", "--workdir=work", "--export_dir=work/bare", cwd=copy)
    command = r"to add them: bert4rec run --mode=export --workdir=.*work --with_histories=1000000"
    with pytest.raises(UserError, match=command):
        SavedRecommender(copy / "work/bare").get_history(sequences.users[0])
    finished("--mode=export", *WHOLE, "--export_dir=none", "--with_histories=0", cwd=copy)
    assert SavedRecommender(copy / "none").histories is None


@pytest.mark.slow
def test_another_number_of_items_is_exported_from_a_finished_run(pop, tmp_path):
    copy = shutil.copytree(pop, tmp_path / "copy")

    def exported():
        return json.loads((copy / "pop/saved_model/assets.extra/model_card.json").read_text())["k"]

    assert exported() == 10
    for flags in (("--k=3",), ()):
        finished(*POP, *flags, cwd=copy)
        assert exported() == 3
    finished("--mode=export", "--workdir=pop", "--popularity_correction=0.5", cwd=copy)
    finished("--mode=export", "--workdir=pop", "--with_histories=5", cwd=copy)
    card = SavedRecommender(copy / "pop").card
    assert (card["k"], card["popularity_correction"], card["histories"]["longest"]) == (3, 0.5, 5)
    finished("--mode=export", "--workdir=pop", "--k=4", cwd=copy)
    exported = SavedRecommender(copy / "pop")
    assert exported.card["k"] == 4 and exported.card["popularity_correction"] == 0.5
    assert exported.histories.lengths.max() == 5, "what an export does not name stays"
    finished("--mode=export", "--workdir=pop", "--with_histories=0", cwd=copy)
    finished(*POP, "--mode=export", "--k=5", cwd=copy)
    assert SavedRecommender(copy / "pop").histories is None
    model = copy / "pop/saved_model/saved_model.pb"
    model.write_bytes(b"")
    finished(*POP, cwd=copy)
    assert model.stat().st_size
