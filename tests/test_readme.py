"""What the README shows works as it stands."""

import json
import re

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
