"""The exported SavedModel against a plain-Python oracle, and the folder it lies in."""

import gc
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from support.exports import HISTORIES, LENGTH, NUM_ITEMS, VOCABULARY, Fixed, K, ask, popular, rectangle, transformer
from tensorflow.core.protobuf import saved_model_pb2

import bert4rec_tf as b4r
from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export.layout import find_model_folder
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.foundation import files, stores
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.processes import get_host_code
from bert4rec_tf.models import BprMf
from bert4rec_tf.serving.client import Choices, SavedRecommender


@pytest.fixture(scope="module")
def model():
    return transformer()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert4rec") / "export"
    export(model, VOCABULARY, folder, ExportOptions(K))
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    return tf.saved_model.load(str(folder))


def recommend(model, vocabulary, folder, k=K):
    """Exports, loads and returns the function from histories to items and scores."""
    export(model, vocabulary, folder, ExportOptions(k))
    loaded = tf.saved_model.load(str(folder))
    return lambda histories: ask(loaded, histories)


def operations(folder):
    """The names of all operations of a SavedModel, those inside its functions included."""
    graph = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return {node.op for node in nodes}


def graphs():
    gc.collect()
    return sum(isinstance(one, tf.Graph) for one in gc.get_objects())


def test_no_variable_is_copied_whole_to_be_read(folder):
    """TensorFlow does so for ever after one ResourceGather of the variable."""
    found = operations(folder)
    assert "ReadVariableOp" in found and "ResourceGather" not in found


def test_a_released_model_leaves_no_graph_in_memory(folder):
    """A server takes new versions for months, and 26 MB each would be 40 GB in a day of one a minute."""
    before = graphs()
    model = tf.saved_model.load(str(folder))
    assert graphs() > before
    del model
    assert graphs() == before


def test_every_weight_is_stored_once_and_no_state_of_dropout(model, folder):
    stored = [shape for name, shape in tf.train.list_variables(str(folder / "variables" / "variables")) if shape]
    assert sorted(map(tuple, stored)) == sorted(
        [*(tuple(weight.shape) for weight in model.weights), *[(NUM_ITEMS + 1,)] * 2]
    )


ELSEWHERE = """
import importlib.machinery
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("bert4rec_tf", "keras"):
            return importlib.machinery.ModuleSpec(name, None)

sys.meta_path.insert(0, Blocker())
import numpy as np
import tensorflow as tf

folder, histories, answer = sys.argv[1:]
service = tf.saved_model.load(folder)
rows = tf.constant(np.load(histories), tf.string)
none = tf.zeros([1, 0], tf.string)
found = {
    "serving_default": service.signatures["serving_default"](histories=rows),
    "recommend": service.recommend(rows, k=2, candidates=[["0", "it's"]]),
    "every": service.signatures["recommend"](
        histories=rows,
        k=tf.constant(2),
        exclude_seen=tf.constant(False),
        exclude=none,
        candidates=none,
        popularity_correction=tf.constant(0.5),
    ),
    "score": service.score(rows, [["0", "it's"]]),
    "encode": service.encode(rows),
}
numbers = {
    f"{name}/{key}": tf.strings.unicode_decode(value, "UTF-8").to_tensor(-1) if value.dtype == tf.string else value
    for name, outputs in found.items()
    for key, value in outputs.items()
}
np.savez(answer, **numbers)
assert not {"bert4rec_tf", "keras"} & set(sys.modules)
"""


