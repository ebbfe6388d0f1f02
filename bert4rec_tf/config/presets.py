"""Presets: settings worth having a name, as data, each with what to expect and how long it takes.

`fast` is the default. Where it trains on the validation item, its number of steps was chosen beforehand, on that item
or (ML-1m) by the time they take, so that one training is enough; `--notrain_on_validation` chooses anew. `released` is
what the authors' scripts run, `table2` the paper's best rows (d = 256).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bert4rec_tf.config.data_names import Interactions, family, is_own, named
from bert4rec_tf.config.run import Run
from bert4rec_tf.foundation.errors import UserError, unknown_name


@dataclass(frozen=True)
class Preset:
    """Settings with what is known of them.

    Attributes:
        expect: the quality to expect, and where that is known from.
        takes: how long it takes, and on what.
        settings: flat settings, as `Run.make` takes them.
    """

    expect: str
    takes: str
    settings: Mapping[str, Any]


_DATA = {
    "beauty": {"max_length": 50, "mask_proportion": 0.6, "max_predictions": 30, "window_step": 0.1},
    "steam": {"max_length": 50, "mask_proportion": 0.4, "max_predictions": 20, "window_step": 0.5},
    "ml-1m": {"max_length": 200, "mask_proportion": 0.2, "max_predictions": 40, "window_step": 0.5},
    "ml-20m": {"max_length": 200, "mask_proportion": 0.2, "max_predictions": 20, "window_step": 0.5},
}
"""What the authors' scripts set for a data set whatever the width of the model."""

_DROPOUT = {
    "beauty": {64: (0.5, 0.2), 128: (0.5, 0.2), 256: (0.5, 0.2)},
    "steam": {64: (0.1, 0.1), 128: (0.1, 0.1), 256: (0.2, 0.2)},
    "ml-1m": {64: (0.2, 0.2), 128: (0.5, 0.2), 256: (0.5, 0.2)},
    "ml-20m": {64: (0.1, 0.1), 128: (0.1, 0.1), 256: (0.1, 0.1)},
    "synthetic": {64: (0.0, 0.0)},
    "synthetic-orderless": {64: (0.0, 0.0)},
}
"""Data set -> width -> the released dropout of hidden states and of attention."""


def dropout_of(dataset: str, hidden_dim: int) -> dict[str, float]:
    """Returns the released `dropout` and `attention_dropout` of the largest known width up to `hidden_dim`, or of the
    smallest one."""
    known = _DROPOUT[dataset]
    nearest = max((width for width in known if width <= hidden_dim), default=min(known))
    return dict(zip(("dropout", "attention_dropout"), known[nearest]))


_ORIGINAL = {
    "learning_rate": 1e-4,
    "warmup_steps": 100,
    "use_token_type": True,
    "train_on_validation": True,
}


def _released(dataset: str, hidden_dim: int, dropout: float, attention_dropout: float, steps: int) -> dict[str, Any]:
    return {
        **_DATA[dataset],
        **_ORIGINAL,
        "hidden_dim": hidden_dim,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
        "steps": steps,
    }


def _fast(dataset: str, dropout: float, attention_dropout: float, **settings: Any) -> dict[str, Any]:
    return {
        **_DATA[dataset],
        "hidden_dim": 64,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
        "learning_rate": 1e-3,
        "warmup_steps": 1_000,
        "bias_correction": True,
        "batch_size": 128,
        **settings,
    }


_SYNTHETIC = {
    "max_length": 20,
    "mask_proportion": 0.5,
    "max_predictions": 10,
    "window_step": 0.5,
    "hidden_dim": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 3e-3,
    "warmup_steps": 500,
    "batch_size": 128,
    "steps": 1_500,
    "evaluate_every": 300,
}


def _estimated(hours: int) -> str:
    return f"About {hours} hours on two cores, estimated from the time of a step."


_NOT_MEASURED = "Not measured yet."
_NO_ORDER = "Nothing: there is no order to learn."
_NOT_KNOWN = "Not known of these data."
_SYNTHETIC_TAKES = "Two trainings of about 40 seconds on two cores."

