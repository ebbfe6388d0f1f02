"""The preset `fast`, the default: settings for two cores, found on the validation items.

If `protocol` is `fixed`, the number of steps was chosen before, on the validation items or (BERT4Rec on ML-1m) by the
time they take, so one training is enough.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bert4rec_tf.config.data_names import OWN
from bert4rec_tf.config.model_settings import COUNTING_MODELS
from bert4rec_tf.config.presets import own
from bert4rec_tf.config.presets.authors import DATA_SETTINGS, OPTIMIZERS, get_released_dropout
from bert4rec_tf.config.presets.entry import NOT_MEASURED, Preset

NO_ORDER = "Nothing: there is no order to learn."
ONE_THREAD = "of one thread (measured)."
ESTIMATED = "on two cores, estimated from the time of a step."
BESIDE = "of one thread beside other work (measured)."

BERT4REC = {
    "hidden_dim": 64,
    "learning_rate": 1e-3,
    "warmup_steps": 1_000,
    "bias_correction": True,
    "batch_size": 128,
}
BERT4REC_ML_1M = {
    **BERT4REC,
    "max_length": 200,
    "mask_proportion": 0.4,
    "max_predictions": 80,
    "window_step": 0.5,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "batch_size": 32,
    "warmup_steps": 2_000,
    "protocol": "fixed",
    "steps": 48_000,
    "evaluate_every": 4_000,
}

BERT4REC_SYNTHETIC = {
    "max_length": 20,
    "mask_proportion": 0.5,
    "max_predictions": 10,
    "window_step": 0.5,
    "hidden_dim": 64,
    "num_layers": 1,
    "initializer_stddev": 0.05,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 3e-3,
    "warmup_steps": 200,
    "batch_size": 128,
    "protocol": "select",
    "steps": 1_050,
    "evaluate_every": 350,
}
"""The next item depends on the last one only, so one layer is enough. Smaller initial weights, such as the authors',
first learn for hundreds of steps which items are neighbours, and only then which of them comes first."""


def _select_within(steps: int, evaluate_every: int) -> dict[str, Any]:
    """Returns the settings of a training that selects its number of steps."""
    return {"steps": steps, "evaluate_every": evaluate_every, "patience": 5}


def _fix_steps(steps: int) -> dict[str, Any]:
    return {"protocol": "fixed", "steps": steps}


AT_MOST_40_000 = _select_within(40_000, 1_000)


def _make_bert4rec(dataset: str, **settings: Any) -> dict[str, Any]:
    """Returns the settings of BERT4Rec, with the authors' windows, masks and dropout for this data set."""
    return {**BERT4REC, **DATA_SETTINGS[dataset], **get_released_dropout(dataset, 64), **settings}


def _make_entry(
    dataset: str,
    model: str,
    expect: str = NOT_MEASURED,
    takes: str = NOT_MEASURED,
    settings: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
) -> Preset:
    """Returns a preset `fast`. `settings`: those beside OPTIMIZERS. The rest is as for `Preset`."""
    settings = {**OPTIMIZERS.get(model, {}), **(settings or {})}
    return Preset("fast", dataset, model, expect, takes, settings, search or {})


def _make_measured(dataset: str, model: str, ndcg: str, takes: str, *settings: Mapping[str, Any]) -> Preset:
    """Returns a measured preset. `settings`: nothing, the settings beside OPTIMIZERS, or these and `Preset.search`."""
    return _make_entry(dataset, model, f"NDCG@10 {ndcg} on the test item (measured).", takes, *settings)


def _make_unmeasured(dataset: str, at_most: Mapping[str, Any], **further: Mapping[str, Any]) -> Iterator[Preset]:
    """Yields presets for all models except BERT4Rec.

    `at_most`: the settings of the number of steps. `further`: model -> further settings.
    """
    for model in COUNTING_MODELS:
        yield _make_entry(dataset, model)
    for model in OPTIMIZERS:
        yield _make_entry(dataset, model, settings={**at_most, **further.get(model, {})})


def _make_synthetic(dataset: str, caser_expect: str, bert4rec_expect: str) -> Iterator[Preset]:
    """Yields the presets of built-in data, with what to expect of two models.

    Only the last item and the user's community decide the next item. With three targets, Caser would have to rank the
    items after the next one high too.
    """
    for entry in _make_unmeasured(dataset, _select_within(1_500, 300), caser={"num_targets": 1}):
        is_caser = entry.model == "caser"
        yield replace(entry, expect=caser_expect, takes="A minute on two cores.") if is_caser else entry
    yield _make_entry(dataset, "bert4rec", bert4rec_expect, "A minute on two cores.", BERT4REC_SYNTHETIC)


