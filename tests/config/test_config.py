"""Settings, runs and presets."""

import dataclasses
import json
import re

import numpy as np
import pytest
from support.paths import ROOT

from bert4rec_tf.config import data_names, presets
from bert4rec_tf.config.data_names import Interactions, is_own
from bert4rec_tf.config.model_settings import AUTO, MASKED_MODELS, MODEL_SETTINGS
from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.config.presets import own
from bert4rec_tf.config.run_record import EvaluationSettings, MaskingSettings, Run, TrainingSettings, list_settings
from bert4rec_tf.config.setting_fields import get_field_type
from bert4rec_tf.data.sources.datasets import DATASETS
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import TrainingWarning
from bert4rec_tf.runs.trainings import list_trainings

every_preset = pytest.mark.parametrize("entry", presets.PRESETS.values(), ids=lambda entry: entry.command[30:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "ncf", "hidden_dim": 60}, "`hidden_dim` must be a multiple of 8"),
        (
            {"model": "sasrec", "loss": "bpr_max"},
            "`loss` must be one of ('binary', ",
        ),
        ({"model": "bpr_mf", "l2": -1.0}, "`l2` must be at least 0"),
        ({"model": "fpmc", "dropout": 0.1}, "Unknown setting of model 'fpmc': 'dropout'. It is one of "),
        ({"dropout": 1.5}, "`dropout` must be at least 0 and below 1. Received: dropout=1.5"),
        ({"dropout": float("nan")}, "`dropout` must be a number"),
        ({"attention_dropout": -0.1}, "`attention_dropout` must be at least 0"),
        ({"hidden_dim": 0}, "`hidden_dim` must be at least 1"),
        ({"hidden_dim": 64.0}, "`hidden_dim` must be a whole number"),
        ({"hidden_dim": 64, "num_heads": 3}, "`num_heads` must divide `hidden_dim`"),
        ({"max_length": 1}, "`max_length` must be at least 2"),
        ({"masking": "both"}, "`masking` must be one of"),
        ({"mask_copies": -1}, "`mask_copies` must be at least 0"),
        ({"candidates_seed": -1}, "`candidates_seed` must be at least 0"),
        ({"weight_decay": -1.0}, "`weight_decay` must be at least 0"),
        ({"protocol": "select", "patience": -1}, "`patience` must be at least 0"),
        ({"mask_proportion": 0.0}, "`mask_proportion` must be above 0 and at most 1"),
        ({"mask_prob": 1.1}, "`mask_prob` must be"),
        ({"window_step": -0.5}, "`window_step` must be above 0, or -1"),
        ({"window_step": 0.01}, "`window_step` x `max_length` must be at least 1"),
        ({"learning_rate": float("inf")}, "`learning_rate` must be a number"),
        ({"learning_rate": 10**400}, "`learning_rate` must be a number"),
        ({"window_step": 2.0}, "`window_step` must be at most 1"),
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"steps": True}, "`steps` must be a whole number"),
        ({"learning_rate": 0.0}, "`learning_rate` must be above 0"),
        ({"learning_rate": "fast"}, "`learning_rate` must be a number"),
        ({"steps": 50, "warmup_steps": 50}, "`warmup_steps` must be below `steps`"),
        ({"beta_2": 1.0}, "`beta_2` must be"),
        ({"num_negatives": 0}, "`num_negatives` must be at least 1"),
        ({"protocol": "fixed", "patience": 3}, "`patience` must be 0 with protocol=fixed"),
        ({"protocol": "retrain"}, "`protocol` must be one of ('fixed', 'select', 'select_and_retrain', 'all')"),
        ({"hiden_dim": 64}, "Unknown setting of model 'bert4rec': 'hiden_dim'. Did you mean 'hidden_dim'?"),
    ],
)
def test_an_invalid_setting_names_the_argument_and_its_limits(settings, message):
    with pytest.raises(UserError) as raised:
        Run.make("beauty", **settings)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"dataset": "synthetic", "preset": "released"},
            "Model 'bert4rec' has no preset 'released' for 'synthetic'. It has: fast",
        ),
        ({"model": "bert5rec"}, "Did you mean 'bert4rec'?"),
        ({"preset": "quick"}, "Unknown preset: 'quick'"),
        ({"dataset": "yelp"}, "Unknown dataset: 'yelp'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(arguments, message):
    with pytest.raises(UserError) as raised:
        presets.make_run(**{"dataset": "beauty", **arguments})
    assert message in str(raised.value)


def test_every_setting_and_the_seed_change_the_digest():
    base = Run.make("beauty")
    changed = {
        "masking": "dynamic",
        "optimizer": "adagrad",
        "schedule": "constant",
        "protocol": "select",
        "num_heads": 4,
        "initial_vectors": "cooccurrence",
        "initial_layers": "identity",
        "momentum": 0.5,
        "hidden_dim": 32,
        "mask_prob": 0.5,
        "beta_1": 0.5,
        "beta_2": 0.5,
        "use_item_features": "add",
        "loss": "sampled_softmax",
        "negative_sampling": "log_uniform",
        "evidence": "transitions",
        "evidence_gain": 2.0,
        "evidence_popularity": -0.1,
        "evidence_temperature": 2.0,
        "selection_metric": "full",
    }
    digests = {base.digest, Run.make("ml-1m").digest, Run.make("beauty", seed=2).digest}
    for name, value in base.flatten().items():
        other = not value if isinstance(value, bool) else changed.get(name) or value * 2 or type(value)(1)
        digests.add(Run.make("beauty", **{name: other}).digest)
    assert len(digests) == 3 + len(base.flatten())


def test_the_published_results_have_the_digests_of_their_runs():
    lines = (ROOT / "experiments" / "results" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    results = [json.loads(line) for line in lines]
    assert len(results) > 70
    for result in results:
        run = Run.from_dict(result["run"])
        assert run.digest == result["key"] == result["digest"] and run.to_dict() == result["run"]


def test_a_setting_younger_than_published_results_is_recorded_where_it_is_changed():
    plain, changed = Run.make("beauty"), Run.make("beauty", positions_from_last=True)
    assert "positions_from_last" not in plain.to_dict()["architecture"]
    assert changed.to_dict()["architecture"]["positions_from_last"] is True
    assert [Run.from_dict(run.to_dict()) for run in (plain, changed)] == [plain, changed]


def has_presets(dataset):
    return ("fast", dataset, "pop") in presets.PRESETS or dataset in presets.SAME_AS


@pytest.mark.parametrize("model", MODEL_SETTINGS)
@pytest.mark.parametrize("dataset", [*filter(has_presets, DATASETS), "own-shop"])
def test_every_model_has_a_preset_for_every_data_set(model, dataset):
    run = presets.make_run(dataset, model, size=Size(*own.SHOP) if model == AUTO else None)
    assert run.model == model and Run.from_dict(run.to_dict()) == run
    if model == AUTO and not is_own(dataset):
        with pytest.raises(UserError, match=f"`size` must be the data: auto on '{dataset}' has"):
            presets.make_run(dataset, model)
    elif model != "bert4rec":
        with pytest.raises(UserError, match=f"Model '{model}' has no preset 'released' for '{dataset}'. It has: fast"):
            presets.make_run(dataset, model, "released")


@dataclasses.dataclass
class Size:
    num_users: int
    num_actions: int


@pytest.mark.parametrize("dataset", ["steam", "steam-sample", "new"])
def test_a_data_set_without_a_preset_takes_the_one_for_own_data_of_its_size(dataset):
    for size in (Size(1_000, 9_000), Size(90_000, 900_000)):
        with pytest.warns(TrainingWarning, match=f"^sasrec has no preset 'best' for '{dataset}'; its settings"):
            run = presets.make_run(dataset, "sasrec", "best", size=size)
        expected = own.make_sasrec_settings(size.num_users, size.num_actions)
        assert run.flatten().items() >= expected.items() and run.dataset == dataset
        assert run.training.protocol == "select_and_retrain", "the protocol of a data set"
    assert presets.uses_own_data_rule("best", dataset, "sasrec") and presets.uses_own_data_rule("fast", "new", "caser")


@pytest.mark.parametrize(
    ("size", "model", "width", "batch_size"),
    [
        (Size(6_040, 999_611), "bert4rec", 128, 32),
        (Size(22_363, 198_502), "bert4rec", 128, 128),
        (Size(610, 100_836), "sasrec", 64, 32),
        (Size(1_429, 10_261), "sasrec", 64, 32),
    ],
    ids=["many long", "many short", "few long", "few short"],
)
def test_two_networks_are_trained_by_the_rule_of_one_of_them(size, model, width, batch_size):
    run, alone = (presets.make_run("own-x", name, size=size) for name in ("auto", model))
    names = ("learning_rate", "weight_decay", "beta_2", "epsilon")
    assert [getattr(run.training, name) for name in names] == [getattr(alone.training, name) for name in names]
    assert run.architecture.hidden_dim == width and run.training.batch_size == batch_size
    halved = presets.make_run("own-x", "auto", size=size, batch_size=batch_size // 2)
    assert halved.architecture.masked_batch_size == run.architecture.masked_batch_size // 2
    masked = presets.make_run("own-x", "bert4rec", size=size)
    assert run.masking == masked.masking and run.architecture.masked_batch_size == masked.training.batch_size


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
def test_only_a_data_set_without_a_preset_falls_back():
    assert presets.make_run("beauty", "sasrec", "best", size=Size(9, 99)) == presets.make_run(
        "beauty", "sasrec", "best"
    )
    assert not any(presets.uses_own_data_rule("best", name, "sasrec") for name in ("beauty", "beauty-raw", "own-shop"))
    with pytest.raises(UserError, match="Model 'sasrec' has no preset 'best' for 'steam'"):
        presets.make_run("steam", "sasrec", "best")  # without its size


def test_an_entry_is_of_its_own_model_and_data():
    for (name, dataset, model), entry in presets.PRESETS.items():
        assert entry is presets.find_preset(name, "own-shop" if dataset == data_names.OWN else dataset, model)


GOOD_RECORD = Run.make("beauty").to_dict()


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"model": "bert4rec"},
        {**GOOD_RECORD, "model": "unknown"},
        *({**GOOD_RECORD, **change} for change in ({"extra": 1}, {"training": []}, {"seed": -1})),
    ],
)
def test_an_invalid_record_of_a_run_is_refused(record):
    with pytest.raises(UserError):
        Run.from_dict(record)


