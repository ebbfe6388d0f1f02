"""Functions of a part of the users. An engine calls them with each part of the data and combines the results."""

from collections.abc import Iterable

import numpy as np

from bert4rec_tf.config.run import ALL, RETRAIN
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences


def training_part(sequences: Sequences, phase: str) -> Sequences:
    """Returns the actions that a training learns from. `phase`: SELECT, RETRAIN or ALL (`config.run`)."""
    return sequences if phase == ALL else LeaveOneOut(sequences).training(with_validation=phase == RETRAIN)


def training_counts(sequences: Sequences, phase: str) -> np.ndarray:
    """Returns how often each item occurs in what a training learns from, int64 [n]."""
    return training_part(sequences, phase).counts()[1:]


def actions_fingerprints(sequences: Sequences, phases: Iterable[str]) -> list[str]:
    """Returns the `actions_fingerprint` of each phase's `training_part`."""
    return [training_part(sequences, phase).actions_fingerprint for phase in phases]


def longest_training(sequences: Sequences, phase: str) -> int:
    """Returns the length of the longest history that a training learns from."""
    return int(training_part(sequences, phase).lengths.max(initial=0))


def has_seen_everything(sequences: Sequences) -> bool:
    """Returns whether every evaluated user has seen every item."""
    users = LeaveOneOut(sequences).users
    return all(len(np.unique(sequences[user])) == sequences.num_items for user in users)
