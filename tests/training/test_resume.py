"""The same command gives the same bytes: in another process, and killed and started again."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from support import whole_runs as runs
from support.commands import refused
from support.trainings import small_and_quick, whole_run
from support.whole_runs import FLAGS, Moment

MOMENT = Moment("half", "*/select/step-*5.npz")


@pytest.mark.longest
def test_a_run_that_is_killed_and_started_again_equals_one_that_is_not(tmp_path, uninterrupted):
    """The kill comes while a checkpoint is being written."""
    runs.killed(tmp_path, *FLAGS["one training"], moment=MOMENT)
    assert runs.partials(tmp_path / "work")
    runs.assert_same_runs(uninterrupted("one training"), runs.here(tmp_path, *FLAGS["one training"]))


def stopped_by_ctrl_c_and_by_sigterm(folder, uninterrupted):
    """The first signal comes between two measurements, the second during one."""
    flags = (*FLAGS["dynamic"], "--checkpoint_seconds=0")
    _stopped(folder, flags, "SIGINT", Moment("after", "*/select/step-000000006.npz"))
    assert (folder / "work" / "select" / "step-000000006.npz").exists()
    _stopped(folder, flags, "SIGTERM", Moment("after", "*/retrain/curve.csv", 2))
    assert (folder / "work" / "retrain" / "step-000000008.npz").exists()
    resumed = runs.finished(folder, *flags)
    runs.assert_same_runs(uninterrupted("dynamic"), resumed, older_checkpoints=False)


def _stopped(folder, flags, sends, moment):
    process = runs.run(folder, *flags, "--workdir=work", moment=moment, sends=sends)
    assert process.returncode == 130, process.stderr
    assert process.stderr.splitlines()[-1] == "Stopped. Run the same command again to resume."
    assert "Traceback" not in process.stderr


def a_second_process_in_the_same_folder(folder, uninterrupted):
    flags = (*FLAGS["static"], "--mode=prepare", "--workdir=work")
    first = _halted(folder, *flags, moment=Moment("before", "*/manifest.json", 2))
    assert "another process is using this folder" in refused(runs.run(folder, *flags))
    first.kill()
    runs.finish(first)
    assert runs.run(folder, *flags).returncode == 0
    runs.assert_same_runs(uninterrupted("static") / "prepared", folder / "work" / "prepared")


def two_processes_share_what_is_prepared(folder, uninterrupted):
    _shared(folder, signal.SIGCONT, 0, uninterrupted)


def one_of_two_who_share_what_is_prepared_is_killed(folder, uninterrupted):
    _shared(folder, signal.SIGKILL, -signal.SIGKILL, uninterrupted)


def _shared(folder, sent, expected, uninterrupted):
    flags = (*FLAGS["static"], "--mode=prepare", "--prepared_dir=prepared")
    first = _halted(folder, *flags, "--workdir=one", moment=Moment("before", "*/train-*"))
    second = runs.start(folder, *flags, "--workdir=other")
    assert any("another process works in it; waiting for that one" in line for line in second.stderr)
    first.send_signal(sent)
    assert runs.finish(first).returncode == expected
    assert runs.finish(second).returncode == 0
    runs.assert_same_runs(uninterrupted("static") / "prepared", folder / "prepared")


def _halted(folder, *flags, moment):
    process = runs.start(folder, *flags, moment=moment, sends="SIGSTOP")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), process.stderr.read()
    return process


SCENARIOS = [
    stopped_by_ctrl_c_and_by_sigterm,
    a_second_process_in_the_same_folder,
    two_processes_share_what_is_prepared,
    one_of_two_who_share_what_is_prepared_is_killed,
]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_interrupted_runs_end_with_the_same_files(tmp_path, uninterrupted, scenario):
    scenario(tmp_path, uninterrupted)


def states_of_the_disk(folder, masking, monkeypatch):
    """Makes a run, and copies its folder whenever a file gets its name: half of it written before, and just after.

    What a killed process leaves is always one of these states: its files change by nothing but renaming and, after the
    next one, deleting.
    """
    replace, copies = os.replace, []

    def copy(torn=None):
        copies.append(folder / f"state-{len(copies):03d}")
        shutil.copytree(folder / "work", copies[-1] / "work")
        if torn is not None:
            place = copies[-1] / Path(torn).relative_to(folder)
            os.truncate(place, place.stat().st_size // 2)

    def watched(source, target):
        copy(torn=source)
        replace(source, target)
        copy()

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", watched)
        return whole_run(folder, masking), copies


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_a_run_resumes_from_every_state_of_the_disk_that_a_kill_may_leave(tmp_path, monkeypatch, masking):
    with small_and_quick():
        expected, copies = states_of_the_disk(tmp_path, masking, monkeypatch)
        assert len(copies) > 40
        assert any(runs.partials(copy) for copy in copies) and not runs.partials(expected)
        for copy in copies:
            assert not runs.differences(expected, whole_run(copy, masking)), copy.name


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("change", [change_an_array, remove_a_file])
def test_the_comparison_names_the_one_thing_that_differs(tmp_path, uninterrupted, change):
    first = uninterrupted("static")
    shutil.copytree(first, tmp_path / "work")
    assert runs.differences(first, tmp_path / "work") == []
    changed = change(tmp_path / "work")
    assert runs.differences(first, tmp_path / "work") == [changed]
