"""The settings of BERT4Rec and SASRec for your own data, by their size.

The rules follow what was measured on Beauty, ML-1m, and parts of Beauty (experiments/journal/own-data.md). Any setting
given by name overrides them.
"""

from typing import Any

from bert4rec_tf.config.model_settings import AUTO, TRANSITIONS
from bert4rec_tf.config.presets.authors import OPTIMIZERS
from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.config.transition_settings import has_long_histories

FEW_ACTIONS, MANY_ACTIONS = 50_000, 300_000
FEW_USERS = 3_000
MIN_STEPS, MIN_STEPS_OF_TWO, MIN_SASREC_STEPS, MAX_OWN_STEPS = 1_000, 1_500, 2_500, 10_000
EPOCHS, SASREC_EPOCHS_LONG, EPOCHS_MASKED, EPOCHS_LIKE_BEAUTY = 15, 85, (6, 3), (8, 4)
"""Passes at most: usually; SASRec's over long histories; BERT4Rec's over long ones, masked as in the paper, up to
MANY_ACTIONS and from there on; and its passes over prefixes, trained as Beauty's, up to there and from there on.
Training ends before when the validation items show no gain."""

MEASUREMENTS, PATIENCE = 8, 3
"""How often a training is measured on the validation items, and how often without a gain before it ends."""

PREFIXES = {"prefix_copies": 1, "mask_copies": 0, "max_predictions": 1}
LIKE_BEAUTY = {"hidden_dim": 128, "dropout": 0.5, "epsilon": 1e-4, "learning_rate": 2e-3, "batch_size": 512}
"""What Beauty's preset `best` and the rule for short histories share, unless they are few."""

WIDTH_OF_TWO = 64
"""The width of each of two networks side by side, on few actions."""

LONG_OF_TWO, SHORT_OF_TWO = {"dropout": 0.1, "attention_dropout": 0.1}, {"batch_size": 128}
"""What differs from BERT4Rec's own settings where there are two, over long histories and over short ones."""

SOFTMAX_SASREC = {**OPTIMIZERS["sasrec"], "loss": "cross_entropy", "schedule": "linear"}

SHOP = (20_000, 180_000)
"""Users and actions of data whose size is not known."""


def space_measurements(steps: int) -> int:
    """Returns the steps from one of MEASUREMENTS to the next; the last one is at the end."""
    return -(-steps // MEASUREMENTS)


def _make_shared_settings(num_users: int, num_actions: int, steps: float, dropout: float) -> dict[str, Any]:
    """Returns the settings that both models share.

    - N covers most histories: twice their mean length, from 20 to 200.
    - From MANY_ACTIONS on (Beauty has 350,000) the model is wider.
    - The final training has more actions to learn from, and more steps in proportion.
    """
    steps = int(min(max(steps, MIN_STEPS), MAX_OWN_STEPS))
    return {
        "max_length": int(min(max(2 * num_actions / max(num_users, 1), 20), 200)),
        "hidden_dim": 128 if num_actions >= MANY_ACTIONS else 64,
        "dropout": dropout,
        "initial_vectors": "cooccurrence",
        "evidence": TRANSITIONS,
        "selection_metric": "full",
        "learning_rate": 1e-3,
        "steps": steps,
        "warmup_steps": min(200, steps // 10),
        "evaluate_every": space_measurements(steps),
        "patience": PATIENCE,
        "scale_final_steps": True,
    }


def make_sasrec_settings(num_users: int, num_actions: int, min_steps: int = MIN_SASREC_STEPS) -> dict[str, Any]:
    """Returns the settings of SASRec, trained by a softmax over all items; one example is a whole history.

    Short histories have more dropout, and more passes if there are few of them.
    """
    is_long = has_long_histories(num_users, num_actions)
    batch_size = 32 if num_users < FEW_USERS else 128
    steps = (SASREC_EPOCHS_LONG if is_long else EPOCHS) * num_users / batch_size
    return {
        **SOFTMAX_SASREC,
        **_make_shared_settings(
            num_users, num_actions, steps if is_long else max(steps, min_steps), 0.2 if is_long else 0.3
        ),
        "batch_size": batch_size,
    }


def make_bert4rec_settings(num_users: int, num_actions: int) -> dict[str, Any]:
    """Returns the settings of BERT4Rec.

    - Long histories are masked as in the paper, in few passes, because most of what the network adds
      to the counts comes early; short ones are cut into prefixes.
    - Short histories are trained as Beauty's are (`best`): with much dropout, in few passes over large batches, and
      with a large epsilon in Adam, which lets rare items keep their first vectors.
      Their positions are counted from the last item, where the next one follows.
    - With fewer than FEW_ACTIONS, the batch is small, so that there are enough steps, and there is little dropout. A
      large epsilon gains nothing there.
    """
    is_long = has_long_histories(num_users, num_actions)
    is_like_beauty = num_actions >= FEW_ACTIONS and not is_long
    like_beauty: dict[str, Any] = LIKE_BEAUTY if is_like_beauty else {}
    batch_size = like_beauty.get("batch_size", 32)
    epochs = EPOCHS
    if is_long or is_like_beauty:
        few, many = EPOCHS_MASKED if is_long else EPOCHS_LIKE_BEAUTY
        epochs = many if num_actions >= MANY_ACTIONS else few
    prefixes = max(num_actions - 3 * num_users, num_users)  # a user with two actions is trained on both
    examples = num_users * 11 if is_long else prefixes
    windows = {"mask_proportion": 0.4, "max_predictions": 80, "window_step": 0.5}
    return {
        **_make_shared_settings(num_users, num_actions, epochs * examples / batch_size, 0.2),
        **(windows if is_long else PREFIXES),
        **like_beauty,
        "positions_from_last": is_like_beauty,
        "attention_dropout": 0.2,
        "initial_layers": "identity",
        "bias_correction": True,
        "batch_size": batch_size,
    }


def make_auto_settings(num_users: int, num_actions: int) -> dict[str, Any]:
    """Returns the settings of both networks side by side.

    - From FEW_ACTIONS on (long histories: MANY_ACTIONS), they are BERT4Rec's: what suits it suits SASRec too.
    - Of less, they are SASRec's, at WIDTH_OF_TWO, and BERT4Rec's ways to cut and mask histories.
    - BERT4Rec has as many examples in a step as suit its own rule: so it learns in about the same passes as alone. It
      counts positions from the first item, because from the last the sum gains nothing.
    """
    is_long = has_long_histories(num_users, num_actions)
    bert4rec = make_bert4rec_settings(num_users, num_actions)
    masked_settings = {"masked_batch_size": bert4rec["batch_size"], "positions_from_last": False}
    if num_actions >= (MANY_ACTIONS if is_long else FEW_ACTIONS):
        return {**bert4rec, **(LONG_OF_TWO if is_long else SHORT_OF_TWO), **masked_settings}
    sasrec = make_sasrec_settings(num_users, num_actions, MIN_STEPS_OF_TWO)
    names = ("attention_dropout", "initial_layers", *MaskingSettings.__dataclass_fields__)
    masking = {name: bert4rec[name] for name in names if name in bert4rec}
    return {**sasrec, **masking, "hidden_dim": WIDTH_OF_TWO, **masked_settings}


RULES = {"bert4rec": make_bert4rec_settings, "sasrec": make_sasrec_settings, AUTO: make_auto_settings}
"""Model -> (number of users, number of actions) -> settings."""
