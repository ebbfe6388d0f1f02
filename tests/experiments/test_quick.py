"""`./run_all.sh --quick`: the whole path, as a user calls it."""

import json
import os
import subprocess
import sys

import pytest
from support.paths import ROOT

from bert4rec_tf.evaluation.metrics import PROTOCOLS, compute_metrics
from bert4rec_tf.foundation import npz
from experiments.plan import Plan
from experiments.tables import MODELS


def quick(folder, *flags):
    # the folder is named relative to where the user stands
    return subprocess.run(
        [str(ROOT / "run_all.sh"), "--quick", "--workdir=made", *flags], cwd=folder, capture_output=True, text=True
    )


def lines_of(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_every_table_and_figure_from_one_command(tmp_path):
    listed = quick(tmp_path, "--list")
    assert listed.returncode == 0 and listed.stdout.count("missing") == 16, listed.stderr
    made = quick(tmp_path, "--jobs=2", "--threads=1")
    assert made.returncode == 0, made.stdout + made.stderr
    folder = tmp_path / "made"
    lines = lines_of(folder)
    assert len(lines) == 16 and {line["run"]["model"] for line in lines} == {*MODELS, "item_transitions"}
    for line in lines:
        assert line["status"] == "finished" and line["peak_memory"] > 1e8
        assert set(line["test"]) == set(PROTOCOLS) and line["users"] > 1000
    text = (folder / "report.md").read_text()
    best = max(lines, key=lambda line: line["test"]["popular"]["ndcg@10"])
    assert f"**{best['test']['popular']['ndcg@10']:.4f}**" in text
    assert "corrected together by Holm's method" in text
    for picture in ("figure2-synthetic.png", "figure3.png", "figure4.png"):
        assert f"]({picture})" in text and (folder / picture).stat().st_size > 10_000
    before = (folder / "results.jsonl").read_bytes(), (folder / "report.html").read_bytes()
    again = quick(tmp_path, "--jobs=2", "--threads=1")
    assert again.returncode == 0 and "16 of 16 runs are finished already." in again.stdout
    assert before == ((folder / "results.jsonl").read_bytes(), (folder / "report.html").read_bytes())


ALONE = """
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.environment import set_threads
from bert4rec_tf.runs.experiment import execute
from experiments.plan import Plan
set_threads(1)
job = Plan(("synthetic",), quick=True).make_jobs("table3")["synthetic", "sasrec"][0]
execute(job.run, datasets.load("synthetic"), workdir="alone", silent=True)
"""


@pytest.mark.slow
def test_a_run_in_a_forked_process_is_that_of_a_process_of_its_own(tmp_path):
    """TensorFlow is imported before the fork; the ranks are the bits of a process that never forked."""
    assert quick(tmp_path, "--tables=3", "--threads=1").returncode == 0
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, check=True)
    run = Plan(("synthetic",), quick=True).make_jobs("table3")["synthetic", "sasrec"][0].run
    folders = tmp_path / "made" / f"synthetic-sasrec-{run.digest}", tmp_path / "alone"
    forked, alone = (npz.read(folder / "ranks-test.npz", PROTOCOLS) for folder in folders)
    assert all((forked[protocol] == alone[protocol]).all() for protocol in PROTOCOLS)
    kept = {line["key"]: line for line in lines_of(tmp_path / "made")}
    assert compute_metrics(alone["popular"]).items() <= kept[run.digest]["test"]["popular"].items()
