"""Every mistake of a user ends in one line that tells what to do, with exit code 2, and leaves everything as it was."""

import contextlib
import io
import json
import shutil

import pytest
from absl.testing import flagsaver
from support.damages import OF_RUNS
from support.mistakes import AGAIN, EVALUATE, OF_FILES, OF_FLAGS, OF_FOLDERS, flipped, lines, text
from support.shards import records_of, values

from bert4rec_tf import run
from bert4rec_tf.foundation.files import LOCK

MISTAKES = [*OF_FLAGS, *OF_FILES, *OF_FOLDERS, *OF_RUNS]

FEW = ["100 1", "200 1", "200 2", "300 5", "300 6"]
"""A user with one action, and two with two."""


def start(folder, flags, patch):
    """The command, in this process."""
    patch.chdir(folder)
    patch.delenv("BERT4REC_DATA", raising=False)
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    with flagsaver.flagsaver():
        run.exit_on_error(run.parse(["run", *flags.split()]))


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Data, their finished run, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "beauty.txt").write_bytes(text([*FEW[:3], *lines(), *FEW[3:]]))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        start(folder, AGAIN, patch)
    return folder, printed.getvalue()


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def contents(folder):
    """Everything in a folder but the locks of work directories."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if not (path.name == LOCK and path.relative_to(folder).parts[0] == "work")
    }


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_ends_in_one_line_and_changes_nothing(mistake, finished, tmp_path, monkeypatch, capfd):
    if mistake.finished:
        shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    kept = mistake.set_up(tmp_path)
    before = contents(tmp_path)
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        start(tmp_path, mistake.flags, monkeypatch)
    del kept
    told = capfd.readouterr().err
    assert end.value.code == 2
    *others, line = told.splitlines()
    assert line.startswith("error: ") and all(other.startswith("warning: ") for other in others), told
    for words in mistake.words:
        assert words in line
    assert contents(tmp_path) == before


def test_mistakes_have_names_of_their_own():
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 80


def test_settings_beyond_the_memory_end_in_one_line(copy, monkeypatch, capfd):
    with pytest.raises(SystemExit) as end:
        start(copy, f"{AGAIN} --hidden_dim=1000000000000 --workdir=new", monkeypatch)
    told = capfd.readouterr().err
    assert end.value.code == 2
    assert "error: There is not enough memory for these settings; make the largest" in told and "Traceback" not in told


# What is put right by itself, and told


def results(work):
    """Ranks and metrics, without the seconds."""
    metrics = json.loads((work / "metrics.json").read_text())
    for phase in ("select", "retrain"):
        del metrics[phase]["seconds"]
    return metrics, (work / "ranks-test.npz").read_bytes()


def test_damaged_candidates_are_drawn_again_the_same(copy, monkeypatch, capfd):
    work, (path,) = copy / "work", (copy / "work" / "prepared").glob("candidates-*.npz")
    before, whole = results(work), path.read_bytes()
    path.write_bytes(flipped(whole, len(whole) // 3))
    (work / "metrics.json").unlink()
    start(copy, EVALUATE, monkeypatch)
    assert f"warning: {path.relative_to(copy)}: cannot be read" in capfd.readouterr().err
    assert results(work) == before
    assert path.read_bytes() == whole


def test_a_damaged_shard_is_written_again_the_same(copy, monkeypatch, capfd):
    work, shards = copy / "work", sorted((copy / "work" / "prepared").rglob("*.tfrecord"))
    before, whole = results(work), [path.read_bytes() for path in shards]
    for path, content in zip(shards, whole):
        path.write_bytes(flipped(content, len(content) // 2))
    for phase in ("select", "retrain"):
        shutil.rmtree(work / phase)
    start(copy, AGAIN, monkeypatch)
    told = capfd.readouterr().err
    assert all(f"warning: {path.relative_to(copy)}: damaged; written again" in told for path in shards)
    assert results(work) == before
    assert [path.read_bytes() for path in shards] == whole


def test_a_training_goes_on_from_the_checkpoint_before_a_damaged_one(copy, monkeypatch, capfd):
    work = copy / "work"
    before, newest = results(work), max((work / "select").glob("step-*.npz"))
    newest.write_bytes(newest.read_bytes()[:-100])
    start(copy, AGAIN, monkeypatch)
    told = capfd.readouterr().err
    assert f"warning: {newest.relative_to(copy)}: cannot be read" in told and "; resuming from step-" in told
    assert results(work) == before


# What is no mistake


def test_users_with_one_or_two_actions_are_counted_and_those_with_two_trained_on(finished):
    folder, printed = finished
    metrics = json.loads((folder / "work" / "metrics.json").read_text())
    assert metrics["users"] == 40 and metrics["users_not_evaluated"] == 2
    assert "1 users with a single action are left out." in printed
    assert "40 users evaluated." in printed and "2 users with fewer than three actions were not evaluated." in printed
    for manifest in (folder / "work" / "prepared").rglob("manifest.json"):
        names = [str(manifest.with_name(row["name"])) for row in json.loads(manifest.read_text())["shards"]]
        assert {values(row, "user")[0] for name in names for row in records_of(name)} == set(range(42))
