"""Which data results are of: the files that they name, and what becomes of them when the data are others."""

import sys

import pytest

from bert4rec_tf import files
from bert4rec_tf.workdir import WorkDirectory
from experiments import worker
from experiments.jobs import Job, Plan
from experiments.results import FINISHED, Results
from experiments.sweep import Sweep
from experiments.tables import Cell


def pop(dataset="beauty"):
    return Job(Plan((dataset,)).job(Cell(dataset, "pop", "pop"), 1).run)


class Here:
    """Carries out a sweep's requests in this process."""

    def __init__(self, *_):
        pass

    def ask(self, request, _):
        worker._sequences.cache_clear()
        return {"status": FINISHED, "folder": str(worker.Worker().carry_out(request)), "peak_memory": 1}

    def is_alive(self):
        return True

    def close(self):
        pass


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(sys.modules["experiments.sweep"], "Process", Here)


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