def test_every_setting_has_a_help_text_and_one_meaning():
    """Models may share a setting's name, but not with the other groups, and not with another type."""
    common = [
        field.name
        for group in (MaskingSettings, TrainingSettings, EvaluationSettings)
        for field in dataclasses.fields(group)
    ]
    assert len(common) == len(set(common))
    types = {}
    for settings in MODEL_SETTINGS.values():
        for field in dataclasses.fields(settings):
            assert field.name not in common
            assert types.setdefault(field.name, get_field_type(field)) is get_field_type(field)
    assert all(len(field.metadata["help"]) > 10 for field in list_settings().values())


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        (
            "gru4rec",
            {"weight_decay": 0.1},
            "`weight_decay` needs optimizer=adam or rowwise_adagrad. Received: optimizer=adagrad",
        ),
        ("gru4rec", {"epsilon": 1e-6}, "`epsilon` needs optimizer=adam"),
        ("gru4rec", {"optimizer": "adam", "momentum": 0.1}, "`momentum` needs optimizer=adagrad"),
        ("sasrec", {"momentum": 0.1}, "`momentum` needs optimizer=adagrad. Received: optimizer=adam"),
        ("sasrec", {"evidence_gain": 2.0}, "`evidence_gain` needs evidence=transitions. Received: evidence=none"),
        ("bert4rec", {"shared_negatives": 64}, "`shared_negatives` needs loss=sampled_softmax. Received: loss=cross"),
        (
            "bert4rec",
            {"use_positions": False, "positions_from_last": True},
            "`positions_from_last` needs use_positions=True. Received: use_positions=False",
        ),
        ("gru4rec", {"regularization": 0.5}, "`regularization` needs loss=bpr_max. Received: loss=top1"),
        ("gru4rec", {"alpha": 0.5}, "`alpha` needs extra_negatives above 0. Received: alpha=0.5"),
        (
            "sasrec",
            {"protocol": "fixed", "selection_metric": "full"},
            "`selection_metric` needs a protocol that selects: .*, not fixed. Received: selection_metric=full",
        ),
        ("sasrec", {"protocol": "select", "final_share": 0.5}, "`final_share` needs a protocol that trains again"),
        ("sasrec", {"protocol": "fixed", "scale_final_steps": True}, "`scale_final_steps` needs a protocol that"),
        (
            "sasrec",
            {"protocol": "all", "final_share": 0.5, "scale_final_steps": True},
            "`scale_final_steps` needs final_share=0, not 0.5",
        ),
        *(
            (model, {"optimizer": "rowwise_adagrad", **settings}, f"`optimizer` must be adam or adagrad {words}")
            for model, settings, words in [
                ("bert4rec", {}, "with loss=cross_entropy, where .* goes with loss=sampled_softmax"),
                ("sasrec", {"loss": "cross_entropy"}, "with loss=cross_entropy"),
                ("caser", {}, "for caser"),
            ]
        ),
        ("caser", {"mixed_precision": True}, "`mixed_precision` needs model=bert4rec, sasrec, auto. Received: .*caser"),
    ],
)
def test_a_setting_that_nothing_would_come_of_is_refused(model, settings, words):
    with pytest.raises(UserError, match=words):
        presets.make_run("beauty", model, **settings)


