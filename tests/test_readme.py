"""What the README shows works as it stands."""

import json
import os
import re
import subprocess

import pytest
from support.models import SEQUENCES
from support.paths import ROOT

from bert4rec_tf.config import presets
from bert4rec_tf.runs.driver import execute
from bert4rec_tf.runs.exporting import export
from bert4rec_tf.runs.workdir import WorkDirectory

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def text():
    return README.read_text(encoding="utf-8")


def test_it_is_short(text):
    assert len(text.splitlines()) <= 130


def test_the_recommendations_come_from_a_saved_model(text, tmp_path, capsys):
    workdir = tmp_path / "work"
    execute(presets.make_run("own-readme", model="pop"), sequences=SEQUENCES, workdir=workdir, silent=True)
    export(WorkDirectory(workdir))
    card = json.loads((workdir / "saved_model" / "assets.extra" / "model_card.json").read_text())
    measured = json.loads((workdir / "metrics.json").read_text())
    assert card["run"] == measured["run"] and card["data"]["fingerprint"] == measured["data_fingerprint"]
    assert card["metrics"]["test"] == measured["test"] and card["metrics"]["pop"] == measured["pop"]
    assert card["exported_with"].items() <= measured["environment"]["versions"].items()
    pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    assert export(WorkDirectory(workdir), form="onnx") == workdir / "onnx"
    assert json.loads((workdir / "onnx" / "model_card.json").read_text())["digest"] == measured["digest"]
    code = re.search(r"## Recommend\n.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    assert "runs/own/saved_model" in code
    exec(code.replace("runs/own", str(workdir)), {})
    assert capsys.readouterr().out.count("b'item") == 5


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
    optional = ("apt-get", "pip install -q .[spark]", "pytest tests/cluster")
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if not line.startswith(optional)]
    assert asked[0].startswith("python3 -m venv ")
    assert asked[1:3] == ["pip install .[test]", "pytest "]
    assert asked[3:5] == ["pip install -q .[test-stores]", "pytest -m slow tests/runs/test_s3.py"]
    assert asked[5] == "pytest -m slow tests/test_package.py -k site or archive"
    assert asked[6].startswith("pytest -m slow --budget=")
    assert asked[7].startswith("pytest -m slow --attack_seconds=") and asked[7].endswith(" tests/attacks")
    assert asked[8:] == ["ruff check .", "ruff format --check .", "mypy "]
