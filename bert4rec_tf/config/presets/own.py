"""The settings of BERT4Rec and SASRec for your own data, by their size.

The rules follow what was measured on Beauty and ML-1m (docs/quality.md). Any setting given by name overrides them.
"""

from typing import Any

from bert4rec_tf.config.presets.optimizers import OPTIMIZERS

LONG_HISTORIES = 50
"""From this mean length on, masks within long windows teach more per second than prefixes do."""

FEW_ACTIONS, MANY_ACTIONS = 50_000, 300_000
FEW_USERS = 3_000
EPOCHS, EPOCHS_LONG, EPOCHS_LIKE_BEAUTY = 15, 85, 5.5
"""Passes over prefixes or short histories at most, SASRec's over long ones, and BERT4Rec's over many prefixes. Training
ends before when the validation items show no gain."""

LIKE_BEAUTY = {"dropout": 0.5, "epsilon": 1e-4, "learning_rate": 2e-3}

SHOP = (20_000, 180_000)
"""Users and actions of data whose size is not known yet."""


def _sizes(num_users: int, num_actions: int, steps: float) -> dict[str, Any]:
    """Returns the settings that both models share.

    - N covers most histories: twice their mean length, from 20 to 200.
    - From as many actions as Beauty has (350,000) the model is wider.
    """
    steps = int(min(max(steps, 1_000), 20_000))
    return {
        "max_length": int(min(max(2 * num_actions / num_users, 20), 200)),
        "hidden_dim": 128 if num_actions >= MANY_ACTIONS else 64,
        "dropout": 0.2,
        "initial_vectors": "cooccurrence",
        "learning_rate": 1e-3,
        "steps": steps,
        "warmup_steps": min(200, steps // 10),
        "evaluate_every": max(steps // 20, 1),
        "patience": 5,
    }


def sasrec_settings(num_users: int = SHOP[0], num_actions: int = SHOP[1]) -> dict[str, Any]:
    """Returns the settings of SASRec, trained by a softmax over all items; one example is a whole history."""
    epochs = EPOCHS_LONG if num_actions / num_users >= LONG_HISTORIES else EPOCHS
    batch_size = 32 if num_users < FEW_USERS else 128
    return {
        **OPTIMIZERS["sasrec"],
        **_sizes(num_users, num_actions, epochs * num_users / batch_size),
        "loss": "cross_entropy",
        "schedule": "linear",
        "batch_size": batch_size,
    }


def bert4rec_settings(num_users: int = SHOP[0], num_actions: int = SHOP[1]) -> dict[str, Any]:
    """Returns the settings of BERT4Rec.

    - Long histories are masked as in the paper; short ones are cut into prefixes.
    - The batch is smaller for fewer actions, so that there are enough steps.
    - Many short histories are learnt as Beauty's are (`best`): in few passes over large batches, with much dropout and
      a large epsilon in Adam, which lets rare items keep their first vectors.
    """
    is_long = num_actions / num_users >= LONG_HISTORIES
    is_like_beauty = num_actions >= MANY_ACTIONS and not is_long
    batch_size = 32 if num_actions < FEW_ACTIONS or is_long else 512 if is_like_beauty else 128
    epochs = EPOCHS_LIKE_BEAUTY if is_like_beauty else EPOCHS
    prefixes = max(num_actions - 3 * num_users, num_users)  # Of two actions both are trained on.
    examples = num_users * 11 if is_long else prefixes
    examples_of: dict[str, Any] = {"prefix_copies": 1, "mask_copies": 0, "max_predictions": 1}
    if is_long:
        examples_of = {"mask_proportion": 0.4, "max_predictions": 80, "window_step": 0.5}
    return {
        **_sizes(num_users, num_actions, epochs * examples / batch_size),
        **examples_of,
        **(LIKE_BEAUTY if is_like_beauty else {}),
        "attention_dropout": 0.2,
        "initial_layers": "identity",
        "bias_correction": True,
        "batch_size": batch_size,
    }
