"""Peers are stood in for by small scripts: they take turns with ours, and one that cannot run is told in a line."""

import sys

import pytest

from benchmarks import lines, measuring, peers, shapes
from bert4rec_tf.config.run_record import MaskingSettings

TINY = shapes.Shape(60, 300, 5, 8.0, 10, MaskingSettings(mask_proportion=0.4, max_predictions=4, window_step=0.5))

FAKE = """
import json, sys
import numpy as np

content = np.load(sys.argv[1])
settings = json.loads(str(content["settings"]))
assert content["histories"].shape == (settings["batch_size"] * 4, settings["max_length"])
assert content["histories"].max() <= settings["num_items"] and settings["mask_proportion"] == 0.4
print("a greeting")
print(json.dumps({"version": "9.9", "torch": "8.8", "threads": 1, "rate": 1e9}), flush=True)
for line in sys.stdin:
    open(sys.argv[1] + ".steps", "a").write(line)
    print(json.dumps({"loss": 0.0, "processor": 0.5}), flush=True)
"""


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    """`recbole` answers and `rectools` lacks a module, and our step is not taken."""
    monkeypatch.setattr(shapes, "SHAPES", {"tiny": TINY})
    monkeypatch.setattr(measuring, "matrix_rate", lambda: 2e9)
    monkeypatch.setattr(peers, "BATCH_SIZE", 4)
    monkeypatch.setattr(peers, "SCRIPTS", {name: tmp_path / f"{name}.py" for name in ("recbole", "rectools")})
    monkeypatch.setattr(lines, "step_of", lambda *arguments: lambda batch: {"loss": 0.0})
    (tmp_path / "recbole.py").write_text(FAKE)
    (tmp_path / "rectools.py").write_text("import there_is_no_such_module")


def test_a_peer_takes_turns_and_one_that_fails_is_one_line(scripts, capsys):
    (row,) = peers.measure({"recbole": sys.executable, "rectools": sys.executable})
    assert row.line == "recbole, tiny" and row.ours > 0 and row.theirs > 0
    assert row.notes.pop("processor ratio") > 0
    assert row.notes == {"matrix rate GFLOP/s": 2, "torch's": 1}
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "rectools: cannot be run: ModuleNotFoundError: No module named 'there_is_no_such_module'",
        "recbole 9.9, torch 8.8, 1 threads",
    ]
