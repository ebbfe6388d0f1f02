"""The loop: what it learns, chooses, saves and resumes."""

import csv
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from support.trainings import (
    Walks,
    before_each_call,
    curve_without_time,
    interrupted_during,
    new_model,
    scripted,
    settings,
    train,
    weights,
)

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.signals import delay_interrupts
from bert4rec_tf.training import checkpoints, loop
from bert4rec_tf.training.loop import BEST, load_weights, read_state

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

    return train(folder, model, validate), seen


@pytest.mark.parametrize("step", [17, 30])
def test_stopped_and_resumed_equals_uninterrupted(straight, tmp_path, step):
    resumed = new_model()
    with pytest.raises(KeyboardInterrupt), interrupted_during(step):
        train(tmp_path, validate=scripted(NDCG))
    assert checkpoints.Series(tmp_path).read_header()["state"]["step"] == step
    state = train(tmp_path, resumed, scripted(NDCG[step // 10 :]))
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
        train(tmp_path, validate=stop_in_one)
    state = train(tmp_path, resumed, scripted(NDCG[measurement:]))
    assert curve_without_time(state) == curve_without_time(straight.state) and state.finished
    np.testing.assert_equal(weights(resumed), straight.weights)


@pytest.mark.parametrize("step", [10, 40])
def test_a_signal_while_a_measurement_is_reported_stops_the_training(straight, tmp_path, step):
    def report(row):
        if row["step"] == step:
            signal.raise_signal(signal.SIGTERM)

    resumed = new_model()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, validate=scripted(NDCG), report=report)
    saved = checkpoints.Series(tmp_path).read_header()["state"]["step"]
    assert curve_without_time(train(tmp_path, resumed, scripted(NDCG[saved // 10 :]))) == curve_without_time(
        straight.state
    )
    np.testing.assert_equal(weights(resumed), straight.weights)


def test_signals_are_handled_as_before_after_training(straight):
    before, after = straight.handlers
    assert after == before


def test_a_handler_that_is_not_of_python_stays(monkeypatch):
    """As in a program with Python inside, which handles a signal itself."""
    getsignal, handled = signal.getsignal, []
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGINT else getsignal(number))
    monkeypatch.setattr(signal, "signal", lambda number, handler: handled.append((number, handler)))
    with delay_interrupts():
        pass
    assert [number for number, _ in handled] == [signal.SIGTERM] * 2 and handled[1][1] == getsignal(signal.SIGTERM)


def test_a_finished_training_is_not_done_again(straight):
    def refuse(step):
        raise AssertionError("trained again")

    again = new_model()
    train(straight.folder, again, scripted([]), Walks(refuse))
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
    state = train(tmp_path, validate=scripted([0.1, 0.3, 0.2, 0.3, 0.5]), steps=100, patience=2)
    assert state.step == 40 and state.best_step == 20 and state.finished


def test_a_training_to_an_earlier_step_goes_the_same_way(straight, tmp_path):
    model = new_model()
    assert train(tmp_path, model, stop_after=20).step == 20
    np.testing.assert_equal(weights(model), straight.seen[1])


def test_a_loss_that_is_no_number_ends_with_advice(tmp_path):
    model = new_model()
    model.item_embeddings.assign(np.full(model.item_embeddings.shape, np.nan))
    with pytest.raises(UserError, match=r"The loss is nan .* at step 1: a lower --learning_rate"):
        train(tmp_path, model)


def test_an_unfinished_training_is_not_measured(tmp_path):
    with pytest.raises(UserError, match="no finished training"):
        read_state(tmp_path)
    with pytest.raises(KeyboardInterrupt), interrupted_during(5):
        train(tmp_path)
    with pytest.raises(UserError, match="no finished training"):
        read_state(tmp_path)
    assert not (tmp_path / BEST).exists()


@pytest.mark.parametrize("steps_per_call", [7, 50])
def test_calls_of_any_number_of_steps_give_the_same_bits(straight, tmp_path, steps_per_call):
    model = new_model()
    state = train(tmp_path, model, scripted(NDCG), execution={"steps_per_call": steps_per_call})
    assert curve_without_time(state) == curve_without_time(straight.state)
    np.testing.assert_equal(weights(model), straight.weights)


def test_a_call_ends_at_a_measurement_and_at_the_last_step(tmp_path):
    taken = []
    with before_each_call(lambda steps: taken.append(list(steps))):
        train(tmp_path, execution={"steps_per_call": 7}, steps=25)
    assert [len(steps) for steps in taken] == [7, 3, 7, 3, 5]
    assert [step for steps in taken for step in steps] == list(range(1, 26))


def test_a_signal_ends_the_training_after_its_call(tmp_path):
    with pytest.raises(KeyboardInterrupt), interrupted_during(5):
        train(tmp_path, execution={"steps_per_call": 7})
    assert checkpoints.Series(tmp_path).read_header()["state"]["step"] == 7


def test_the_error_of_a_loss_that_is_no_number_names_its_step_within_the_call(tmp_path):
    model = new_model()
    calls = []

    def spoil(steps):
        if calls:
            model.item_embeddings.assign(np.full(model.item_embeddings.shape, np.inf))
        calls.append(steps)

    with pytest.raises(UserError, match=r"The loss is .* at step 6: a lower"), before_each_call(spoil):
        train(tmp_path, model, execution={"steps_per_call": 5})


def test_a_training_ends_when_its_time_is_over(tmp_path):
    state = loop.Training(new_model(), Walks(), settings(), tmp_path, max_seconds=0.0).run()
    assert state.step == 1 and state.finished


def test_a_kill_loses_two_minutes_at_most(tmp_path, monkeypatch):
    now, saved_at = [0.0], {}
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    save = checkpoints.Series.save

    def save_and_note(series, variables, step, state):
        saved_at[step] = now[0]
        save(series, variables, step, state)

    def take_half_a_minute_each(steps):
        now[0] += 30.0 * len(steps)

    monkeypatch.setattr(checkpoints.Series, "save", save_and_note)
    with before_each_call(take_half_a_minute_each):
        train(tmp_path, steps=21, evaluate_every=21, execution={"steps_per_call": 1})
    assert saved_at == {step: 30.0 * step for step in (4, 8, 12, 16, 20, 21)}


def test_the_pace_follows_the_time_of_a_call():
    pace, counts = loop.Pace(max_steps=80), []
    for seconds in (30.0, 0.01, 0.6, 1.0):
        counts.append(pace.count)
        pace.note(pace.count, seconds)
    assert counts == [1, 1, 50, 50], "the first call compiles; .01 s a step; near enough; twice as slow"
    assert pace.count == 25
