"""Folders of one process at a time, and what a process that was killed leaves in them."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import whole_runs as runs
from support.folders import list_names, run_or_skip

from bert4rec_tf.foundation import files, processes
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import FolderLock, atomic_write, replace_directory


@pytest.mark.parametrize(("age", "stays"), [(3600, True), (2 * 24 * 3600, False)])
def test_partial_files_of_another_machine_stay_for_a_day(tmp_path, age, stays):
    path = tmp_path / ".file.1-0a0b0c-01234567.partial"
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    files.remove_partials(tmp_path)
    assert path.exists() == stays


def test_no_name_of_a_write_is_kept_when_it_has_ended(tmp_path):
    with atomic_write(tmp_path / "file") as aside:
        aside.touch()
        assert len(processes.own_writers) == 1
    with replace_directory(tmp_path / "folder") as aside:
        (aside / "file").touch()
    assert not processes.own_writers


def test_a_process_of_another_container_may_still_write(tmp_path, monkeypatch):
    """Containers can share a host name, and have processes with the same ids."""
    names_of_writers = []
    for namespace in ("pid:[1]", "pid:[2]"):
        monkeypatch.setattr(processes.os, "readlink", lambda path, namespace=namespace: namespace)
        processes.get_host_code.cache_clear()
        names_of_writers.append(processes.get_host_code())
        (tmp_path / f".model.{2**22 + 5}-{processes.get_host_code()}-12345678.new{files.PARTIAL}").mkdir()
    assert len(set(names_of_writers)) == 2
    files.remove_partials(tmp_path)
    assert list_names(tmp_path) == [f".model.{2**22 + 5}-{names_of_writers[0]}-12345678.new{files.PARTIAL}"]
    processes.get_host_code.cache_clear()


CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child")
"""Starts a process as in a container of its own, but with the same host name and disk."""


@pytest.mark.parametrize("is_inside", [True, False])
def test_processes_of_two_containers_lock_and_clear_up_as_those_of_one(tmp_path, is_inside):
    run_or_skip(*CONTAINER, "true")
    (tmp_path / "work").mkdir()
    inside, outside = (CONTAINER, ()) if is_inside else ((), CONTAINER)
    writing = elsewhere(tmp_path / "work", program=WRITING, before=inside)
    holding = elsewhere(tmp_path / "locked", before=inside)
    program = "from bert4rec_tf.foundation.files import *; from pathlib import Path; import sys; " + (
        "remove_partials(Path(sys.argv[1])); FolderLock(Path(sys.argv[2]), busy_message='is busy').lock().__enter__()"
    )
    command = [*outside, sys.executable, "-c", program, str(tmp_path / "work"), str(tmp_path / "locked")]
    assert (
        "UserError: " + f"{tmp_path / 'locked'}: is busy"
        in subprocess.run(command, capture_output=True, text=True).stderr
    )
    for process in (writing, holding):
        process.communicate("end\n")
        assert process.returncode == 0
    assert (tmp_path / "work/file").read_text() == "half" and (tmp_path / "work/folder/part").read_text() == "half"


HOLD = """
import pathlib, sys, time
from bert4rec_tf.foundation.files import FolderLock
with FolderLock(pathlib.Path(sys.argv[1])).lock():
    print("held", flush=True)
    input()