PRESETS: dict[str, dict[str, Preset]] = {
    "fast": {
        "synthetic": Preset("At least 80 % of the generator's own NDCG@10.", _SYNTHETIC_TAKES, _SYNTHETIC),
        "synthetic-orderless": Preset(_NO_ORDER, _SYNTHETIC_TAKES, _SYNTHETIC),
        "beauty": Preset(
            "NDCG@10 .184 on the test item, .193 on the validation item where that is held out (measured).",
            "30 minutes on two cores that did other work too, 44 minutes of processor time (measured).",
            _fast("beauty", 0.5, 0.2, batch_size=64, steps=24_000, evaluate_every=2_000, train_on_validation=True),
        ),
        "steam": Preset(_NOT_MEASURED, _estimated(4), _fast("steam", 0.1, 0.1, steps=60_000)),
        "ml-1m": Preset(
            "NDCG@10 .479 on the test item (measured; on a file that orders equal times otherwise than the authors').",
            "74 minutes of one thread (measured); some 52 minutes on two cores, by the time of a step.",
            _fast(
                "ml-1m",
                0.0,
                0.0,
                batch_size=32,
                steps=48_000,
                warmup_steps=2_000,
                mask_proportion=0.4,
                max_predictions=80,
                evaluate_every=4_000,
                train_on_validation=True,
            ),
        ),
        "ml-20m": Preset(_NOT_MEASURED, _estimated(8), _fast("ml-20m", 0.1, 0.1, steps=80_000)),
    },
    "released": {
        "beauty": Preset("NDCG@10 .1832 (Table 5).", _estimated(26), _released("beauty", 64, 0.5, 0.2, 400_000)),
        "steam": Preset("NDCG@10 .2261 (Table 2).", _estimated(130), _released("steam", 256, 0.2, 0.2, 800_000)),
        "ml-1m": Preset("NDCG@10 .4759 (Table 5).", _estimated(56), _released("ml-1m", 64, 0.2, 0.2, 400_000)),
        "ml-20m": Preset("NDCG@10 .4513 (Table 5).", _estimated(35), _released("ml-20m", 64, 0.1, 0.1, 400_000)),
    },
    "table2": {
        "beauty": Preset("NDCG@10 .1862 (Table 2).", _estimated(110), _released("beauty", 256, 0.5, 0.2, 400_000)),
        "steam": Preset("NDCG@10 .2261 (Table 2).", _estimated(130), _released("steam", 256, 0.2, 0.2, 800_000)),
        "ml-1m": Preset("NDCG@10 .4818 (Table 2).", _estimated(155), _released("ml-1m", 256, 0.5, 0.2, 400_000)),
        "ml-20m": Preset("NDCG@10 .5340 (Table 2).", _estimated(160), _released("ml-20m", 256, 0.1, 0.1, 400_000)),
    },
}
"""Name -> data set -> preset. The expectations of `released` and `table2` are the paper's own results."""


PATIENCE = 5
"""Measurements without a better one after which a training of another model ends, where its steps are chosen."""

_ADAM = {
    "bias_correction": True,
    "epsilon": 1e-8,
    "weight_decay": 0.0,
    "clip_norm": 0.0,
    "schedule": "constant",
    "warmup_steps": 0,
    "learning_rate": 1e-3,
    "patience": PATIENCE,
}
_GRU = {**_ADAM, "optimizer": "adagrad", "batch_size": 128}

OTHERS: dict[str, dict[str, Any]] = {
    "pop": {},
    "bpr_mf": {**_ADAM, "batch_size": 256},
    "ncf": {**_ADAM, "batch_size": 256},
    "fpmc": {**_ADAM, "batch_size": 256},
    "gru4rec": {**_GRU, "learning_rate": 0.05},
    "gru4rec_plus": {**_GRU, "learning_rate": 0.05, "momentum": 0.1},
    "caser": {**_ADAM, "batch_size": 512},
    "sasrec": {**_ADAM, "batch_size": 128, "beta_2": 0.98},
}
"""Model -> what its authors set, for every data set. Where that is plain SGD (BPR-MF, FPMC), or differs from one of
their data sets to the next (the GRUs), what serves for all of these."""


def _chosen(steps: int, expect: str = _NOT_MEASURED, takes: str = _NOT_MEASURED, **settings: Any) -> Preset:
    """Steps that were chosen before on the validation item, so that one training with that item is enough."""
    return Preset(expect, takes, {**settings, "steps": steps, "train_on_validation": True, "patience": 0})


