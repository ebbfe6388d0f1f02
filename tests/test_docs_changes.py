"""docs/changing.md, followed word for word in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

PAGE = (ROOT / "docs" / "changing.md").read_text(encoding="utf-8")
SECTIONS = {text.split("\n", 1)[0]: text for text in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if "\n```" in text}
COPIED = ("bert4rec_tf", "docs", "examples", "experiments", "tests")


def apply_edits(section: str, folder: Path) -> None:
    edits = re.findall(r"^```(diff|python)\n(?:# )?(\S+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert len(edits) == section.count("\n```") / 2, "each block names its file"
    for kind, name, body in edits:
        path = folder / name
        if kind == "python":
            assert not path.exists(), name
            path.write_text(body, encoding="utf-8")
            continue
        lines = body.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] != mark) for mark in "+-")
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{name} has not exactly once:\n{before}"
        path.write_text(text.replace(before, after), encoding="utf-8")


@pytest.fixture
def copy(tmp_path):
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    (tmp_path / "experiments" / "results").symlink_to(ROOT / "experiments" / "results")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_the_page_has_four_changes():
    titles = ["Change the training step", "Add a model", "Add a loss", "Add a data set"]
    assert list(SECTIONS) == titles


@pytest.mark.parametrize("title", SECTIONS)
def test_the_edits_fit_the_code(copy, title):
    apply_edits(SECTIONS[title], copy)
    changed = [path for path in copy.rglob("*.py") if path.read_bytes() != read_original(path, copy)]
    assert changed
    for path in changed:
        compile(path.read_text(encoding="utf-8"), path, "exec")


def read_original(path: Path, copy: Path) -> bytes:
    original = ROOT / path.relative_to(copy)
    return original.read_bytes() if original.exists() else b""


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_a_reader_who_follows_a_section_gets_what_it_says(copy, title):
    apply_edits(SECTIONS[title], copy)
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PYTHONPATH": str(copy), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    for line in re.findall(r"^    (.+)$", re.sub(r"```.*?```", "", SECTIONS[title], flags=re.DOTALL), re.MULTILINE):
        command, _, remark = line.partition("  # ")
        quick = command.replace("pytest ", "pytest -n 0 -q -p no:cacheprovider ")
        done = subprocess.run(quick, shell=True, cwd=copy, env=environment, capture_output=True, text=True, timeout=900)
        assert (done.returncode != 0) == (remark == "fails"), f"{line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        assert not command.startswith("pytest") or re.search(r"\d+ (passed|failed)", done.stdout), done.stdout
