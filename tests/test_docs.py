"""The pages in docs/, the README and the journal: their links, commands, examples, spelling and length."""

import ast
import contextlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from support.http_server import Client, Server
from support.models import SEQUENCES
from support.paths import ROOT

from bert4rec_tf.commands import compare, data, recommend, run, serve, similar, update
from bert4rec_tf.config import presets
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.runs.experiment import execute
from bert4rec_tf.runs.exporting import export
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings
from experiments.__main__ import make_parser as experiments_parser

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
JOURNAL = sorted((ROOT / "experiments" / "journal").glob("*.md"))
EXPERIMENTS = ROOT / "experiments" / "README.md"
PAGES = [README, *DOCS, EXPERIMENTS, *JOURNAL]
OTHERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
MADE = [ROOT / "docs" / name for name in ("all-settings.md", "api.md")]
FOR_CONTRIBUTORS = [ROOT / "docs" / name for name in ("architecture.md", "changing.md")]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# Links


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)
    kept = ["".join(c for c in title.lower() if unicodedata.category(c)[0] in "LN" or c in " -_") for title in titles]
    return {title.replace(" ", "-") for title in kept}


def names_in(path: Path) -> set[str]:
    """The classes, functions and constants that a module defines."""
    defined = (ast.ClassDef, ast.FunctionDef)
    return {
        node.name if isinstance(node, defined) else node.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, defined) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }


def test_files_and_names_in_architecture_md_exist():
    rows = re.findall(r"^\| (?:.*?) \| (.*) \|$", TEXTS[ROOT / "docs/architecture.md"], re.MULTILINE)
    found = [re.findall(r"`([\w/]+\.py)`(?:: ((?:`\w+`(?:, )?)+))?", row) for row in rows]
    assert sum(map(len, found)) > 30
    for path, names in (one for some in found for one in some):
        assert set(re.findall(r"\w+", names)) <= names_in(ROOT / "bert4rec_tf" / path), (path, names)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\((?!http)(.*?)\)", page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if heading:
            assert heading in anchors(path.read_text(encoding="utf-8")), target


def test_every_page_can_be_reached_from_the_readme():
    found, new = set(), {README}
    while new:
        found |= new
        links = {
            (page.parent / name).resolve() for page in new for name in re.findall(r"\]\(([\w/.-]+\.md)", TEXTS[page])
        }
        new = (links & set(PAGES)) - found
    assert found == set(PAGES)
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"[\w-]+\.md", site)) == {page.name for page in DOCS}


# Language


def test_words_are_spelled_right():
    """In the pages and the docstrings."""
    paths = [*PAGES, *OTHERS, ROOT / "bert4rec_tf", ROOT / "experiments"]
    command = [sys.executable, "-m", "codespell_lib", "--skip=*.jsonl,*.json,*.js", "-L", "als,notin", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@each_page
def test_numbers_have_a_leading_zero(page):
    prose = re.sub(r"```.*?```|`[^`]*`|\]\(.*?\)", "", TEXTS[page], flags=re.DOTALL)
    assert not re.findall(r".*(?<![\w.)*])\.\d.*", prose)


def count_words(pages: list[Path]) -> int:
    return sum(len(TEXTS[page].split()) for page in pages)


def test_the_documentation_stays_short():
    assert len(TEXTS[README].splitlines()) <= 100
    assert (
        count_words([page for page in PAGES if page not in (*MADE, *FOR_CONTRIBUTORS, EXPERIMENTS, *JOURNAL)]) <= 11_000
    )
    assert count_words(JOURNAL) <= 9_000


# Commands


def blocks(text: str) -> list[str]:
    """Indented blocks and fenced ones without a language, continued lines joined."""
    indented = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    fenced = re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r"\\\n\s*", " ", block) for block in (*indented, *fenced)]


def commands(text: str) -> list[str]:
    lines = [line.strip().removeprefix("$ ") for block in blocks(text) for line in block.splitlines()]
    return [part.strip() for line in lines for part in line.split("&&")]


