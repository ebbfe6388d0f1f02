"""The settings of the models' authors: their optimizers, and all of BERT4Rec's.

The presets are those of BERT4Rec's scripts (`released`) and of the paper's best rows (`table2`, d = 256).
"""

from typing import Any

ADAM = {
    "learning_rate": 1e-3,
    "schedule": "constant",
    "warmup_steps": 0,
    "bias_correction": True,
    "epsilon": 1e-8,
    "weight_decay": 0.0,
    "clip_norm": 0.0,
}
ADAGRAD = {**ADAM, "optimizer": "adagrad", "learning_rate": 0.05, "batch_size": 128}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "bpr_mf": {**ADAM, "batch_size": 256},
    "ncf": {**ADAM, "batch_size": 256},
    "fpmc": {**ADAM, "batch_size": 256},
    "gru4rec": ADAGRAD,
    "gru4rec_plus": {**ADAGRAD, "momentum": 0.1},
    "caser": {**ADAM, "batch_size": 512},
    "sasrec": {**ADAM, "batch_size": 128, "beta_2": 0.98},
}
"""The optimizer of the models' authors, for every data set. If theirs is plain SGD (BPR-MF, FPMC) or changes with the
data set (the GRUs), one that works for all of these."""

SCRIPTS = {"learning_rate": 1e-4, "warmup_steps": 100, "use_token_type": True, "protocol": "fixed"}

DATA_SETTINGS = {
    "beauty": {"max_length": 50, "mask_proportion": 0.6, "max_predictions": 30, "window_step": 0.1, "steps": 400_000},
    "steam": {"max_length": 50, "mask_proportion": 0.4, "max_predictions": 20, "window_step": 0.5, "steps": 800_000},
    "ml-1m": {"max_length": 200, "mask_proportion": 0.2, "max_predictions": 40, "window_step": 0.5, "steps": 400_000},
    "ml-20m": {"max_length": 200, "mask_proportion": 0.2, "max_predictions": 20, "window_step": 0.5, "steps": 400_000},
}
"""Data set -> what holds for every width."""

DROPOUT = {
    "beauty": {64: (0.5, 0.2), 128: (0.5, 0.2), 256: (0.5, 0.2)},
    "steam": {64: (0.1, 0.1), 128: (0.1, 0.1), 256: (0.2, 0.2)},
    "ml-1m": {64: (0.2, 0.2), 128: (0.5, 0.2), 256: (0.5, 0.2)},
    "ml-20m": {64: (0.1, 0.1), 128: (0.1, 0.1), 256: (0.1, 0.1)},
    "synthetic": {64: (0.0, 0.0)},
    "synthetic-orderless": {64: (0.0, 0.0)},
}
"""Data set -> width -> the released `dropout` and `attention_dropout`, for experiments with the width."""


def get_released_dropout(dataset: str, hidden_dim: int) -> dict[str, float]:
    """Returns the released dropout of the largest known width up to `hidden_dim`, else of the smallest."""
    widths = DROPOUT[dataset]
    nearest_width = max((width for width in widths if width <= hidden_dim), default=min(widths))
    return dict(zip(("dropout", "attention_dropout"), widths[nearest_width]))


def _make_settings(hidden_dims: dict[str, int]) -> dict[str, dict[str, Any]]:
    return {
        data: {**SCRIPTS, **DATA_SETTINGS[data], "hidden_dim": width, **get_released_dropout(data, width)}
        for data, width in hidden_dims.items()
    }


RELEASED = _make_settings({"beauty": 64, "steam": 256, "ml-1m": 64, "ml-20m": 64})
TABLE2 = _make_settings(dict.fromkeys(DATA_SETTINGS, 256))
"""Data set -> the settings of BERT4Rec in the presets `released` and `table2`."""
