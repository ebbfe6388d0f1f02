"""A model of the user's own, in the user's own file."""

import dataclasses
import random
import re
import runpy
from typing import ClassVar

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from support.commands import console
from support.paths import ROOT

import bert4rec_tf as b4r
from bert4rec_tf.config.model_settings import MODEL_SETTINGS
from bert4rec_tf.config.presets import OWN, PRESETS
from bert4rec_tf.models import TAKEN, resolve_name
from bert4rec_tf.models.pop import Pop
from bert4rec_tf.notebook.argument_names import list_arguments
from bert4rec_tf.notebook.fitted import FittedModel
from bert4rec_tf.runs.comparison import compare

EXAMPLE = ROOT / "examples/own_model.py"


@pytest.fixture(scope="module")
def own():
    yield runpy.run_path(str(EXAMPLE))["MeanOfHistory"]
    for models in (b4r.MODELS, MODEL_SETTINGS):
        models.pop("mean_of_history", None)


@pytest.mark.slow
def test_the_example_runs(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    assert "mean_of_history" in out and len(re.findall(r" P\d{3} ", out)) >= 3


@pytest.mark.long
def test_it_is_trained_exported_updated_and_served_like_any_other(own, tmp_path):
    frame = [(user, (3 * user + 2 * place) % 20, place) for user in range(40) for place in range(7)]
    table = {name: [row[column] for row in frame] for column, name in enumerate(("user", "item", "time"))}
    model = b4r.fit(
        pd.DataFrame(table), model=own, steps=6, evaluate_every=3, batch_size=16, silent=True, workdir=tmp_path / "own"
    )
    inputs, outputs, bias = (array for _, array in model.saved.read_weights())
    order = [model.items.index(item) + 1 for item in (4, 6)]
    expected = outputs @ inputs[order].mean(axis=0) + bias
    best = model.recommend(history=[4, 6], k=3)
    left = [number for number in np.argsort(-expected) if number not in (0, *order)]
    assert best["item"].tolist() == [model.items[number - 1] for number in left[:3]]
    assert console("recommend", f"--model={tmp_path / 'own'}", "--history=4,6", cwd=tmp_path).returncode == 0
    more = pd.DataFrame({"user": [1, 2], "item": [99, 99], "time": [9, 9]})
    assert 99 in model.update(more).items
    longer = model.continue_training(more, train=True, steps=4, silent=True)
    assert 99 in longer.items


@pytest.mark.long
def test_draws_of_a_model_without_a_seed_follow_the_seed_of_the_run(own):
    class DroppingMean(own):
        def training_loss(self, batch, training=True):
            return super().training_loss(batch) * keras.random.uniform([])

    frame = pd.DataFrame(
        [(user, (3 * user + 2 * place) % 20, place) for user in range(40) for place in range(7)],
        columns=["user", "item", "time"],
    )
    tables, draws = [], []
    for seed in (1, 2):
        random.seed(seed)
        model = b4r.fit(frame, model=DroppingMean, steps=6, evaluate_every=3, batch_size=16, silent=True)
        tables.append(model.recommend_all(k=3, silent=True))
        draws.append(random.random() == random.Random(seed).random())
    b4r.MODELS.pop("dropping_mean")
    MODEL_SETTINGS.pop("dropping_mean", None)
    pd.testing.assert_frame_equal(*tables)
    assert draws == [True, True]


def test_what_is_no_model_says_why(own):
    class NoSettings(b4r.Recommender):
        pass

    class Masked(Pop):
        examples = "masked"

    @dataclasses.dataclass(frozen=True)
    class Plain:
        width: int = 3

    class OtherSettings(b4r.Recommender):
        settings_type = Plain

    for kind, words in (
        (dict, "`model` must be a name or a subclass of `b4r.Recommender`"),
        (NoSettings, "`settings_type` of NoSettings must be a dataclass based on `b4r.Settings`"),
        (OtherSettings, "`settings_type` of OtherSettings must be"),
        (Masked, "`examples` of Masked must be None or one of 'contexts', 'shifted'. Received: 'masked'"),
        (type("Untrained", (own,), {"examples": None}), "must be one of 'contexts', 'shifted'. Received: None"),
        (type("Pop", (Pop,), {}), "Pop must have another name: Pop is known as 'pop'"),
    ):
        with pytest.raises(b4r.UserError, match=words):
            b4r.fit([], model=kind)
    assert b4r.register(own) is own and b4r.MODELS["mean_of_history"] is own


def make_settings(declared_type=int, **fields):
    names = {"__annotations__": dict.fromkeys(fields, declared_type), **fields}
    return dataclasses.dataclass(frozen=True)(type("MySettings", (b4r.Settings,), names))


def register_with(own, settings):
    return b4r.register(type("Mine", (own,), {"settings_type": settings}))


@pytest.mark.parametrize("name", ["num_negatives", "steps", "masking", "seed", "item", "dtype", "num_items", "compile"])
def test_a_setting_of_ones_own_has_a_name_of_its_own(own, name):
    with pytest.raises(b4r.UserError, match=f"^`{name}` of MySettings must have another name"):
        register_with(own, make_settings(**{name: b4r.setting(7, "mine")}))


def test_all_names_that_functions_take_are_taken():
    functions = (b4r.fit, b4r.compare, b4r.cross_validate, b4r.make_run, FittedModel.continue_training)
    assert set().union(*map(list_arguments, functions)) <= TAKEN
    fields = {field.name for kind in MODEL_SETTINGS.values() for field in dataclasses.fields(kind)}
    assert not fields & TAKEN


class Undecorated(b4r.Settings):
    width: int = b4r.setting(3, "w")


@pytest.mark.parametrize(
    "settings",
    [
        Undecorated,
        type("Later", (make_settings(width=b4r.setting(3, "w")),), {"__annotations__": {"width": int}, "width": 4}),
        make_settings(width=3),
        make_settings(width=dataclasses.MISSING),
        make_settings(tuple, width=b4r.setting((3, 4), "w")),
        make_settings(object, width=b4r.setting(max, "w")),
        make_settings(list, width=dataclasses.field(default_factory=list)),
    ],
)
def test_a_setting_that_is_not_declared_is_named(own, settings):
    with pytest.raises(b4r.UserError, match=r"^`width` of \w+ must be declared as `width: int = b4r.setting\("):
        register_with(own, settings)


def test_a_setting_may_be_optional_or_annotated_by_a_text(own):
    width = b4r.setting(3, "w", at_least=1)
    mixin = type("Mixin", (), {"__annotations__": {"NAME": ClassVar[str]}, "NAME": "x"})
    settings = dataclasses.dataclass(frozen=True)(type("Mixed", (make_settings(width=width), mixin), {}))
    assert register_with(own, settings).settings_type.NAME == "x"
    for kind in (int | None, "int", "int | None"):
        assert register_with(own, make_settings(kind, width=width)).settings_type(width=4).width == 4
    with pytest.raises(b4r.UserError, match=r"`width` must be at least 1\. Received: width=0"):
        register_with(own, make_settings(width=b4r.setting(0, "w", at_least=1)))
    for models in (b4r.MODELS, MODEL_SETTINGS):
        models.pop("mine")


@pytest.mark.parametrize(
    "name, words",
    [
        ("user_vectors", "`user_vectors`"),
        ("score_products", "`score_products` or `score_vectors`"),
        ("training_loss", "`training_loss`"),
    ],
)
def test_a_model_without_a_method_is_refused_at_once(own, name, words):
    with pytest.raises(b4r.UserError, match=f"^Mine must define {words}$"):
        b4r.register(type("Mine", (own,), {name: getattr(b4r.Recommender, name)}))


def test_a_class_defined_again_has_the_preset_of_its_new_kind(own):
    counting = {"examples": None, "training_loss": b4r.Recommender.training_loss}
    for examples, members in ((None, counting), ("shifted", {})):
        b4r.register(type("Mine", (own,), members))
        assert bool(PRESETS["fast", OWN, "mine"].settings) == (examples is not None)
    for models in (b4r.MODELS, MODEL_SETTINGS):
        models.pop("mine")


@pytest.mark.parametrize("name", sorted(MODEL_SETTINGS))
def test_a_class_of_the_package_is_a_model_too(name):
    assert resolve_name(b4r.MODELS[name]) == name


def test_parts_of_a_batch_have_the_loss_of_the_whole(own):
    model = own(9, hidden_dim=4)
    items = np.array([[1, 2, 3, 4], [5, 0, 0, 0], [6, 7, 0, 0]], np.int32)
    batch = {"users": np.arange(3), "items": items, "targets": np.where(items, items % 9 + 1, 0)}
    parts = [{name: column[rows] for name, column in batch.items()} for rows in (slice(2), slice(2, 3))]
    weights = [float(model.loss_weight(part)) for part in parts]
    assert weights == [5, 2]
    losses = [float(model.training_loss(part)) for part in parts]
    np.testing.assert_allclose(np.average(losses, weights=weights), float(model.training_loss(batch)), rtol=1e-5)


def test_a_table_of_a_height_that_a_graph_does_not_know_is_taken(own):
    class Computed(own):
        def score_products(self):
            return tf.boolean_mask(self.outputs_table, tf.random.uniform([10]) < 2), None

    scores = tf.function(Computed(9).score)({"items": tf.ones([2, 1], tf.int32), "lengths": tf.ones([2], tf.int32)})
    assert scores.shape == (2, 9)


ACTIONS = pd.DataFrame(
    [(user, (3 * user + 2 * place) % 20, place) for user in range(40) for place in range(7)],
    columns=["user", "item", "time"],
)
QUICK = {"steps": 2, "evaluate_every": 1, "batch_size": 16, "silent": True}


@pytest.fixture
def fit(own):
    """Trains a class of this name, which is forgotten afterwards."""
    yield lambda members, **options: b4r.fit(ACTIONS, model=type("Mine", (own,), members), **{**QUICK, **options})
    for models in (b4r.MODELS, MODEL_SETTINGS):
        models.pop("mine", None)


def make_and(own, add):
    def make_variables(self):
        own.make_variables(self)
        add(self)

    return {"make_variables": make_variables}


def lose(change):
    return lambda own: {"training_loss": lambda self, batch: change(self, own.training_loss(self, batch))}


MISTAKES = {
    "a loss of each row": (lose(lambda self, loss: tf.fill([16], loss)), r"`training_loss` must .* shape \(16,\)"),
    "no loss": (lose(lambda self, loss: None), "`training_loss` must return one number.* Received: None"),
    "options as a method": (
        lambda own: {"example_options": lambda self: {}},
        "`example_options` of Mine must be a prop",
    ),
    "no options": (lambda own: {"example_options": {}}, r"`example_options` .* of max_length: int, .* Received: \{\}"),
    "an unknown option": (lambda own: {"example_options": {"max_length": 5, "x": 1}}, "`example_options`"),
    "an option of another type": (lambda own: {"example_options": {"max_length": "5"}}, "`example_options`"),
    "a variable of TensorFlow": (
        lambda own: make_and(own, lambda self: setattr(self, "w", tf.Variable(1.0))),
        "`w` must be made by `add_weight` or `keras.Variable`. Received: a tf.Variable",
    ),
    "a list of them": (
        lambda own: make_and(own, lambda self: setattr(self, "w", [tf.Variable(1.0)])),
        "`w` must be made",
    ),
    "a layer built late": (
        lambda own: {
            **make_and(own, lambda self: setattr(self, "late", keras.layers.Dense(3))),
            **lose(lambda self, loss: loss + tf.reduce_sum(self.late(tf.ones([1, 2]))))(own),
        },
        "`make_variables` must make every weight, .* Received: .*kernel, which came later",
    ),
    "a layer that only scores need": (
        lambda own: {
            **make_and(own, lambda self: setattr(self, "late", keras.layers.Dense(32))),
            "user_vectors": lambda self, batch, training=False: self.late(own.user_vectors(self, batch)),
        },
        "`make_variables` must make every weight, .* Received: .*kernel, which came later",
    ),
    "an unknown kind of rows": (
        lambda own: make_and(own, lambda self: self.add_table("t", 5, 3, 0.1, "item")),
        "`row_kind` must be None or one of items, .* Received: row_kind='item'",
    ),
    "too few rows": (
        lambda own: make_and(own, lambda self: self.add_table("t", 5, 3, 0.1, "items")),
        "`t` must have 21 rows or more with row_kind=items. Received: 5",
    ),
    "a short table": (
        lambda own: {"score_products": lambda self: (self.outputs_table[1:], None)},
        "`score_products` must return a table and biases of equally many rows, at least 21, .* Received: 20 rows",
    ),
    "a table alone": (
        lambda own: {"score_products": lambda self: self.outputs_table},
        "`score_products` must return a table and biases or None. Received: ",
    ),
    "a bias too few": (
        lambda own: {"score_products": lambda self: (self.outputs_table, self.bias[1:])},
        "`score_products` .* Received: 21 and 20 rows",
    ),
    "vectors of three axes": (
        lambda own: {"user_vectors": lambda self, batch, training=False: self.running_means(batch["items"])},
        r"`user_vectors` must return a tensor \[b, any\]. Received: shape \(None, None, 32\)",
    ),
    "a score too many": (
        lambda own: {
            "score_products": lambda self: None,
            "score_vectors": lambda self, vectors, candidates=None: tf.matmul(
                vectors, self.outputs_table[:, :], transpose_b=True
            ),
        },
        r"`score_vectors` must return a tensor \[b, 20\]. Received: shape \(None, 21\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_model_is_one_line(own, fit, name):
    members, words = MISTAKES[name]
    with pytest.raises(b4r.UserError, match=words):
        fit(members(own), protocol="select")


@pytest.mark.long
def test_new_items_need_a_marked_table(own, fit):
    def add(self):
        self.more = keras.layers.Embedding(self.num_items + 1, 4)
        self.more.build()

    def training_loss(self, batch, training=True):
        return own.training_loss(self, batch) + tf.reduce_sum(self.more(batch["items"]) ** 2)

    model = fit({**make_and(own, add), "training_loss": training_loss})
    more = pd.DataFrame({"user": [1, 2], "item": [99, 99], "time": [9, 9]})
    for change in (model.update, lambda rows: model.continue_training(rows, train=True, steps=1, silent=True)):
        with pytest.raises(b4r.UserError, match=r"`mark_rows` must say what the rows of .*embeddings are"):
            change(more)


@pytest.mark.long
def test_a_run_whose_class_is_not_imported_says_so(own, fit, tmp_path):
    kept = fit({}, protocol="select", workdir=tmp_path / "run")
    metrics, lines = kept.metrics, repr(kept)
    for models in (b4r.MODELS, MODEL_SETTINGS):
        models.pop("mine")
    model = b4r.open(tmp_path / "run")
    assert model.metrics == metrics and repr(model) == lines
    words = "run.*: its model is mine, of your own; import its class in Python first$"
    calls = [
        *(model.plot, lambda: model.continue_training(ACTIONS, train=True), lambda: model.update(ACTIONS)),
        *(lambda: compare(kept.workdir, kept.workdir), lambda: b4r.fit(ACTIONS, workdir=kept.workdir, **QUICK)),
    ]
    for call in calls:
        with pytest.raises(b4r.UserError, match=words):
            call()


@pytest.mark.long
def test_layers_of_keras_with_dropout_are_exported(own, fit):
    def add(self):
        self.gru = keras.layers.GRU(32, return_sequences=True, dropout=0.1)
        self.gru.build((None, None, 32))
        self.dense = keras.layers.Dense(32)
        self.dense.build((None, None, 32))

    def running_means(self, items, training=False):
        return self.dense(self.gru(own.running_means(self, items), training=training))

    model = fit({**make_and(own, add), "running_means": running_means})
    assert len(model.recommend(history=[4, 6], k=3)) == 3 and len(model.saved.read_weights()) == 8
    assert len(model.update(pd.DataFrame({"user": [1], "item": [99], "time": [9]})).recommend(history=[99], k=2)) == 2
