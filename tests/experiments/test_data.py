"""Which data results are of: the files that they name, and what becomes of them when the data are others."""

import dataclasses
import gzip
import re
import subprocess
import zipfile

import pytest

from bert4rec_tf.data.sources import datasets, download
from bert4rec_tf.foundation import files
from bert4rec_tf.runs.workdir import WorkDirectory
from experiments import processes, report, results, running
from experiments import sweep as sweeps
from experiments.__main__ import main
from experiments.plan import Job, Plan
from experiments.results import FAILED, FINISHED, Results
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
        folder = sweep.folder_of(one, line)
        assert found.setdefault(last, folder) == folder
        assert WorkDirectory(folder).read_metrics()["data_fingerprint"] == line["data_fingerprint"]
    assert found[1] == sweep.folder(one)
    assert found[2].name.startswith(f"{found[1].name}-") and found[2] != found[1]


def test_a_folder_of_an_older_version_is_found_by_its_line_s_fingerprint(tmp_path):
    """The report is made of it as far as it can be read; a new run of it works beside it."""
    folder = tmp_path / "run"
    files.make_folder(folder)
    files.write_json(WorkDirectory(folder).config, {"format": 1, "data_fingerprint": "old"})
    assert results.folder_of_data(folder, "old") == folder
    assert results.folder_of_data(folder, "0123456789") == tmp_path / "run-01234567"


def test_a_home_folder_is_found(tmp_path, here, monkeypatch):
    """bash leaves the ~ in --data_dir=~/data; results must name the file in that folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data", 1)
    monkeypatch.setattr(Plan, "all_jobs", lambda *_: [pop()])
    flags = ["--tables=2", "--datasets=beauty", "--data_dir=~/data", "--workdir=~/work", "--results=~/results"]
    assert main(flags) == 0
    assert not (tmp_path / "~").exists()
    (line,) = Results(tmp_path / "results").read().values()
    assert line["data_file"] == results.data_file("beauty", tmp_path / "data")
    text = (tmp_path / "results" / "report.md").read_text()
    assert (
        "built in" not in text and f"Beauty: beauty.txt, SHA-256 of its content {line['data_file']['sha256']}" in text
    )


def test_a_result_whose_file_is_gone_is_not_kept(tmp_path, here, monkeypatch):
    write(tmp_path / "data", 1)
    sweep = sweep_in(tmp_path)

    def and_removed(*arguments):
        answer = carry_out_here(*arguments)
        (tmp_path / "data" / "beauty.txt").unlink()
        return answer

    monkeypatch.setattr(processes, "call", and_removed)
    assert sweep.run([pop()]) == {pop().key: FAILED}
    assert "the file of beauty is gone" in sweep.results.read()[pop().key]["error"]


def test_only_what_has_no_file_is_built_in():
    assert report.describe_file("synthetic", None) == "Synthetic: built in."
    assert report.describe_file("beauty", None) == (
        "Beauty: an unknown file. Whether it is the authors' own file is unknown."
    )


CONTENT = b"1 2\n1 3\n1 4\n"


@pytest.fixture
def published(tmp_path, monkeypatch):
    """ML-20m as if its authors had published a zip of CONTENT, which lies in the folder `authors`."""
    folder = tmp_path / "authors"
    folder.mkdir()
    with zipfile.ZipFile(folder / "ml-20m-processed.zip", "w") as archive:
        archive.writestr("ml-20m/ml-20m.txt", CONTENT)
    source = datasets.find_source("ml-20m")
    checksum = download.compute_checksum(folder / "ml-20m-processed.zip", "git:")
    remote = dataclasses.replace(source.downloadable[1], checksum=checksum)
    changed = [file if file.remote is None else dataclasses.replace(file, remote=remote) for file in source.files]
    dataset = dataclasses.replace(
        datasets.DATASETS["ml-20m"], processed=dataclasses.replace(source, files=tuple(changed))
    )
    monkeypatch.setitem(datasets.DATASETS, "ml-20m", dataset)
    return folder


def test_a_file_and_its_archive_have_one_content(tmp_path, published):
    """What the authors' zip holds is the same data, packed or not; whose file it is, is said where it can be known."""
    plain, packed, renamed, other = (tmp_path / name for name in ("plain", "packed", "renamed", "other"))
    for folder in (plain, packed, renamed, other):
        folder.mkdir()
    (plain / "ml-20m.txt").write_bytes(CONTENT)
    (packed / "ml-20m.txt.gz").write_bytes(gzip.compress(CONTENT))
    zipped = (published / "ml-20m-processed.zip").read_bytes()
    (renamed / "ml-20m.zip").write_bytes(zipped)
    with zipfile.ZipFile(other / "ml-20m-processed.zip", "w") as archive:
        archive.writestr("ml-20m.txt", CONTENT)
    found = {folder.name: results.data_file("ml-20m", folder) for folder in (plain, packed, renamed, other, published)}
    assert len({file["sha256"] for file in found.values()}) == 1
    assert {name: file["as_published"] for name, file in found.items()} == {
        "plain": None,
        "packed": None,
        "renamed": True,
        "other": False,
        "authors": True,
    }
    assert report.describe_file("ml-20m", found["plain"]).endswith("Whether it is the authors' own file is unknown.")


def test_the_time_left_is_at_least_that_of_the_longest_run(tmp_path, capsys, monkeypatch):
    sweep = dataclasses.replace(sweep_in(tmp_path), jobs=4)
    monkeypatch.setattr(sweeps, "estimate_seconds", lambda run, _: 3_600.0 if run.model == "pop" else 60.0)
    sweeps.show([pop(), *Plan(("beauty",)).jobs("table2")["beauty", "ncf"]], sweep)
    assert "About 1:00:00 left, estimated from the finished runs." in capsys.readouterr().out


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
    results.commit.cache_clear()
    found = results.commit(repository)
    assert re.fullmatch("[0-9a-f]{40}", found)
    (repository / "experiments" / "results.jsonl").write_text("{}")
    results.commit.cache_clear()
    assert results.commit(repository) == found
    (repository / "bert4rec_tf" / "code.py").write_text("two")
    results.commit.cache_clear()
    assert results.commit(repository) == f"{found}+"
    assert results.commit(tmp_path / "unpacked") is results.commit(repository / "experiments") is None
