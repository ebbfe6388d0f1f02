"""What the README shows works as it stands."""

import json
import os
import re
import subprocess

import numpy as np
import pytest
from support.paths import ROOT

import bert4rec_tf as b4r
from bert4rec_tf.config import presets
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.runs.pipeline import execute, export
from bert4rec_tf.runs.workdir import WorkDirectory

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def text():
    return README.read_text(encoding="utf-8")


def python_example(text, folder, monkeypatch):
    """Returns what the names in it stand for in the end."""
    code = re.search(r"## From Python\n\n```python\n(.*?)```", text, re.DOTALL).group(1)
    monkeypatch.chdir(folder)
    names: dict = {}
    exec(code, names)
    return names


@pytest.mark.slow
def test_the_python_example_learns(text, tmp_path, monkeypatch):
    metrics = python_example(text, tmp_path, monkeypatch)["result"].metrics
    assert metrics["test"]["popular"]["ndcg@10"] > 2 * metrics["pop"]["popular"]["ndcg@10"]


def test_the_python_example_runs(text, tmp_path, monkeypatch, capsys):
    """With a small model and few steps in place of its own."""
    small = {"steps": 8, "warmup_steps": 2, "evaluate_every": 4, "hidden_dim": 8, "num_heads": 1, "num_layers": 1}
    monkeypatch.setattr(b4r, "make_run", lambda *names, **own: presets.make_run(*names, **{**own, **small}))
    names = python_example(text, tmp_path, monkeypatch)
    sequences = names["sequences"]
    assert sequences.num_users == datasets.load("synthetic").num_users
    scores = np.asarray(names["scores"])[0]
    assert sequences.vocabulary.encode([str(item) for item in sequences.vocabulary.decode(names["best"])])[0] == (
        scores.argmax() + 1
    )
    assert "item" in capsys.readouterr().out


def test_the_recommendations_come_from_a_saved_model(text, tmp_path, capsys):
    workdir = tmp_path / "work"
    execute(presets.make_run("synthetic", model="pop"), workdir=workdir, silent=True)
    export(WorkDirectory(workdir))
    card = json.loads((workdir / "saved_model" / "assets.extra" / "model_card.json").read_text())
    measured = json.loads((workdir / "metrics.json").read_text())
    assert card["run"] == measured["run"] and card["data"]["fingerprint"] == measured["data_fingerprint"]
    assert card["metrics"]["test"] == measured["test"] and card["metrics"]["pop"] == measured["pop"]
    assert card["exported_with"].items() <= measured["environment"]["versions"].items()
    pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    assert export(WorkDirectory(workdir), form="onnx") == workdir / "onnx"
    assert json.loads((workdir / "onnx" / "model_card.json").read_text())["digest"] == measured["digest"]
    code = re.search(r"## A recommendation\n.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    assert "runs/beauty/saved_model" in code
    exec(code.replace("runs/beauty", str(workdir)), {})
    assert capsys.readouterr().out.count("b'item") == 20


FAKE = {"python3": 'mkdir -p "$3/bin" && touch "$3/bin/activate"\n'}


def test_the_continuous_integration_runs_the_readme_s_test_command(text, tmp_path):
    """With programs that only note what they are asked for in place of those that it installs."""
    assert "    pip install '.[test]' && pytest\n" in text
    assert "    pip install . && python -m bert4rec_tf.run --dataset=synthetic\n" in text
    script = README.parent / ".ci" / "run"
    if not script.exists():
        pytest.skip("not a checkout of the repository")
    (tmp_path / "bin").mkdir()
    for name in ("pip", "pytest", "ruff", "mypy", "python3", "apt-get"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/asked\n{FAKE.get(name, "")}')
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([script], env={**os.environ, "PATH": path}, check=True)
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if not line.startswith("apt-get")]
    assert asked[0].startswith("python3 -m venv ")
    assert asked[1:3] == ["pip install .[test]", "pytest "] and asked[3].startswith("pytest -m slow --budget=")
    assert asked[4:] == ["ruff check .", "ruff format --check .", "mypy "]


def test_links_lead_to_files(text):
    for target in re.findall(r"\]\((?!http)(.*?)\)", text):
        assert (README.parent / target).exists(), target
