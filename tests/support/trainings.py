"""Trainings and whole runs inside the process of the tests, so small that each takes about a second."""

import contextlib
import dataclasses
import functools
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert4rec_tf.config.execution import ExecutionSettings
from bert4rec_tf.config.model_settings import PopSettings
from bert4rec_tf.config.run_record import Run, TrainingSettings
from bert4rec_tf.data.examples import preparation
from bert4rec_tf.evaluation import mix_search, ranking
from bert4rec_tf.foundation import npz, plots
from bert4rec_tf.models import Recommender
from bert4rec_tf.nn import losses
from bert4rec_tf.nn.dropout import Dropout
from bert4rec_tf.runs.experiment import execute, open_experiment
from bert4rec_tf.training import calls, loop, step
from support import whole_runs
from support.shards import SEQUENCES

NUM_ITEMS = 12
STEP_40 = "step-000000040.npz"


class Bag(Recommender):
    """Tells a hidden item from the sum of the others, with dropout. Its graph is made at once; BERT4Rec's is not."""

    settings_type = PopSettings

    def __init__(self):
        super().__init__(NUM_ITEMS)
        self.item_embeddings = self.add_table("items", NUM_ITEMS + 2, 8, 0.3, row_kind="items")
        self.outputs_table = self.add_table("outputs", NUM_ITEMS + 2, 8, 0.3, row_kind="items")
        self.dropout = Dropout(0.2)
        self.built = True

    def training_loss(self, batch):
        summed = tf.reduce_sum(tf.gather(self.item_embeddings, batch["items"]), axis=1)
        logits = self.dropout(summed, training=True) @ tf.transpose(self.outputs_table)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["mask_targets"][:, 0], logits))


def new_model():
    keras.utils.set_random_seed(4)
    return Bag()


class Walks:
    """Rows 1 2 3 ..., one position masked: the item before tells the one that is hidden. `before` is called with the
    number of each step, before it is read."""

    tables: dict = {}  # noqa: RUF012
    batch_size = 16

    def __init__(self, before=lambda step: None):
        self.before = before

    def read(self, first_step, count):
        for number in range(first_step, first_step + count):
            self.before(number)
        return {"step": np.arange(first_step, first_step + count)}

    def lay_out(self, tables, columns):
        step = columns["step"]
        first = tf.random.stateless_uniform([16, 1], tf.stack([1, step]), 1, NUM_ITEMS - 4, tf.int32)
        items = first + tf.range(5)
        positions = tf.random.stateless_uniform([16, 1], tf.stack([2, step]), 0, 5, tf.int32)
        hidden = tf.range(5)[None, :] == positions
        return {
            "users": tf.zeros(16, tf.int32),
            "lengths": tf.fill([16], 5),
            "items": tf.where(hidden, NUM_ITEMS + 1, items),
            "mask_positions": positions,
            "mask_targets": tf.gather(items, positions, batch_dims=1),
        }


def settings(**changes):
    defaults = TrainingSettings(steps=40, warmup_steps=4, learning_rate=0.01, evaluate_every=10)
    return dataclasses.replace(defaults, **changes)


def train(folder, model=None, validate=None, feed=None, execution=None, report=None, **changes):
    """Trains a small model in a folder and returns the state at the end."""
    how = settings(**changes), folder, validate, loop.Watch(silent=True, report=report)
    return loop.Training(model or new_model(), feed or Walks(), *how, ExecutionSettings(**(execution or {}))).run()


def read_newest_weights(folder):
    """The arrays of the model in the newest checkpoint of a training."""
    content = npz.read(sorted(folder.glob("step-*.npz"))[-1])
    return {name: value for name, value in content.items() if name.startswith("model")}


def weights(model):
    return [np.asarray(variable) for variable in model.variables]


def scripted(values):
    values = iter(values)
    return lambda: {"hr@10": 0.0, "ndcg@10": next(values)}


class Killed(BaseException):
    """Ends a training at once, as a kill does; no part of the package knows it."""


@contextlib.contextmanager
def before_each_call(act):
    """Calls `act` with the numbers of the steps that each call of a training is about to take, the first being 1."""
    run, done = calls.TrainingCalls.run, {}

    def run_after(self, columns, count):
        first = done.get(id(self), int(self.optimizer.iterations.numpy()))
        done[id(self)] = first + count
        act(range(first + 1, first + count + 1))
        return run(self, columns, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls.TrainingCalls, "run", run_after)
        yield


def interrupted_during(step):
    """Ctrl-C is pressed while a step of this number is taken."""

    def press(steps):
        if step in steps:
            signal.raise_signal(signal.SIGINT)

    return before_each_call(press)


@contextlib.contextmanager
def killed_at_step(number):
    """Ends what is done in the block before step `number` of all its trainings is counted."""
    taken = []

    def kill(steps):
        taken.extend(steps)
        if len(taken) >= number:
            raise Killed

    with pytest.raises(Killed), before_each_call(kill):
        yield


def curve_without_time(state):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in state.curve]


EACH_STEP = ExecutionSettings(checkpoint_seconds=0)
"""A checkpoint after each step."""

RUN = {
    "steps": 6,
    "warmup_steps": 1,
    "evaluate_every": 3,
    "batch_size": 16,
    "learning_rate": 0.03,
    "hidden_dim": 8,
    "num_heads": 1,
    "num_layers": 1,
    "max_length": 6,
    "window_step": 0.5,
    "mask_copies": 2,
    "num_negatives": 5,
}


COMPILING = (mix_search, ranking, losses, step, calls)
"""The modules that compile what a run computes most often. `tf.config.run_functions_eagerly` would warn of tf.data."""


def uncompiled(function=None, **options):
    """Stands in for `tf.function`."""
    return function or (lambda decorated: decorated)


@contextlib.contextmanager
def unoptimized():
    """TensorFlow runs graphs as they are, which takes less time than to make them faster first."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@contextlib.contextmanager
def small_and_quick():
    """Writes small shards, draws no pictures, and computes without compiling and optimizing graphs first."""
    with pytest.MonkeyPatch.context() as patch, unoptimized():
        patch.setattr(preparation, "prepare_examples", functools.partial(preparation.prepare_examples, shard_size=40))
        patch.setattr(plots, "is_available", lambda: False)
        for module in COMPILING:
            patch.setattr(module, "tf_function", uncompiled)
        yield


def assert_a_kill_changes_nothing(folder, run, sequences):
    """Carries out a run twice, once killed at its fifth step and started again."""

    def go(name):
        execute(run, sequences, workdir=folder / name, silent=True, execution=EACH_STEP)
        return folder / name

    expected = go("one")
    with killed_at_step(5):
        go("other")
    whole_runs.assert_same_runs(expected, go("other"))


def experiment(folder, masking):
    """A run, in a folder, with a checkpoint after each step."""
    run = Run.make("beauty", masking=masking, **RUN)
    return open_experiment(run, SEQUENCES, folder / "work", silent=True, execution=EACH_STEP)


def whole_run(folder, masking):
    """Makes a run from beginning to end and returns its work directory."""
    made = experiment(folder, masking)
    made.prepare()
    made.evaluate(made.train())
    return folder / "work"
