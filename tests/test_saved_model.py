"""The exported SavedModel against a plain-Python oracle, and the folder it lies in."""

import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.protobuf import saved_model_pb2

from bert4rec_tf import files
from bert4rec_tf.errors import UserError
from bert4rec_tf.models import BERT4Rec, Pop, Recommender
from bert4rec_tf.sequences import Vocabulary
from bert4rec_tf.serving.saved_model import export

AWKWARD = [
    *("two words", " leading", "trailing ", "  ", "tab\tinside", "\t", "a,b", '"quoted"', "it's", "# no comment"),
    *("Ünïcödé", "日本語", "🎬", "\ufeffmark", "line\u2028end", "next\x85line", "\x0bup", "form\x0c", "nul\x00l"),
    *("0", "-1", "nan", "None", "[MASK]", "%s"),
]
NAMES = [*AWKWARD, *(f"item {number}" for number in range(30 - len(AWKWARD)))]
NUM_ITEMS, LENGTH, K = 30, 6, 7
COUNTS = np.array([20, 20, 17, *[9] * 12, *[4] * 15], np.int64)
VOCABULARY = Vocabulary(np.array(NAMES, object), COUNTS)
LOG_SHARES = np.log(COUNTS / COUNTS.sum())

HISTORIES = [
    ["two words", "日本語", "0"],
    [],
    ["🎬", "", "unknown", "nul\x00l", "", "🎬"],
    ["", "", "unknown"],
    NAMES[:25],
    ["item 3"],
]


class Fixed(Recommender):
    """Gives every history the same scores; knows user 0 alone and cannot read a batch without columns."""

    def __init__(self, scores, dtype="float32"):
        super().__init__()
        self.num_items = len(scores)
        self.table = self.add_weight(shape=(len(scores),), dtype=dtype, autocast=False)
        self.table.assign(scores)

    def score(self, batch, candidates=None):
        assert {batch[name].dtype for name in ("users", "items", "lengths")} == {tf.int32}
        rows = batch["users"] + 0 * batch["items"][:, 0]
        return tf.gather(self.table.value[None, :], rows)


def transformer(**changes):
    keras.utils.set_random_seed(3)
    size = {"max_length": LENGTH, "hidden_dim": 8, "num_heads": 2, "initializer_stddev": 0.3, "dropout": 0.5}
    return BERT4Rec(NUM_ITEMS, **{**size, **changes})


def popular():
    model = Pop(NUM_ITEMS)
    model.counts.assign([0, *COUNTS])
    return model


def log_probabilities(model):
    """The Cloze question by `encode` alone: the last N - 1 items, the mask token, and a softmax over the items."""

    def scores_of(known):
        hidden = model.encode(np.array([[*known[-(LENGTH - 1) :], NUM_ITEMS + 1]], np.int32))[:, -1]
        logits = np.asarray(model.head(hidden, model.item_embeddings), np.float64)[0, 1 : NUM_ITEMS + 1]
        return logits - np.log(np.exp(logits).sum())

    return scores_of


@pytest.fixture(scope="module")
def model():
    return transformer()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert4rec") / "export"
    export(model, VOCABULARY, folder, K)
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    return tf.saved_model.load(str(folder))


@pytest.fixture(scope="module")
def loaded_pop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pop") / "export"
    export(popular(), VOCABULARY, folder, NUM_ITEMS)
    return tf.saved_model.load(str(folder))


def recommend(model, vocabulary, folder, k=K):
    """Exports, loads and returns the function from histories to items and scores."""
    export(model, vocabulary, folder, k)
    loaded = tf.saved_model.load(str(folder))
    return lambda histories: ask(loaded, histories)


def rectangle(histories, width=0):
    width = max([width, *map(len, histories)])
    rows = [[name.encode() for name in history] + [b""] * (width - len(history)) for history in histories]
    return tf.constant(rows, tf.string, shape=[len(rows), width])


def ask(loaded, histories, width=0):
    found = loaded.signatures["serving_default"](histories=rectangle(histories, width))
    return [[name.decode() for name in row] for row in found["items"].numpy().tolist()], found["scores"].numpy()