def flags_of_help(main) -> set[str]:
    """The flags that a command's --help names."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        main(["--help"])
    names = set(re.findall(r"(?<![\w-])--[a-z]\w*", printed.getvalue()))
    return names | {name[1:] for name in names if len(name) == 3}


def runner_flags() -> set[str]:
    flags = run.flags.FLAGS
    return {f"--{name}" for name in flags} | {f"--no{name}" for name in flags if flags[name].boolean}


FLAGS = {
    "python -m bert4rec_tf.run": runner_flags(),
    "bert4rec run": runner_flags(),
    "bert4rec data": flags_of_help(data.main),
    "bert4rec recommend": flags_of_help(recommend.main),
    "bert4rec similar": flags_of_help(similar.main),
    "bert4rec serve": flags_of_help(serve.main),
    "bert4rec compare": flags_of_help(compare.main),
    "bert4rec update": flags_of_help(update.main),
    "./run_all.sh": flags_of_help(experiments_parser().parse_args),
    "python -m benchmarks": set(re.findall(r'"(--\w+)"', (ROOT / "benchmarks" / "__main__.py").read_text())),
}


@each_page
def test_commands_have_the_flags_that_are_shown(page):
    for line in commands(TEXTS[page]):
        for program, known in FLAGS.items():
            if line.startswith(program):
                given = {word.split("=")[0] for word in shlex.split(line, comments=True) if word.startswith("-")}
                assert given - {"-m"} <= known, line


@each_page
def test_flags_in_sentences_exist(page):
    known = set.union(*FLAGS.values()) | {"--help", "--helpfull"}
    prose = re.sub(r"```.*?```", "", TEXTS[page], flags=re.DOTALL)
    others = {
        "--dir",
        "--all",
        "--tag_set",
        "--signature_def",
        "--input_exprs",
        "--json",
        "--attack_seconds",
        "--attack_seed",
    }  # of saved_model_cli, curl and pytest
    assert set(re.findall(r"(?<![\w-])--[a-z]\w*", prose)) <= known | others


# Examples


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("docs") / "work"
    execute(presets.make_run("own-docs", "item_transitions"), sequences=SEQUENCES, workdir=workdir, silent=True)
    users = np.array(["15", "16"], object)
    kept = Sequences(np.array([1, 2, 3], np.int32), np.array([0, 2, 3]), users, SEQUENCES.vocabulary)
    export(WorkDirectory(workdir), options=ExportOptions(histories=kept))
    return workdir / "saved_model"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory of a reader who has the files that the pages name."""
    monkeypatch.chdir(tmp_path)
    Path("examples").mkdir()
    for name in ("ratings.csv", "examples/actions.csv"):
        Path(name).write_text("user,item,time\nanna,item1,2\nben,item3,1\n")
    for name in ("titles.csv", "examples/titles.csv"):
        Path(name).write_text("id,title,category\nitem1,The Quiet River,coffee\n")
    return tmp_path


def with_model(text: str, exported: Path) -> str:
    return re.sub(r"runs/\w+(/saved_model)?", str(exported), text)


RECOMMEND = [
    line for text in TEXTS.values() for line in commands(text) if re.match("bert4rec (recommend|similar)", line)
]


@pytest.mark.long
@pytest.mark.parametrize("line", sorted(set(RECOMMEND)))
def test_the_commands_that_recommend_work(line, exported, folder, capsys):
    _, command, *arguments = shlex.split(with_model(line, exported).replace("=123 ", "=item1 "), comments=True)
    {"recommend": recommend, "similar": similar}[command].main(arguments)
    wanted = {word.split("=")[1] for word in arguments if word.startswith("--output=")}
    assert all((folder / name).stat().st_size for name in wanted)
    assert "2 users" in capsys.readouterr().out if wanted else "item" in capsys.readouterr().out


CURL = [line for text in TEXTS.values() for line in commands(text) if line.startswith("curl ")]


@pytest.mark.long
def test_the_requests_over_http_are_answered(exported, folder):
    settings = ServerSettings(model=str(exported), titles="titles.csv")
    assert len(CURL) >= 3
    with Server(open_versions(settings)) as server:
        client = Client(server.port)
        for line in CURL:
            _, flag, body, address = shlex.split(line)
            assert flag == "--json", "curl 7.82 or newer; it names the content type"
            host, _, path = address.partition("/")
            assert host == "localhost:8501"
            answer = client.ask("POST", f"/{path}", body.encode())
            assert answer.status == 200 and answer.json.keys() <= {"predictions", "outputs"}, answer.body


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def is_missing_tracker(module: str) -> bool:
    """Whether a module is one with which readers may track and share models, and not installed."""
    return module in ("mlflow", "wandb", "huggingface_hub") and importlib.util.find_spec(module) is None


