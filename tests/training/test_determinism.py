"""The same command gives the same bytes, in another process and with other hashes."""

import shutil

import numpy as np
import pytest
from support import whole_runs as runs
from support.whole_runs import FLAGS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["static", "dynamic", "one thread"])
def test_the_same_command_gives_the_same_bytes_in_another_process(uninterrupted, tmp_path, kind):
    first = runs.finished(tmp_path / "first", *FLAGS[kind]) if kind == "one thread" else uninterrupted(kind)
    runs.assert_same_runs(first, runs.finished(tmp_path / "again", *FLAGS[kind], hash_seed=1))


def change_an_array(folder):
    path = folder / "select" / "step-000000012.npz"
    with np.load(path) as file:
        content = {name: file[name].copy() for name in file.files}
    content["optimizer/007"].flat[0] = np.nextafter(content["optimizer/007"].flat[0], np.float32(1))
    np.savez(path, **content)
    return "select/step-000000012.npz: optimizer/007"


def remove_a_file(folder):
    (folder / "transitions.json").unlink()
    return "transitions.json"


@pytest.mark.parametrize("change", [change_an_array, remove_a_file])
def test_the_comparison_names_the_one_thing_that_differs(tmp_path, uninterrupted, change):
    first = uninterrupted("static")
    shutil.copytree(first, tmp_path / "work")
    assert runs.differences(first, tmp_path / "work") == []
    changed = change(tmp_path / "work")
    assert runs.differences(first, tmp_path / "work") == [changed]
