"""The loop: what it learns, chooses, saves and resumes."""

import csv
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from support.trainings import (
    curve_without_time,
    interrupted_during,
    new_model,
    scripted,
    trainer,
    weights,
)

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.training import checkpoints
from bert4rec_tf.training.trainer import BEST, load_weights, read_state

NDCG = (0.1, 0.2, 0.3, 0.4)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A training that nothing happened to: its folder and state, the weights at each measurement and at last, and the
    handlers of signals before and after."""
    folder, model, before = tmp_path_factory.mktemp("straight"), new_model(), get_handlers()
    state, seen = train_and_look(folder, model, NDCG)
    handlers = before, get_handlers()
    return SimpleNamespace(folder=folder, state=state, seen=seen, weights=weights(model), handlers=handlers)


def get_handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def train_and_look(folder, model, ndcg):
    """Trains with these measurements. Returns the state, and the weights at each of them."""
    values, seen = iter(ndcg), []

    def validate():
        seen.append(weights(model))
        return {"hr@10": 0.0, "ndcg@10": next(values)}

    return trainer(folder, model, validate).run(), seen


@pytest.mark.parametrize("step", [17, 30])
def test_stopped_and_resumed_equals_uninterrupted(straight, tmp_path, step):
    resumed = new_model()
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, validate=scripted(NDCG), make=interrupted_during(step)).run()
    assert checkpoints.Series(tmp_path).read_state()["step"] == step
    state = trainer(tmp_path, resumed, scripted(NDCG[step // 10 :])).run()
    np.testing.assert_equal(weights(resumed), straight.weights)
    assert curve_without_time(state) == curve_without_time(straight.state)


@pytest.mark.parametrize("measurement", [2, 4])
def test_stopped_during_a_measurement_keeps_it(straight, tmp_path, measurement):
    values = iter(NDCG)

    def stop_in_one():
        ndcg = next(values)
        if ndcg == NDCG[measurement - 1]:
            signal.raise_signal(signal.SIGINT)
        return {"hr@10": 0.0, "ndcg@10": ndcg}

    resumed = new_model()
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, validate=stop_in_one).run()
    state = trainer(tmp_path, resumed, scripted(NDCG[measurement:])).run()
    assert curve_without_time(state) == curve_without_time(straight.state) and state.finished
    np.testing.assert_equal(weights(resumed), straight.weights)


def test_signals_are_handled_as_before_after_training(straight):
    before, after = straight.handlers
    assert after == before


def test_a_finished_training_is_not_done_again(straight):
    def refuse(start_step):
        raise AssertionError("trained again")

    again = new_model()
    trainer(straight.folder, again, scripted([]), make=refuse).run()
    np.testing.assert_equal(weights(again), straight.weights)


def test_the_best_measurement_is_kept_and_left_in_the_model(tmp_path):
    model, loaded = new_model(), new_model()
    state, seen = train_and_look(tmp_path, model, (0.1, 0.4, 0.3, 0.4))
    load_weights(loaded, tmp_path)
    assert state.best_step == 20
    for found in (model, loaded):
        np.testing.assert_equal(weights(found), seen[1])
    with open(tmp_path / "curve.csv") as file:
        rows = [(row["step"], row["ndcg@10"]) for row in csv.DictReader(file)]
    assert rows == [("10", "0.1"), ("20", "0.4"), ("30", "0.3"), ("40", "0.4")]


def test_training_stops_after_measurements_without_a_better_one(tmp_path):
    state = trainer(tmp_path, validate=scripted([0.1, 0.3, 0.2, 0.3, 0.5]), steps=100, patience=2).run()
    assert state.step == 40 and state.best_step == 20 and state.finished


def test_a_training_to_an_earlier_step_goes_the_same_way(straight, tmp_path):
    model = new_model()
    assert trainer(tmp_path, model, last_step=20).run().step == 20
    np.testing.assert_equal(weights(model), straight.seen[1])


def test_a_loss_that_is_no_number_ends_with_advice(tmp_path):
    model = new_model()
    model.item_embeddings.assign(np.full(model.item_embeddings.shape, np.nan))
    with pytest.raises(UserError, match=r"The loss is nan .* at step 1: a lower --learning_rate"):
        trainer(tmp_path, model).run()


def test_an_unfinished_training_is_not_measured(tmp_path):
    with pytest.raises(UserError, match="no finished training"):
        read_state(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, make=interrupted_during(5)).run()
    with pytest.raises(UserError, match="no finished training"):
        read_state(tmp_path)
    assert not (tmp_path / BEST).exists()
