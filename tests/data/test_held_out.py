"""What a training may see of every user: never the test item, and the validation item in the last training only."""

from itertools import islice

import pytest
from support.models import TRAINED
from support.profiles import slow_but
from support.ranking_oracle import make_sequences
from support.trainings import small_and_quick

from bert4rec_tf.config import presets
from bert4rec_tf.config.run_record import FIXED, RETRAIN, SELECT, SELECT_AND_RETRAIN, Run
from bert4rec_tf.runs.phases import make_model
from bert4rec_tf.runs.pipeline import Experiment
from bert4rec_tf.runs.workdir import WorkDirectory

COMMON, USERS = 20, 24
VALIDATION, TEST = ({COMMON + 1 + USERS * part + user for user in range(USERS)} for part in range(2))
"""The user's own two items, which nobody else has met."""
SEQUENCES = make_sequences(
    [
        [
            *(1 + (user + 3 * step) % COMMON for step in range(4 + user % 7)),
            COMMON + 1 + user,
            COMMON + 1 + USERS + user,
        ]
        for user in range(USERS)
    ],
    COMMON + 2 * USERS,
)
SMALL = {"max_length": 6, "hidden_dim": 8, "num_heads": 1, "mask_copies": 3, "window_step": 0.5, "extra_negatives": 4}
POSITIVES = ("items", "targets", "mask_targets", "shared")
"""The columns of a batch that hold what users did, or what is drawn by how often they did it."""
NUM_BATCHES = 60
"""More than an epoch of every model."""


def opened(folder, name, phase):
    known = Run.make("beauty", name).flatten()
    small = {key: value for key, value in SMALL.items() if key in known}
    with_validation = {"protocol": FIXED if phase == RETRAIN else SELECT_AND_RETRAIN, "patience": 0}
    run = presets.make_run("beauty", name, batch_size=16, num_negatives=5, **small, **with_validation)
    experiment = Experiment(run, SEQUENCES, WorkDirectory(folder), silent=True)
    return experiment, make_model(run, SEQUENCES.num_items, SEQUENCES.num_users)


@pytest.mark.parametrize("phase", [SELECT, RETRAIN])
@pytest.mark.parametrize("name", slow_but(["bert4rec", "caser"], TRAINED))
def test_batches_hold_only_training_items_of_the_phase(tmp_path, name, phase):
    experiment, model = opened(tmp_path, name, phase)
    with small_and_quick():
        batches = list(islice(experiment.make_batches(phase, model).as_numpy_iterator(), NUM_BATCHES))
    learnt = {int(item) for batch in batches for column in POSITIVES if column in batch for item in batch[column].flat}
    assert not learnt & TEST
    assert learnt & VALIDATION == (VALIDATION if phase == RETRAIN else set())
    assert learnt >= set(range(1, COMMON + 1))


@pytest.mark.parametrize("phase", [SELECT, RETRAIN])
@pytest.mark.parametrize("name", slow_but(["bpr_mf", "sasrec"], ["bpr_mf", "ncf", "fpmc", "caser", "sasrec"]))
def test_negatives_are_never_training_items_of_the_user(tmp_path, name, phase):
    experiment, model = opened(tmp_path, name, phase)
    kept = slice(None, -1 if phase == RETRAIN else -2)
    for batch in islice(experiment.make_batches(phase, model).as_numpy_iterator(), NUM_BATCHES):
        for user, row in zip(batch["users"], batch["negatives"]):
            assert not set(row.flat) & set(SEQUENCES[user][kept].tolist())
