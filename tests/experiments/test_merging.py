"""Results from another machine: what fits is taken in, what does not is named, and nothing is lost."""

import copy
import functools
import json
import math
import operator
import re

import pytest
from support.invented_results import FILE, findings, line_of, text_of

import bert4rec_tf
from bert4rec_tf.foundation.errors import UserError
from experiments import merging
from experiments.__main__ import main
from experiments.findings import SAMPLES, Findings
from experiments.line_fields import FAILED
from experiments.plan import Job, Plan
from experiments.results import Results, name_device, read_lines
from experiments.sweep import Sweep, show
from experiments.tables import Variant

VERSIONS = {"bert4rec_tf": bert4rec_tf.__version__}
CPU_ENVIRONMENT = {"versions": VERSIONS, "threads": 2, "devices": ["CPU"]}
GPU_ENVIRONMENT = {**CPU_ENVIRONMENT, "devices": ["CPU", "GPU"], "accelerators": ["NVIDIA H100"]}


def job(seed=1, model="bpr_mf"):
    return Job(Plan(("beauty",)).make_run("beauty", Variant(model, model), seed))


def line(seed=1, value=0.5, **changes):
    return line_of(job(seed), value, **{"environment": GPU_ENVIRONMENT, **changes})


REQUIRED = [
    *("data_fingerprint", "users", "environment.threads", "environment.devices", "peak_memory", "run.seed"),
    *("test.popular.hr@10", "run.training.batch_size", "run.architecture"),
]
"""Entries of a finished line that some part of the report reads."""