def _at_most(
    steps: int, evaluate_every: int, expect: str = _NOT_MEASURED, takes: str = _NOT_MEASURED, **settings: Any
) -> Preset:
    return Preset(expect, takes, {**settings, "steps": steps, "evaluate_every": evaluate_every})


TUNED: dict[tuple[str, str], Preset] = {
    ("caser", "synthetic"): Preset(
        "NDCG@10 .53 on the validation item, .24 with its authors' three targets (measured).",
        "A minute on two cores.",
        {"num_targets": 1},
    ),
    ("caser", "synthetic-orderless"): Preset(_NO_ORDER, "A minute on two cores.", {"num_targets": 1}),
    ("pop", "beauty"): Preset("NDCG@10 .030 on the test item (measured).", "Half a minute (measured).", {}),
    ("pop", "ml-1m"): Preset("NDCG@10 .066 on the test item (measured).", "10 seconds (measured).", {}),
    ("bpr_mf", "beauty"): _chosen(
        40_000, "NDCG@10 .137 on the test item (measured).", "14 minutes of one thread (measured)."
    ),
    ("ncf", "beauty"): _at_most(
        40_000, 2_000, "NDCG@10 .103 on the test item (measured).", "18 minutes of one thread (measured).", l2=1e-3
    ),
    ("fpmc", "beauty"): _at_most(
        40_000, 1_000, "NDCG@10 .165 on the test item (measured).", "37 minutes of one thread (measured)."
    ),
    ("gru4rec", "beauty"): _chosen(
        29_000, "NDCG@10 .166 on the test item (measured).", "47 minutes of one thread beside other work (measured)."
    ),
    ("gru4rec_plus", "beauty"): _at_most(
        16_000, 1_000, "NDCG@10 .197 on the test item (measured).", "24 minutes of one thread (measured)."
    ),
    ("caser", "beauty"): _chosen(
        39_000, "NDCG@10 .132 on the test item (measured).", "45 minutes of one thread beside other work (measured)."
    ),
    ("sasrec", "beauty"): _chosen(
        38_000, "NDCG@10 .176 on the test item (measured).", "38 minutes of one thread beside other work (measured)."
    ),
    ("bpr_mf", "ml-1m"): _chosen(
        40_000,
        "NDCG@10 .208 on the test item (measured).",
        "6 minutes of one thread (measured).",
        batch_size=1_024,
        learning_rate=2e-3,
        l2=1e-4,
    ),
    ("ncf", "ml-1m"): _chosen(
        40_000, "NDCG@10 .186 on the test item (measured).", "26 minutes of one thread beside other work (measured)."
    ),
    ("fpmc", "ml-1m"): _at_most(
        80_000, 2_000, "NDCG@10 .344 on the test item (measured).", "17 minutes of one thread (measured)."
    ),
    ("gru4rec", "ml-1m"): _at_most(
        6_000,
        250,
        "NDCG@10 .430 on the test item (measured).",
        "89 minutes of one thread beside other work (measured).",
    ),
    ("gru4rec_plus", "ml-1m"): _at_most(
        2_000,
        100,
        "NDCG@10 .473 on the test item (measured).",
        "Two trainings of 37 minutes of one thread beside other work (the second measured).",
    ),
    ("caser", "ml-1m"): Preset(
        "NDCG@10 .405 on the test item (measured).", "21 minutes of one thread beside other work (measured).", {}
    ),
    ("sasrec", "ml-1m"): _at_most(
        12_000,
        500,
        "NDCG@10 .443 on the test item (measured).",
        "107 minutes of one thread beside other work (measured).",
        dropout=0.2,
    ),
    ("sasrec", "ml-20m"): _at_most(40_000, 1_000, dropout=0.2),
}
"""(Model, data set) -> what a search on the validation item found, over what the model's authors set. The built-in
chain is of first order: asked for the next three items at once, Caser's scores must spread over the third as well.
ML-1m has 47 batches of 128 histories, so 40,000 of them would be 850 epochs."""