@pytest.mark.slow
def test_a_moved_folder_gives_the_same_bytes_where_only_tensorflow_is(folder, loaded, tmp_path):
    moved = shutil.copytree(folder, tmp_path / "other place" / "moved")
    before = folder.rename(folder.with_name("away"))
    try:
        # Fixed-width bytes drop NULs at their end; no id here ends in one.
        rows = rectangle(HISTORIES)
        np.save(tmp_path / "histories.npy", rows.numpy().astype("S"))
        arguments = [str(moved), str(tmp_path / "histories.npy"), str(tmp_path / "answer.npz")]
        done = subprocess.run(
            [sys.executable, "-I", "-c", ELSEWHERE, *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    finally:
        before.rename(folder)
    expected = {
        "serving_default": loaded.signatures["serving_default"](histories=rows),
        "recommend": loaded.recommend(rows, k=2, candidates=[["0", "it's"]]),
        "every": loaded.recommend(rows, k=2, exclude_seen=False, popularity_correction=0.5),
        "score": loaded.score(rows, [["0", "it's"]]),
        "encode": loaded.encode(rows),
    }
    with np.load(tmp_path / "answer.npz") as answer:
        for name, outputs in expected.items():
            for key, value in outputs.items():
                value = tf.strings.unicode_decode(value, "UTF-8").to_tensor(-1) if value.dtype == tf.string else value
                np.testing.assert_array_equal(answer[f"{name}/{key}"], value, err_msg=f"{name}/{key}")


def test_the_model_card_describes_the_model_and_holds_given_facts(model, folder, tmp_path):
    card = json.loads((folder / "assets.extra" / "model_card.json").read_text())
    expected = {"model": "BERT4Rec", "items": NUM_ITEMS, "users": None, "k": K, "max_history": LENGTH - 1}
    expected["popularity_correction"] = 0.0
    assert {key: card[key] for key in expected} == expected
    assert card["scores"] == "log-probabilities"
    assert card["parameters"] == model.count_params() - sum(np.size(one) for one in model.non_trainable_weights)
    export(popular(), VOCABULARY, tmp_path / "export", card={"data": {"name": "mine"}})
    card = json.loads((tmp_path / "export" / "assets.extra" / "model_card.json").read_text())
    assert card["scores"] == "the model's own" and card["data"] == {"name": "mine"}


def test_a_failed_export_leaves_the_older_one(tmp_path, monkeypatch):
    folder = tmp_path / "export"
    export(popular(), VOCABULARY, folder)
    before = (folder / "saved_model.pb").read_bytes()

    def break_off(service, path, **options):
        (tmp_path / path / "saved_model.pb").write_bytes(b"half")
        raise tf.errors.ResourceExhaustedError(None, None, "no space left")

    monkeypatch.setattr(tf.saved_model, "save", break_off)
    with pytest.raises(UserError, match=rf"{folder}: cannot be written \(no space left\)"):
        export(popular(), VOCABULARY, folder)
    assert (folder / "saved_model.pb").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_tables_have_names_without_addresses(tmp_path):
    export(BprMf(NUM_ITEMS, num_users=2, hidden_dim=4), VOCABULARY, tmp_path, users=["ann", "bob"])
    content = saved_model_pb2.SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())
    functions = content.meta_graphs[0].graph_def.library.function
    tables = [node for function in functions for node in function.node_def if node.op == "HashTableV2"]
    assert {node.attr["shared_name"].s for node in tables} == {b"table_0", b"table_1", b"table_2"}
    assert b" at 0x" not in content.SerializeToString()


@pytest.mark.parametrize("model_file", ["weights.npz", "saved_model.txt"])
def test_a_folder_of_something_else_is_refused(tmp_path, model_file):
    (tmp_path / model_file).write_text("mine")
    with pytest.raises(UserError, match=f"{tmp_path}: holds other files"):
        export(popular(), VOCABULARY, tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path / model_file}: is not a folder"):
        export(popular(), VOCABULARY, tmp_path / model_file)
    assert [path.name for path in tmp_path.iterdir()] == [model_file]
    assert (tmp_path / model_file).read_text() == "mine"


@pytest.mark.parametrize("name", ["", "two\nlines", "carriage\rreturn", "end\r", "\udcff"])
def test_an_id_that_no_line_can_hold_is_refused(tmp_path, name):
    with pytest.raises(ValueError) as raised:
        export(Fixed([0.0, 1.0]), Vocabulary(np.array(["a", name], object), np.array([2, 1])), tmp_path / "export")
    assert f"Received: {name!r}" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_invalid_defaults_and_wrong_numbers_of_items_or_users_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"`k` must be at least 1\. Received: k=0"):
        ExportOptions(0)
    for strength in (-0.1, np.nan, np.inf, 1e39):
        with pytest.raises(UserError, match="`popularity_correction` must be at least 0 and finite"):
            ExportOptions(popularity_correction=strength)
    with pytest.raises(ValueError, match=r"must have the 2 items of the model\. Received: 30 items"):
        export(Fixed([0.0, 1.0]), VOCABULARY, tmp_path / "export")
    factors = BprMf(NUM_ITEMS, num_users=2, hidden_dim=4)
    for users, received in ((None, None), (["ann"], 1), (["ann", "bob", "cem"], 3)):
        with pytest.raises(ValueError, match=f"ids of the model's 2 users. Received: {received}"):
            export(factors, VOCABULARY, tmp_path / "export", users=users)
    assert not list(tmp_path.iterdir())