@pytest.mark.parametrize("model", sorted({*MODEL_SETTINGS} - {"caser"}))
def test_rows_can_be_updated_alone_where_a_step_reads_few(model):
    loss = {"loss": "sampled_softmax"} if model in MASKED_MODELS else {}
    options = {"size": Size(*own.SHOP)} if model == AUTO else {}
    assert presets.make_run("beauty", model, optimizer="rowwise_adagrad", protocol="select", **loss, **options).training


def test_a_run_that_was_made_with_such_a_setting_can_be_read():
    record = Run.make("beauty", "caser", mixed_precision=True).to_dict()
    assert Run.from_dict(record).to_dict() == record


@pytest.mark.parametrize(
    ("dataset", "steps", "warmup"),
    [
        ("synthetic", steps, warmup)
        for steps, warmup in ((2_000, 200), (1_050, 200), (210, 40), (60, 11), (2, 0), (1, 0))
    ]
    + [("beauty", steps, warmup) for steps, warmup in ((24_000, 1_000), (10_000, 1_000), (1_001, 100), (900, 90))],
)
def test_fewer_steps_have_no_larger_share_of_warm_up(dataset, steps, warmup):
    """The presets have 200 of 1,050 steps, which is more than a tenth, and 1,000 of 24,000, which is less."""
    assert presets.make_run(dataset, steps=steps).training.warmup_steps == warmup
    assert presets.make_run(dataset, steps=steps, warmup_steps=0).training.warmup_steps == 0