OWN = Preset(
    _NOT_KNOWN,
    "At most 10,000 steps of 128 examples, about 20 minutes on two cores where there are 50,000 items, and a second "
    "training of as many steps as were chosen.",
    {
        "max_length": 50,
        "mask_proportion": 0.4,
        "max_predictions": 20,
        "window_step": 0.5,
        "hidden_dim": 64,
        "dropout": 0.2,
        "attention_dropout": 0.2,
        "learning_rate": 1e-3,
        "warmup_steps": 500,
        "bias_correction": True,
        "batch_size": 128,
        "steps": 10_000,
        "evaluate_every": 500,
        "patience": 6,
    },
)
"""For data of which nothing is known: N, rho and the step of the windows as for Steam (50 items hold the whole history
of most users of a shop, and a history of five has two masks), the rest as `fast` found it on Beauty, with less dropout.
It stops where six measurements bring nothing, so a small data set takes minutes. For histories of some hundred items
take ML-1m's `--max_length=200 --mask_proportion=0.2 --max_predictions=40`."""

_STEPS = {"synthetic": (1_500, 300), "synthetic-orderless": (1_500, 300)}
"""Data set -> `_steps`, where they are others."""

_LONG = {"ml-1m": 200, "ml-20m": 200}
"""Where the models that read whole histories read more than 50 items."""


def find(name: str, dataset: str, model: str = "bert4rec") -> Preset:
    """Returns the preset `name` for `dataset` and `model`. Raises UserError for an unknown name or pair."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    dataset = family(dataset)
    known = {dataset for rows in PRESETS.values() for dataset in rows}
    if dataset not in known and not is_own(dataset):
        raise unknown_name("dataset", dataset, known)
    if model in OTHERS:
        if name != "fast":
            raise UserError(f"Preset {name!r} is of bert4rec; {model} has `fast` alone")
        settings = {**OTHERS[model], **_steps(dataset), "max_length": _LONG.get(dataset, 50)}
        unknown = _NOT_KNOWN if is_own(dataset) else _NOT_MEASURED
        tuned = TUNED.get((model, dataset), Preset(unknown, unknown, {}))
        return dataclasses.replace(tuned, settings={**settings, **tuned.settings})
    if is_own(dataset) and name == "fast":
        return OWN
    if dataset not in PRESETS[name]:
        raise UserError(f"Preset {name!r} has no settings for {dataset!r}. It has: {', '.join(PRESETS[name])}")
    return PRESETS[name][dataset]


def _steps(dataset: str) -> dict[str, int]:
    """Returns the most steps of the other models, and how many lie between two measurements."""
    steps, evaluate_every = _STEPS.get(dataset, (10_000, 500) if is_own(dataset) else (40_000, 1_000))
    return {"steps": steps, "evaluate_every": evaluate_every}


def _has_other_sizes(dataset: str, model: str, chosen: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Tells whether settings give another architecture than the preset's."""
    architecture = Run.make(dataset, model, **chosen).architecture
    return any(getattr(architecture, name, value) != value for name, value in settings.items())


def make_run(
    dataset: str | Interactions,
    model: str = "bert4rec",
    preset: str = "fast",
    seed: int = 1,
    source: str = "processed",
    **settings: Any,
) -> Run:
    """Makes the run of a preset, with single settings changed.

    The other models' numbers of steps that were chosen before hold for the preset's architecture alone; with another
    they are chosen anew. Whoever names `retrain` holds the validation item out, whatever the preset does.

    Args:
        dataset: a name in `DATASETS`, or a file of one's own (or its `name`): the preset is then OWN.
        model: a name in `models.MODELS`.
        preset: a name in `PRESETS`.
        seed: seed of the masks, the initial weights, dropout and the order of examples.
        source: `processed` or `raw`, where a data set comes from.
        **settings: fields of the settings in `config`, over the preset's.

    Raises:
        UserError: for an unknown name, a value out of its range, or a setting that nothing would come of.
    """
    dataset = dataset.name if isinstance(dataset, Interactions) else named(dataset, source)
    base = dict(find(preset, dataset, model).settings)
    known = set(Run.make(dataset, model).flat())
    chosen = {name: value for name, value in base.items() if name in known}
    if chosen.get("train_on_validation") and "train_on_validation" not in settings:
        held_out = "retrain" in settings
        if model in OTHERS and (held_out or _has_other_sizes(dataset, model, chosen, settings)):
            chosen |= {**_steps(family(dataset)), "train_on_validation": False, "patience": PATIENCE}
        elif held_out:
            chosen["train_on_validation"] = False
    run = Run.make(dataset, model, seed, **{**chosen, **settings})
    run.check_named(settings)
    return run
