"""What Keras' methods are given: numbers out of range, raw ids, tables, larger catalogues."""

import json
import re
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from support.models import HISTORIES, NUM_ITEMS, SEQUENCES, VECTORS, make, make_quiet, tensors
from support.paths import ROOT
from support.ranking_oracle import make_sequences

import bert4rec_tf as b4r
from bert4rec_tf.config.model_settings import ITEM_FEATURES
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import MODELS, SASRec
from bert4rec_tf.nn import layouts

BAD_ROWS = {
    "4294967304": [[4, 6, 2**32 + 8]],
    "4.9": [[4.9, 6.5, 8.9]],
    "bool": [[True, True, False]],
    "41": [[4, 6, 41]],  # the mask
    "-1": [[4, 6, -1]],
    "nan": [[4, np.nan, 6]],
    "object": [[4, 6, 2**70]],
    "<U1": [["4", "6", "8"]],
}


@pytest.mark.parametrize("received", BAD_ROWS)
def test_arrays_with_what_is_no_item_are_refused_in_one_line(received):
    model, rows = make("bert4rec"), np.array(BAD_ROWS[received])
    model.compile("adam", loss=b4r.losses.BPR())
    message = rf"^`items` must be whole numbers from 0 to {NUM_ITEMS}\. Received: {received}$"
    good, target = np.array([[4, 6, 8]]), np.array([3])
    uses = (
        lambda: model(rows),
        lambda: model({"items": rows}),
        lambda: model.predict(rows),
        lambda: model.predict(rows.tolist()),
        lambda: model.evaluate(rows, target),
        lambda: model.fit({"items": rows}, target),
        lambda: model.fit(good, target, validation_data=(rows, target)),
    )
    for use in uses:
        with pytest.raises(UserError, match=message):
            use()
    with pytest.raises(UserError, match=rf"^`histories` must be whole numbers from 1 to 40\. Received: {received}$"):
        b4r.datasets.sequences_of([[4, 6], *rows], num_items=40)


def test_other_columns_are_checked_by_their_ranges():
    model = make("bpr_mf")
    model.compile("adam")
    for column, value, least, most in (("users", 60, 0, 59), ("lengths", 7, 0, 6)):
        batch = {**HISTORIES, column: np.full(4, value)}
        with pytest.raises(
            UserError, match=f"`{column}` must be whole numbers from {least} to {most}. Received: {value}"
        ):
            model.predict(batch, verbose=0)
    with pytest.raises(UserError, match=r"`y` must be whole numbers from 0 to 40. Received: 41"):
        model.evaluate(HISTORIES, np.array([1, 2, 3, 41]))
    masked = {"items": [[4, 41, 6]], "mask_positions": [[1]], "mask_targets": [[5]]}
    model = make("bert4rec")
    model.compile("adam", run_eagerly=True)
    model.fit({name: np.array(column) for name, column in masked.items()}, verbose=0)  # here the mask is right
    for column, value, most in (("items", 42, 41), ("mask_positions", 3, 2), ("mask_targets", 41, 40)):
        batch = {name: np.array(rows) for name, rows in {**masked, column: [[value] * len(masked[column][0])]}.items()}
        with pytest.raises(UserError, match=f"`{column}` must be whole numbers from 0 to {most}. Received: {value}"):
            model.evaluate(batch)