def write(folder, text):
    with files.replace_directory(folder) as aside:
        assert not list(aside.iterdir())
        (aside / "sub").mkdir()
        (aside / "sub" / "file").write_text(text)


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    write(tmp_path / "folder", "old")
    (tmp_path / "link").symlink_to("folder")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "sub" / "file").read_text() == "new"


KILLED_BETWEEN_RENAMES = """
import os, sys, pathlib
from bert4rec_tf.foundation.files import replace_directory
def replace(source, target, made=os.replace):
    made(source, target)
    os._exit(9)
os.replace = replace
with replace_directory(pathlib.Path(sys.argv[1])) as aside:
    for file in sys.argv[2:]:
        (aside / file).parent.mkdir(exist_ok=True)
        (aside / file).write_text("new")
"""


@pytest.mark.parametrize(
    ("replaced", "files_in_it", "model"),
    [
        ("served", ["saved_model.pb"], "served"),
        ("served/saved_model", ["saved_model.pb"], "served/saved_model"),
        ("served", ["saved_model/saved_model.pb", "config.json"], "served/saved_model"),
    ],
)
def test_a_model_whose_replacement_was_killed_between_its_renames_is_found(tmp_path, replaced, files_in_it, model):
    (tmp_path / replaced).mkdir(parents=True)
    if replaced != "served":
        (tmp_path / "served" / "config.json").write_text("{}")
    command = [sys.executable, "-c", KILLED_BETWEEN_RENAMES, str(tmp_path / replaced), *files_in_it]
    assert subprocess.run(command).returncode == 9 and not (tmp_path / replaced).exists()
    with pytest.raises(UserError, match="saved_model"):  # it holds a text here
        b4r.open(tmp_path / "served")
    assert find_model_folder(tmp_path / "served") == tmp_path / model
    assert (tmp_path / model / "saved_model.pb").read_text() == "new"


def test_looking_for_a_model_deletes_nothing(tmp_path):
    leftover = tmp_path / f".served.999999999-{get_host_code()}-0.new.partial"
    leftover.mkdir()
    find_model_folder(tmp_path / "served")
    assert leftover.exists()
    files.remove_partials(tmp_path, target_name="served")  # as a writer does
    assert not leftover.exists()


@pytest.mark.long
def test_a_model_is_exported_to_a_store_and_opened_there(memory, model):
    url = stores.expand_path("memory://bucket/served")
    for _ in range(2):  # the second replaces the first
        export(model, VOCABULARY, url, ExportOptions(K))
    assert "/bucket/served/saved_model.pb" in memory.find("/bucket")
    saved = SavedRecommender(url)
    assert saved.folder == url and saved.card["model"] == type(model).__name__
    assert len(saved.recommend([list(VOCABULARY.items[:2])], [""], Choices()).items[0]) == K

    memory.pipe_file("/bucket/other/mine.txt", b"x")
    with pytest.raises(UserError, match="memory://bucket/other: holds other files than an older export"):
        export(model, VOCABULARY, stores.expand_path("memory://bucket/other"))
    memory.rm("/bucket/served/saved_model.pb")
    with pytest.raises(UserError, match=r"^memory://bucket/served/saved_model\.pb: cannot be read"):
        SavedRecommender(url)
