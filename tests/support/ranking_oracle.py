"""Small catalogues, and ranks and metrics by plain loops, for the tests of candidates, ranks and metrics."""

import math
from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.evaluation.metrics import ANY, FULL, NEW
from support.profiles import examples

FEW = settings(deadline=None, max_examples=examples(50))


def make_sequences(histories, num_items):
    items = np.concatenate(histories).astype(np.int32)
    splits = np.concatenate([[0], np.cumsum([len(history) for history in histories])]).astype(np.int64)
    names = np.array([f"item{item}" for item in range(1, num_items + 1)], object)
    users = np.array([f"user{user}" for user in range(len(histories))], object)
    counts = np.bincount(items, minlength=num_items + 1)[1:]
    return Sequences(items, splits, users, Vocabulary(names, counts))


def group_histories(histories):
    """Sequences of raw user -> raw items, oldest first, numbered as those of a file are."""
    flat = [item for history in histories.values() for item in history]
    items = list(dict.fromkeys(flat))
    users = np.repeat(np.arange(len(histories)), [len(history) for history in histories.values()])
    codes = np.array([items.index(item) for item in flat])
    return Sequences.from_codes(users, codes, np.array([*histories], object), np.array(items, object))


@st.composite
def any_histories(draw, most_items=25, shortest=1, longest=40):
    """Histories with repeated items, and a last user who met every item."""
    num_items = draw(st.integers(3, most_items))
    history = st.lists(st.integers(1, num_items), min_size=shortest, max_size=longest)
    histories = draw(st.lists(history, min_size=1, max_size=8))
    return make_sequences([*map(np.array, histories), np.arange(1, num_items + 1)], num_items)


def plain_metrics(ranks):
    total = Counter()
    for rank in ranks:
        for k in (1, 5, 10):
            total[f"hr@{k}"] += rank < k
        for k in (5, 10):
            total[f"ndcg@{k}"] += 1 / math.log2(rank + 2) if rank < k else 0
        total["mrr"] += 1 / (rank + 1)
    return {name: value / len(ranks) for name, value in total.items()}


def plain_rank(scores, candidates):
    pairs = zip(scores[1:], candidates[1:], strict=True)
    return sum(1 for score, candidate in pairs if candidate != 0 and score >= scores[0])


def opponents(task, protocol, row):
    """The items that a row's target is ranked among."""
    if protocol not in (FULL, NEW, ANY):
        return [item for item in task.negatives[protocol][row].tolist() if item]
    history = {*task.histories[task.users[row]].tolist()}
    left_out = {*(task.excluded or task.histories)[task.users[row]].tolist()}
    left_out = (left_out - history if protocol == ANY else left_out) | {int(task.targets[row])}
    return [item for item in range(1, task.histories.num_items + 1) if item not in left_out]


def plain_ranks(task, score):
    """Protocol -> ranks, user by user and item by item. `score`: (user, history, item) -> number."""
    ranks = {protocol: [] for protocol in task.protocols}
    for protocol, found in ranks.items():
        for row, user in enumerate(task.users.tolist()):
            history = task.histories[user].tolist()
            items = [int(task.targets[row]), *opponents(task, protocol, row)]
            found.append(plain_rank([score(user, history, item) for item in items], items))
    return ranks


def is_repeat(task, row):
    return task.targets[row] in task.histories[task.users[row]].tolist()


def plain_metrics_of(task, ranks):
    """Protocol -> `plain_metrics` of ranks; under NEW those of FULL for the targets that are new, if some are not."""
    is_new = [not is_repeat(task, row) for row in range(len(task.users))]
    if any(is_new) and not all(is_new):
        ranks = {**ranks, NEW: [rank for rank, new in zip(ranks[FULL], is_new, strict=True) if new]}
    return {protocol: plain_metrics(found) for protocol, found in ranks.items()}


def plain_lists(task, protocol, scores):
    """The best ten for every user, by a table of scores; for NEW, for every user with a target that is no repeat.

    A target loses to what has its score; all else that is equal goes by its place.
    """
    for row, user in enumerate(task.users.tolist()):
        if protocol == NEW and is_repeat(task, row):
            continue
        target = int(task.targets[row])
        among = opponents(task, protocol, row)
        among = sorted([*among, target]) if protocol in (FULL, NEW, ANY) else [*among, target]
        yield sorted(
            (item for item in among if scores[user, item - 1] > -math.inf), key=lambda i: -scores[user, i - 1]
        )[:10]