def test_whole_numbers_of_any_type_are_items():
    model = make("sasrec")
    expected = model.predict(np.array([[4, 6, 8]]), verbose=0)
    for rows in (np.array([[4.0, 6, 8]]), np.array([[4, 6, 8]], np.uint8), [[4, 6, 8]], tf.constant([[4, 6, 8]])):
        np.testing.assert_array_equal(model.predict(rows, verbose=0), expected)
        np.testing.assert_allclose(model(rows), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
@pytest.mark.parametrize("name", ["bert4rec", "item_transitions"])
def test_inside_a_graph_they_are_unknown_items_and_counted(name):
    model = make(name)
    known = model.predict(np.array([[4, 6, 8]]), verbose=0)
    for rows in ([[4, 2**32 + 8, 6, -1, 8]], [[4.0, 6.5, np.nan, 6, 8]], [[4, 6, 41, 8, 42]]):
        before = model.num_unknown
        with pytest.warns(b4r.UnknownIdWarning, match="^2 item numbers were out of range, and were read as unknown"):
            got = model.predict(tf.data.Dataset.from_tensors(np.array(rows)), verbose=0)
        np.testing.assert_array_equal(got, known)
        assert model.num_unknown == before + 2
    assert model.predict(np.array([[4, 6, 8]]), verbose=0).shape == (1, NUM_ITEMS)
    with pytest.raises(UserError, match=r"`items` must be whole numbers from 0 to 40\. Received: bool"):
        model.predict(tf.data.Dataset.from_tensors(np.array([[True]])), verbose=0)


@pytest.mark.long
def test_fit_of_a_dataset_of_one_s_own_needs_three_columns_and_counts_unknown_items():
    rows = {"items": [[4, 41, 6], [7, 8, 41]], "mask_positions": [[1], [2]], "mask_targets": [[5], [99]]}
    model, known = make_quiet("bert4rec"), {**rows, "mask_targets": [[5], [0]]}
    expected = float(model.training_loss(tensors(known)))
    model.compile("adam")
    with pytest.warns(b4r.UnknownIdWarning, match="^1 item numbers were out of range"):
        assert model.fit(tf.data.Dataset.from_tensors(rows), verbose=0).history["loss"] == [pytest.approx(expected)]
    assert model.num_unknown == 1


def log_softmax(scores):
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def test_evaluate_refuses_to_draw_another_item_of_a_catalogue_of_one():
    sequences = make_sequences([[1, 1, 1], [1, 1]], 1)
    model = SASRec(num_items=1, hidden_dim=4, max_length=3)
    model.adapt(sequences)
    model.compile("adam")
    with pytest.raises(b4r.UserError, match="`num_items` must be at least 2"):
        model.evaluate(b4r.datasets.next_item_batches(sequences), verbose=0)


@pytest.mark.long
def test_the_loss_of_next_items_is_that_of_the_model():
    """Over all rows of the table, as in training; by another way, masks at the ends of the histories."""
    model = make_quiet("bert4rec", max_length=20)
    model.compile("adam", run_eagerly=True)
    loss = model.evaluate(b4r.datasets.next_item_batches(SEQUENCES, 7), verbose=0)
    last_only = b4r.datasets.cloze_batches(SEQUENCES, 20, 60, last_only=True)
    assert loss == pytest.approx(model.evaluate(last_only, verbose=0), rel=1e-5)
    ((histories, targets),) = b4r.datasets.next_item_batches(SEQUENCES, 60)
    logits = np.asarray(model.network_vectors(histories)) @ np.asarray(model.item_table()).T + np.asarray(
        model.head.bias
    )
    rows = log_softmax(logits.astype(np.float64))[np.arange(60), targets.numpy()]
    assert loss == pytest.approx(-rows.mean(), rel=1e-5)


@pytest.mark.parametrize("name", [name for name, kind in MODELS.items() if kind.examples not in ("masked", None)])
def test_next_items_are_the_only_targets_of_every_model(name):
    model = make(name)
    ((histories, targets),) = b4r.datasets.next_item_batches(SEQUENCES, 60)
    batch = {column: values.numpy() for column, values in model.expect_next_items(histories, targets).items()}
    names = [column for column in batch if column.split("/")[-1] in ("targets", "mask_targets")]
    assert len(names) == max(len(model.networks), 1)
    for column in names:
        assert [row[row > 0].tolist() for row in batch[column]] == targets.numpy()[:, None].tolist()
    trained = next(iter(b4r.datasets.training_batches(model, SEQUENCES, 60)))
    columns = [column for column in trained if column != "bert4rec/lengths"]  # which no loss reads
    assert [batch[column].ndim for column in columns] == [len(trained[column].shape) for column in columns]
    negatives = batch["sasrec/negatives" if model.networks else "negatives"].reshape(60, -1)
    assert not (negatives == targets.numpy()[:, None]).any() and negatives.min(initial=1) >= 1
    if name == "sasrec":  # at the last item of each history
        rows = np.array([row[: len(row)] for row in batch["items"]])
        assert all(row[: np.argmax(found > 0) + 1].all() for row, found in zip(rows, batch["targets"]))


HOLES = {"[1, 2, 0, 0]": [1, 2, 0, 0], "[1, 0, 2, 0]": [1, 0, 2, 0], "[0, 0, 1, 2]": [0, 0, 1, 2]}


@pytest.mark.parametrize("name", ["bert4rec", "sasrec", "gru4rec", "auto"])
def test_the_loss_of_next_items_does_not_depend_on_where_padding_is_nor_on_given_lengths(name):
    model, target = make_quiet(name), np.array([5])
    model.compile("adam", run_eagerly=True)
    packed = {"items": np.array([[1, 2]]), "lengths": np.array([2]), "users": np.array([0])}
    expected = model.evaluate(packed, target, verbose=0)
    assert expected > 0
    for row in HOLES.values():
        for y in (target, target[:, None]):
            assert model.evaluate(np.array([row]), y, verbose=0) == pytest.approx(expected, rel=1e-5)


def check_layouts(model, batch):
    """The loss is above 0, and the same in both layouts."""
    losses = []
    for layout in (layouts.BY_LENGTH, layouts.FIXED):
        with layouts.use_layout(layout):
            losses.append(float(model.training_loss(tensors(batch))))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[1] > 0


@pytest.mark.parametrize("name", ["bert4rec", "sasrec", "gru4rec"])
@pytest.mark.parametrize("row", HOLES)
def test_a_training_loss_is_the_same_in_both_layouts_wherever_padding_is(name, row):
    model, items = make_quiet(name), np.array([HOLES[row]] * 3)
    if name == "bert4rec":
        masked = np.where(items == 2, model.mask_token, items)
        batch = {"items": masked, "mask_positions": np.argmax(items == 2, axis=1)[:, None]}
        batch["mask_targets"] = np.array([[2], [2], [3]])
    else:
        batch = {"items": items, "targets": np.where(items == 2, 7, 0), "negatives": items[..., None] * 0 + 9}
        batch["shared"] = np.array([[3, 4]] * 3)
    check_layouts(model, batch)


def test_masked_positions_after_the_last_item_are_read():
    model = make_quiet("bert4rec")
    batch = {
        "items": [[1, 2, 0, 0], [1, 2, 3, 0]],
        "mask_positions": [[0, 3], [1, 3]],
        "mask_targets": [[0, 4], [5, 0]],
    }
    check_layouts(model, batch)


@pytest.mark.parametrize("name", ["bert4rec", "sasrec"])
def test_next_items_out_of_range_are_counted_and_do_not_count(name):
    model = make_quiet(name)
    model.compile("adam", metrics=[b4r.metrics.MRR()])
    data = {"items": HISTORIES["items"], "lengths": HISTORIES["lengths"]}
    expected = model.evaluate(data, np.array([3, 0, 7, 0]), verbose=0)
    for y in (np.array([3, 41, 7, -1]), np.array([[3], [41], [7], [-1]])):
        with pytest.warns(b4r.UnknownIdWarning, match="^2 item numbers were out of range"):
            got = model.evaluate(tf.data.Dataset.from_tensors((data, y)), verbose=0)
        assert got == pytest.approx(expected, rel=1e-5)
    with pytest.warns(b4r.UnknownIdWarning, match="^4 item numbers"):
        got = model.evaluate(tf.data.Dataset.from_tensors((data, np.full(4, 99))), verbose=0)
    assert got == [0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lengths": np.ones(3, int)},
            r"`x` must have as many rows in each column\. Received: 4 of `items`, .*3 of `len",
        ),
        ({"users": np.zeros((4, 1), int)}, r"`users` must be \[b\]\. Received: \(4, 1\)"),
    ],
)
def test_columns_of_other_shapes_are_refused(changes, message):
    model = make("bert4rec")
    for use in (model, model.predict):
        with pytest.raises(UserError, match=message):
            use({**HISTORIES, **changes})


