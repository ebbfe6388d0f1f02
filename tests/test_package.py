"""What is built from the repository: wheel and source archive, site, notebooks; and that each Python runs it."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def command(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_of_sources(folder):
    """The files that make the package, without what earlier builds left."""
    folder.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "bert4rec_tf", folder / "bert4rec_tf", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_description_has_no_links_that_lead_nowhere(tmp_path):
    """setup.py runs as an installer runs it, and prints its description."""
    pytest.importorskip("setuptools")
    sources = copy_of_sources(tmp_path / "sources")
    text = command(sys.executable, "setup.py", "--quiet", "--long-description", cwd=sources)
    assert "](http" in text and '"All" ranks it among all items' in text
    assert not re.findall(r"\]\((?!http)", text)
    assert "page.png" not in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_install_the_package_and_hold_no_outputs_and_no_paths(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    assert content["cells"][0]["cell_type"] == "markdown"
    assert content["cells"][1]["source"][0].startswith('%pip install -q "bert4rec-tf'), "they run in Colab as they are"
    assert not re.search(r"/work|/home|/tmp", path.read_text(encoding="utf-8"))


SHORTER = {
    "own_ratings": [("b4r.fit(ratings,", "b4r.fit(ratings, steps=4, evaluate_every=2, silent=True,")],
    "beauty": [("steps=1_200,", "steps=4, hidden_dim=8, silent=True,")],
    "serving": [("port = 8501", "port = {port}")],
    "keras_parts": [("epochs=15", "epochs=1")],
    "keras_encoder": [("sequences), epochs=3", "sequences), epochs=1")],
}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    if path.stem == "beauty" and "BERT4REC_DATA" not in os.environ:
        pytest.skip("BERT4REC_DATA does not name the folder of the data")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    del notebook.cells[1]  # installs the package
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    for old, new in SHORTER[path.stem]:
        cells = [cell for cell in notebook.cells if old in cell.source]
        assert len(cells) == 1, old
        cells[0].source = cells[0].source.replace(old, new.format(port=port))
    nbclient.NotebookClient(notebook, timeout=400, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra [docs] is not installed")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command(
        sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site"), cwd=ROOT, env=environment
    )
    reference = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert "popularity_correction" in reference and "Trains a model and measures it." in reference


@pytest.mark.slow
def test_wheel_and_source_archive_hold_the_package(tmp_path):
    pytest.importorskip("build")
    sources, made = copy_of_sources(tmp_path / "sources"), tmp_path / "made"
    command(sys.executable, "-m", "build", "--outdir", str(made), str(sources))
    wheel, archive = next(made.glob("*.whl")), next(made.glob("*.tar.gz"))
    command(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive))
    expected = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "bert4rec_tf").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as content:
        assert expected == {name for name in content.namelist() if ".dist-info/" not in name}
    with tarfile.open(archive) as content:
        assert expected <= {name.split("/", 1)[1] for name in content.getnames() if "/" in name}


PYTHONS = {name: shutil.which(f"python{name}") for name in ("3.11", "3.12", "3.13")} | {
    path.name.rpartition(".")[0]: str(path / "bin" / "python")
    for path in (Path.home() / ".pyenv/versions").glob("3.1?.*")
}
FRONT_DOOR = """
import bert4rec_tf as b4r, pandas as pd
rows = [(user, f"i{(3 * user + 2 * place) % 40}", place) for user in range(60) for place in range(8)]
frame = pd.DataFrame(rows, columns=["user", "item", "time"])
model = b4r.fit(frame, steps=4, hidden_dim=8, workdir="work", silent=True)
assert list(model.recommend(user=3, k=5)) == ["rank", "item", "score"]
again = b4r.open(model.save("kept"))
assert again.recommend(user=3).equals(model.recommend(user=3))
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_front_door_opens_on_every_python(version, tmp_path):
    """In an environment of its own, into which the package is installed."""
    python = PYTHONS.get(version)
    if not python or not Path(python).exists():
        pytest.skip(f"Python {version} is not here")
    command(python, "-m", "venv", str(tmp_path / "environment"))
    inside = str(tmp_path / "environment" / "bin" / "python")
    sources = copy_of_sources(tmp_path / "sources")
    command(inside, "-m", "pip", "install", "--quiet", str(sources))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command(inside, "-c", FRONT_DOOR, cwd=tmp_path, env=environment)