@pytest.mark.parametrize("named", [{"mask_proportion": 0.3}, {"mask_prob": 0.8}, {"max_predictions": 5}])
def test_settings_of_random_masks_are_refused_where_no_example_has_them(named):
    (name,) = named
    with pytest.raises(UserError, match=f"`{name}` needs mask_copies above 0.*Received: {name}=.*, mask_copies=0"):
        presets.make_run("beauty", preset="best", **named)
    assert presets.make_run("beauty", preset="best", mask_copies=1, **named).masking.mask_copies == 1


@pytest.mark.parametrize(
    "entry", [entry for entry in presets.PRESETS.values() if entry.search], ids=lambda entry: entry.command[30:]
)
def test_an_entry_s_search_selects_the_number_of_steps(entry):
    assert entry.settings["protocol"] == "fixed"
    selected = presets.make_run(entry.dataset, entry.model, entry.name, protocol="select").flatten()
    expected = {**entry.settings, **entry.search, "protocol": "select"}
    assert {name: selected[name] for name in expected} == expected and selected["patience"] > 0


@every_preset
def test_a_preset_s_command_makes_its_run(entry):
    program, *given = entry.command.removeprefix("python -m ").split()
    flags = dict(flag.removeprefix("--").split("=") for flag in given)
    assert program == "bert4rec_tf.run"
    dataset = Interactions("shop.csv") if flags.get("interactions") else flags["dataset"]
    assert entry.dataset == data_names.OWN if "interactions" in flags else dataset == entry.dataset in DATASETS
    made = presets.make_run(dataset, flags["model"], flags["preset"])
    settings = {**entry.settings, **(entry.rule(*own.SHOP) if entry.rule else {})}
    assert {key: made.flatten()[key] for key in settings} == settings


