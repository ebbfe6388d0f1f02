"""Imports inside the package go one way (docs/architecture.md)."""

import ast
from pathlib import Path

import pytest

import bert4rec_tf

PACKAGE = Path(bert4rec_tf.__file__).parent

FOUNDATION = {"errors", "types", "files", "arrays", "config", "sequences", "progress"}
ALLOWED = {
    "errors": set(),
    "types": set(),
    "sequences": set(),
    "progress": set(),
    "startup": {"errors", "files"},
    "interrupts": set(),
    "files": {"errors", "progress"},
    "arrays": {"errors", "files"},
    "plots": {"files"},
    "config": {"errors"},
    "origins": {"config", "errors", "files"},
    "presets": {"config", "errors", "origins"},
    "metrics": {"errors"},
    "candidates": FOUNDATION | {"metrics"},
    "checkpoints": {"errors", "arrays", "progress"},
    "workdir": FOUNDATION | {"__init__", "origins"},
    "comparison": FOUNDATION | {"metrics", "workdir"},
    "data": FOUNDATION | {"data", "origins", "plots", "startup"},
    "kernels": {"types"},
    "dropout": {"types"},
    "layers": {"types", "kernels", "dropout"},
    "losses": {"types"},
    "models": {"layers", "kernels", "dropout", "losses", "types", "sequences", "models"},
    "original": {"config", "models", "sequences", "types", "errors"},
    "serving": {"config", "errors", "files", "models", "progress", "sequences", "serving", "types"},
    "optimizers": {"config", "types", "sequences"},
    "evaluation": {"config", "errors", "types", "sequences", "metrics", "progress"},
    "scalars": set(),
    "steps": {"config", "errors", "models", "optimizers", "types"},
    "training": FOUNDATION | {"optimizers", "steps", "scalars", "plots", "interrupts", "checkpoints", "models"},
    "construction": {"config", "models"},
    "transfer": FOUNDATION | {"models", "workdir"},
    "warm_start": FOUNDATION
    | {"checkpoints", "construction", "models", "original", "steps"}
    | {"training", "transfer", "workdir"},
    "references": FOUNDATION | {"data", "origins", "models", "evaluation", "metrics"},
    "pipeline": FOUNDATION
    | {
        "data",
        "models",
        "training",
        "steps",
        "candidates",
        "evaluation",
        "metrics",
        "origins",
        "references",
        "serving",
        "construction",
        "transfer",
        "warm_start",
        "workdir",
    },
    "repeats": FOUNDATION | {"data", "metrics", "pipeline", "warm_start"},
    "summary": {"data", "metrics", "comparison", "origins"},
    "run": FOUNDATION
    | {"pipeline", "repeats", "summary", "presets", "workdir", "data", "origins", "startup", "warm_start"},
    "commands": {"commands", "comparison", "config", "data", "errors", "progress", "serving", "startup", "summary"}
    | {"workdir"},
    "cli": {"errors", "startup"},
    "__init__": set(),
}

EXPERIMENTS = PACKAGE.parent / "experiments"
COMMON = {"results", "tables", "jobs"}
ALLOWED_EXPERIMENTS = {
    "__init__": set(),
    "results": set(),
    "tables": set(),
    "markup": set(),
    "provenance": set(),
    "attention": set(),
    "jobs": {"tables"},
    "spaces": {"tables"},
    "worker": {"results", "attention"},
    "processes": {"results"},
    "findings": COMMON,
    "significance": COMMON | {"findings"},
    "statements": COMMON | {"findings"},
    "figures": COMMON | {"findings"},
    "runs": COMMON | {"findings", "markup", "provenance"},
    "report": COMMON | {"findings", "markup", "provenance", "runs", "significance", "statements"},
    "sweep": COMMON | {"processes", "provenance"},
    "listing": COMMON | {"sweep"},
    "material": COMMON | {"findings", "report", "significance", "sweep", "figures"},
    "tune": COMMON | {"spaces"},
    "__main__": COMMON | {"findings", "listing", "material", "sweep", "tune"},
}
BEYOND = {"run", "cli", "commands", "serving"}
"""Parts of the package that an experiment has no use for."""


def part_of(path):
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(path):
    """The parts of the package, and the packages outside, that a file imports anywhere in its text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module == "bert4rec_tf":
                yield from (f"bert4rec_tf.{alias.name}" for alias in node.names)
            else:
                yield node.module


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_it_may(path):
    names = [name.split(".") for name in imported(path)]
    own = {name[1] for name in names if name[0] == "bert4rec_tf" and len(name) > 1}
    assert own <= ALLOWED[part_of(path)]


def test_sequences_needs_numpy_only():
    outside = {name.split(".")[0] for name in imported(PACKAGE / "sequences.py")}
    assert outside <= {"numpy", "hashlib", "dataclasses", "functools"}


def test_nobody_imports_the_runner():
    for path in FILES:
        assert "bert4rec_tf.run" not in set(imported(path)), path


def test_only_the_runner_has_flags():
    for path in FILES:
        if path.name != "run.py":
            assert not any(name.split(".")[0] == "absl" for name in imported(path)), path


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.py")), ids=lambda path: path.name)
def test_an_experiment_imports_only_what_it_may(path):
    names = [name.split(".") for name in [*imported(path), *_of_experiments(path)]]
    assert {name[1] for name in names if name[0] == "experiments" and len(name) > 1} <= ALLOWED_EXPERIMENTS[path.stem]
    assert not {name[1] for name in names if name[0] == "bert4rec_tf" and len(name) > 1} & BEYOND


def _of_experiments(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "experiments":
            yield from (f"experiments.{alias.name}" for alias in node.names)


def test_the_package_knows_no_experiment():
    for path in FILES:
        assert not any(name.split(".")[0] == "experiments" for name in imported(path)), path


def test_a_sweep_starts_without_tensorflow():
    """Its own process only waits for others; what needs TensorFlow is imported where it is used."""
    for path in EXPERIMENTS.glob("*.py"):
        if path.stem != "attention":
            top = ast.parse(path.read_text()).body
            names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
            names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
            assert not names & {"tensorflow", "keras", "bert4rec_tf.pipeline", "bert4rec_tf.models"}, path
