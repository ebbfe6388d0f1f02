"""The preset `fast`, the default: settings for two cores, found on the validation items.

If `protocol` is `fixed`, the number of steps was chosen before, on the validation items or (BERT4Rec on ML-1m) by the
time they take, so one training is enough.
"""

from typing import Any

from bert4rec_tf.config.data_names import OWN
from bert4rec_tf.config.model_settings import COUNTING_MODELS
from bert4rec_tf.config.presets.authors import DATA_SETTINGS, OPTIMIZERS, get_released_dropout

Table = dict[str, dict[str, dict[str, Any]]]
"""Data set -> model -> settings."""

COUNTING: dict[str, dict[str, Any]] = {model: {} for model in COUNTING_MODELS}
ALREADY_CHOSEN = {"protocol": "fixed"}
AT_MOST_40_000 = {"steps": 40_000, "evaluate_every": 1_000, "patience": 5}
LONG = {"max_length": 200}

BERT4REC = {
    "hidden_dim": 64,
    "learning_rate": 1e-3,
    "warmup_steps": 1_000,
    "bias_correction": True,
    "batch_size": 128,
}
PAPER: dict[str, dict[str, Any]] = {
    data: {**BERT4REC, **settings, **get_released_dropout(data, 64)} for data, settings in DATA_SETTINGS.items()
}
"""Data set -> the settings of BERT4Rec with the authors' windows, masks and dropout."""

BERT4REC_ML_1M = {
    **PAPER["ml-1m"],
    "mask_proportion": 0.4,
    "max_predictions": 80,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "batch_size": 32,
    "warmup_steps": 2_000,
    **ALREADY_CHOSEN,
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

SYNTHETIC = {
    **COUNTING,
    **{model: {"steps": 1_500, "evaluate_every": 300, "patience": 5} for model in OPTIMIZERS},
    "caser": {"steps": 1_500, "evaluate_every": 300, "patience": 5, "num_targets": 1},
    "bert4rec": BERT4REC_SYNTHETIC,
}
"""Only the last item and the user's community decide the next item. With three targets, Caser would have to rank the
items after the next one high too."""

FAST_SETTINGS: Table = {
    "synthetic": SYNTHETIC,
    "synthetic-orderless": SYNTHETIC,
    "beauty": {
        **COUNTING,
        "bpr_mf": {**ALREADY_CHOSEN, "steps": 40_000},
        "ncf": {"l2": 1e-3, "steps": 40_000, "evaluate_every": 2_000, "patience": 5},
        "fpmc": AT_MOST_40_000,
        "gru4rec": {**ALREADY_CHOSEN, "steps": 29_000},
        "gru4rec_plus": {"steps": 16_000, "evaluate_every": 1_000, "patience": 5},
        "caser": {**ALREADY_CHOSEN, "steps": 39_000},
        "sasrec": {**ALREADY_CHOSEN, "steps": 38_000},
        "bert4rec": {**PAPER["beauty"], "batch_size": 64, **ALREADY_CHOSEN, "steps": 24_000, "evaluate_every": 2_000},
    },
    "steam": {
        **COUNTING,
        **{model: AT_MOST_40_000 for model in OPTIMIZERS},
        "bert4rec": {**PAPER["steam"], "steps": 60_000},
    },
    # ML-1m has 47 batches of 128 histories, so 40,000 of them would be 850 epochs.
    "ml-1m": {
        **COUNTING,
        "bpr_mf": {
            **{"negatives": "popular", "batch_size": 1_024, "learning_rate": 2e-3, "l2": 3e-3},
            **{**ALREADY_CHOSEN, "steps": 18_000},
        },
        "ncf": {**ALREADY_CHOSEN, "steps": 40_000},
        "fpmc": {"steps": 80_000, "evaluate_every": 2_000, "patience": 5},
        "gru4rec": {**LONG, "steps": 6_000, "evaluate_every": 250, "patience": 5},
        "gru4rec_plus": {**LONG, "steps": 2_000, "evaluate_every": 100, "patience": 5},
        "caser": AT_MOST_40_000,
        "sasrec": {**LONG, "dropout": 0.2, "steps": 12_000, "evaluate_every": 500, "patience": 5},
        "bert4rec": BERT4REC_ML_1M,
    },
    "ml-20m": {
        **COUNTING,
        **{model: AT_MOST_40_000 for model in OPTIMIZERS},
        "gru4rec": {**LONG, **AT_MOST_40_000},
        "gru4rec_plus": {**LONG, **AT_MOST_40_000},
        "sasrec": {**LONG, "dropout": 0.2, **AT_MOST_40_000},
        "bert4rec": {**PAPER["ml-20m"], "steps": 80_000},
    },
    OWN: {
        **COUNTING,
        **{model: {"steps": 10_000, "evaluate_every": 500, "patience": 5} for model in OPTIMIZERS},
        "bert4rec": {},
        "sasrec": {},
        "auto": {},
    },
}
"""The settings beside OPTIMIZERS. For BERT4Rec and SASRec on your own data, `own` has the rules."""

SEARCH: Table = {
    "beauty": {model: AT_MOST_40_000 for model in ("bpr_mf", "gru4rec", "caser", "sasrec")},
    "ml-1m": {model: AT_MOST_40_000 for model in ("bpr_mf", "ncf")},
}
"""The settings in place of these when a fixed number of steps is selected again: under another protocol, or for another
architecture."""