def test_every_data_set_of_the_paper_has_every_preset():
    names = set(presets.NAMES) - {"best"}
    assert all((name, dataset, "bert4rec") in presets.PRESETS for name in names for dataset in read_paper()["table1"])


def test_released_settings_are_the_authors_scripts():
    run = presets.make_run("beauty", preset="released")
    flat = run.flatten()
    expected = {
        "max_length": 50,
        "mask_proportion": 0.6,
        "max_predictions": 30,
        "window_step": 0.1,
        "hidden_dim": 64,
        "dropout": 0.5,
        "attention_dropout": 0.2,
        "steps": 400_000,
        "num_layers": 2,
        "num_heads": 2,
        "batch_size": 256,
        "learning_rate": 1e-4,
        "warmup_steps": 100,
        "weight_decay": 0.01,
        "clip_norm": 5.0,
        "masking": "static",
        "mask_copies": 10,
        "use_token_type": True,
        "protocol": "fixed",
        "bias_correction": False,
    }
    assert {name: flat[name] for name in expected} == expected
    assert presets.make_run("steam", preset="table2").architecture.num_heads == 8


def test_a_gain_of_evidence_that_is_not_given_is_chosen_on_validation_items():
    def protocol(**settings):
        return presets.make_run("beauty", evidence="transitions", **settings).training.protocol

    assert protocol() == "select_and_retrain"
    assert protocol(evidence_gain=2.0, evidence_popularity=0.0) == "fixed"
    with pytest.raises(UserError, match="must be given with protocol=fixed"):
        protocol(protocol="fixed")


def test_steps_chosen_for_one_architecture_are_chosen_anew_for_another():
    def training(**settings):
        made = presets.make_run("beauty", "sasrec", **settings).training
        return made.protocol, made.patience, made.steps

    chosen = training()
    assert chosen[:2] == ("fixed", 0)
    assert training(hidden_dim=50) == training(learning_rate=2e-3) == chosen
    assert training(loss="cross_entropy") == training(hidden_dim=64) == ("select_and_retrain", 5, 40_000)
    assert training(hidden_dim=64, steps=7) == ("select_and_retrain", 5, 7)
    assert training(hidden_dim=64, protocol="fixed") == chosen
    assert training(protocol="select") == ("select", 5, 40_000)
    assert training(protocol="select_and_retrain") == training(protocol="select_and_retrain", patience=5)
    assert training(protocol="select", patience=2, steps=7) == ("select", 2, 7)


@pytest.mark.parametrize("model", ["bert4rec", "ncf", "sasrec"])
@pytest.mark.parametrize("dataset", ["beauty", "ml-1m", "synthetic"])
def test_protocol_select_holds_the_validation_item_out(dataset, model):
    """Also where the preset's steps were chosen before, so that it is in the only training."""
    assert list_trainings(presets.make_run(dataset, model, protocol="select")) == ["select"]
    assert list_trainings(presets.make_run(dataset, model, protocol="select_and_retrain")) == [
        "select",
        "retrain",
    ]