@pytest.mark.parametrize("name", ["bert4rec", "sasrec"])
def test_rows_wider_than_the_positions_are_refused_in_training(name):
    model = make(name)
    model.compile("adam", run_eagerly=True)
    wide, column = np.ones((2, 9), int), np.ones((2, 1), int)
    batch = {"items": wide, "targets": wide, "negatives": wide[:, :, None]}
    if name == "bert4rec":
        batch = {"items": wide, "mask_positions": column, "mask_targets": column}
    with pytest.raises(UserError, match=r"`items` must be \[b, n\], n at most `max_length`, 8\. Received: \(2, 9\)"):
        model.fit(batch, verbose=0)


@pytest.mark.long
def test_early_stopping_needs_no_argument(recwarn):
    model = make("fpmc")
    model.compile("adam", metrics=[b4r.metrics.NDCG(10)])
    training = b4r.datasets.training_batches(model, b4r.datasets.without_last(SEQUENCES), 64)
    validation, stop = b4r.datasets.next_item_batches(SEQUENCES), keras.callbacks.EarlyStopping(min_delta=100)
    history = model.fit(training, validation_data=validation, epochs=5, callbacks=[stop], verbose=0).history
    assert len(history["val_loss"]) == len(history["val_ndcg@10"]) == 2
    assert not [str(warning.message) for warning in recwarn if "Early stopping" in str(warning.message)]


