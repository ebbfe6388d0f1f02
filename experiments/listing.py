"""What a sweep would do: the state of every run, and the time that the missing ones may take."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert4rec_tf.config.run import TRAININGS, Run
from bert4rec_tf.foundation.progress import clock
from experiments.jobs import Job
from experiments.results import FINISHED, STOPPED, newest, same_file, trainings
from experiments.sweep import Sweep

MISSING, RUNNING = "missing", "running"


def states(jobs: Sequence[Job], sweep: Sweep) -> list[tuple[Job, str, float | None]]:
    """Returns each job, what it is in, and the seconds that it may still take; None where nothing tells that.

    Of a running job the sittings before this one count as done.

    Its states are finished, running, stopped, failed and missing.
    """
    lines = sweep.results.read()
    rows = []
    for job in jobs:
        if sweep.is_finished(job):
            rows.append((job, FINISHED, 0.0))
            continue
        line = newest(lines.get(job.key, {}))
        status = line.get("status", MISSING)
        state = RUNNING if sweep.is_running(job) else MISSING if status == FINISHED else status
        whole = estimate(job.run, list(lines.values()))
        rows.append((job, state, None if whole is None else max(0.0, whole - _done(job, line, sweep))))
    return rows


def _done(job: Job, line: Mapping[str, Any], sweep: Sweep) -> float:
    """Returns the seconds of the sittings of a stopped job that can be gone on with here."""
    if line.get("status") != STOPPED or not sweep.folder(job).exists():
        return 0.0
    return line["wall_seconds"] if same_file(line["data_file"], sweep.data_file(job.run.dataset)) else 0.0


def estimate(run: Run, lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the seconds that a whole run may take, by the finished ones most alike in their settings.

    Their seconds per step count, and once what they took beside their trainings. Only runs of the same model and data
    set count; None without any.
    """
    wanted = run.to_dict()
    known = [
        line
        for line in lines
        if line["status"] == FINISHED and (line["run"]["model"], line["run"]["dataset"]) == (run.model, run.dataset)
    ]
    if not known:
        return None
    alike = [_alike(line["run"], wanted) for line in known]
    nearest = [line for line, count in zip(known, alike) if count == max(alike)]
    return sum(_seconds(line, _steps(wanted)) for line in nearest) / len(nearest)


def _seconds(line: Mapping[str, Any], steps: int) -> float:
    known = trainings(line)
    if not known:
        return line["wall_seconds"]
    spent = sum(training["seconds"] for training in known)
    return max(0.0, line["wall_seconds"] - spent) + spent / sum(training["steps"] for training in known) * steps


def _alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> int:
    groups = ("architecture", "masking", "training")
    return sum(first[group].get(name) == value for group in groups for name, value in second[group].items())


def _steps(run: Mapping[str, Any]) -> int:
    """Returns the steps of all trainings of a run."""
    training = run["training"]
    return training["steps"] * len(TRAININGS[training["protocol"]])


def show(jobs: Sequence[Job], sweep: Sweep) -> None:
    """Prints the state of every run, and how long the rest may take."""
    known, unknown = [], 0
    for job, state, seconds in states(jobs, sweep):
        told = "" if state == FINISHED else "unknown" if seconds is None else clock(seconds)
        print(f"{state:<9} {told:>9}  {job.title}")
        known.append(seconds or 0.0)
        unknown += seconds is None
    rest = f", and {unknown} runs of which it is not known yet" if unknown else ""
    left = max(sum(known) / sweep.jobs, max(known, default=0.0))
    print(f"About {clock(left)} left by the finished runs{rest}.")
