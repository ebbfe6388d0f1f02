"""What the README shows works as it stands, and an export carries what its run measured."""

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


def test_the_example_of_python_goes_from_the_shop_to_a_table_with_titles(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("BERT4REC_DATA", str(tmp_path))
    names: dict = {}
    exec(code.replace('titles.csv")', 'titles.csv", model="item_transitions", silent=True)'), names)
    assert names["model"].saved.card["model"] == "ItemTransitions", "which needs no training"
    assert "212 users, 143 items, 2,000 actions" in capsys.readouterr().out
    assert names["everybody"].groupby("user").size().eq(10).all() and names["everybody"]["title"].ne("").all()


def test_an_export_has_the_metrics_and_versions_of_its_run(tmp_path):
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
