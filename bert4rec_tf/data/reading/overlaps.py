"""Joins known actions with new ones that may repeat some of them."""

from dataclasses import replace

import numpy as np
import pandas as pd

from bert4rec_tf.data.id_types import match_types, warn_of_new_types, warn_of_strangers
from bert4rec_tf.data.reading.grouping import join_times, order_actions, sort_ids
from bert4rec_tf.data.sequences import ActionTimes, Sequences, Vocabulary, number_within_groups
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import DataWarning, warn


def join_actions(data: Sequences, new_data: Sequences) -> tuple[Sequences, int]:
    """Returns the actions of both, without features, and how many new ones repeat user, item and time of a known one.

    With times, these are dropped, and a user's actions are ordered by time, known ones first: the result is that of
    reading all rows at once. From the first new action that is held out, all of the user's actions are. Where the known
    ones have no times, the new actions follow them, and all of them count.

    Items without actions stay. Ids such as 50.0 are 50 if all known ones are integers. Raises UserError if the times of
    both do not mean the same, or only the known ones have some.
    """
    new_data = match_types(data, new_data)
    warn_of_new_types(data, new_data)
    warn_of_strangers(data, new_data)
    if data.times is None:
        if new_data.times is not None:
            warn("the known actions have no times, so all new ones count as later than the known ones", DataWarning)
        _warn_of_repeated_histories(data, new_data)
    elif new_data.times is None:
        raise UserError(f"the new actions must have times, {data.times.meaning}, like the known ones. Received: none")
    elif data.times.meaning != new_data.times.meaning:
        raise UserError(
            f"the times must be {data.times.meaning}, like those of the known actions. Received: "
            f"{new_data.times.meaning}; convert the new ones"
        )
    user_codes, users = pd.factorize(np.concatenate([data.users, new_data.users]))
    item_codes, items = pd.factorize(np.concatenate([data.vocabulary.items, new_data.vocabulary.items]))
    user_codes = np.repeat(user_codes, np.concatenate([data.lengths, new_data.lengths]))
    item_codes = item_codes[np.concatenate([data.items, new_data.items + data.num_items]) - 1]
    user_codes, users = sort_ids(user_codes, users)
    item_codes, items = sort_ids(item_codes, items)
    is_held_out = np.zeros(len(user_codes), bool)
    if new_data.num_later is not None:
        num_before = np.repeat(new_data.lengths - new_data.num_later, new_data.lengths)
        is_held_out[data.num_actions :] = number_within_groups(new_data.lengths) >= num_before
    order, num_repeats, times = np.argsort(user_codes, kind="stable"), 0, None
    if data.times is not None and new_data.times is not None:
        all_times = join_times([data.times.values, new_data.times.values], "the known and the new actions")
        is_repeat = _find_repeats(user_codes, item_codes, all_times, data.num_actions)
        order, _ = order_actions(user_codes, item_codes, all_times, drops_repeats=False)
        order, num_repeats = order[~is_repeat[order]], int(is_repeat.sum())
        times = ActionTimes(all_times[order], data.times.meaning)
    result = Sequences.from_codes(user_codes[order], item_codes[order], users, items)
    result = replace(result, vocabulary=_keep_idle_items(result.vocabulary, data.vocabulary))
    result = replace(result, columns={**new_data.columns, **data.columns}, times=times)
    if new_data.num_later is not None:
        is_later = pd.Series(is_held_out[order]).groupby(user_codes[order]).cummax().to_numpy(bool)
        result = replace(result, num_later=np.bincount(user_codes[order][is_later], minlength=result.num_users))
    return result, num_repeats


def _find_repeats(users: np.ndarray, items: np.ndarray, times: np.ndarray, num_known: int) -> np.ndarray:
    """Returns which actions are new ones that repeat a known one, bool [actions]. The first `num_known` are known."""
    actions = pd.DataFrame({"user": users, "item": items, "time": times})
    known_rows, new_rows = actions[:num_known], actions[num_known:]
    known_rows = known_rows[(known_rows["time"] >= new_rows["time"].min()) & known_rows["user"].isin(new_rows["user"])]
    is_known = pd.MultiIndex.from_frame(new_rows).isin(pd.MultiIndex.from_frame(known_rows))
    return np.concatenate([np.zeros(num_known, bool), is_known])


def _keep_idle_items(vocabulary: Vocabulary, known_vocabulary: Vocabulary) -> Vocabulary:
    """Returns the vocabulary with the known items that nobody had, such as those of features alone, at its end."""
    idle_items = np.asarray(known_vocabulary.items)[vocabulary.encode(known_vocabulary.items.tolist()) == 0]
    counts = np.concatenate([vocabulary.counts, np.zeros(len(idle_items), vocabulary.counts.dtype)])
    return Vocabulary(np.concatenate([vocabulary.items, idle_items]), counts)


def _warn_of_repeated_histories(data: Sequences, new_data: Sequences) -> None:
    """Warns if new actions without times begin with all that is known of a user."""
    numbers = data.vocabulary.encode(new_data.vocabulary.items.tolist())[new_data.items - 1]
    pairs = zip(pd.Index(data.users).get_indexer(new_data.users).tolist(), new_data.splits.tolist())
    histories = [(data[place], numbers[begin:]) for place, begin in pairs if place >= 0]
    num_users = sum(np.array_equal(old, more[: len(old)]) for old, more in histories if len(old) > 1)
    if num_users:
        warn(
            f"the new actions of {num_users:,} users begin with all known ones, and without times they count again: "
            "pass new actions alone, or the times of all",
            DataWarning,
        )
