"""A sweep survives: failing runs, Ctrl-C, a kill, a second sweep, time budgets. Its runs here only sleep."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest
from support import fake_runs
from support.fake_runs import DIES, LOSES, RAISES, WAITS
from support.paths import ROOT, TESTS

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from experiments.plan import Job, Plan
from experiments.results import BUSY, FAILED, FINISHED, STOPPED, Results, commit
from experiments.sweep import MISSING, RUNNING, Sweep, estimate_seconds, list_states
from experiments.tables import TABLES, Variant

PATIENCE = 120.0


def job(seed=1, model="bpr_mf", dataset="synthetic", **changes):
    return Job(Plan((dataset,), quick=True).make_run(dataset, Variant(model, model, changes=changes), seed))


def sweep(folder, **options):
    return Sweep(Results(folder / "results"), folder / "work", **{"task": fake_runs.sleep, **options})


def lines(folder):
    return [json.loads(line) for line in (folder / "results" / "results.jsonl").read_text().splitlines()]


def line_of(one, **changes):
    """A finished line."""
    content = {**fake_runs.measured(one.run), "key": one.key, "run": one.run.to_dict(), "budget": one.budget}
    return {**content, "status": FINISHED, "wall_seconds": 100.0, "peak_memory": 10**9, "data_file": None, **changes}


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


def processes(folder):
    return {int(path.read_text() or 0) for path in folder.glob("work/*/process")}


def traces(folder):
    return [(path.parent / "trace").read_text().split() for path in sorted(folder.glob("work/*/process"))]


def quick_jobs():
    return Plan(("synthetic",), quick=True).all_jobs(TABLES)


def assert_complete(folder):
    """Every run of a quick sweep is finished, and no step of any was done twice."""
    found = lines(folder)
    assert {line["key"] for line in found} == {one.key for one in quick_jobs()} and len(found) == len(quick_jobs())
    assert all(line["status"] == FINISHED for line in found)
    for trace in traces(folder):
        assert trace == [str(step) for step in range(20)]


def test_a_line_tells_everything_of_its_run(tmp_path):
    one = job()
    assert sweep(tmp_path).run([one]) == {one.key: FINISHED}
    (line,) = lines(tmp_path)
    assert line["run"] == one.run.to_dict() and line["run"]["seed"] == 1
    assert line["key"] == line["digest"] == one.key
    assert set(line["test"]) == {"popular", "uniform", "full"}
    assert line["retrain"]["steps"] == one.run.training.steps and line["budget"] == 1
    assert line["peak_memory"] > 10e6 and line["wall_seconds"] > 0.3 and line["data_file"] is None
    assert "versions" in line["environment"] and line["commit"] == commit()


def test_a_finished_run_is_not_run_again(tmp_path):
    one = job()
    sweep(tmp_path).run([one])
    before = (tmp_path / "results" / "results.jsonl").read_bytes()
    again = sweep(tmp_path, task=fake_runs.kill)
    assert again.run([one]) == {one.key: FINISHED}
    assert (tmp_path / "results" / "results.jsonl").read_bytes() == before


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


def test_a_killed_process_is_a_failed_run(tmp_path):
    """As by a system that is out of memory."""
    one = job()
    assert sweep(tmp_path, task=fake_runs.kill).run([one]) == {one.key: FAILED}
    assert lines(tmp_path)[0]["error"] == "its process ended by signal SIGKILL"


def test_a_run_out_of_its_time_goes_on_in_the_next_sweep(tmp_path):
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
def test_ctrl_c_stops_everything_and_the_same_command_goes_on(tmp_path):
    process = start(tmp_path, "--jobs=2")
    wait_until(lambda: len(processes(tmp_path)) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    code, _, errors = finished(process)
    assert code == 130
    assert errors.strip() == "Stopped. Run the same command again to resume."
    assert not any(is_alive(one) for one in processes(tmp_path))
    statuses = {line["status"] for line in lines(tmp_path)}
    assert statuses <= {STOPPED, FINISHED} and len(lines(tmp_path)) < len(quick_jobs())
    assert finished(start(tmp_path, "--jobs=2"))[0] == 0
    assert_complete(tmp_path)


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_orphans_and_goes_on(tmp_path):
    process = start(tmp_path)
    wait_until(lambda: len(processes(tmp_path)) and (tmp_path / "results" / "results.jsonl").exists())
    process.kill()
    process.communicate()
    wait_until(lambda: not any(is_alive(one) for one in processes(tmp_path)))
    assert lines(tmp_path), "the file of results is whole"
    assert finished(start(tmp_path))[0] == 0
    assert_complete(tmp_path)


def test_what_another_sweep_runs_is_left_to_it(tmp_path, capsys):
    one, other = job(), sweep(tmp_path)
    with filelock.FileLock(other.lock_path(one)):
        assert list_states([one], other)[0][1] == RUNNING
        statuses = other.run([one])
    assert statuses[one.key] == BUSY and not other.results.read()
    assert "another sweep runs it" in capsys.readouterr().out


@pytest.fixture
def data(tmp_path):
    """A folder with a file of Beauty."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "beauty.txt").write_text("1 2\n1 3\n1 4\n")
    return folder