"""


def elsewhere(folder, *arguments, program=HOLD, before=()):
    process = subprocess.Popen(
        [*before, sys.executable, "-c", program, str(folder), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n", process.stderr.read()
    return process


def test_a_lock_can_be_entered_again_and_is_held_until_the_outermost_end(tmp_path):
    lock, other = FolderLock(tmp_path / "new"), FolderLock(tmp_path / "new", busy_message="is busy")

    def held_elsewhere():
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: other.lock().__enter__()).exception() is not None

    with lock.lock():
        with lock.lock():
            assert held_elsewhere()
        assert held_elsewhere()
    with other.lock():
        pass


def test_a_folder_that_another_process_holds_is_refused_until_it_ends(tmp_path):
    process = elsewhere(tmp_path)
    lock = FolderLock(tmp_path, busy_message="is busy")
    with pytest.raises(UserError) as raised, lock.lock():
        pass
    assert str(raised.value) == f"{tmp_path}: is busy"
    process.communicate("end\n")
    with lock.lock():
        pass


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGCONT])
def test_a_lock_without_a_message_waits_with_a_warning(tmp_path, end):
    first = elsewhere(tmp_path)
    second = subprocess.Popen(
        first.args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    line = f"FileWarning: {tmp_path}: another process works in it; waiting for that one\n"
    assert second.stderr.readline().endswith(line)
    first.send_signal(end)
    first.communicate("end\n")
    assert second.communicate("end\n")[0] == "held\n" and second.returncode == 0


WRITING = """
import pathlib, sys
from bert4rec_tf.foundation.files import FolderLock, atomic_write, replace_directory
folder = pathlib.Path(sys.argv[1])
with atomic_write(folder / "file") as file, replace_directory(folder / "folder") as below:
    file.write_text("half")
    (below / "part").write_text("half")
    print("held", flush=True)
    input()
"""


BEGUN = WRITING.replace("with ", "with FolderLock(folder).lock(), ")


def test_a_deleted_lock_costs_a_running_process_nothing(tmp_path):
    """Another process can then lock the folder too, but removes only what killed ones left."""
    process = elsewhere(tmp_path, program=BEGUN)
    (tmp_path / files.LOCK).unlink()
    with FolderLock(tmp_path, busy_message="is busy").lock():
        pass
    process.communicate("end\n")
    assert process.returncode == 0
    assert (tmp_path / "file").read_text() == "half" and (tmp_path / "folder" / "part").read_text() == "half"


def break_off_a_replacement(folder):
    with pytest.raises(KeyboardInterrupt), replace_directory(folder / "folder"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("clear", [files.remove_partials, break_off_a_replacement])
def test_partial_files_of_a_living_process_stay(tmp_path, clear):
    process = elsewhere(tmp_path, program=WRITING)
    before = list_names(tmp_path)
    clear(tmp_path)
    assert list_names(tmp_path) == before and len(runs.partials(tmp_path)) == 2
    process.communicate("end\n")
    assert runs.contents_of(tmp_path) == {"file": b"half", "folder/part": b"half"}


def test_partial_files_of_a_killed_process_are_deleted_by_the_next(tmp_path):
    (tmp_path / "file").write_text("old")
    process = elsewhere(tmp_path, program=BEGUN)
    process.kill()
    process.communicate()
    assert len(runs.partials(tmp_path)) == 2
    with FolderLock(tmp_path).lock():
        assert runs.contents_of(tmp_path) == {"file": b"old", ".lock": b""}
        with atomic_write(tmp_path / "file") as aside, FolderLock(tmp_path / "below").lock():
            aside.write_text("new")
    assert (tmp_path / "file").read_text() == "new"


def test_a_lock_leaves_what_its_own_process_still_writes(tmp_path):
    of_earlier_process = tmp_path / f".file.{os.getpid()}-{processes.get_host_code()}-12345678{files.PARTIAL}"
    of_earlier_process.touch()
    with atomic_write(tmp_path / "file") as aside:
        aside.write_text("whole")
        with FolderLock(tmp_path).lock():
            assert not of_earlier_process.exists()
    assert (tmp_path / "file").read_text() == "whole"


def test_a_disk_without_locks_is_an_error(tmp_path, monkeypatch):
    def acquire(*arguments, **options):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    message = f"^{tmp_path}: cannot be locked, for its disk has no locks$"
    with pytest.raises(UserError, match=message), FolderLock(tmp_path).lock():
        pass


def test_a_lock_in_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="cannot be created"), FolderLock(tmp_path / "file" / "below").lock():
        pass