FRAME = pd.DataFrame({"customer": np.repeat([30, 10, 20], 4), "sku": [7, 900, 7, 12, 900, 7, 5, 12, 7, 5, 12, 900]})
LOAD = """
import sys
import bert4rec_tf as b4r
import keras
model = keras.saving.load_model(sys.argv[1])
print(model.recommend(history=[7, 900], k=3).to_json())
"""


@pytest.mark.long
def test_a_table_becomes_a_model_that_knows_its_ids_in_another_process(tmp_path, capsys):
    sequences = b4r.datasets.read(FRAME, user="customer", item="sku", time="none")
    assert sequences.vocabulary.items.tolist() == ["7", "12", "900", "5"]  # by falling count, then by id
    FRAME.to_csv(tmp_path / "shop.csv", index=False)
    again = b4r.datasets.read(tmp_path / "shop.csv", user="customer", item="sku", time="none")
    np.testing.assert_array_equal(again.items, sequences.items)
    training = b4r.datasets.without_last(sequences)
    assert [training[user].tolist() for user in range(3)] == [sequences[user][:-1].tolist() for user in range(3)]
    model = b4r.BERT4Rec(sequences.num_items, max_length=6, hidden_dim=8, num_layers=1)
    with pytest.raises(UserError, match=r"`recommend` needs the raw ids of the items; call `model\.adapt"):
        model.recommend(history=[7])
    model.adapt(training)
    with pytest.warns(b4r.UnknownIdWarning, match="^1 of the 3 items in the history are unknown"):
        table = model.recommend(history=[7, 3, 900], k=3)
    scores = model.predict(np.array([[1, 3]]), verbose=0)[0]
    best = [item for item in np.argsort(-scores) + 1 if item not in (1, 3)]
    assert table["item"].tolist() == [int(sequences.vocabulary.items[item - 1]) for item in best]
    np.testing.assert_allclose(table["score"], log_softmax(scores)[np.array(best) - 1], rtol=1e-5)
    assert set(model.recommend(history=[7, 900], k=9, exclude_seen=False)["item"]) == {7, 900, 12, 5}
    diverged = keras.models.clone_model(model)
    diverged.adapt(training)
    diverged.weights[0].assign(np.full(diverged.weights[0].shape, np.nan))
    with pytest.raises(UserError, match=r"`scores` must be numbers\. Received: NaN; the training has diverged"):
        diverged.recommend(history=[7])
    for wrong, message in (
        ("7", "`history` must be a list of ids. Received: history='7'"),
        ({7, 3}, "`history` must have an order, oldest first. Received: a set"),
        (pd.DataFrame({"sku": [7]}), "`history` must be a list of ids. Received: a DataFrame of 2 dimensions"),
        ([7, None], "`history` must have ids alone, and no missing ones. Received: None"),
    ):
        with pytest.raises(UserError, match=message):
            model.recommend(history=wrong)
    model.save(tmp_path / "shop.keras")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "shop.keras")], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert [*json.loads(done.stdout)["item"].values()] == table["item"].tolist()
    with zipfile.ZipFile(tmp_path / "shop.keras") as archive:
        assert [name for name in archive.namelist() if name.startswith("assets")] == ["assets/ids.npz"]


