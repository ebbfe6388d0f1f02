"""Ranking with rows on three workers, which are threads here, against plain loops: ties, seen items, and NaN."""

import math
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.ranking_oracle import FEW, plain_lists, plain_ranks
from support.tied_products import BIAS, MOST_USERS, NUM_ITEMS, TABLE, WIDTH, no_scores, tasks

from bert4rec_tf.evaluation import full_ranking, sharded_ranking
from bert4rec_tf.evaluation.metrics import PROTOCOLS
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.sharded_ranking import ShardedProducts
from bert4rec_tf.models.sharded_table import ShardedTable

WORKERS = 3


class Workers:
    """As many threads as workers, whose sums wait for one another. It is the strategy of each, too."""

    def __init__(self):
        self.barrier, self.given = threading.Barrier(WORKERS, timeout=60), [None] * WORKERS
        self.here = threading.local()

    def run(self, function, args):
        return function(*args)

    def sum_of_all(self, values):
        self.given[self.here.index] = values
        self.barrier.wait()
        total = [tf.add_n([tf.convert_to_tensor(one) for one in parts]) for parts in zip(*self.given, strict=True)]
        self.barrier.wait()
        return total

    def each(self, function):
        """Returns what `function(index)` returns on every worker, or the error that it raises."""

        def work(index):
            self.here.index = index
            try:
                return function(index)
            except ValueError as error:
                return error

        with ThreadPoolExecutor(WORKERS) as threads:
            return list(threads.map(work, range(WORKERS)))


@pytest.fixture(scope="module")
def workers():
    """The workers, with small blocks. Without graphs, whose threads would be too few to wait for one another."""
    found, before = Workers(), tf.config.functions_run_eagerly()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(full_ranking, "BLOCK", 8)
        patch.setattr(full_ranking, "GROUP", 4)
        patch.setattr(sharded_ranking, "sum_of_all", found.sum_of_all)
        patch.setattr(sharded_ranking, "_user_vectors", lambda users, table, batch: users(batch))
        tf.config.run_functions_eagerly(True)
        yield found
        tf.config.run_functions_eagerly(before)


class Users:
    """In place of a model: its vectors of users."""

    num_items = NUM_ITEMS

    def __init__(self, table):
        self.table = table

    def __call__(self, batch):
        return tf.gather(self.table, batch["users"])


class Rounded(ShardedProducts):
    """The product of a single target rounds otherwise than that of a block."""

    def of_targets(self, vectors, targets):
        return tf.math.nextafter(super().of_targets(vectors, targets), 1e9)


def ranked(workers, task, users, table=TABLE, added=None, kind=ShardedProducts):
    """What every worker finds, with its rows alone."""

    def rank(index):
        held = ShardedTable(len(table), WIDTH, 1.0, 7, index, WORKERS)
        for variable, whole in zip(held.values, (table, BIAS), strict=True):
            variable.assign(whole[index::WORKERS])
        return Ranker(no_scores, batch_size=4, products=kind(Users(users), held, workers, added)).ranked(task)

    return workers.each(rank)


@FEW
@given(tasks(), st.integers(0, 2**32), st.sampled_from([ShardedProducts, Rounded]), st.booleans())
def test_ranks_and_lists_are_those_of_plain_loops(workers, task, seed, kind, adds):
    rng = np.random.default_rng(seed)
    users = rng.integers(-1, 2, (MOST_USERS, WIDTH)).astype(np.float32)
    added = rng.integers(-1, 1, NUM_ITEMS + 1).astype(np.float32) if adds else None
    scores = users @ TABLE[1 : NUM_ITEMS + 1].T + BIAS[1 : NUM_ITEMS + 1] + (added[1:] if adds else 0)
    ranks = plain_ranks(task, lambda user, history, item: scores[user, item - 1])
    lists = {name: Counter(item for row in plain_lists(task, name, scores) for item in row) for name in PROTOCOLS}
    for found in ranked(workers, task, users, added=added, kind=kind):
        assert {protocol: one.tolist() for protocol, one in found.ranks.items()} == ranks
        for protocol in PROTOCOLS:
            counts = {item: times for item, times in enumerate(found.listed[protocol].tolist()) if times and item}
            assert counts == lists[protocol], protocol


@FEW
@given(tasks(), st.integers(1, NUM_ITEMS))
def test_nan_of_any_item_is_an_error_on_all_workers(workers, task, item):
    table = TABLE.copy()
    table[item] = math.nan
    for error in ranked(workers, task, np.ones((MOST_USERS, WIDTH), np.float32), table):
        assert isinstance(error, ValueError) and "NaN" in str(error)


def test_the_best_of_all_lists_are_those_of_one_sort():
    rng = np.random.default_rng(1)
    items = rng.permuted(np.tile(np.arange(1, 101), (50, 1)), axis=1)[:, :30].astype(np.int32)
    values = rng.choice(np.array([-math.inf, 0, 1, 2], np.float32), items.shape, p=[0.7, 0.1, 0.1, 0.1])
    items[values == -math.inf] = 0
    found, scores = sharded_ranking._best_of(items, values)
    for row in range(50):
        wanted = sorted((-value, item) for value, item in zip(values[row], items[row], strict=True) if item)[:10]
        missing = 10 - len(wanted)
        assert found[row].numpy().tolist() == [item for _, item in wanted] + [0] * missing
        assert scores[row].numpy().tolist() == [-value for value, _ in wanted] + [-math.inf] * missing
