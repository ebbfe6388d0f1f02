"""The package's folders import one another in one direction (docs/architecture.md)."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

import bert4rec_tf

PACKAGE = Path(bert4rec_tf.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.py"))

MAY_IMPORT = {
    "foundation": (),
    "config": ("foundation",),
    "nn": ("foundation",),
    "data": ("config", "foundation"),
    "training": ("config", "foundation", "nn"),
    "models": ("config", "data", "foundation", "nn", "training"),
    "evaluation": ("config", "data", "foundation", "models", "nn"),
    "export": ("config", "data", "foundation", "models", "nn"),
    "serving": ("config", "data", "export", "foundation"),
    "runs": ("config", "data", "evaluation", "export", "foundation", "models", "serving", "training"),
    "notebook": ("config", "data", "evaluation", "export", "foundation", "models", "runs", "serving", "training"),
    "cluster": ("config", "data", "foundation"),
    "commands": ("cluster", "config", "data", "evaluation", "export", "foundation", "runs", "serving", "training"),
}
WITHIN_DATA = {"": (), "reading": ("",), "sources": ("", "reading"), "examples": ("",)}
"""The same inside `data`, where "" stands for the modules that lie in no folder of it."""


@functools.cache
def imported(path):
    """The modules that a file imports anywhere in its text, as tuples of names."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update((*node.module.split("."), alias.name) for alias in node.names)
    return names


def of_package(path):
    return {name[1:] for name in imported(path) if name[0] == "bert4rec_tf" and len(name) > 1}


def room(path):
    return path.relative_to(PACKAGE).parts[0]


IN_ROOMS = [path for path in FILES if path.parent != PACKAGE]


def test_a_folder_imports_only_those_below_it():
    for path in IN_ROOMS:
        assert {name[0] for name in of_package(path)} <= {room(path), *MAY_IMPORT[room(path)]}, path


def test_every_folder_has_its_row():
    assert set(MAY_IMPORT) == {room(path) for path in IN_ROOMS}
    public = {f"{name}.py" for name in bert4rec_tf._MODULES}
    assert {path.name for path in FILES if path.parent == PACKAGE} == {"__init__.py", "run.py", *public}


def test_no_module_imports_the_runner_flags_experiments_or_the_public_names_for_keras():
    for path in FILES:
        assert not {name[0] for name in of_package(path)} & {"run", *bert4rec_tf._MODULES}, path
        libraries = {name[0] for name in imported(path)}
        assert "experiments" not in libraries and (path.parent.name == "commands" or "absl" not in libraries), path


def test_importing_the_package_imports_neither_tensorflow_nor_keras():
    code = "import sys, bert4rec_tf; print(sorted({'keras', 'numpy', 'tensorflow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_the_folders_of_data_import_one_another_in_one_direction():
    def folder(parts):
        return parts[0] if parts[0] in WITHIN_DATA else ""

    for path in FILES:
        if room(path) == "data":
            own = folder(path.relative_to(PACKAGE / "data").parts)
            found = {folder(name[1:]) for name in of_package(path) if name[0] == "data" and len(name) > 1}
            assert found <= {own, *WITHIN_DATA[own]}, path


LIGHT = ("layout", "histories", "functions")
"""What serving may import of `export`: what describes files and signatures."""


def test_serving_needs_no_model_and_no_keras():
    for path in FILES:
        if room(path) == "serving":
            assert "keras" not in {name[0] for name in imported(path)}, path
            assert not {name for name in of_package(path) if name[0] == "export" and name[1] not in LIGHT}, path
    for name in LIGHT:
        path = PACKAGE / "export" / f"{name}.py"
        heavy = {"keras"} if name == "functions" else {"keras", "tensorflow"}
        assert not heavy & {found[0] for found in imported(path)}, path
        assert "models" not in {found[0] for found in of_package(path)}, path


def test_the_scripts_of_the_page_import_one_another_in_one_direction():
    scripts = (PACKAGE / "serving" / "http" / "page").glob("*.js")
    graph = {path.name: re.findall(r'^import .* from "\./(.*)";$', path.read_text(), re.MULTILINE) for path in scripts}
    assert "history.js" in graph["address.js"]
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_an_experiment_needs_no_command():
    for path in EXPERIMENTS:
        assert not {name[0] for name in of_package(path)} & {"run", "commands", "serving"}, path


def test_a_sweep_starts_without_tensorflow():
    """Its own process only waits for others; what needs TensorFlow is imported where it is used."""
    heavy = {"bert4rec_tf.runs.experiment", "bert4rec_tf.models"}
    for path in EXPERIMENTS:
        if path.stem != "running":
            top = ast.parse(path.read_text()).body
            names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
            names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
            assert not names & ({"tensorflow", "keras"} | heavy), path


def test_no_test_imports_another():
    for path in (ROOT / "tests").rglob("*.py"):
        assert not [name for name in imported(path) if any(part.startswith("test_") for part in name)], path