ENTRIES = [
    (lambda: make("bert4rec").adapt(FRAME), "`sequences` must be what .* returns. Received: a DataFrame"),
    (lambda: b4r.datasets.training_batches(make("sasrec"), [[1, 2]]), "`sequences` must be .* Received: a list"),
    (lambda: b4r.datasets.training_batches(SEQUENCES, make("sasrec")), "`model` must be .* Received: a Sequences"),
    (lambda: b4r.datasets.training_batches(make("sasrec"), SEQUENCES, 0), "`batch_size` must be at least 1"),
    (lambda: b4r.datasets.training_batches(make("sasrec"), SEQUENCES, seed=-1), "`seed` must be at least 0"),
    (lambda: b4r.datasets.cloze_batches(FRAME), "`sequences` must be"),
    (lambda: b4r.datasets.cloze_batches(SEQUENCES, 2.5), "`max_length` must be a whole number. Received: .*2.5"),
    (lambda: b4r.datasets.cloze_batches(SEQUENCES, seed=-1), "`seed` must be at least 0. Received: seed=-1"),
    (lambda: b4r.datasets.next_item_batches([[1, 2]]), "`sequences` must be"),
    (lambda: b4r.datasets.without_last([[1, 2]]), "`sequences` must be"),
    (lambda: b4r.datasets.cloze_batches(SEQUENCES, masking={"masking": "static"}), "`masking` must be .*Received: {"),
    (lambda: b4r.datasets.training_batches(make("bert4rec"), SEQUENCES, masking=1), "`masking` must be .*Received: 1"),
    (lambda: b4r.datasets.sequences_of(None), "`histories` must be a list of lists"),
    (lambda: b4r.datasets.sequences_of([1, 2, 3]), "`histories` must be a list of lists"),
    (lambda: b4r.datasets.sequences_of([[[1, 2]]]), "`histories` must be a list of lists"),
    (lambda: b4r.datasets.sequences_of([]), "`histories` must have items"),
    (lambda: b4r.datasets.sequences_of([[1]], np.float64(2)), "`num_items` must be a whole number. Received: .*2.0"),
    (lambda: b4r.datasets.sequences_of([[], []]), "`histories` must have items"),
]


@pytest.mark.parametrize(("call", "message"), ENTRIES)
def test_data_of_a_wrong_kind_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_whole_fractions_are_the_integer_ids_of_a_model():
    sequences = b4r.datasets.read(FRAME, user="customer", item="sku", time="none")
    model = b4r.BERT4Rec(sequences.num_items, max_length=6, hidden_dim=8, num_layers=1)
    model.adapt(sequences)
    for same in ([7.0, np.float64(900)], [np.float32(7), b"900"], tf.constant([7, 900])):
        pd.testing.assert_frame_equal(model.recommend(same, k=2), model.recommend([7, 900], k=2))
    assert set(model.grow([8.0, np.float64(9)]).ids.vocabulary.items) == {"7", "900", "12", "5", "8", "9"}
    with pytest.raises(UserError, match="`new_items` must be new, each once"):
        model.grow([7.0])


def test_a_model_of_users_recommends_to_the_users_of_its_data(tmp_path):
    model = make("bpr_mf")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    user, history = SEQUENCES.users[7], SEQUENCES.vocabulary.decode(SEQUENCES[7])
    scores = np.array(model.score({"users": [7], "items": SEQUENCES[7][None], "lengths": [len(history)]}))[0]
    scores[SEQUENCES[7] - 1] = -np.inf
    best = again.recommend(history, k=1, user=user)["item"].tolist()
    assert best == SEQUENCES.vocabulary.decode([scores.argmax() + 1])
    for unknown in (None, "nobody"):
        with pytest.raises(UserError, match=f"`user` must be a user of the data for BprMf. Received: user={unknown!r}"):
            again.recommend(history, user=unknown)


@pytest.mark.parametrize("name", ["bert4rec", "sasrec", "bpr_mf", "caser"])
def test_a_grown_model_has_the_scores_of_the_old_items_and_the_new_ids(name):
    model = make_quiet(name)
    grown = model.grow(["new", 7000])
    assert grown.num_items == NUM_ITEMS + 2 and grown.ids.vocabulary.items[-2:].tolist() == ["new", "7000"]
    inputs = HISTORIES if model.needs_users else HISTORIES["items"]
    np.testing.assert_allclose(grown(inputs)[:, :NUM_ITEMS], model(inputs), rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match=r"`new_items` must be new, each once. Received: 2 that are not"):
        model.grow([SEQUENCES.vocabulary.items[3], "new", "new"])
    for wrong in (10, "new"):
        with pytest.raises(UserError, match=r"`new_items` must be a list of ids\. Received: "):
            model.grow(wrong)