ENTRIES = [
    *_make_synthetic(
        "synthetic",
        "NDCG@10 .53 on the validation item, .24 with its authors' three targets (measured).",
        "At least 80 % of the generator's own NDCG@10.",
    ),
    *_make_synthetic("synthetic-orderless", NO_ORDER, NO_ORDER),
    _make_measured("beauty", "pop", ".030", "1 minute (measured)."),
    _make_measured("beauty", "item_transitions", ".171", f"2 minutes {BESIDE}"),
    _make_measured("beauty", "bpr_mf", ".137", f"9 minutes {BESIDE}", _fix_steps(40_000), AT_MOST_40_000),
    _make_measured("beauty", "ncf", ".103", f"17 minutes {BESIDE}", {"l2": 1e-3, **_select_within(40_000, 2_000)}),
    _make_measured("beauty", "fpmc", ".165", f"37 minutes {ONE_THREAD}", AT_MOST_40_000),
    _make_measured("beauty", "gru4rec", ".161", f"76 minutes {ONE_THREAD}", _fix_steps(29_000), AT_MOST_40_000),
    _make_measured("beauty", "gru4rec_plus", ".194", f"19 minutes {ONE_THREAD}", _select_within(16_000, 1_000)),
    _make_measured("beauty", "caser", ".132", f"45 minutes {BESIDE}", _fix_steps(39_000), AT_MOST_40_000),
    _make_measured("beauty", "sasrec", ".176", f"38 minutes {BESIDE}", _fix_steps(38_000), AT_MOST_40_000),
    _make_entry(
        "beauty",
        "bert4rec",
        "NDCG@10 .184 on the test item, .193 on the validation item when that is held out (measured).",
        "31 minutes on two cores beside other work, 44 minutes of processor time (measured).",
        _make_bert4rec("beauty", batch_size=64, protocol="fixed", steps=24_000, evaluate_every=2_000),
    ),
    *_make_unmeasured("steam", AT_MOST_40_000),
    _make_entry("steam", "bert4rec", NOT_MEASURED, f"About 4 hours {ESTIMATED}", _make_bert4rec("steam", steps=60_000)),
    # ML-1m has 47 batches of 128 histories, so 40,000 of them would be 850 epochs.
    _make_measured("ml-1m", "pop", ".064", "15 seconds (measured)."),
    _make_measured("ml-1m", "item_transitions", ".439", f"4 minutes {BESIDE}"),
    _make_measured(
        "ml-1m",
        "bpr_mf",
        ".263",
        f"2 minutes {ONE_THREAD}",
        {"negatives": "popular", "batch_size": 1_024, "learning_rate": 2e-3, "l2": 3e-3, **_fix_steps(18_000)},
        AT_MOST_40_000,
    ),
    _make_measured("ml-1m", "ncf", ".178", f"3 minutes {ONE_THREAD}", _fix_steps(40_000), AT_MOST_40_000),
    _make_measured("ml-1m", "fpmc", ".353", f"16 minutes {ONE_THREAD}", _select_within(80_000, 2_000)),
    _make_measured(
        "ml-1m", "gru4rec", ".432", f"229 minutes {BESIDE}", {"max_length": 200, **_select_within(6_000, 250)}
    ),
    _make_measured(
        "ml-1m", "gru4rec_plus", ".478", f"92 minutes {BESIDE}", {"max_length": 200, **_select_within(2_000, 100)}
    ),
    _make_measured("ml-1m", "caser", ".407", f"29 minutes {BESIDE}", AT_MOST_40_000),
    _make_measured(
        "ml-1m",
        "sasrec",
        ".445",
        f"219 minutes {BESIDE}",
        {"max_length": 200, "dropout": 0.2, **_select_within(12_000, 500)},
    ),
    _make_measured(
        "ml-1m",
        "bert4rec",
        ".482",
        f"167 minutes of one thread beside other work (measured); about 52 minutes {ESTIMATED}",
        BERT4REC_ML_1M,
    ),
    *_make_unmeasured(
        "ml-20m",
        AT_MOST_40_000,
        gru4rec={"max_length": 200},
        gru4rec_plus={"max_length": 200},
        sasrec={"max_length": 200, "dropout": 0.2},
    ),
    _make_entry(
        "ml-20m", "bert4rec", NOT_MEASURED, f"About 8 hours {ESTIMATED}", _make_bert4rec("ml-20m", steps=80_000)
    ),
    *(_make_entry(OWN, model, takes="One pass over the data.") for model in COUNTING_MODELS),
    *(
        _make_entry(
            OWN,
            model,
            takes="At most 10,000 steps, then a second training for the selected number of steps.",
            settings=_select_within(10_000, 500),
        )
        for model in OPTIMIZERS
        if model != "sasrec"
    ),
    *own.make_presets("fast"),
]
