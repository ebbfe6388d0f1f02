"""The command line as a user meets it: whole runs, parts of them, and mistakes in one line with exit code 2."""

import ast
import gzip
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

TINY = ["--steps=30", "--warmup_steps=5", "--evaluate_every=10", "--hidden_dim=8", "--num_heads=1", "--num_layers=1"]


RUNNER = (sys.executable, "-m", "bert4rec_tf.run")
CONSOLE = (str(Path(sysconfig.get_path("scripts")) / "bert4rec"),)


def run(*flags, cwd, data=None, program=RUNNER):
    environment = {name: value for name, value in os.environ.items() if name not in ("BERT4REC_DATA", "COLUMNS")}
    environment["XDG_CACHE_HOME"] = str(cwd / "cache")
    if data is not None:
        environment["BERT4REC_DATA"] = str(data)
    return subprocess.run([*program, *flags], cwd=cwd, env=environment, capture_output=True, text=True)


def refused(process):
    """The one line that a mistake ends in."""
    assert process.returncode == 2, process.stderr
    assert "Traceback" not in process.stderr
    lines = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, process.stderr
    return lines[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole run of the built-in data set, tiny."""
    folder = tmp_path_factory.mktemp("run")
    process = run("--dataset=synthetic", "--workdir=work", *TINY, cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder, process


def test_a_run_leaves_everything_and_says_where(finished):
    folder, process = finished
    files = ("metrics.json", "config.json", "vocabulary.txt", "ranks-test.npz")
    for name in (*files, "select", "retrain", "prepared", "saved_model"):
        assert (folder / "work" / name).exists() and name in process.stdout
    assert (folder / "work" / "select" / "curve.csv").read_text().startswith("step,seconds,loss,hr@1,hr@5,hr@10")
    assert (folder / "work" / "select" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in process.stderr and "I1" not in process.stderr


def test_the_last_table_has_this_run_pop_random_and_the_ceiling(finished):
    _, process = finished
    header = next(line for line in process.stdout.splitlines() if line.startswith("metric"))
    assert header.split() == ["metric", "validation", "test", "POP", "random", "ceiling"]
    lines = [line for line in process.stdout.splitlines() if line.startswith(("among", "hr@", "ndcg@", "mrr"))]
    assert [line for line in lines if line.startswith("among")] == [
        "among 100 popular items",
        "among 100 uniform items",
        "among all unseen items",
    ]
    assert [line.split()[0] for line in lines] == ["among", "hr@1", "hr@5", "hr@10", "ndcg@5", "ndcg@10", "mrr"] * 3


def test_metrics_follow_from_the_saved_ranks(finished):
    folder, _ = finished
    metrics = json.loads((folder / "work" / "metrics.json").read_text())
    with np.load(folder / "work" / "ranks-test.npz") as saved:
        ranks = {protocol: saved[protocol] for protocol in ("popular", "uniform", "full")}
    for protocol, found in ranks.items():
        assert len(found) == metrics["users"]
        assert metrics["test"][protocol]["hr@10"] == pytest.approx(sum(rank < 10 for rank in found) / len(found))
    assert metrics["select"]["best_step"] == metrics["retrain"]["steps"]
    assert metrics["ceiling"]["popular"]["ndcg@10"] > 0.6
    assert metrics["random"]["popular"]["hr@10"] == pytest.approx(10 / 101)
    assert metrics["random"]["full"]["hr@10"] < 0.05


def test_the_same_command_again_does_nothing_again_and_gives_the_same(finished):
    folder, _ = finished
    before = (folder / "work" / "metrics.json").read_bytes()
    checkpoints = sorted((folder / "work" / "retrain").glob("step-*.npz"))
    stamps = [path.stat().st_mtime_ns for path in checkpoints]
    process = run("--dataset=synthetic", "--workdir=work", *TINY, cwd=folder)
    assert process.returncode == 0, process.stderr
    assert (folder / "work" / "metrics.json").read_bytes() == before
    assert stamps and [path.stat().st_mtime_ns for path in checkpoints] == stamps


def test_evaluating_a_named_work_directory_needs_no_other_flag(finished):
    folder, _ = finished
    before = (folder / "work" / "metrics.json").read_bytes()
    (folder / "work" / "metrics.json").unlink()
    process = run("--mode=evaluate", "--workdir=work", cwd=folder)
    assert process.returncode == 0, process.stderr
    assert (folder / "work" / "metrics.json").read_bytes() == before


def test_the_parts_one_after_the_other_equal_the_whole(finished, tmp_path):
    folder, _ = finished
    for mode in ("prepare", "train", "evaluate"):
        process = run("--dataset=synthetic", "--workdir=work", f"--mode={mode}", *TINY, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
    assert (tmp_path / "work" / "ranks-test.npz").read_bytes() == (folder / "work" / "ranks-test.npz").read_bytes()


def write_pairs(path, users=12, items=30):
    lines = "".join(f"{user} {1 + (user + step) % items}\n" for user in range(1, users + 1) for step in range(6))
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())


def test_a_packed_file_from_the_folder_in_the_environment_the_authors_way(tmp_path):
    write_pairs(tmp_path / "beauty.txt.gz")
    process = run("--dataset=beauty", "--train_on_validation", "--masking=dynamic", *TINY, cwd=tmp_path, data=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "the paper's Table 1" in process.stdout and "54,542" in process.stdout
    work = next((tmp_path / "runs").glob("beauty-bert4rec-*"))
    metrics = json.loads((work / "metrics.json").read_text())
    assert "paper" not in metrics
    assert metrics["retrain"]["steps"] == 30 and "validation" not in metrics
    assert metrics["users_with_fewer_candidates"] == 12 and "12 users have fewer than" in process.stdout
    assert not (work / "select").exists()


def test_pop_goes_the_same_way(tmp_path):
    process = run("--dataset=synthetic", "--model=pop", "--workdir=pop", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    metrics = json.loads((tmp_path / "pop" / "metrics.json").read_text())
    assert metrics["test"] == metrics["pop"]


def test_the_console_command_is_the_same_program(tmp_path):
    process = run("run", "--dataset=synthetic", "--model=pop", "--workdir=pop", cwd=tmp_path, program=CONSOLE)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "pop" / "metrics.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dataset=beaty"], "'beaty'. Did you mean 'beauty'?"),
        (["--dataset=synthetic", "--hiden_dim=8"], "Unknown command line flag 'hiden_dim'. Did you mean: hidden_dim"),
        (["--dataset=synthetic", "--dropout=1.5"], "`dropout` must be at least 0 and below 1. Received: dropout=1.5"),
        ([], "--dataset must be named"),
        (["--dataset=synthetic", "--workdir=full"], "is not a work directory of this program"),
        (["--dataset=synthetic", "--workdir=full/file/below"], "cannot be created"),
    ],
    ids=lambda value: value.strip("-").replace("=", " ") if isinstance(value, str) else None,
)
def test_mistakes_end_in_one_line(tmp_path, flags, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    assert message in refused(run(*flags, cwd=tmp_path))
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").rglob("metrics.json"))


def test_a_bad_file_is_named_with_the_line(tmp_path):
    (tmp_path / "beauty.txt").write_bytes(b"1 2\n1 3\n1 4 5\n")
    line = refused(run("--dataset=beauty", f"--data_dir={tmp_path}", cwd=tmp_path))
    assert "line 3: expected `user item`, found 3 columns: '1 4 5'" in line
    assert not (tmp_path / "runs").exists()


def test_unknown_commands_are_answered_with_the_known_ones(tmp_path):
    assert "Unknown command: 'rum'. Did you mean 'run'?" in refused(run("rum", cwd=tmp_path, program=CONSOLE))


def test_a_finished_work_directory_is_exported_without_its_data(finished):
    folder, _ = finished
    process = run("--mode=export", "--workdir=work", "--export_dir=exported", "--k=3", cwd=folder)
    assert process.returncode == 0, process.stderr
    program = (
        "import tensorflow as tf, sys\n"
        "served = tf.saved_model.load('exported').signatures['serving_default']\n"
        "print(served(histories=tf.constant([['item3', 'item14'], ['', '']]))['items'].numpy().tolist())\n"
        "assert not any(name.startswith('bert4rec_tf') for name in sys.modules)\n"
    )
    served = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert served.returncode == 0, served.stderr
    rows = ast.literal_eval(served.stdout)
    assert [len(set(row)) for row in rows] == [3, 3] and not {b"item3", b"item14"} & set(rows[0])


def test_another_number_of_items_is_exported_from_a_finished_run(tmp_path):
    pop, numbers = ("--dataset=synthetic", "--model=pop", "--workdir=pop"), []
    for flags in ((), ("--k=3",), ()):
        process = run(*pop, *flags, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        numbers.append(json.loads((tmp_path / "pop/saved_model/assets.extra/model_card.json").read_text())["k"])
    assert numbers == [10, 3, 3]


def test_seeds_are_repeated_and_summed_up(tmp_path):
    tiny = [*TINY, "--noretrain", "--evaluate_every=30"]
    process = run("--dataset=synthetic", "--workdir=many", "--seeds=1,2", *tiny, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    summed = json.loads((tmp_path / "many" / "seeds.json").read_text())
    each = [json.loads((tmp_path / "many" / f"seed-{seed}" / "metrics.json").read_text()) for seed in (1, 2)]
    values = [metrics["test"]["full"]["mrr"] for metrics in each]
    found = summed["test"]["full"]["mrr"]
    assert found["values"] == values and values[0] != values[1]
    assert found["mean"] == pytest.approx(sum(values) / 2)
    assert found["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert " std " in process.stdout and "seed 2" in process.stdout
    same = tmp_path / "many" / "prepared"
    assert len(list(same.glob("candidates-*.npz"))) == 1


def test_threads_are_set_and_kept_with_the_run(tmp_path):
    process = run("--dataset=synthetic", "--model=pop", "--workdir=pop", "--threads=1", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert json.loads((tmp_path / "pop" / "config.json").read_text())["environment"]["threads"] == 1
    process = run("--dataset=synthetic", "--model=pop", "--workdir=pop", "--threads=2", cwd=tmp_path)
    assert process.returncode == 0
    assert "warning: pop: was begun elsewhere (there threads=1, now threads=2)" in process.stderr


@pytest.mark.parametrize("flag", ["--replicas=2", "--mixed_precision", "--jit_compile"])
def test_the_ways_to_compute_go_the_whole_way(tmp_path, flag):
    process = run("--dataset=synthetic", "--workdir=work", "--noretrain", flag, *TINY, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    metrics = json.loads((tmp_path / "work" / "metrics.json").read_text())
    assert metrics["test"]["popular"]["hr@10"] > 0.12