def test_a_grown_model_keeps_how_counts_and_the_network_are_mixed():
    model = make_quiet("sasrec", evidence="transitions")
    model.adapt(SEQUENCES)
    model.evidence.mix.assign([4.0, 0.1, 0.5])
    grown = model.grow(["new"])
    more = Sequences(
        SEQUENCES.items,
        SEQUENCES.splits,
        SEQUENCES.users,
        Vocabulary(grown.ids.vocabulary.items, np.append(SEQUENCES.vocabulary.counts, 0)),
    )
    grown.adapt(more)
    np.testing.assert_array_equal(grown.evidence.mix, model.evidence.mix)
    np.testing.assert_array_equal(model.grow(["new"]).grow([]).evidence.first_mix, model.evidence.mix)


def test_next_items_of_nobody_are_those_of_an_unknown_user():
    targets, histories = tf.constant([3]), {"items": tf.constant([[1, 2]]), "lengths": tf.constant([2])}
    for name, expected in (("bert4rec", -1), ("sasrec", -1), ("bpr_mf", 0)):
        assert make(name).expect_next_items(histories, targets)["users"].numpy().tolist() == [expected]


def test_a_grown_model_takes_the_numbers_of_another_vocabulary():
    model = make_quiet("bert4rec")
    raw = SEQUENCES.vocabulary.items.tolist()
    other = Vocabulary(np.array([raw[5], "new", *raw[6:], *raw[:3]], object), np.ones(NUM_ITEMS - 1, int))
    with pytest.warns(
        b4r.TrainingWarning, match="^2 items of the model are not in the vocabulary, and lose their rows"
    ):
        grown = model.grow(other)
    old, new = np.asarray(model.item_embeddings), np.asarray(grown.item_embeddings)
    np.testing.assert_array_equal(new[[0, 1, -1]], old[[0, 6, -1]])  # padding, the first item, the mask
    np.testing.assert_array_equal(new[-4:-1], old[1:4])


def test_a_model_with_features_grows_by_theirs():
    options = {"features": VECTORS, "use_item_features": "add"}
    model = make_quiet("bert4rec", **options)
    ids = VECTORS[ITEM_FEATURES].ids.tolist()
    more = {ITEM_FEATURES: VECTORS[ITEM_FEATURES].select_rows([*ids, "new"])}
    grown = model.grow(["new"], more)
    np.testing.assert_allclose(grown(HISTORIES)[:, :NUM_ITEMS], model(HISTORIES), rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="`item_features` must have 41 rows"):
        model.grow(["new"])