def check(found, histories, scores_of, k):
    items, scores = found
    assert scores.shape == (len(histories), k)
    assert scores.dtype == np.float32
    for names, row, history in zip(items, scores, histories, strict=True):
        known = [NAMES.index(name) + 1 for name in history if name in NAMES]
        expected = scores_of(known) if known else LOG_SHARES
        unseen = [NAMES[item] for item in range(NUM_ITEMS) if item + 1 not in known]
        best = sorted((expected[NAMES.index(name)] for name in unseen), reverse=True)[:k]
        assert names[len(best) :] == [""] * (k - len(best))
        assert (row[len(best) :] == -np.inf).all()
        assert len(set(names[: len(best)])) == len(best)
        assert set(names[: len(best)]) <= set(unseen)
        np.testing.assert_allclose(row[: len(best)], best, atol=1e-5)
        np.testing.assert_allclose([expected[NAMES.index(name)] for name in names[: len(best)]], best, atol=1e-5)


def test_the_signature(loaded):
    signature = loaded.signatures["serving_default"]
    assert signature.structured_input_signature == (
        (),
        {"histories": tf.TensorSpec([None, None], tf.string, name="histories")},
    )
    assert signature.structured_outputs == {
        "items": tf.TensorSpec([None, K], tf.string, name="items"),
        "scores": tf.TensorSpec([None, K], tf.float32, name="scores"),
    }
    assert set(loaded.signatures) == {"serving_default"}


def test_log_probabilities_of_the_unseen_items_best_first(model, loaded):
    check(ask(loaded, HISTORIES), HISTORIES, log_probabilities(model), K)


def test_other_models_give_their_own_scores_and_ties_go_to_the_lower_number(loaded_pop):
    check(ask(loaded_pop, HISTORIES), HISTORIES, lambda known: COUNTS, NUM_ITEMS)
    items, _ = ask(loaded_pop, HISTORIES)
    for names, history in zip(items, HISTORIES, strict=True):
        assert [name for name in names if name] == [name for name in NAMES if name not in history]


@given(
    histories=st.lists(
        st.lists(st.sampled_from([*NAMES, "", "unknown", "Two words", "two words "]), max_size=40), max_size=5
    ),
    width=st.integers(0, 45),
)
@settings(deadline=None, max_examples=60)
def test_any_histories(model, loaded, loaded_pop, histories, width):
    check(ask(loaded, histories, width), histories, log_probabilities(model), K)
    check(ask(loaded_pop, histories, width), histories, lambda known: COUNTS, NUM_ITEMS)


@pytest.mark.parametrize("width", [0, 1, 3])
@pytest.mark.parametrize("size", [0, 2])
def test_batches_without_rows_or_columns(loaded, size, width):
    check(ask(loaded, [[]] * size, width), [[]] * size, None, K)


def test_a_row_does_not_depend_on_its_batch_or_padding(loaded):
    together_items, together_scores = ask(loaded, HISTORIES)
    for row, history in enumerate(HISTORIES):
        for width in (0, 60):
            items, scores = ask(loaded, [history], width)
            assert items == [together_items[row]]
            np.testing.assert_allclose(scores[0], together_scores[row], atol=1e-5)


def test_unknown_and_empty_ids_change_nothing_wherever_they_stand(loaded):
    plain, _ = ask(loaded, [["0", "🎬", "item 1", "a,b"]])
    holes, _ = ask(loaded, [["", "0", "unknown", "", "🎬", "item 1 ", "item 1", "0 ", "a,b", "?"]])
    assert holes == plain
    other_order, _ = ask(loaded, [["🎬", "0", "a,b", "item 1"]])
    assert other_order != plain


def test_items_beyond_what_the_model_reads_never_come_back(model, tmp_path):
    recommended = recommend(model, VOCABULARY, tmp_path / "export", NUM_ITEMS)
    history = NAMES[5:25]
    (names,), _ = recommended([history])
    assert sorted(names[:10]) == sorted(NAMES[:5] + NAMES[25:])
    assert names[10:] == [""] * 20
    check(recommended([history]), [history], log_probabilities(model), NUM_ITEMS)