def with_other_data(data):
    (data / "beauty.txt").write_text("1 2\n1 3\n1 5\n")


def test_other_data_make_a_finished_run_missing(tmp_path, data):
    one = Job(job(dataset="beauty").run)
    made = sweep(tmp_path, data_dir=data)
    made.run([one])
    kept = lines(tmp_path)[0]["data_file"]
    assert kept["name"] == "beauty.txt" and len(kept["sha256"]) == 64 and kept["as_published"] is False
    assert sweep(tmp_path, data_dir=data).is_finished(one)
    assert sweep(tmp_path, data_dir=tmp_path / "none").is_finished(one), (
        "a result counts where the data are not at hand"
    )
    with_other_data(data)
    again = sweep(tmp_path, data_dir=data)
    assert not again.is_finished(one)
    assert again.run([one]) == {one.key: FINISHED}
    (line,) = lines(tmp_path)
    assert line["data_file"]["sha256"] != kept["sha256"] and again.is_finished(one)


@pytest.mark.parametrize("seed", [LOSES, WAITS])
def test_only_a_finished_run_takes_the_place_of_a_finished_one(tmp_path, data, seed):
    """A run that fails or is stopped on other data destroys nothing, and no file's time is added to another's."""
    one = Job(job(seed, dataset="beauty").run)
    made = sweep(tmp_path, data_dir=data)
    known = made.results.put(line_of(one, data_file=made.data_file("beauty"), wall_seconds=5_000.0, peak_memory=10**12))
    with_other_data(data)
    status, seconds = (FAILED, None) if seed == LOSES else (STOPPED, 1.0)
    again = sweep(tmp_path, data_dir=data, time_budget=seconds)
    assert again.run([one]) == {one.key: status}
    (line,) = lines(tmp_path)
    begun = line.pop("begun")
    assert line == known and begun["status"] == status and begun["wall_seconds"] < 1_000
    assert [row[1] for row in list_states([one], again)] == [status]
    if seed == WAITS:
        files.make_folder(made.folder(one))
        (made.folder(one) / "go").touch()
        assert sweep(tmp_path, data_dir=data).run([one]) == {one.key: FINISHED}
        (line,) = lines(tmp_path)
        assert line["data_file"]["sha256"] != known["data_file"]["sha256"] and "begun" not in line
        assert begun["wall_seconds"] < line["wall_seconds"] < 1_000 and line["peak_memory"] < 10**12


def test_a_sitting_that_nobody_wrote_down_counts_by_its_training(tmp_path):
    """Its process was killed with the sweep; the checkpoint knew how long it had trained."""
    one = job()
    trained = {"select": {"steps": 10, "seconds": 30.0}, "retrain": {"steps": 5, "seconds": 20.0}}
    line = Results(tmp_path).put(line_of(one, wall_seconds=25.0, **trained))
    assert line["wall_seconds"] == 50.0 and Results(tmp_path).read()[one.key] == line
    other = job(2)
    assert Results(tmp_path).put(line_of(other, wall_seconds=75.0, **trained))["wall_seconds"] == 75.0


def test_what_is_done_of_a_stopped_run_is_not_left(tmp_path):
    known, stopped, late, new = job(1), job(2), job(3), job(4)
    made = sweep(tmp_path)
    made.results.put(line_of(known, wall_seconds=100.0))
    for one, seconds in ((stopped, 30.0), (late, 130.0)):
        made.results.put(line_of(one, status=STOPPED, wall_seconds=seconds))
        made.folder(one).mkdir(parents=True)
    rows = list_states([known, stopped, late, new], made)
    assert [row[2] for row in rows] == [0.0, pytest.approx(70.0), 0.0, pytest.approx(100.0)]
    made.folder(stopped).rmdir()
    assert list_states([stopped], made)[0][2] == pytest.approx(100.0), "there is nothing to go on with"


def test_what_was_done_on_another_file_is_left_on_this(tmp_path, data):
    known, stopped = (Job(job(seed, dataset="beauty").run) for seed in (1, 2))
    made = sweep(tmp_path, data_dir=data)
    file = made.data_file("beauty")
    made.results.put(line_of(known, data_file=file, wall_seconds=100.0))
    made.results.put(line_of(stopped, status=STOPPED, data_file=file, wall_seconds=30.0))
    made.folder(stopped).mkdir(parents=True)
    assert list_states([stopped], made)[0][2] == pytest.approx(70.0)
    with_other_data(data)
    assert list_states([stopped], sweep(tmp_path, data_dir=data))[0][2] == pytest.approx(100.0)