def test_weights_of_another_catalogue_are_said_to_be_lost_in_one_line(tmp_path, recwarn):
    path = tmp_path / "small.weights.h5"
    make("bert4rec").save_weights(path)
    larger = b4r.BERT4Rec(NUM_ITEMS + 2, make("bert4rec").settings)
    before = larger.item_embeddings.numpy()
    larger.load_weights(path, skip_mismatch=True)
    np.testing.assert_array_equal(larger.item_embeddings, before)
    make("bert4rec").load_weights(path, skip_mismatch=True)
    (line,) = [str(warning.message) for warning in recwarn if issubclass(warning.category, b4r.TrainingWarning)]
    assert re.search(r"has other sizes, so some tables keep their first values, and lose their rows\. .*grow", line)
    assert not [warning for warning in recwarn if "could not be loaded" in str(warning.message)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keras_fit.py", "keras_layers.py"])
def test_the_examples_run_and_recommend(name, tmp_path):
    words = [sys.executable, str(ROOT / "examples" / name), str(ROOT / "examples" / "actions.csv"), "1"]
    assert len((ROOT / "examples" / name).read_text().splitlines()) <= 60
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "TF_CPP_MIN_LOG_LEVEL": "3", "BERT4REC_DATA": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "600 users, 156 items" in done.stdout or name == "keras_layers.py"
    assert (
        len(set(re.findall(r"\bP\d{3}\b", done.stdout.split("After" if name == "keras_fit.py" else "may like")[1])))
        >= 5
    )
    assert len(list(tmp_path.glob("*.keras"))) == 1


def test_sequences_must_have_the_items_of_the_model():
    fewer = b4r.datasets.sequences_of([[1, 2, 12], [3, 4, 5]])
    message = (
        r"`sequences` must have the model's 40 items, as `sequences_of\(.*num_items=40\)` has\. Received: 12 items"
    )
    for name in ("bert4rec", "sasrec", "auto", "item_transitions", "pop"):
        model = make(name)
        uses = [model.adapt, lambda data, model=model: b4r.datasets.training_batches(model, data)]
        for use in uses[: 1 if model.examples is None else 2]:
            with pytest.raises(UserError, match=message):
                use(fewer)
        assert model.ids.vocabulary.num_items == NUM_ITEMS
    with pytest.raises(UserError, match="must have the model's 42 items"):
        b4r.datasets.training_batches(make("bert4rec").grow(["new", "newer"]), SEQUENCES)


def test_other_evidence_is_refused_before_anything_changes():
    model = make("item_transitions")
    ids, scores = model.ids, np.asarray(model.score(HISTORIES))
    other = b4r.datasets.sequences_of([[1, 2, 3]], NUM_ITEMS)
    with pytest.raises(UserError, match=r"`sequences` must have \d+ pairs of items, as .* `model\.grow\(\[\]\)`"):
        model.adapt(other)
    assert model.ids is ids
    np.testing.assert_array_equal(model.score(HISTORIES), scores)
    grown = model.grow([])
    grown.adapt(other)
    assert grown.score(HISTORIES).shape == (4, NUM_ITEMS)


def test_weights_of_rows_need_next_items():
    model = make("sasrec")
    model.compile("adam", run_eagerly=True)
    batch = {"items": np.array([[1, 2]]), "targets": np.array([[2, 3]]), "negatives": np.array([[[5], [6]]])}
    rows = tf.data.Dataset.from_tensors((batch, None, np.zeros(1)))
    uses = (
        lambda: model.fit(batch, sample_weight=np.zeros(1)),
        lambda: model.evaluate(batch, sample_weight=np.zeros(1)),
        lambda: model.train_on_batch(batch, sample_weight=np.zeros(1)),
        lambda: model.fit(rows, verbose=0),
        lambda: model.evaluate(rows, verbose=0),
    )
    for use in uses:
        with pytest.raises(UserError, match=r"`sample_weight` must come with `y`, the next items\. Received: y=None"):
            use()
    with pytest.raises(UserError, match=r"`class_weight` needs a `loss` in `compile`"):
        model.fit(rows.map(lambda batch, *_: batch), class_weight={0: 1.0})


def test_rows_of_lists_pandas_and_ragged_tensors_are_read_or_refused_in_one_line():
    model, rows = make("bert4rec"), np.array([[4, 6, 8], [2, 3, 0]])
    expected = model(rows)
    for table in (pd.DataFrame(rows, dtype="Int64"), tf.ragged.constant(rows.tolist())):
        np.testing.assert_array_equal(model(table), expected)
    np.testing.assert_array_equal(model({"items": rows.tolist(), "lengths": [3, 2]}), expected)
    for uneven in ([[4, 6], [8]], tf.ragged.constant([[4, 6], [8]])):
        for use in (model, model.predict):
            with pytest.raises(UserError, match=r"^`items` must have rows of one length; fill them up with 0"):
                use(uneven)


def test_a_user_alone_is_refused_by_a_model_without_users():
    with pytest.raises(UserError, match=r"`history` must be given to BERT4Rec, .*\. Received: user=3"):
        make("bert4rec").recommend(user=3)


def test_compile_forgets_the_metrics_of_an_earlier_one():
    model = make("bpr_mf")
    model.compile("adam", metrics=[b4r.metrics.NDCG(3)], run_eagerly=True)
    model.compile("adam", run_eagerly=True)
    assert set(model.evaluate(HISTORIES, np.array([3, 40, 1, 7]), return_dict=True, verbose=0)) == {"loss"}


def test_early_stopping_knows_that_more_is_better():
    model = make("bpr_mf")
    model.compile("adam", metrics=[b4r.metrics.NDCG(10)], run_eagerly=True)
    stop = keras.callbacks.EarlyStopping(monitor="val_ndcg@10")
    training = b4r.datasets.training_batches(model, SEQUENCES, 64)
    model.fit(training, validation_data=(HISTORIES, np.array([3, 40, 1, 7])), callbacks=[stop], verbose=0)
    assert stop.monitor_op(0.9, 0.1)


def test_inside_a_graph_users_out_of_range_are_unknown():
    model = make("bert4rec", use_user_features=True)
    unknown = {**HISTORIES, "users": np.full(4, -1)}
    got = model.predict(tf.data.Dataset.from_tensors({**HISTORIES, "users": np.full(4, 60)}), verbose=0)
    np.testing.assert_array_equal(got, model.predict(unknown, verbose=0))
    assert model.num_unknown == 0
