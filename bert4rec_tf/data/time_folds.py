"""Cuts histories by time."""

from dataclasses import replace

import numpy as np

from bert4rec_tf.data.sequences import Sequences


def cut_by_time(sequences: Sequences, begin: float, end: float) -> Sequences:
    """Returns the actions up to `end`, inclusive; those after `begin` are held out (`Sequences.num_later`).

    Users and items without an action left are left out. There are no times and no features.
    """
    times = sequences.times.values if sequences.times is not None else np.empty(0)
    users = np.repeat(np.arange(sequences.num_users), sequences.lengths)
    is_until_end = times <= end
    lengths = np.bincount(users[is_until_end], minlength=sequences.num_users)
    users_left = np.flatnonzero(lengths)
    codes = np.searchsorted(users_left, users[is_until_end])
    items = np.asarray(list(sequences.vocabulary.items), object)
    part = Sequences.from_codes(codes, sequences.items[is_until_end] - 1, sequences.users[users_left], items)
    num_later = np.bincount(users[is_until_end & (times > begin)], minlength=sequences.num_users)[users_left]
    return replace(part, num_later=num_later, columns=sequences.columns)
