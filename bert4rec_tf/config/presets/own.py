"""The settings of BERT4Rec for your own data, by their size.

The rule follows what was measured on Beauty and ML-1m (docs/quality.md). Any setting given by name overrides it.
"""

from typing import Any

LONG_HISTORIES = 50
"""From this mean length on, masks within long windows teach more per second than prefixes do."""

FEW_ACTIONS, MANY_ACTIONS = 50_000, 300_000
EPOCHS = 15
"""Passes over the prefixes at most; training ends before when the validation items show no gain."""


def bert4rec_settings(num_users: int = 20_000, num_actions: int = 180_000) -> dict[str, Any]:
    """Returns the settings of BERT4Rec for data of this size (by default a shop's), as `Run.make` takes them.

    - Long histories are masked as in the paper; short ones are cut into prefixes.
    - N covers most histories: twice their mean length, from 20 to 200.
    - The batch is smaller for fewer actions, so that there are enough steps.
    - As many actions as Beauty has (350,000) and more have the wider model, and with prefixes a large epsilon in Adam,
      which lets rare items keep the vectors they begin with.
    """
    mean_length = num_actions / num_users
    is_long, is_wide = mean_length >= LONG_HISTORIES, num_actions >= MANY_ACTIONS
    batch_size = 32 if num_actions < FEW_ACTIONS or is_long else 128
    prefixes = max(num_actions - 3 * num_users, num_users)  # Of two actions both are trained on.
    examples = num_users * 11 if is_long else prefixes
    steps = int(min(max(EPOCHS * examples / batch_size, 1_000), 20_000))
    examples_of: dict[str, Any] = {"prefix_copies": 1, "mask_copies": 0, "max_predictions": 1}
    if is_long:
        examples_of = {"mask_proportion": 0.4, "max_predictions": 80, "window_step": 0.5}
    elif is_wide:
        examples_of["epsilon"] = 1e-4
    return {
        **examples_of,
        "max_length": int(min(max(2 * mean_length, 20), 200)),
        "hidden_dim": 128 if is_wide else 64,
        "dropout": 0.2,
        "attention_dropout": 0.2,
        "initial_vectors": "cooccurrence",
        "learning_rate": 1e-3,
        "bias_correction": True,
        "batch_size": batch_size,
        "steps": steps,
        "warmup_steps": min(200, steps // 10),
        "evaluate_every": max(steps // 20, 1),
        "patience": 5,
    }
