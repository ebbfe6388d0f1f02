"""The loop: what it learns, chooses, saves and resumes."""

import csv
import signal

import numpy as np
import pytest
from support.trainings import (
    curve_without_time,
    interrupted_during,
    new_bert4rec,
    new_model,
    scripted,
    trainer,
    weights,
)

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.training import checkpoints
from bert4rec_tf.training.trainer import BEST, load_weights, read_state


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("make", [new_model, pytest.param(new_bert4rec, marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", [17, 30])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, step, make):
    straight, stopped, resumed = make(), make(), make()
    expected = trainer(tmp_path / "straight", straight).run()
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "stopped", stopped, make=interrupted_during(step)).run()
    assert checkpoints.Series(tmp_path / "stopped").read_state()["step"] == step
    state = trainer(tmp_path / "stopped", resumed).run()
    assert_same(weights(straight), weights(resumed))
    assert curve_without_time(state) == curve_without_time(expected)


@pytest.mark.parametrize("measurement", [2, 4])
def test_stopped_during_a_measurement_keeps_it(tmp_path, measurement):
    def validate(stopping):
        seen = []

        def measure():
            seen.append(1)
            if stopping and len(seen) == measurement:
                signal.raise_signal(signal.SIGINT)
            return {"hr@10": 0.0, "ndcg@10": 0.1}

        return measure

    straight, resumed = new_model(), new_model()
    expected = trainer(tmp_path / "straight", straight, validate(False)).run()
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "stopped", validate=validate(True)).run()
    state = trainer(tmp_path / "stopped", resumed, validate(False)).run()
    assert curve_without_time(state) == curve_without_time(expected) and state.finished
    assert_same(weights(straight), weights(resumed))


def test_signals_are_handled_as_before_after_training(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    trainer(tmp_path).run()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_finished_training_is_not_done_again(tmp_path):
    model = new_model()
    trainer(tmp_path, model).run()

    def refuse(start_step):
        raise AssertionError("trained again")

    again = new_model()
    trainer(tmp_path, again, make=refuse).run()
    assert_same(weights(model), weights(again))


def test_the_best_measurement_is_kept_and_left_in_the_model(tmp_path):
    model, seen = new_model(), []

    def validate():
        seen.append(weights(model))
        return {"hr@10": 0.0, "ndcg@10": [0.1, 0.4, 0.3, 0.4][len(seen) - 1]}

    state = trainer(tmp_path, model, validate).run()
    assert state.best_step == 20
    assert_same(seen[1], weights(model))
    loaded = new_model()
    load_weights(loaded, tmp_path)
    assert_same(seen[1], weights(loaded))


def test_training_stops_after_measurements_without_a_better_one(tmp_path):
    state = trainer(tmp_path, validate=scripted([0.1, 0.3, 0.2, 0.3, 0.5]), steps=100, patience=2).run()
    assert state.step == 40 and state.best_step == 20 and state.finished


def test_a_training_to_an_earlier_step_goes_the_same_way(tmp_path):
    model = new_model()
    state = trainer(tmp_path / "short", model, last_step=20).run()
    assert state.step == 20
    seen = []
    long = new_model()
    trainer(tmp_path / "long", long, lambda: seen.append(weights(long)) or {"hr@10": 0, "ndcg@10": 0}).run()
    assert_same(seen[1], weights(model))


def test_a_loss_that_is_no_number_ends_with_advice(tmp_path):
    model = new_model()
    model.item_embeddings.assign(np.full(model.item_embeddings.shape, np.nan))
    with pytest.raises(UserError, match=r"The loss is nan .* at step 1: a lower --learning_rate"):
        trainer(tmp_path, model).run()


def test_the_curve_is_written_as_a_table(tmp_path):
    trainer(tmp_path, validate=scripted([0.1, 0.2, 0.3, 0.4])).run()
    with open(tmp_path / "curve.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["10", "20", "30", "40"]
    assert [row["ndcg@10"] for row in rows] == ["0.1", "0.2", "0.3", "0.4"]


def test_an_unfinished_training_is_not_measured(tmp_path):
    with pytest.raises(UserError, match="no finished training"):
        read_state(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, make=interrupted_during(5)).run()
    with pytest.raises(UserError, match="no finished training"):
        read_state(tmp_path)
    assert not (tmp_path / BEST).exists()
