"""Joins known actions with new ones that may repeat some of them."""

from dataclasses import replace

import numpy as np
import pandas as pd

from bert4rec_tf.data.reading.grouping import join_times, sort_ids
from bert4rec_tf.data.sequences import ActionTimes, Sequences, number_within_groups
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn

SHORTEST_OVERLAP = 3
"""Without times, fewer known actions at the beginning of new ones may be done again."""


def join_overlapping(known_part: Sequences, new: Sequences) -> tuple[Sequences, int]:
    """Returns the actions of both, and of how many users new actions repeat known ones, which count once.

    With times, an action is known if the same user acted on the same item at the same time; as often as in the part
    that has it more often, it counts. A user's actions are ordered by time; at the same time, known ones come first. So
    the result is that of reading all rows at once, where a user's times differ. From the first new action that is held
    out, all of the user's actions are.

    Without times, the new actions follow the known ones (`_drop_overlaps`, `join_sequences`).

    Raises UserError if the times of both do not mean the same.
    """
    if known_part.times is not None and new.times is not None:
        return _merge_by_time(known_part, known_part.times, new, new.times)
    if known_part.times is not new.times:
        side = "known" if known_part.times is None else "new"
        warn(f"the {side} actions have no times, so all new ones count as later than the known ones")
    known_part, new, num_users = _drop_overlaps(known_part, new)
    return join_sequences(known_part, new), num_users


def _merge_by_time(
    known_part: Sequences, known_times: ActionTimes, new: Sequences, new_times: ActionTimes
) -> tuple[Sequences, int]:
    if known_times.meaning != new_times.meaning:
        raise UserError(
            f"the times must be {known_times.meaning}, like those of the known actions, or left out with "
            f'time="none". Received: {new_times.meaning}'
        )
    user_codes, item_codes, users, items = match_ids(known_part, new)
    user_codes, users = sort_ids(user_codes, users)
    item_codes, items = sort_ids(item_codes, items)
    times = join_times([known_times.values, new_times.values], "the known and the new actions")
    is_held_out = np.zeros(len(times), bool)
    if new.num_later is not None:
        is_held_out[known_part.num_actions :] = number_within_groups(new.lengths) >= np.repeat(
            new.lengths - new.num_later, new.lengths
        )
    table = pd.DataFrame({"user": user_codes, "item": item_codes, "time": times, "is_held_out": is_held_out})
    is_new = np.arange(len(table)) >= known_part.num_actions
    table["occurrence"] = table.groupby([is_new, "user", "item", "time"]).cumcount()
    is_repeated = table.duplicated(["user", "item", "time", "occurrence"])
    num_users = table["user"][is_repeated].nunique()
    table = table[~is_repeated].sort_values(["user", "time"], kind="stable")
    codes = table["user"].to_numpy()
    both = Sequences.from_codes(codes, table["item"].to_numpy(), users, items)
    is_kept = np.bincount(codes, minlength=len(users)) >= 2
    action_times = ActionTimes(table["time"].to_numpy()[is_kept[codes]], known_times.meaning)
    both = replace(both, columns={**new.columns, **known_part.columns}, times=action_times)
    if new.num_later is not None:
        held_out = codes[table.groupby("user")["is_held_out"].cummax().to_numpy(bool)]
        num_later = np.bincount(held_out, minlength=len(users))[is_kept]
        both = replace(both, num_later=num_later)
    return both, num_users


def _drop_overlaps(known_part: Sequences, new: Sequences) -> tuple[Sequences, Sequences, int]:
    """Returns both without the actions that are in both, and how many users have such actions.

    New actions that begin with the last known ones, SHORTEST_OVERLAP or more, are a longer window: these are left out.
    If they have all known ones in order, and at most as many others, they are the whole history with late rows: the
    known ones are left out.
    """
    numbers = known_part.vocabulary.encode(new.vocabulary.items.tolist())[new.items - 1]
    places = pd.Index(known_part.users).get_indexer(new.users)
    is_kept, is_new = np.ones(known_part.num_actions, bool), np.ones(new.num_actions, bool)
    num_users = 0
    for user in np.flatnonzero(places >= 0).tolist():
        begin, old = new.splits[user], known_part[places[user]].tolist()
        more = numbers[begin : new.splits[user + 1]].tolist()
        sizes = range(min(len(old), len(more)), SHORTEST_OVERLAP - 1, -1)
        size = next((size for size in sizes if old[-size:] == more[:size]), 0)
        rest = iter(more)
        if size:
            is_new[begin : begin + size] = False
        elif SHORTEST_OVERLAP <= len(old) <= len(more) <= 2 * len(old) and all(item in rest for item in old):
            is_kept[known_part.splits[places[user]] : known_part.splits[places[user] + 1]] = False
        else:
            continue
        num_users += 1
    return _select_actions(known_part, is_kept), _select_actions(new, is_new), num_users


def _select_actions(sequences: Sequences, is_kept: np.ndarray) -> Sequences:
    """Returns some of the actions, bool [actions]. The features are the same."""
    splits = np.append(0, np.cumsum(is_kept))[sequences.splits]
    num_later = None if sequences.num_later is None else np.minimum(sequences.num_later, np.diff(splits))
    return replace(sequences, items=sequences.items[is_kept], splits=splits, num_later=num_later, times=None)


def join_sequences(first: Sequences, second: Sequences) -> Sequences:
    """Returns the actions of both, without features and times. A user's actions in `second` follow those in `first`.

    Users and items are matched by their raw ids. The held-out actions of `second` stay held out; all of `first` are
    trained on.
    """
    both = Sequences.from_codes(*match_ids(first, second))
    both = replace(both, columns={**second.columns, **first.columns})
    if second.num_later is None:
        return both
    num_later = pd.Series(second.num_later, second.users).reindex(both.users, fill_value=0).to_numpy()
    return replace(both, num_later=num_later)


def match_ids(first: Sequences, second: Sequences) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns users and items of all actions as places in raw ids, int64 [actions of both], and these raw ids."""
    user_places, users = pd.factorize(np.concatenate([first.users, second.users]))
    item_places, items = pd.factorize(np.concatenate([first.vocabulary.items, second.vocabulary.items]))
    user_codes = np.repeat(user_places, np.concatenate([first.lengths, second.lengths]))
    return user_codes, item_places[np.concatenate([first.items, second.items + first.num_items]) - 1], users, items
