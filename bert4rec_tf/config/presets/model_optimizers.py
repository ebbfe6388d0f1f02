"""The optimizers of all trained models except BERT4Rec, for every data set."""

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
