"""`bert4rec similar` and `bert4rec --version`."""

from importlib import metadata

import keras
import numpy as np
import pytest
from support.commands import console
from support.exports import NAMES, NUM_ITEMS, VOCABULARY, popular, transformer

from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with an export, and the cosines between its items."""
    folder = tmp_path_factory.mktemp("similar")
    model = transformer()
    export(model, VOCABULARY, folder / "model", ExportOptions(3))
    export(popular(), VOCABULARY, folder / "pop", ExportOptions(3))
    table = keras.ops.convert_to_numpy(model.item_embeddings)[1 : NUM_ITEMS + 1].astype(np.float64)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return folder, table @ table.T


def test_the_nearest_items_by_cosine_are_printed_with_their_titles(exported):
    folder, cosines = exported
    (folder / "titles.csv").write_text("item,name\nitem 3,The Third\nit's,Its\n")
    ended = console("similar", "--model=model", "--item=item 3,it's", "-k", "2", "--titles=titles.csv", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "warning: titles: 2 of the 30 ids of the data match; 0 others\n")
    titles = {"item 3": "The Third", "it's": "Its"}
    for part, name in zip(ended.stdout.split("\n\n"), ("item 3", "it's"), strict=True):
        title, header, *lines = part.rstrip().splitlines()
        assert title == f"{name} {titles[name]}" and header.split() == ["rank", "item", "score", "title"]
        row = cosines[NAMES.index(name)].copy()
        row[NAMES.index(name)] = -np.inf
        best = np.argsort(-row)[:2]
        for line, rank, item in zip(lines, (1, 2), best, strict=True):
            assert line.split()[0] == str(rank) and NAMES[item].strip() in line and f"{row[item]:.4f}" in line


def test_an_item_is_shown_without_a_heading(exported):
    ended = console("similar", "--model=model", "--item=item 3", "-k", "9", "-k", "3", cwd=exported[0])
    assert ended.stdout.startswith("rank  item") and len(ended.stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model=model", "--item=item 3,none"], "--item must name items of the model. Received: 'none'"),
        (["--model=model", "--item="], "--item must name items of the model. Received: nothing"),
        (["--model=model", "--item=item 3", "--item=it's"], "--item must be given once"),
        (["--model=pop", "--item=item 3"], "has no signature `similar`: its model cannot do that"),
        (["--model=model", "--item=item 3", "-k", "0"], "`k` must be at least 1"),
    ],
)
def test_mistakes_end_in_one_line(exported, arguments, words):
    ended = console("similar", *arguments, cwd=exported[0])
    assert (ended.returncode, ended.stdout) == (2, "") and words in ended.stderr and ended.stderr.count("\n") == 1


def test_the_version_is_that_of_the_package(tmp_path):
    assert console("--version", cwd=tmp_path).stdout == f"bert4rec_tf {metadata.version('bert4rec_tf')}\n"
