"""Which data results are of: the files that they name, and what becomes of them when the data are others."""

import re
import subprocess

import pytest

from bert4rec_tf.foundation import files
from bert4rec_tf.runs.workdir import WorkDirectory
from experiments import processes, results, running
from experiments.plan import Job, Plan
from experiments.results import FINISHED, Results
from experiments.sweep import Sweep
from experiments.tables import Variant


def pop(dataset="beauty"):
    return Job(Plan((dataset,)).make_run(dataset, Variant("POP", "pop"), 1))


def carry_out_here(task, request, _):
    return {"status": FINISHED, "folder": running.carry_out(request), "peak_memory": 1}


@pytest.fixture
def here(monkeypatch):
    """Carries out a sweep's requests in this process."""
    monkeypatch.setattr(processes, "call", carry_out_here)


def write(folder, last):
    """A file of Beauty in which every user meets another of the items at the end."""
    rows = [f"{user} {item}" for user in range(1, 9) for item in (*range(user, user + 5), 20 + (user * last) % 7)]
    files.make_folder(folder)
    (folder / "beauty.txt").write_text("\n".join(rows) + "\n")


def sweep_in(folder):
    return Sweep(Results(folder / "results"), folder / "work", data_dir=folder / "data")


def test_a_run_on_other_data_works_beside_the_first(tmp_path, here):
    """Its folder is taken already by the run on the first data, which stays as it was and is found again."""
    one, found = pop(), {}
    for last in (1, 2, 1):
        write(tmp_path / "data", last)
        sweep = sweep_in(tmp_path)
        assert sweep.run([one]) == {one.key: FINISHED}
        line = sweep.results.read()[one.key]
        folder = sweep.find_folder_of(one, line)
        assert found.setdefault(last, folder) == folder
        assert WorkDirectory(folder).read_metrics()["data_fingerprint"] == line["data_fingerprint"]
    assert found[1] == sweep.folder(one)
    assert found[2].name.startswith(f"{found[1].name}-") and found[2] != found[1]


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_that_of_the_package_s_code(tmp_path):
    """With a sign where the code has changed since; results beside it may."""
    for folder in ("repository/bert4rec_tf", "repository/experiments", "unpacked"):
        (tmp_path / folder).mkdir(parents=True)
    repository = tmp_path / "repository"
    (repository / "bert4rec_tf" / "code.py").write_text("one")
    git(repository, "init")
    git(repository, "add", ".")
    git(repository, "commit", "-m", "first")
    results.read_commit.cache_clear()
    found = results.read_commit(repository)
    assert re.fullmatch("[0-9a-f]{40}", found)
    (repository / "experiments" / "results.jsonl").write_text("{}")
    results.read_commit.cache_clear()
    assert results.read_commit(repository) == found
    (repository / "bert4rec_tf" / "code.py").write_text("two")
    results.read_commit.cache_clear()
    assert results.read_commit(repository) == f"{found}+"
    assert results.read_commit(tmp_path / "unpacked") is results.read_commit(repository / "experiments") is None
