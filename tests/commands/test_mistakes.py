"""Every mistake of a user ends in one line that tells what to do, with exit code 2, and leaves everything as it was."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from support import commands
from support.commands import contents
from support.damages import OF_RUNS
from support.mistakes import AGAIN, OF_FILES, OF_FLAGS, OF_FOLDERS, lines, text
from support.shards import records_of
from support.trainings import small_and_quick

pytestmark = pytest.mark.usefixtures("quick")

MISTAKES = [*OF_FLAGS, *OF_FILES, *OF_FOLDERS, *OF_RUNS]

FEW = ["100 1", "200 1", "200 2", "300 5", "300 6"]
"""A user with one action, and two with two."""


@pytest.fixture(scope="session")
def finished(shared_folders):
    """A folder of data and their finished run, and what it printed."""

    def make(folder):
        (folder / "user").mkdir()
        (folder / "user" / "beauty.txt").write_bytes(text([*FEW[:3], *lines(), *FEW[3:]]))
        with small_and_quick():
            ended = commands.finished(*AGAIN.split(), "--verbose", cwd=folder / "user")
        (folder / "printed.txt").write_text(ended.stdout)

    folder = shared_folders.get("finished", make)
    return folder / "user", (folder / "printed.txt").read_text()


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_ends_in_one_line_and_changes_nothing(mistake, finished, tmp_path):
    if mistake.finished:
        shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    kept = mistake.set_up(tmp_path)
    before = contents(tmp_path)
    line = commands.refused(commands.run(*mistake.flags.split(), cwd=tmp_path))
    del kept
    for words in mistake.words:
        assert words in line
    assert contents(tmp_path) == before


@pytest.mark.slow  # TensorFlow waits ten seconds for memory
def test_settings_beyond_the_memory_end_in_one_line(copy):
    ended = commands.run(*AGAIN.split(), "--hidden_dim=1000000000000", "--workdir=new", cwd=copy)
    assert "There is not enough memory for these settings; reduce the largest" in commands.refused(ended)


def test_users_with_one_or_two_actions_are_counted_and_those_with_two_trained_on(finished):
    folder, printed = finished
    metrics = json.loads((folder / "work" / "metrics.json").read_text())
    assert metrics["users"] == 40 and metrics["users_not_evaluated"] == 3
    assert "1 of 43 users have one action: they get recommendations" in printed
    assert (
        "40 users evaluated." in printed
        and "3 users with too few actions to hold one out were not evaluated." in printed
    )
    for manifest in (folder / "work" / "prepared").rglob("manifest.json"):
        names = [str(manifest.with_name(row["name"])) for row in json.loads(manifest.read_text())["shards"]]
        assert {row["user"][0] for name in names for row in records_of(name)} == set(range(1, 43))


WITHOUT_TENSORFLOW = """
import os, sys
sys.modules["tensorflow"] = None  # now its import fails
from absl import app  # once for all commands
from bert4rec_tf.commands import main
for line in sys.stdin.read().splitlines():
    if not os.fork():  # each in a process of its own, as absl does not define a flag twice
        sys.argv = line.split()
        try:
            main.main()
        except SystemExit as end:
            print(end.code or 0, line)
        else:
            print(0, line)
        sys.exit()
    os.wait()
"""


@pytest.mark.long
def test_commands_that_do_not_compute_need_no_tensorflow(tmp_path):
    """Its import takes seconds."""
    (tmp_path / "shop.csv").write_text("user,item,time\na,b,1\na,c,2\nd,b,3\n")
    fine = [
        "--help",
        "--version",
        "run --help",
        "data --help",
        "recommend --help",
        "serve --help",
        "data --interactions=shop.csv",
    ]
    wrong = [
        *("rum", "run", "run --dataset=beaty", "run --dataset=synthetic --dropout=2", "run --interactions=none.csv"),
        *("recommend --model=none --history=a", "similar --model=none --item=a", "serve --model=none"),
        *("run --mode=evaluate --workdir=none", "compare a b", "data --interactions=none.csv"),
    ]
    asked = "".join(f"bert4rec {line}\n" for line in [*fine, *wrong])
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW]
    cache = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(command, input=asked, cwd=tmp_path, env=cache, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stdout.splitlines() if line[1:].startswith(" bert4rec ")]
    assert told == [*(f"0 bert4rec {line}" for line in fine), *(f"2 bert4rec {line}" for line in wrong)]
    assert "Traceback" not in ended.stderr and len(ended.stderr.splitlines()) == len(wrong)


UNMEASURABLE = """
import runpy, sys
sys.argv[1:] = ["--interactions=few.csv", "--data_dir=."]
try:
    runpy.run_module("bert4rec_tf.run", run_name="__main__")
except SystemExit as end:
    print(end.code, "tensorflow" in sys.modules)
"""


def test_data_without_anything_to_measure_are_refused_before_tensorflow_starts(tmp_path):
    (tmp_path / "few.csv").write_text("user,item,time\n1,2,1\n1,3,2\n2,3,1\n2,4,2\n")
    ended = subprocess.run([sys.executable, "-c", UNMEASURABLE], cwd=tmp_path, capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "2 False", ended.stderr
    assert "error: No user has three actions, so there is nothing to measure on\n" in ended.stderr
