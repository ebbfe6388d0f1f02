"""A sweep survives: failing runs, Ctrl-C, a kill, a second sweep, time budgets. Its runs here only sleep."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest
from support import fake_runs
from support.fake_runs import DIES, LOSES, RAISES, WAITS
from support.invented_results import line_of
from support.paths import ROOT, TESTS

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import FileWarning
from experiments import processes
from experiments.__main__ import main
from experiments.line_fields import FAILED, FINISHED, STOPPED
from experiments.plan import Job, Plan
from experiments.results import BUSY, Results, read_commit
from experiments.sweep import RUNNING, Sweep, list_states, show
from experiments.tables import TABLES, Variant

PATIENCE = 120.0


def job(seed=1, model="bpr_mf", dataset="synthetic", **changes):
    return Job(Plan((dataset,), quick=True).make_run(dataset, Variant(model, model, changes=changes), seed))


def sweep(folder, **options):
    return Sweep(Results(folder / "results"), folder / "work", **{"task": fake_runs.sleep, **options})


def lines(folder):
    return [json.loads(line) for line in (folder / "results" / "results.jsonl").read_text().splitlines()]


def start(folder, *flags):
    """Starts the command in a process group of its own, as a shell does."""
    folders = (f"--workdir={folder / 'work'}", f"--results={folder / 'results'}")
    return subprocess.Popen(
        [sys.executable, fake_runs.__file__, "--quick", *folders, *flags],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process):
    output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output, errors


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def list_processes(folder):
    return {int(path.read_text() or 0) for path in folder.glob("work/*/process")}


def traces(folder):
    return [(path.parent / "trace").read_text().split() for path in sorted(folder.glob("work/*/process"))]


def quick_jobs():
    return Plan(("synthetic",), quick=True).make_all_jobs(TABLES)


def assert_complete(folder):
    """Every run of a quick sweep is finished, and no step of any was done twice."""
    found = lines(folder)
    assert {line["key"] for line in found} == {one.key for one in quick_jobs()} and len(found) == len(quick_jobs())
    assert all(line["status"] == FINISHED for line in found)
    for trace in traces(folder):
        assert trace == [str(step) for step in range(20)]


def test_a_line_of_results_records_everything_of_its_run_which_is_not_run_again(tmp_path):
    one = job()
    assert sweep(tmp_path).run([one]) == {one.key: FINISHED}
    (line,) = lines(tmp_path)
    assert line["run"] == one.run.to_dict() and line["run"]["seed"] == 1
    assert line["key"] == line["digest"] == one.key
    assert set(line["test"]) == {"popular", "uniform", "full"}
    assert line["retrain"]["steps"] == one.run.training.steps and line["budget"] == 1
    assert line["peak_memory"] > 10e6 and line["wall_seconds"] > 0.3 and line["data_file"] is None
    assert "versions" in line["environment"] and line["commit"] == read_commit()
    assert sweep(tmp_path, task=fake_runs.kill).run([one]) == {one.key: FINISHED} and lines(tmp_path) == [line]


@pytest.mark.long
def test_failing_runs_are_recorded_and_the_others_go_on(tmp_path, capfd):
    jobs = [job(LOSES), job(DIES), job(2), job(RAISES), job(3)]
    statuses = sweep(tmp_path).run(jobs)
    assert [statuses[one.key] for one in jobs] == [FAILED, FAILED, FINISHED, FAILED, FINISHED]
    errors = {line["run"]["seed"]: line.get("error") for line in lines(tmp_path)}
    assert errors[LOSES] == "the loss is nan"
    assert errors[DIES] == "its process ended with exit code 3"
    assert errors[RAISES] == "ValueError: a defect"
    assert "Traceback" in (tmp_path / "work" / "logs" / f"{jobs[3].key}.txt").read_text()
    printed = capfd.readouterr()
    assert "the loss is nan" in printed.out and "Traceback" not in printed.out + printed.err
    found = {one.run.seed: state for one, state, _ in list_states(jobs, sweep(tmp_path))}
    assert found == {LOSES: FAILED, DIES: FAILED, 2: FINISHED, RAISES: FAILED, 3: FINISHED}


def test_a_run_beyond_its_time_budget_resumes_in_the_next_sweep(tmp_path):
    one, seconds, spent = job(WAITS), 1.0, 0.0
    while not traces(tmp_path) or len(traces(tmp_path)[0]) < 10:  # its process may take long to start
        assert sweep(tmp_path, time_budget=seconds).run([one]) == {one.key: STOPPED}
        (line,) = lines(tmp_path)
        assert line["status"] == STOPPED and line["wall_seconds"] >= spent + seconds
        seconds, spent = 2 * seconds, line["wall_seconds"]
    assert traces(tmp_path) == [[str(step) for step in range(10)]]
    (sweep(tmp_path).folder(one) / "go").touch()
    assert sweep(tmp_path).run([one]) == {one.key: FINISHED}
    assert traces(tmp_path) == [[str(step) for step in range(20)]]
    assert lines(tmp_path)[0]["wall_seconds"] > spent


@pytest.mark.slow
def test_two_at_once_share_the_work(tmp_path):
    sweeps = [start(tmp_path, "--jobs=2"), start(tmp_path)]
    for process in sweeps:
        code, _, errors = finished(process)
        assert code == 0, errors
    assert_complete(tmp_path)


@pytest.mark.slow
def test_ctrl_c_stops_everything_and_the_same_command_resumes(tmp_path):
    process = start(tmp_path, "--jobs=2")
    wait_until(lambda: len(list_processes(tmp_path)) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    code, _, errors = finished(process)
    assert code == 130
    assert errors.strip() == "Stopped. Run the same command again to resume."
    assert not any(is_alive(one) for one in list_processes(tmp_path))
    statuses = {line["status"] for line in lines(tmp_path)}
    assert statuses <= {STOPPED, FINISHED} and len(lines(tmp_path)) < len(quick_jobs())
    assert finished(start(tmp_path, "--jobs=2"))[0] == 0
    assert_complete(tmp_path)


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_orphans_and_resumes(tmp_path):
    process = start(tmp_path)
    wait_until(lambda: len(list_processes(tmp_path)) and (tmp_path / "results" / "results.jsonl").exists())
    process.kill()
    process.communicate()
    wait_until(lambda: not any(is_alive(one) for one in list_processes(tmp_path)))
    assert lines(tmp_path), "the file of results is whole"
    assert finished(start(tmp_path))[0] == 0
    assert_complete(tmp_path)


def test_a_run_of_another_sweep_is_skipped(tmp_path, capsys):
    one, other = job(), sweep(tmp_path)
    with filelock.FileLock(other.lock_path(one)):
        assert list_states([one], other)[0][1] == RUNNING
        statuses = other.run([one])
    assert statuses[one.key] == BUSY and not other.results.read()
    assert "another sweep runs it" in capsys.readouterr().out


def test_the_listing_estimates_the_rest_by_the_run_with_the_most_equal_settings(tmp_path, capsys):
    """50 of 60 seconds for 20 steps, and 10 beside them; a run of another width says nothing. Half of a run is done."""
    wide, narrow, stopped = job(hidden_dim=32), job(hidden_dim=8), job(2, hidden_dim=32, steps=40)
    for one, seconds in ((wide, 50.0), (narrow, 5.0)):
        phase = {"steps": 20, "seconds": seconds, "best_step": 20}
        sweep(tmp_path).results.put(line_of(one, seconds=seconds + 10, retrain=phase, data_file=None))
    sweep(tmp_path).folder(stopped).mkdir(parents=True)
    half = {"key": stopped.key, "run": stopped.run.to_dict(), "status": STOPPED, "budget": 1.0, "data_file": None}
    sweep(tmp_path).results.put({**half, "wall_seconds": 45.0, "peak_memory": None})
    jobs = [wide, stopped, job(3, hidden_dim=32), job(model="sasrec")]
    show(jobs, sweep(tmp_path, jobs=2))
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    states = [["finished", "bpr_mf"], ["stopped", "0:01:05"], ["missing", "0:01:00"], ["missing", "unknown"]]
    assert rows == [*states, ["About", "0:01:05"]], "the longest, as both run at once"


def test_a_damaged_line_of_results_is_an_error_with_its_number(tmp_path):
    whole = line_of(job(), data_file=None)
    foreign = {"key": "abc", "run": {}, "status": "finished", "data_file": None}
    for damaged, words in (
        ('{"key":', "not the result of a run"),
        ('{"key": "b"}', "not the result of a run"),
        (json.dumps(foreign), "`run.dataset` must be a data set's name. Received: nothing"),
        (json.dumps({**foreign, "run": whole["run"]}), "`budget` must be above 0 and at most 1. Received: nothing"),
        (json.dumps({**whole, "status": "failed"}), "`error` must be a text. Received: nothing"),
        (json.dumps({**whole, "status": "done"}), "`status` must be finished, failed or stopped. Received: 'done'"),
    ):
        (tmp_path / "results.jsonl").write_text(f"{json.dumps(whole)}\n{damaged}\n")
        for flag in ("--report", "--list"):
            with pytest.raises(UserError, match=f"results.jsonl, line 2: {re.escape(words)}"):
                main(["--quick", flag, f"--results={tmp_path}", f"--workdir={tmp_path / 'work'}"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tables=7"], "Unknown table: '7'. Known: 1, 2, 3, 4, 5"),
        (["--jobs=0"], "`jobs` must be at least 1. Received: jobs=0"),
        (["--budget=2"], "`budget` must be above 0 and at most 1. Received: budget=2.0"),
        (["--time_budget=nan"], "`time_budget` must be above 0 minutes. Received: time_budget=nan"),
        (["--datasets=beaty"], "Unknown dataset: 'beaty'. Did you mean 'beauty'?"),
        (["--datasets=beauty", "--quick"], "`datasets` goes without --quick"),
        (["--list", "--merge=results.jsonl"], "--list goes without --merge"),
        (["--list", f"--results={__file__}"], "`results` must be a folder. Received: results="),
        (["--tune=pop", "--quick"], "Unknown model to tune: 'pop'"),
        (["--tune=sasrec"], "--tune goes with --datasets"),
        (["--tune=sasrec", "--quick", "--jobs=2"], "--jobs and --tune exclude each other"),
        (
            ["--tables=3", "--datasets=steam"],
            "`datasets` must have one of beauty, ml-1m, for there is no Table 3 of Steam. Received: datasets=steam",
        ),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, capsys, flags, message):
    from experiments.__main__ import command

    kept = [] if "--tune" in flags[0] or "--results" in flags[-1] else [f"--results={tmp_path}"]
    with pytest.raises(SystemExit, match=r"^2$"):
        command([*flags, f"--workdir={tmp_path}", *kept])
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {message}") and printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_damaged_data_file_is_warned_of_and_no_other_run_is_held_up(tmp_path, monkeypatch):
    answers = iter([{"status": FAILED, "error": "beauty.txt.gz: is damaged"}, {"status": STOPPED}])
    monkeypatch.setattr(processes, "call", lambda *_: next(answers))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "beauty.txt.gz").write_bytes(b"\x1f\x8b cut")
    jobs = [Job(Plan((name,)).make_run(name, Variant("POP", "pop"), 1)) for name in ("beauty", "synthetic")]
    with pytest.warns(FileWarning, match=r"beauty\.txt\.gz") as told:
        statuses = sweep(tmp_path, data_dir=tmp_path / "data").run(jobs)
    assert len(told) == 1
    assert [statuses[one.key] for one in jobs] == [FAILED, STOPPED]


@pytest.mark.parametrize("status", [FAILED, STOPPED])
def test_a_finished_run_whose_attention_could_not_be_measured_is_not_called_finished(tmp_path, monkeypatch, status):
    one = dataclasses.replace(job(), attention=True)
    monkeypatch.setattr(processes, "call", lambda *_: {"status": status, "error": "no position"})
    kept = sweep(tmp_path)
    kept.results.put(line_of(one, data_file=None))
    assert kept.run([one]) == {one.key: status}
    assert kept.results.read()[one.key]["status"] == FINISHED


@pytest.mark.parametrize(("name", "preload"), [("nvidiactl", ()), ("dxg", ()), ("null", ("experiments.running",))])
def test_tensorflow_is_not_imported_before_the_fork_on_a_machine_with_a_gpu(tmp_path, monkeypatch, name, preload):
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / name).touch()
    assert processes.choose_preload(tmp_path) == preload