@each_page
def test_python_examples_import_what_exists(page):
    if page in FOR_CONTRIBUTORS:
        return  # tests/test_docs_changes.py runs their code
    names: dict = {}  # of the whole page: later examples use what earlier ones import
    for code in python_blocks(TEXTS[page]):
        tree = ast.parse(code)
        imports = [
            node
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom) and not is_missing_tracker(node.names[0].name)
        ]
        exec(compile(ast.Module(imports, []), page.name, "exec"), names)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("b4r", "tf"):
                assert hasattr(names[node.value.id], node.attr), f"{node.value.id}.{node.attr}"


def test_the_example_of_serving_runs(exported):
    (code,) = python_blocks(TEXTS[ROOT / "docs" / "serving.md"])
    exec(with_model(code, exported), {})


def test_the_example_of_the_tutorial_runs(exported, folder, capsys):
    (code,) = python_blocks(TEXTS[ROOT / "docs" / "tutorial.md"])
    exec(with_model(code, exported), {})
    assert re.search(r"^2 +3 ", capsys.readouterr().out, re.MULTILINE)


def test_the_example_of_python_runs(capsys):
    exec(python_blocks(TEXTS[ROOT / "docs" / "python.md"])[0], {})
    assert re.search(r"^0 +1 +i25 ", capsys.readouterr().out, re.MULTILINE)  # what follows i9, i11, ... i23


@pytest.mark.long
def test_the_example_of_keras_runs(folder):
    Path("examples/actions.csv").write_text((ROOT / "examples" / "actions.csv").read_text())
    (code,) = python_blocks(TEXTS[ROOT / "docs" / "keras.md"])
    names: dict = {}
    code = code.replace("epochs=2", "epochs=2, verbose=0")
    exec(code.replace("compile(", "compile(run_eagerly=True, optimizer="), names)
    assert names["best"]["item"].str.fullmatch(r"P\d+").sum() == 5 and Path("model.keras").exists()


def test_the_example_of_mlflow_logs_the_curve(tmp_path, monkeypatch, quick):
    mlflow = pytest.importorskip("mlflow")
    example, code, *_ = python_blocks(TEXTS[ROOT / "docs" / "python.md"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    small = 'fit(frame, model="bpr_mf", steps=6, evaluate_every=3, silent=True, '
    exec(example.split("model =")[0] + code.replace("fit(frame, ", small), {})
    (run,) = mlflow.search_runs(output_format="list")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "ndcg_10")
    assert [row.step for row in history] == [3, 6] and run.data.params["batch_size"].isdigit()
    assert 0 <= run.data.metrics["test_ndcg_10"] <= 1
    assert len(mlflow.MlflowClient().list_artifacts(run.info.run_id, "shop")) > 3


def find_wrong_rows(text, measured):
    """Returns the rows about counting and popularity on a page that differ from the measured NDCG@10 and HR@10."""
    rows = re.findall(
        r"^(all unseen|100 popular) items +(item_transitions|popularity)\D* ([.\d]+) +([.\d]+)$", text, re.M
    )
    assert rows
    protocols, models = {"all unseen": "full", "100 popular": "popular"}, {"popularity": "pop"}
    return [
        row
        for row in rows
        for found in [measured[models.get(row[1], "test")][protocols[row[0]]]]
        if row[2:] != (f"{found['ndcg@10']:.4f}", f"{found['hr@10']:.4f}")
    ]


def test_the_container_s_flags_are_those_of_the_server():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    words = {line.split()[0]: line.split(" ", 1)[1] for line in lines if line and not line.startswith("#")}
    command, *flags = json.loads(words["CMD"])
    given = dict(flag.removeprefix("--").split("=") for flag in flags)
    settings = ServerSettings(**given)
    assert (command, settings.host) == ("serve", "0.0.0.0") and str(settings.port) == words["EXPOSE"]
    assert f"127.0.0.1:{settings.port}/healthz" in words["HEALTHCHECK"]


def test_the_readme_s_example_gives_a_table_with_titles(tmp_path, monkeypatch, capsys):
    (code,) = python_blocks(TEXTS[README])
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("BERT4REC_DATA", str(tmp_path))
    names: dict = {}
    exec(code.replace('titles.csv")', 'titles.csv", model="item_transitions", silent=True)'), names)
    assert names["model"].saved.card["model"] == "ItemTransitions", "which needs no training"
    assert "600 users, 156 items, 5,738 actions" in capsys.readouterr().out
    measured = names["model"].metrics
    for page in (README, ROOT / "docs" / "tutorial.md"):
        assert find_wrong_rows(TEXTS[page], measured) == []
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
