"""The grids that settings are searched on: the paper's for all models (section 4.3), and what a model adds."""

from collections.abc import Mapping
from typing import Any

from bert4rec_tf.foundation.errors import unknown_name
from experiments.tables import PROPORTIONS, WIDTHS

L2 = (1.0, 0.1, 0.01, 0.001, 0.0001)
DROPOUT = tuple(tenths / 10 for tenths in range(10))

SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "bpr_mf": {"hidden_dim": WIDTHS, "l2": L2},
    "ncf": {"hidden_dim": WIDTHS, "l2": L2, "train_negatives": tuple(range(1, 11))},
    "fpmc": {"hidden_dim": WIDTHS, "l2": L2},
    "gru4rec": {
        "hidden_dim": WIDTHS,
        "dropout": DROPOUT,
        "learning_rate": (0.01, 0.02, 0.05, 0.1, 0.2),
        "momentum": (0.0, 0.1, 0.2, 0.3),
    },
    "gru4rec_plus": {
        "hidden_dim": WIDTHS,
        "dropout": DROPOUT,
        "learning_rate": (0.01, 0.02, 0.05, 0.1, 0.2),
        "momentum": (0.0, 0.1, 0.2, 0.3),
        "loss": ("bpr_max", "top1_max"),
        "regularization": (0.0, 0.5, 1.0),
        "alpha": (0.0, 0.25, 0.5, 0.75, 1.0),
    },
    "caser": {
        "hidden_dim": WIDTHS,
        "l2": (*L2, 1e-6),
        "dropout": DROPOUT,
        "markov_order": tuple(range(1, 10)),
        "num_targets": (1, 2, 3),
    },
    "sasrec": {"hidden_dim": WIDTHS, "weight_decay": (*L2, 0.0), "dropout": DROPOUT, "num_layers": (1, 2, 3)},
    "bert4rec": {
        "hidden_dim": WIDTHS,
        "weight_decay": L2,
        "dropout": DROPOUT,
        "attention_dropout": DROPOUT,
        "mask_proportion": PROPORTIONS,
    },
}
"""Model -> setting -> its values. What the paper calls l2 is `weight_decay` where only the optimizer knows it; Adagrad
has none. The values that Caser's and SASRec's authors have are one more there. NCF's negatives, Caser's L and T,
SASRec's blocks and the rest of the GRUs' are what their papers and programs vary. POP has nothing to search."""


def find(model: str) -> dict[str, tuple[Any, ...]]:
    """Returns the grid of a model. Raises UserError where there is none."""
    if model not in SPACES:
        raise unknown_name("model to tune", model, SPACES)
    return SPACES[model]


def settings_of(model: str, values: Mapping[str, Any], max_length: int | None) -> dict[str, Any]:
    """Returns the settings of a point; BERT4Rec's most predictions go with rho and N, or a large rho changed nothing.

    Args:
        model: whose grid it is on.
        values: the point.
        max_length: N.
    """
    if model != "bert4rec":
        return dict(values)
    return {**values, "max_predictions": max(1, round(values["mask_proportion"] * max_length))}