def test_the_time_of_a_finished_run_is_that_of_who_did_it(tmp_path, monkeypatch):
    """Another sweep ends the run after this one has looked, and before this one's process has started."""
    one, first, second = job(), sweep(tmp_path), sweep(tmp_path)
    log_of, known = second.log, []

    def late(of):
        first.run([of])
        known.extend(lines(tmp_path))
        return log_of(of)

    monkeypatch.setattr(second, "log", late)
    assert second.run([one]) == {one.key: FINISHED}
    assert known[0]["status"] == FINISHED and lines(tmp_path) == known


def test_listing_never_fetches_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets, "find_or_download", lambda *_: pytest.fail("it would be downloaded"))
    rows = list_states([Job(job(dataset="ml-20m").run)], sweep(tmp_path, data_dir=tmp_path))
    assert [row[1:] for row in rows] == [(MISSING, None)]


def test_the_estimate_is_that_of_the_most_alike(tmp_path):
    def line(one, seconds):
        training = {"steps": one.run.training.steps, "seconds": seconds - 10}
        return {
            "key": one.key,
            "run": one.run.to_dict(),
            "status": FINISHED,
            "wall_seconds": seconds,
            "retrain": training,
        }

    narrow, wide = job(hidden_dim=16), job(hidden_dim=32)
    known = [line(narrow, 100.0), line(wide, 200.0), line(job(model="fpmc"), 1.0)]
    assert estimate_seconds(job(seed=2, hidden_dim=16, steps=40).run, known) == pytest.approx(10 + 180)
    assert estimate_seconds(job(seed=2, hidden_dim=32, steps=10).run, known) == pytest.approx(10 + 95)
    assert estimate_seconds(job(model="ncf").run, known) is None


def test_a_damaged_line_of_results_is_told_with_its_number(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"key": "a"}\n{"key":\n')
    with pytest.raises(UserError, match=r"results.jsonl, line 2: not the result of a run"):
        Results(tmp_path).read()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tables=7"], "`tables` must be numbers among 1, 2, 3, 4, 5. Received: tables=7"),
        (["--figures=two"], "`figures` must be numbers among 2, 3, 4. Received: figures=two"),
        (["--jobs=0"], "`jobs` must be at least 1. Received: jobs=0"),
        (["--seeds=1,x"], "`seeds` must be whole numbers. Received: seeds=1,x"),
        (["--preset=best"], "`preset` must be fast, released or table2; Table 2 has a column for best."),
        (["--budget=2"], "`budget` must be above 0 and at most 1. Received: budget=2.0"),
        (["--time_budget=0"], "`time_budget` must be above 0 minutes. Received: time_budget=0.0"),
        (["--time_budget=nan"], "`time_budget` must be above 0 minutes. Received: time_budget=nan"),
        (["--datasets=beaty"], "Unknown dataset: 'beaty'. Did you mean 'beauty'?"),
        (["--datasets=beauty", "--quick"], "`datasets` goes without --quick"),
        (["--preset=fats", "--tables=2"], "Unknown preset: 'fats'. Did you mean 'fast'?"),
        (["--tune=pop", "--quick"], "Unknown model to tune: 'pop'"),
        (["--tune=sasrec"], "--tune goes with --datasets"),
        (["--tune=sasrec", "--quick", "--jobs=2"], "--jobs and --tune exclude each other"),
        (["--tune=sasrec", "--quick", "--time_budget=5"], "--time_budget and --tune exclude each other"),
        (["--tune=sasrec", "--quick", "--results=there"], "--results and --tune exclude each other"),
        (["--tune=sasrec", "--quick", "--tables=2"], "--tables and --tune exclude each other"),
        (["--tune=sasrec", "--quick", "--seeds=1,2"], "`seeds` must be one number for --tune. Received: seeds=1,2"),
        (
            ["--tables=3", "--datasets=steam"],
            "`datasets` must have one of beauty, ml-1m, for the paper has no Table 3 of Steam. "
            "Received: datasets=steam",
        ),
        (
            ["--figures=2", "--tables=4", "--datasets=ml-20m,steam", "--report"],
            "`datasets` must have one of beauty, ml-1m, for the paper has no Table 4 of ML-20m or Steam "
            "and no Figure 2 of ML-20m or Steam. Received: datasets=ml-20m,steam",
        ),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, capsys, flags, message):
    from experiments.__main__ import command

    kept = [] if flags[0].startswith("--tune") else [f"--results={tmp_path}"]
    with pytest.raises(SystemExit, match=r"^2$"):
        command([*flags, f"--workdir={tmp_path}", *kept])
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {message}") and printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
