"""Which data results are of: the files that they name, and what becomes of them when the data are others."""

import re
import subprocess

import pytest
from support.invented_results import FILE, line_of

from bert4rec_tf.runs.folder import WorkDirectory
from experiments import processes, results
from experiments.line_fields import FAILED, FINISHED, STOPPED
from experiments.plan import Job, Plan
from experiments.results import Results
from experiments.sweep import Sweep
from experiments.tables import Variant


@pytest.mark.long
def test_a_run_on_other_data_works_beside_the_first(tmp_path, monkeypatch):
    """Its folder is taken already by the run on the first data, which stays as it was and is found again."""

    def carry_out_here(task, *_):
        return {"status": FINISHED, "folder": task(), "peak_memory": 1}

    monkeypatch.setattr(processes, "call", carry_out_here)
    one, found = Job(Plan(("beauty",)).make_run("beauty", Variant("POP", "pop"), 1)), {}
    (tmp_path / "data").mkdir()
    for last in (1, 2, 1):  # every user has another of the items at the end
        rows = [f"{user} {item}" for user in range(1, 9) for item in (*range(user, user + 5), 20 + (user * last) % 7)]
        (tmp_path / "data" / "beauty.txt").write_text("\n".join(rows) + "\n")
        sweep = Sweep(Results(tmp_path / "results"), tmp_path / "work", data_dir=tmp_path / "data")
        assert sweep.run([one]) == {one.key: FINISHED}
        line = sweep.results.read()[one.key]
        folder = sweep.find_folder_of(line)
        assert found.setdefault(last, folder) == folder
        assert WorkDirectory(folder).read_metrics()["data_fingerprint"] == line["data_fingerprint"]
    assert found[1] == sweep.folder(one)
    assert found[2].name.startswith(f"{found[1].name}-") and found[2] != found[1]


def test_a_sitting_on_other_data_never_hides_a_finished_one(tmp_path):
    """Times of sittings on one data file are added; a finished line only gives way to a finished one."""
    job = Job(Plan(("beauty",)).make_run("beauty", Variant("POP", "pop"), 1))
    phase = {"steps": 0, "seconds": 0.0, "best_step": 0}
    kept = Results(tmp_path)

    def put(status, content, seconds, memory):
        changes = {"status": status, "data_file": {**FILE, "sha256": content}, "error": "the loss is nan"}
        kept.put(line_of(job, seconds=seconds, peak_memory=memory, retrain=phase, **changes))
        line = kept.read()[job.key]
        return line["status"], line["data_file"]["sha256"], line["wall_seconds"], line["peak_memory"]

    assert put(STOPPED, "1", 10.0, 5) == (STOPPED, "1", 10.0, 5)
    assert put(FAILED, "2", 1.0, None) == (FAILED, "2", 1.0, None), "of other data: nothing is added"
    assert put(STOPPED, "2", 2.0, 7) == (STOPPED, "2", 3.0, 7)
    assert put(FINISHED, "2", 4.0, 6) == (FINISHED, "2", 7.0, 7)
    for status, content in ((FINISHED, "2"), (FAILED, "2"), (FAILED, "3"), (STOPPED, "3")):
        assert put(status, content, 1.0, 1) == (FINISHED, "2", 7.0, 7)
    assert put(FINISHED, "3", 1.0, 1) == (FINISHED, "3", 1.0, 1)


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
