"""Rows of one table on three workers, in one process: what each adds to a sum, against plain NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.config.run import Run
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import sharded_table
from bert4rec_tf.models.sharded_table import NUMBERS, ROWS, Rows, ShardedTable, gather

WORKERS, NUM_ROWS, WIDTH = 3, 50, 4


@pytest.fixture
def workers(monkeypatch):
    """The tables of all workers, in small blocks. What they would sum, each returns by itself."""
    monkeypatch.setattr(sharded_table, "sum_of_all", lambda values: values)
    monkeypatch.setattr(sharded_table, "BLOCK", 8)
    return [ShardedTable(NUM_ROWS, WIDTH, 0.02, 7, index, WORKERS) for index in range(WORKERS)]


def whole(workers, which=0):
    """A variable of the whole table: vectors, biases, and the sums of squares of both."""
    held = [[*worker.values, *worker.sums][which] for worker in workers]
    rows = np.full((NUM_ROWS, *held[0].shape[1:]), np.nan, np.float32)
    for index, (worker, variable) in enumerate(zip(workers, held, strict=True)):
        rows[index::WORKERS] = np.concatenate(list(worker.blocks(variable)))
    return rows


def test_the_initial_vectors_are_those_of_the_whole_table(workers):
    np.testing.assert_array_equal(
        whole(workers), keras.initializers.TruncatedNormal(stddev=0.02, seed=7)((NUM_ROWS, WIDTH))
    )


def test_uniform_initial_vectors_are_those_of_the_whole_table_too(monkeypatch):
    monkeypatch.setattr(sharded_table, "BLOCK", 8)
    workers = [ShardedTable(NUM_ROWS, WIDTH, None, 7, index, WORKERS, has_bias=False) for index in range(WORKERS)]
    np.testing.assert_array_equal(whole(workers), keras.initializers.GlorotUniform(seed=7)((NUM_ROWS, WIDTH)))
    assert [len(worker.values) for worker in workers] == [1] * WORKERS


def test_looked_up_rows_are_the_sum_of_all_workers(workers):
    biases = np.arange(NUM_ROWS, dtype=np.float32)
    for index, worker in enumerate(workers):
        worker.values[1].assign(biases[index::WORKERS])
    asked = np.array([[17, 3, 17], [49, 20, 3]], np.int32)
    found = [worker.look_up(asked.ravel()) for worker in workers]
    vectors, bias = (sum(one[ROWS][which].numpy() for one in found) for which in (0, 1))
    np.testing.assert_array_equal(found[0][NUMBERS], [0, 3, 17, 20, 49])
    np.testing.assert_array_equal(gather(Rows(found[0][NUMBERS], vectors), asked), whole(workers)[asked])
    np.testing.assert_array_equal(gather(Rows(found[0][NUMBERS], bias), asked), biases[asked])
    assert [np.count_nonzero(one[ROWS][0].numpy().any(axis=1)) for one in found] == [2, 1, 2], "own rows alone"


def test_each_worker_changes_its_own_rows_as_rowwise_adagrad_says(workers):
    rng = np.random.default_rng(1)
    before, numbers = whole(workers), np.array([0, 4, 5, 30], np.int32)
    squares = np.zeros(NUM_ROWS)
    for _ in range(2):
        gradient, of_bias = rng.normal(size=(4, WIDTH)).astype(np.float32), np.zeros(4, np.float32)
        for worker in workers:
            worker.update(numbers, [tf.constant(gradient), tf.constant(of_bias)], 0.1)
        squares[numbers] += np.square(gradient).mean(axis=1)
        before[numbers] -= 0.1 * gradient / np.sqrt(squares[numbers] + 1e-10)[:, None]
    np.testing.assert_allclose(whole(workers), before, rtol=1e-5)
    np.testing.assert_allclose(whole(workers, 2), squares, rtol=1e-6)
    assert not whole(workers, 1).any()


def test_scores_are_the_sum_of_all_workers(workers):
    rng = np.random.default_rng(1)
    vectors, candidates = rng.normal(size=(2, WIDTH)).astype(np.float32), np.array([[1, 2, 3], [49, 0, 7]], np.int32)
    found = sum(worker.own_scores(vectors, candidates).numpy() for worker in workers)
    np.testing.assert_allclose(found, np.einsum("bd,bcd->bc", vectors, whole(workers)[candidates]), rtol=1e-5)


@pytest.mark.parametrize("model", ["bert4rec", "sasrec"])
@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "cross_entropy"},
        {"optimizer": "adam"},
        {"initial_vectors": "cooccurrence"},
        {"use_item_features": "add"},
        {"user_embedding": True},
    ],
)
def test_what_reads_or_changes_a_whole_table_is_refused(model, changes):
    settings = {"loss": "sampled_softmax", "optimizer": "rowwise_adagrad", "shard_tables": True}
    Run.make("beauty", model, **settings)
    with pytest.raises(UserError, match="`shard_tables` needs model=bert4rec or sasrec, loss=sampled_softmax or gbce"):
        Run.make("beauty", model, **{**settings, **changes})


def test_other_models_have_no_sharded_table():
    with pytest.raises(UserError, match="`shard_tables` needs model=bert4rec or sasrec"):
        Run.make("beauty", "gru4rec", optimizer="rowwise_adagrad", shard_tables=True)