def write(folder, *lines):
    folder.mkdir(exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return folder / "results.jsonl"


def merge(folder, *lines):
    path = write(folder / "other", *lines)
    return merging.merge(path, Results(folder / "here"), lambda dataset: FILE)


def test_finished_runs_are_taken_once(tmp_path):
    one, other = line(1), line(2)
    assert merge(tmp_path, one, other).taken_keys == [one["key"], other["key"]]
    again = merge(tmp_path, {**one, "wall_seconds": 1.0}, line(3))
    assert again.known_keys == [one["key"]] and again.taken_keys == [line(3)["key"]] and not again.refusals
    assert Results(tmp_path / "here").read() == {each["key"]: each for each in (one, other, line(3))}


def test_a_run_that_was_stopped_here_is_replaced_without_its_time(tmp_path):
    stopped = {**line(), "status": "stopped", "wall_seconds": 999.0}
    write(tmp_path / "here", stopped)
    merge(tmp_path, line(seconds=60.0))
    assert Results(tmp_path / "here").read()[line()["key"]]["wall_seconds"] == 60.0


def test_attention_comes_along(tmp_path):
    one = line()
    write(tmp_path / "other", one)
    Results(tmp_path / "other").attention_path(one["key"]).write_text("{}")
    merge(tmp_path, one)
    assert Results(tmp_path / "here").list_attentions() == {one["key"]}


def test_attention_that_is_missing_here_comes_along_for_known_runs_and_that_of_other_data_goes(tmp_path):
    one, here = line(), Results(tmp_path / "here")
    write(tmp_path / "here", one)
    write(tmp_path / "other", one)
    Results(tmp_path / "other").attention_path(one["key"]).write_text("{}")
    assert merge(tmp_path, one).known_keys == [one["key"]] and here.list_attentions() == {one["key"]}
    write(tmp_path / "here", {**one, "data_file": {**FILE, "sha256": "0" * 64}})
    Results(tmp_path / "other").attention_path(one["key"]).unlink()
    assert merge(tmp_path, one).taken_keys == [one["key"]] and not here.list_attentions()


def without(path):
    """A line that lacks an entry."""
    found = copy.deepcopy(line())
    *groups, last = path.split(".")
    del functools.reduce(operator.getitem, groups, found)[last]
    return found


FAULTS = {
    "it is not finished, but failed": {"status": FAILED, "error": "the loss is nan"},
    "its settings have the digest": {"run": {**job().run.to_dict(), "seed": 9}},
    "they were changed, or made by another version": {"digest": "0" * 12},
    "it was made by version 0.0.1, and this is": {
        "environment": {**CPU_ENVIRONMENT, "versions": {"bert4rec_tf": "0.0.1"}}
    },
    "it was measured on another file than beauty.txt here": {"data_file": {**FILE, "sha256": "0" * 64}},
    "it is not the result of a run of this version (Unknown setting of training: 'new'": {
        "run": {**job().run.to_dict(), "training": {**job().run.to_dict()["training"], "new": 1}}
    },
    "no table or figure has this run with the budget 0.5": {"budget": 0.5},
    "`budget` must be above 0 and at most 1. Received: 2.0": {"budget": 2.0},
    "`test.popular.hr@1` must be a number in [0, 1]. Received: nothing": {"test": {"uniform": {}}},
    "`test.full.ndcg@10` must be a number in [0, 1]. Received: None": {
        "test": {**line()["test"], "full": {**line()["test"]["full"], "ndcg@10": None}}
    },
    "`test.full.ndcg@10` must be a number in [0, 1]. Received: 5.0": {
        "test": {**line()["test"], "full": {**line()["test"]["full"], "ndcg@10": 5.0}}
    },
    "`wall_seconds` must be a number of at least 0. Received: nan": {"wall_seconds": math.nan},
    "`peak_memory` must be null or a number. Received: 'x'": {"peak_memory": "x"},
    "`data_file` must be null, or have name, sha256 and as_published. Received: {}": {"data_file": {}},
    "sha256 and as_published. Received: 'x'": {"data_file": "x"},
    "sha256 and as_published. Received: {'name'": {"data_file": {"name": "x", "sha256": "0" * 64}},
    "`data_file` must be known, as these data are not built in. Received: None": {"data_file": None},
    "`environment.versions` must be texts by package. Received: []": {
        "environment": {**CPU_ENVIRONMENT, "versions": []}
    },
    "`environment.accelerators` must be a list of texts. Received: 3": {
        "environment": {**CPU_ENVIRONMENT, "accelerators": 3}
    },
    "`retrain.steps` must be a whole number of at least 0. Received: nothing": {"retrain": "x"},
    "`validation.popular.ndcg@10` must be a number in [0, 1]": {"validation": {}},
    "`run.dataset` must be a data set's name. Received: nothing": {"run": {}},
}


@pytest.mark.parametrize("words", FAULTS)
def test_what_does_not_fit_is_refused_with_its_reason_and_the_rest_taken(tmp_path, words):
    bad, good = {**line(), **FAULTS[words]}, line(2)
    merged = merge(tmp_path, bad, good)
    assert merged.taken_keys == [good["key"]] and list(Results(tmp_path / "here").read()) == [good["key"]]
    refused, last = merging.describe(merged)
    assert refused.startswith(f"refused {bad['key']}: ") and words in refused
    assert last == "1 taken, 0 already here, 1 refused."


@pytest.mark.parametrize("file", [{}, None], ids=str)
def test_a_damaged_line_of_a_run_that_is_here_is_refused(tmp_path, file):
    write(tmp_path / "here", line())
    merged = merge(tmp_path, {**line(), "data_file": file}, line(2))
    assert merged.taken_keys == [line(2)["key"]] and not merged.known_keys
    assert "`data_file` must be" in merged.refusals[line()["key"]]


def test_a_finished_run_of_another_file_stays_where_no_file_can_decide(tmp_path):
    other = {**line(value=0.1), "data_file": {**FILE, "sha256": "0" * 64}}
    path = write(tmp_path / "other", other)
    write(tmp_path / "here", line())
    merged = merging.merge(path, Results(tmp_path / "here"), lambda dataset: None)
    assert not merged.taken_keys and "of another data file" in merged.refusals[line()["key"]]
    assert Results(tmp_path / "here").read() == {line()["key"]: line()}
    assert merging.merge(path, Results(tmp_path / "here"), lambda dataset: other["data_file"]).taken_keys


@pytest.mark.parametrize("path", REQUIRED)
def test_a_line_without_an_entry_that_the_report_reads_is_refused_and_cannot_be_read(tmp_path, path):
    reason = rf"`{re.escape(path)}` must be .*Received: nothing"
    assert re.match(reason, merge(tmp_path, without(path)).refusals[line()["key"]])
    lines_file = write(tmp_path / "here", line(2), without(path))
    with pytest.raises(UserError, match=f"results.jsonl, line 2: {reason}"):
        read_lines(lines_file)


def test_data_of_another_fingerprint_are_refused_beside_a_run_on_the_same_file(tmp_path):
    write(tmp_path / "here", line())
    merged = merge(tmp_path, line(2, data_fingerprint="y"), line(3))
    assert merged.taken_keys == [line(3)["key"]]
    assert "another fingerprint than those of" in merged.refusals[line(2)["key"]]


@pytest.mark.parametrize("content", ["{", '{"run": 1}', "[]", '{"key": "a"}'])
def test_a_damaged_file_changes_nothing(tmp_path, content):
    path = write(tmp_path / "other", line())
    path.write_text(path.read_text() + content)
    with pytest.raises(UserError, match=r"results\.jsonl, line 2: not the result of a run"):
        merging.merge(path, Results(tmp_path / "here"), lambda dataset: FILE)
    assert not Results(tmp_path / "here").path.exists()


def test_the_command_merges_reports_and_says_what_it_refused(tmp_path, capsys):
    one, other, *_ = Plan(("synthetic",), quick=True).make_all_jobs(["table2"])
    good = line_of(one, environment=GPU_ENVIRONMENT, data_file=None)
    longer = {**line_of(other, environment=GPU_ENVIRONMENT, data_file=None), "budget": 0.5}
    path = write(tmp_path / "other", good, longer)
    folders = [f"--workdir={tmp_path}", f"--results={tmp_path / 'here'}"]
    assert main(["--quick", f"--merge={path}", *folders]) == 1
    printed = capsys.readouterr().out
    assert "1 taken, 0 already here, 1 refused." in printed and "has this run with the budget 0.5" in printed
    assert "NVIDIA H100" in (tmp_path / "here" / "report.md").read_text()
    path.write_bytes(b"\x89PNG\xff")
    with pytest.raises(UserError, match="must be results as text in UTF-8"):
        main(["--quick", f"--merge={path}", *folders])
    with pytest.raises(UserError, match="`merge` must be a file of results"):
        main(["--quick", f"--merge={tmp_path / 'none'}", *folders])


def test_cells_of_a_gpu_are_named_and_their_speed_is_compared_with_their_own_kind_alone():
    jobs = Plan(("ml-1m",)).make_jobs("table4")
    on_gpu, *on_cpu = [one for (some,) in jobs.values() for one in [some]]
    lines = [line_of(on_gpu, environment=GPU_ENVIRONMENT), *(line_of(one) for one in on_cpu)]
    found = Findings("table4", Plan(("ml-1m",)), {each["key"]: each for each in lines})
    first, second = list(jobs)[:2]
    assert not found.list_values(*first, SAMPLES) and found.list_values(*second, SAMPLES)
    assert found.list_values(*first, "ndcg@10")
    assert "Computed on NVIDIA H100: ML-1m " in text_of("table4", found)[0]
    assert "Computed on" not in text_of("table2", findings("table2", {"sasrec": 0.2}))[0]


def test_the_listing_estimates_by_device(tmp_path, capsys):
    sweep = Sweep(Results(tmp_path / "here"), tmp_path)
    for seed, seconds, environment in ((1, 600.0, CPU_ENVIRONMENT), (2, 60.0, GPU_ENVIRONMENT)):
        phase = {"steps": job().run.training.steps, "seconds": seconds, "best_step": 1}
        done = line_of(job(seed), seconds=seconds, retrain=phase, environment=environment)
        sweep.results.put(done)
    assert [name_device(each) for each in sweep.results.read().values()].count("CPU") == 1
    show([job(3)], sweep)
    row, *rest = capsys.readouterr().out.splitlines()
    times = row.split()[1:3]
    assert times[0] > times[1] and [text.split(", ")[0] for text in rest] == [
        f"About {times[0]} left on CPU",
        f"About {times[1]} left on NVIDIA H100",
    ]