@pytest.mark.parametrize("value", [None, ["bert4rec"]], ids=str)
@pytest.mark.parametrize("name", ["model", "preset", "source"])
def test_a_name_that_is_no_text_is_unknown(name, value):
    with pytest.raises(UserError, match=rf"Unknown {name}: {re.escape(repr(value))}\..* Known: "):
        presets.make_run("beauty", **{name: value})


def test_truth_and_texts_of_numpy_are_settings():
    settings = {"bias_correction": True, "optimizer": "adagrad"}
    run = Run.make("x", **{name: np.array([value])[0] for name, value in settings.items()})
    assert run == Run.make("x", **settings) and run.digest == Run.make("x", **settings).digest
    with pytest.raises(UserError, match="`seed` must be a whole number"):
        Run.make("x", seed=np.datetime64(5, "ns"))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float32, np.float64])
def test_numbers_of_numpy_are_settings(kind):
    settings = MODEL_SETTINGS["bert4rec"]
    assert settings(dropout=kind(0)).dropout == 0.0 and type(settings(dropout=kind(0)).dropout) is float
    if issubclass(kind, np.integer):
        assert type(settings(max_length=kind(5)).max_length) is int
        return
    with pytest.raises(UserError, match="`max_length` must be a whole number"):
        settings(max_length=kind(5))


@pytest.mark.parametrize("model", ["auto", "sasrec"])
def test_numbers_of_numpy_give_the_run_of_python_s(model):
    size = Size(5_000, 60_000)
    for settings in ({"steps": 500}, {"batch_size": 32}, {"steps": 5, "evaluate_every": 2}):
        numbers = {name: np.int64(value) for name, value in settings.items()}
        run = presets.make_run("own-frame", model, size=size, **settings)
        assert presets.make_run("own-frame", model, "fast", np.int64(1), size=size, **numbers) == run


@pytest.mark.parametrize("model", ["auto", "bert4rec", "sasrec"])
def test_what_a_named_setting_asks_of_others_follows_it(model):
    size = Size(5_000, 60_000)
    run = presets.make_run("own-frame", model, size=size, use_item_features="alone", steps=240)
    assert run.architecture.initial_vectors == "random" and run.training.evaluate_every == 30
    assert presets.make_run("own-frame", model, size=size, steps=240, evaluate_every=7).training.evaluate_every == 7
    with pytest.raises(UserError, match="`initial_vectors` must be random"):
        presets.make_run("own-frame", model, size=size, use_item_features="alone", initial_vectors="cooccurrence")


@pytest.mark.parametrize("model", ["pop", "item_transitions"])
def test_models_that_only_count_ignore_settings_of_training(model):
    run = presets.make_run("beauty", model, mixed_precision=True, momentum=0.1, protocol="fixed", final_share=0.5)
    assert run.model == model


def test_a_later_training_changes_what_follows_from_other_settings():
    run = presets.make_run("own-x", "bert4rec")
    mix = {"evidence_gain": 1.0, "evidence_popularity": 0.1}
    assert run.training.patience and not presets.change_run(run, "own-x", protocol="fixed", **mix).training.patience
    assert presets.change_run(run, "own-x", use_item_features="alone").architecture.initial_vectors == "random"


def test_true_is_no_number():
    with pytest.raises(UserError, match=r"`max_length` must be a whole number\. Received: max_length=True"):
        MODEL_SETTINGS["bert4rec"](max_length=True)


def test_other_steps_take_back_where_a_run_was_to_stop():
    run = presets.make_run("own-x", "bpr_mf", steps=2000, stop_after=1500)
    shorter = presets.change_run(run, "own-x", steps=500)
    assert (shorter.training.steps, shorter.training.stop_after) == (500, 0)
    assert presets.change_run(run, "own-x", steps=900, stop_after=300).training.stop_after == 300
    assert presets.change_run(run, "own-x", batch_size=7).training.stop_after == 1500
