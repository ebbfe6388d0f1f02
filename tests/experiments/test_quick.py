"""`./run_all.sh --quick`: the whole path, as a user calls it."""

import json
import subprocess

from support.paths import ROOT

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import PROTOCOLS, metrics
from experiments.tables import MODELS


def quick(folder, *flags):
    # the folder is named relative to where the user stands
    return subprocess.run(
        [str(ROOT / "run_all.sh"), "--quick", "--workdir=made", *flags], cwd=folder, capture_output=True, text=True
    )


def test_every_table_and_figure_from_one_command(tmp_path):
    listed = quick(tmp_path, "--list")
    assert listed.returncode == 0 and listed.stdout.count("missing") == 15, listed.stderr
    made = quick(tmp_path, "--jobs=2", "--threads=1")
    assert made.returncode == 0, made.stdout + made.stderr
    folder = tmp_path / "made"
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 15 and {line["run"]["model"] for line in lines} == set(MODELS)
    for line in lines:
        assert line["status"] == "finished" and line["peak_memory"] > 1e8
        assert set(line["test"]) == set(PROTOCOLS) and line["users"] > 1000
    text = (folder / "report.md").read_text()
    for title in (*(f"Table {number}: " for number in range(1, 6)), *(f"Figure {number}: " for number in (2, 3, 4))):
        assert f"## {title}" in text
    columns = datasets.table1_columns(datasets.load("synthetic"))
    assert f"| Synthetic | {' | '.join(columns.values())} |" in text
    best = max(lines, key=lambda line: line["test"]["popular"]["ndcg@10"])
    assert f"**{best['test']['popular']['ndcg@10']:.4f}**" in text
    assert "corrected together by Holm's method" in text and "quick runs: 20 steps" in text
    for picture in ("figure2-synthetic.png", "figure3.png", "figure4.png"):
        assert f"]({picture})" in text and (folder / picture).stat().st_size > 10_000
    attention = json.loads(next(folder.glob("attention-*.json")).read_text())
    assert attention["users"] > 1000 and len(attention["attention"]) == 1
    before = (folder / "results.jsonl").read_bytes(), (folder / "report.html").read_bytes()
    again = quick(tmp_path, "--jobs=2", "--threads=1")
    assert again.returncode == 0 and "15 of 15 runs are finished already." in again.stdout
    assert before == ((folder / "results.jsonl").read_bytes(), (folder / "report.html").read_bytes())


def test_a_run_in_a_shared_process_is_that_of_a_process_of_its_own(tmp_path):
    """The second job of a worker gives the bits that it gives alone."""
    import filelock

    from bert4rec_tf.foundation import npz
    from experiments.plan import Plan
    from experiments.results import FINISHED, Results
    from experiments.sweep import Sweep

    jobs = [Plan(("synthetic",), quick=True).jobs("table2")["synthetic", model][0] for model in ("fpmc", "caser")]
    found = []
    for name, some in (("together", jobs), ("alone", jobs[1:])):
        sweep = Sweep(Results(tmp_path / name), tmp_path / name, threads=1, shared=True)
        assert set(sweep.run(some).values()) == {FINISHED}
        ranks = npz.read(sweep.folder(jobs[1]) / "ranks-test.npz", PROTOCOLS)
        assert metrics(ranks["popular"]) == sweep.results.read()[jobs[1].key]["test"]["popular"]
        found.append(ranks)
    assert all((found[0][protocol] == found[1][protocol]).all() for protocol in PROTOCOLS)
    with filelock.FileLock(sweep.lock_path(jobs[1]), timeout=0):
        pass
