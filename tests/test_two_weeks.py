"""The two weeks of an invented shop, on a real server."""

import subprocess
import sys

import pytest
from support.paths import ROOT


@pytest.mark.slow
def test_two_weeks_of_a_shop(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples/two_weeks.py"], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("first fit: ") and lines[1] == "user nobody: ['popular']"
    assert any(line.startswith("a bad file: error: ") for line in lines) and "bert4rec_model_version 15.0" in lines
    assert any("the new item P999 after ['P" in line for line in lines)
