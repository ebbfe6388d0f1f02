"""Rows in half precision and the index for approximate search, against NumPy."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from support.exports import COUNTS, HISTORIES, NAMES, NUM_ITEMS, VOCABULARY, K, popular, transformer

from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.export.item_index import INDEX, ItemIndex
from bert4rec_tf.export.layout import HALF
from bert4rec_tf.export.options import ExportOptions, IndexRequest
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import BprMf
from bert4rec_tf.serving.client import Choices, SavedRecommender
from bert4rec_tf.serving.signatures import LoadedModel, ModelError

faiss = pytest.importorskip("faiss")
HALF_ERROR = 2.0**-11
"""A score from rows in float16 is off by at most this times the sum of |vector * row|, if the vector is the same."""

ALPHA, USERS, WIDTH = 0.3, ["ann", "bob", "cem"], 4


def one_action_each(users):
    """Histories of users whom a model knows by their numbers."""
    return Sequences(np.ones(len(users), np.int32), np.arange(len(users) + 1), np.array(users, object), VOCABULARY)


@pytest.fixture(scope="module")
def factors():
    model = BprMf(NUM_ITEMS, num_users=len(USERS), hidden_dim=WIDTH, initializer_stddev=1.0)
    model.bias.assign(np.linspace(1, -1, NUM_ITEMS + 1))
    return model


@pytest.fixture(scope="module")
def vectors(factors):
    return np.asarray(factors.users)


@pytest.fixture(scope="module")
def folder(factors, tmp_path_factory):
    folder = tmp_path_factory.mktemp("indexed") / "export"
    options = ExportOptions(K, ALPHA, index=IndexRequest(1.0, one_action_each(USERS)))
    assert export(factors, VOCABULARY, folder, options, USERS) == 1.0
    return folder


@pytest.fixture(scope="module")
def approximate(folder):
    return SavedRecommender(folder, search="approximate")


def corrected(model, vectors):
    """The scores of all items for each vector, in float64."""
    rows, bias = np.asarray(model.items, np.float64)[1:], np.asarray(model.bias, np.float64)[1:]
    return vectors @ rows.T + bias - ALPHA * np.log(COUNTS + 1)


@pytest.mark.parametrize("k", [1, K, NUM_ITEMS])
def test_an_index_that_reads_all_lists_finds_what_exact_search_finds(approximate, factors, vectors, k):
    exact = corrected(factors, vectors)
    histories = [[], NAMES[:3], ["unknown", NAMES[9], ""]]
    found = approximate.recommend(histories, USERS, Choices(k, exclude=[NAMES[20]]))
    for row, history in enumerate(histories):
        allowed = [item for item, name in enumerate(NAMES) if name not in history and item != 20]
        expected = sorted(allowed, key=lambda item: -exact[row, item])[:k]
        assert found.items[row] == [NAMES[item] for item in expected]
        np.testing.assert_allclose(found.scores[row], exact[row, expected], atol=0.02)
    assert found.unknown.tolist() == [0, 0, 1]


@pytest.mark.parametrize("search", ["exact", "approximate"])
def test_as_many_rows_of_excluded_items_as_of_histories_are_asked_for(folder, search):
    model = LoadedModel(folder, search=search)
    inputs = {"histories": [[b""]] * 3, "users": [b"ann"] * 3, "exclude": [[b""]] * 2}
    with pytest.raises(ModelError):
        model.call("recommend", {name: np.array(rows, object) for name, rows in inputs.items()})


def test_seen_items_stay_hidden_unless_they_are_wanted(approximate, factors, vectors):
    best = [NAMES[item] for item in np.argsort(-corrected(factors, vectors), axis=1)[0, :4]]
    assert not set(approximate.recommend([best], USERS[:1], Choices(K)).items[0]) & set(best)
    assert approximate.recommend([best], USERS[:1], Choices(4, exclude_seen=False)).items[0] == best


def test_what_the_index_cannot_answer_is_searched_exactly(approximate, folder):
    exact = SavedRecommender(folder)
    for choices in (Choices(3), Choices(3, candidates=NAMES[:5])):
        found, expected = (model.recommend([NAMES[:28]], ["stranger"], choices) for model in (approximate, exact))
        assert found.items == expected.items
        np.testing.assert_array_equal(found.scores, expected.scores)


def test_another_correction_or_search_is_refused_in_a_line(approximate, folder):
    with pytest.raises(UserError, match="`popularity_correction` must be the export's in approximate search"):
        approximate.recommend([[]], USERS[:1], Choices(popularity_correction=0.5))
    with pytest.raises(UserError, match="Unknown search: 'fast'"):
        SavedRecommender(folder, search="fast")


def test_without_faiss_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r"^Approximate search needs faiss: pip install 'bert4rec-tf\[search\]'"):
        ItemIndex.read(folder / INDEX)


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "other"])
def test_a_damaged_index_is_one_line(folder, tmp_path, damage):
    path = tmp_path / INDEX.name
    content = bytearray((folder / INDEX).read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        del content[len(content) // 2 :]
    path.write_bytes(content)
    if damage == "missing":
        path.unlink()
    elif damage == "other":
        npz.write(path, {"rows": np.zeros(3)})
    with pytest.raises(UserError, match=path.name) as caught:
        ItemIndex.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("items", lambda items: items + 1),
        ("items", lambda items: items - 1),
        ("items", lambda items: items.astype(np.int64)),
        ("sizes", lambda sizes: sizes + 1),
        ("sizes", lambda sizes: -sizes),
        ("rows", lambda rows: rows[:, :-1]),
        ("rows", lambda rows: rows[:-1]),
        ("rows", lambda rows: rows.astype(np.float32)),
        ("centroids", lambda centroids: centroids[:-1]),
        ("centroids", lambda centroids: centroids[0]),
        ("probes", lambda probes: probes + 10_000),
        ("probes", lambda probes: 0 * probes),
    ],
)
def test_arrays_that_a_stranger_made_never_reach_faiss(folder, tmp_path, name, change):
    arrays = npz.read(folder / INDEX)
    npz.write(tmp_path / "index.npz", {**arrays, name: change(arrays[name])})
    with pytest.raises(UserError, match="is not an index of items"):
        ItemIndex.read(tmp_path / "index.npz")


def test_the_recall_that_is_told_is_that_of_the_lists_that_are_read(tmp_path):
    rng = np.random.default_rng(5)
    number, users = 2_000, rng.normal(size=[40, WIDTH]).astype(np.float32)
    model = BprMf(number, num_users=40, hidden_dim=WIDTH, initializer_stddev=1.0)
    model.users.assign(users)
    vocabulary = Vocabulary(np.array([str(item) for item in range(number)], object), np.ones(number, np.int64))
    names = [str(user) for user in range(40)]
    options = ExportOptions(index=IndexRequest(0.7, one_action_each(names)))
    told = export(model, vocabulary, tmp_path / "export", options, names)
    best = np.argsort(-(users @ np.asarray(model.items)[1:].T), axis=1)[:, :10] + 1
    index = ItemIndex.read(tmp_path / "export" / INDEX)
    items, _ = index.search(users, 10)
    recall = np.mean([len(set(row) & set(mine)) / 10 for row, mine in zip(items, best)])
    assert 0.7 <= told < 1 and recall == pytest.approx(told)
    card = SavedRecommender(tmp_path / "export").card["index"]
    assert card["recall@10"] == told and card["read"] == index.probes < card["lists"]


@pytest.mark.parametrize("dtype", [None, HALF])
def test_models_without_rows_have_neither_index_nor_half_precision(tmp_path, dtype):
    index = IndexRequest(0.9, one_action_each(USERS))
    options = ExportOptions(dtype=dtype) if dtype else ExportOptions(index=index)
    with pytest.raises(UserError, match="products"):
        export(popular(), VOCABULARY, tmp_path / "export", options)
    assert not (tmp_path / "export").exists()


def test_rows_beyond_float16_are_refused(factors, tmp_path):
    factors = BprMf(NUM_ITEMS, num_users=3, hidden_dim=WIDTH)
    factors.items.assign(np.full([NUM_ITEMS + 1, WIDTH], 1e5))
    for options in (ExportOptions(dtype=HALF), ExportOptions(index=IndexRequest(0.9, one_action_each(USERS)))):
        with pytest.raises(UserError, match="float16"):
            export(factors, VOCABULARY, tmp_path / "export", options, USERS)


def test_half_precision_is_off_by_no_more_than_its_bound(factors, vectors, tmp_path):
    before = np.asarray(factors.items)
    export(factors, VOCABULARY, tmp_path / "export", ExportOptions(NUM_ITEMS, dtype=HALF), USERS)
    np.testing.assert_array_equal(np.asarray(factors.items), before)
    model = SavedRecommender(tmp_path / "export")
    assert model.card["dtype"] == HALF
    found = model.recommend([[]] * 3, USERS, Choices(exclude_seen=False))
    exact = vectors.astype(np.float64) @ before[1:].astype(np.float64).T + np.asarray(factors.bias)[1:]
    bound = (np.abs(vectors) @ np.abs(before[1:]).T) * (2 * HALF_ERROR) + 1e-6  # the users' rows are halves too
    for row in range(3):
        columns = [NAMES.index(name) for name in found.items[row]]
        assert sorted(columns) == list(range(NUM_ITEMS))
        difference = np.abs(found.scores[row] - exact[row, columns])
        assert (difference <= bound[row, columns]).all() and difference.max() > 1e-5
        assert (np.diff(found.scores[row]) <= 0).all()


def test_ties_in_half_precision_go_to_the_lower_number(tmp_path):
    model = BprMf(NUM_ITEMS, num_users=1, hidden_dim=WIDTH)
    model.users.assign(np.ones([1, WIDTH]))
    rows = np.full([NUM_ITEMS + 1, WIDTH], 0.5, np.float32)
    rows[9:] += 1e-5  # the same in float16
    model.items.assign(rows)
    export(model, VOCABULARY, tmp_path / "export", ExportOptions(NUM_ITEMS, dtype=HALF), ["ann"])
    found = SavedRecommender(tmp_path / "export").recommend([[NAMES[2]]], ["ann"], Choices())
    assert found.items == [[name for name in NAMES if name != NAMES[2]]]


@pytest.mark.slow
def test_a_transformer_reads_and_ranks_halves_in_all_signatures(tmp_path):
    model = transformer()
    for dtype in ("float32", HALF):
        export(model, VOCABULARY, tmp_path / dtype, ExportOptions(NUM_ITEMS, dtype=dtype))
    exact, half = (tf.saved_model.load(str(tmp_path / dtype)) for dtype in ("float32", HALF))
    rows = tf.constant([[name.encode() for name in HISTORIES[0]]])
    names = tf.constant([[name.encode() for name in NAMES]])
    for name, inputs in {
        "score": {"histories": rows, "candidates": names},
        "encode": {"histories": rows},
        "item_vectors": {"items": names[0]},
    }.items():
        answers = [loaded.signatures[name](**inputs) for loaded in (exact, half)]
        output = "scores" if name == "score" else "vectors"
        np.testing.assert_allclose(answers[1][output], answers[0][output], atol=5e-3)
    similar = [loaded.signatures["similar"](items=names[0], k=tf.constant(3))["scores"] for loaded in (exact, half)]
    np.testing.assert_allclose(similar[1], similar[0], atol=2e-3)
    size = [sum(path.stat().st_size for path in (tmp_path / one).rglob("variables.data*")) for one in ("float32", HALF)]
    table = (NUM_ITEMS + 2) * 8
    assert size[0] - size[1] == pytest.approx(2 * table, abs=40)  # the names and types of variables are there too