def test_nothing_is_left_after_the_whole_catalogue(loaded):
    items, scores = ask(loaded, [NAMES])
    assert items == [[""] * K]
    assert (scores == -np.inf).all()


def test_k_is_cut_to_the_catalogue(tmp_path):
    vocabulary = Vocabulary(np.array(["a", "b", "c"], object), np.array([3, 2, 1]))
    items, scores = recommend(Fixed([0.5, 2.0, 1.0]), vocabulary, tmp_path / "export", 10)([["c"], []])
    assert items == [["b", "a", ""], ["a", "b", "c"]]
    np.testing.assert_allclose(scores, [[2.0, 0.5, -np.inf], np.log([3 / 6, 2 / 6, 1 / 6])], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("logits", [False, True])
def test_scores_are_float32_whatever_the_model_computes_in(tmp_path, monkeypatch, dtype, logits):
    monkeypatch.setattr(Fixed, "scores_are_logits", logits)
    vocabulary = Vocabulary(np.array(["a", "b", "c"], object), np.array([1, 1, 1]))
    recommended = recommend(Fixed([1.0, 2.0, 4.0], dtype), vocabulary, tmp_path / "export", 2)
    _, scores = recommended([["b"]])
    assert scores.dtype == np.float32
    expected = np.array([4.0, 1.0]) - (np.log(np.exp([1.0, 2.0, 4.0]).sum()) if logits else 0)
    np.testing.assert_allclose(scores[0], expected, rtol=1e-6)


def test_an_unseen_item_comes_back_even_where_the_model_scores_it_by_minus_infinity(tmp_path):
    vocabulary = Vocabulary(np.array(["a", "b", "c"], object), np.array([2, 1, 0]))
    items, _ = recommend(Fixed([-np.inf, -np.inf, 1.0]), vocabulary, tmp_path / "export", 3)([["a"], []])
    assert items == [["c", "b", ""], ["a", "b", "c"]]


def test_without_counts_all_items_are_equally_popular(tmp_path):
    vocabulary = Vocabulary(np.array(["a", "b"], object), np.zeros(2, np.int64))
    items, scores = recommend(Fixed([0.0, 1.0]), vocabulary, tmp_path / "export")([[]])
    assert items == [["a", "b"]]
    np.testing.assert_allclose(scores, np.log([[0.5, 0.5]]), rtol=1e-6)


def operations(folder):
    """The names of all operations of a SavedModel, those inside its functions included."""
    graph = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return {node.op for node in nodes}


def test_the_graph_draws_nothing_and_calls_no_python(folder, loaded):
    found = operations(folder)
    assert "LookupTableFindV2" in found
    assert not [name for name in found if "Random" in name or "PyFunc" in name]
    first, second = (ask(loaded, HISTORIES)[1] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_vocabulary_is_one_asset(folder):
    (asset,) = (folder / "assets").iterdir()
    assert asset.name == "vocabulary.txt"
    assert asset.read_bytes() == "".join(f"{name}\n" for name in NAMES).encode()


def test_every_weight_is_stored_once_and_no_state_of_dropout(model, folder):
    stored = [shape for name, shape in tf.train.list_variables(str(folder / "variables" / "variables")) if shape]
    assert sorted(map(tuple, stored)) == sorted([*(tuple(weight.shape) for weight in model.weights), (NUM_ITEMS,)])


def test_what_happens_to_the_model_later_does_not_reach_the_export(tmp_path):
    model = transformer()
    export(model, VOCABULARY, tmp_path / "export", K)
    before = ask(tf.saved_model.load(str(tmp_path / "export")), HISTORIES)
    model.item_embeddings.assign(-model.item_embeddings)
    after = ask(tf.saved_model.load(str(tmp_path / "export")), HISTORIES)
    assert after[0] == before[0]
    np.testing.assert_array_equal(after[1], before[1])


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
service = tf.saved_model.load(folder).signatures["serving_default"]
rows = tf.constant(np.load(histories), tf.string)
found = service(histories=rows)
np.savez(answer, items=tf.strings.unicode_decode(found["items"], "UTF-8").to_tensor(-1).numpy(), scores=found["scores"])
assert not {"bert4rec_tf", "keras"} & set(sys.modules)
"""


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
    expected = loaded.signatures["serving_default"](histories=rows)
    with np.load(tmp_path / "answer.npz") as answer:
        assert answer["scores"].tobytes() == expected["scores"].numpy().tobytes()
        items = tf.strings.unicode_decode(expected["items"], "UTF-8").to_tensor(-1).numpy()
        np.testing.assert_array_equal(answer["items"], items)


def test_an_older_export_is_replaced(tmp_path):
    folder = tmp_path / "export"
    recommend(popular(), VOCABULARY, folder)
    (folder / "assets" / "old.txt").write_text("old")
    vocabulary = Vocabulary(np.array(["a", "b"], object), np.array([2, 1]))
    items, _ = recommend(Fixed([0.0, 1.0]), vocabulary, folder)([[]])
    assert items == [["a", "b"]]
    assert [path.name for path in (folder / "assets").iterdir()] == ["vocabulary.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_an_empty_folder_is_filled_and_a_missing_one_is_made(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "not" / "there"):
        export(popular(), VOCABULARY, folder)
        assert (folder / "saved_model.pb").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), tf.errors.ResourceExhaustedError(None, None, "no space left")])
def test_an_export_that_breaks_off_leaves_the_older_one(tmp_path, monkeypatch, error):
    folder = tmp_path / "export"
    export(popular(), VOCABULARY, folder)
    before = (folder / "saved_model.pb").read_bytes()

    def break_off(service, path, signatures):
        (tmp_path / path / "saved_model.pb").write_bytes(b"half")
        raise error

    monkeypatch.setattr(tf.saved_model, "save", break_off)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UserError) as raised:
        export(popular(), VOCABULARY, folder)
    assert isinstance(error, KeyboardInterrupt) or f"{folder}: cannot be written (no space left)" in str(raised.value)
    assert (folder / "saved_model.pb").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize("model_file", ["weights.npz", "saved_model.txt"])
def test_a_folder_of_something_else_is_refused(tmp_path, model_file):
    (tmp_path / model_file).write_text("mine")
    with pytest.raises(UserError, match=f"{tmp_path}: holds something else"):
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


def test_a_k_below_one_and_a_vocabulary_of_another_size_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"`k` must be at least 1\. Received: k=0"):
        export(popular(), VOCABULARY, tmp_path / "export", 0)
    with pytest.raises(ValueError, match=r"must have the 2 items of the model\. Received: 30 items"):
        export(Fixed([0.0, 1.0]), VOCABULARY, tmp_path / "export")
    assert not list(tmp_path.iterdir())


def write(folder, text):
    with files.whole_folder(folder) as aside:
        assert not list(aside.iterdir())
        (aside / "sub").mkdir()
        (aside / "sub" / "file").write_text(text)


def test_a_whole_folder_takes_the_place_of_the_old_one(tmp_path):
    folder = tmp_path / "made" / "folder"
    write(folder, "old")
    (folder / "other").write_text("other")
    write(folder, "new")
    assert [path.name for path in folder.iterdir()] == ["sub"]
    assert (folder / "sub" / "file").read_text() == "new"
    assert list(folder.parent.iterdir()) == [folder]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    write(tmp_path / "folder", "old")
    (tmp_path / "link").symlink_to("folder")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "sub" / "file").read_text() == "new"


def test_the_old_folder_comes_back_where_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    write(folder, "old")
    replace = os.replace

    def fail(source, target):
        if target == folder and (source / "sub" / "file").read_text() == "new":
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=f"{folder}: cannot be written \\(Input/output error\\)"):
        write(folder, "new")
    assert (folder / "sub" / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [folder]


def test_what_a_killed_process_left_beside_does_not_get_into_the_folder(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    write(folder, "old")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *arguments, **settings: None)
        write(folder, "new")
        with pytest.raises(RuntimeError), files.whole_folder(folder) as aside:
            (aside / "half").write_text("half")
            raise RuntimeError
    assert len(list(tmp_path.iterdir())) == 3
    write(folder, "newest")
    assert [path.name for path in folder.iterdir()] == ["sub"]
    assert (folder / "sub" / "file").read_text() == "newest"
    assert list(tmp_path.iterdir()) == [folder]
