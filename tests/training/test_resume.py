"""A run that was killed and started again equals the one that nothing happened to, bit for bit."""

import os
import shutil
import signal
import time
from pathlib import Path

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
    flags = (*FLAGS["dynamic"], "--mode=prepare", "--workdir=work")
    first = _halted(folder, *flags, moment=Moment("before", "*/manifest.json", 2))
    assert "another process is using this folder" in refused(runs.run(folder, *flags))
    first.kill()
    runs.finish(first)
    assert runs.run(folder, *flags).returncode == 0
    runs.assert_same_runs(uninterrupted("dynamic") / "prepared", folder / "work" / "prepared")


def two_processes_share_what_is_prepared(folder, uninterrupted):
    _shared(folder, signal.SIGCONT, 0, uninterrupted)


def one_of_two_who_share_what_is_prepared_is_killed(folder, uninterrupted):
    _shared(folder, signal.SIGKILL, -signal.SIGKILL, uninterrupted)


def _shared(folder, sent, expected, uninterrupted):
    flags = (*FLAGS["dynamic"], "--mode=prepare", "--prepared_dir=prepared")
    first = _halted(folder, *flags, "--workdir=one", moment=Moment("before", "*/train-*"))
    second = runs.start(folder, *flags, "--workdir=other")
    assert any("another process works in it; waiting for that one" in line for line in second.stderr)
    first.send_signal(sent)
    assert runs.finish(first).returncode == expected
    assert runs.finish(second).returncode == 0
    runs.assert_same_runs(uninterrupted("dynamic") / "prepared", folder / "prepared")


def _halted(folder, *flags, moment):
    process = runs.start(folder, *flags, moment=moment, sends="SIGSTOP")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), process.stderr.read()
    return process


def preparing_with_several_processes_is_disturbed(folder, uninterrupted):
    """Ctrl-C while the workers begin, a worker killed, the whole killed: each time nobody is left behind."""
    flags = (*FLAGS["static"], "--mode=prepare", "--workdir=work", "--processes=2")
    process = runs.start(folder, *flags, start_new_session=True)
    workers = _workers(process)
    os.killpg(process.pid, signal.SIGINT)
    ended = runs.finish(process)
    assert ended.returncode == 130
    said = [line for line in ended.stderr.split("\n") if not line.startswith("warning: ")]
    assert said == ["", "Stopped. Run the same command again to resume.", ""]
    _wait_for_the_end_of(workers)

    process = runs.start(folder, *flags)
    workers = _workers(process)
    os.kill(workers[0], signal.SIGKILL)
    assert "a process that wrote examples was killed" in refused(runs.finish(process))
    _wait_for_the_end_of(workers)

    process = runs.start(folder, *flags)
    workers = _workers(process)
    process.kill()
    runs.finish(process)
    _wait_for_the_end_of(workers)

    assert runs.run(folder, *flags, "--processes=1").returncode == 0
    runs.assert_same_runs(uninterrupted("static") / "prepared", folder / "work" / "prepared")


def _workers(process):
    while process.poll() is None:
        found = [
            number for number, parent, command in _processes() if parent == process.pid and "spawn_main" in command
        ]
        if len(found) == 2:
            return found
        time.sleep(0.005)
    raise AssertionError(process.stderr.read())


def _processes():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            yield int(folder.name), int(status[1]), (folder / "cmdline").read_text()
        except OSError:
            continue


def _wait_for_the_end_of(numbers):
    deadline = time.monotonic() + 120
    while any(number in numbers and command for number, _, command in _processes()):
        assert time.monotonic() < deadline, "workers outlive the process that began them"
        time.sleep(0.05)


def the_disk_is_full_under_several_processes(folder, uninterrupted):
    flags = (*FLAGS["static"], "--mode=prepare", "--workdir=work", "--processes=2")
    limit = next(uninterrupted("static").glob("prepared/*/train-00000*")).stat().st_size - 1
    assert "train-0000" in refused(runs.run(folder, *flags, limit=limit))
    assert not runs.partials(folder / "work")
    assert runs.run(folder, *flags).returncode == 0
    runs.assert_same_runs(uninterrupted("static") / "prepared", folder / "work" / "prepared")


SCENARIOS = [
    preparing_with_several_processes_is_disturbed,
    the_disk_is_full_under_several_processes,
    stopped_by_ctrl_c_and_by_sigterm,
    a_second_process_in_the_same_folder,
    two_processes_share_what_is_prepared,
    one_of_two_who_share_what_is_prepared_is_killed,
]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_interrupted_runs_end_with_the_same_files(tmp_path, uninterrupted, scenario):
    scenario(tmp_path, uninterrupted)


@pytest.fixture
def quick():
    with small_and_quick():
        yield


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


def resumed_from_states(tmp_path, monkeypatch, masking, choose):
    expected, copies = states_of_the_disk(tmp_path, masking, monkeypatch)
    assert len(copies) > 40
    assert any(runs.partials(copy) for copy in copies) and not runs.partials(expected)
    for copy in choose(copies):
        found = runs.differences(expected, whole_run(copy, masking))
        assert not found, f"{copy.name}: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_a_run_resumes_from_every_state_of_the_disk_that_a_kill_may_leave(tmp_path, quick, monkeypatch, masking):
    resumed_from_states(tmp_path, monkeypatch, masking, lambda copies: copies)
