"""Checkpoints: what comes back from them, whole or damaged, and which of them a training goes on from."""

import shutil

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.profiles import examples
from support.trainings import STEP_40, Killed, new_model, scripted, train, weights

from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.foundation.warning import FileWarning
from bert4rec_tf.training import checkpoints
from bert4rec_tf.training.checkpoints import NUM_CHECKPOINTS, Series
from bert4rec_tf.training.loop import BEST, load_weights

STATE = {"step": 7, "curve": [{"step": 5, "loss": 0.1, "hr@10": 1e-300}], "finished": False, "note": "ß"}
ODD = np.array([np.nan, -np.nan, -0.0, np.inf, -np.inf, 1e-45, 3.4e38, 1 / 3], np.float32)


def groups(fill=None):
    """Variables of every kind that a training has; `fill` instead of their own values."""

    def variable(value):
        value = np.asarray(value)
        return keras.Variable(value if fill is None else np.full_like(value, fill), dtype=str(value.dtype))

    return {
        "model": [variable(ODD), variable(np.arange(12, dtype=np.float32).reshape(3, 4)), variable(np.float32(2.5))],
        "optimizer": [variable(np.int64(2**40 + 1)), variable(np.array([5, 2**32 - 1], np.uint32))],
    }


def bits(variables):
    return {
        name: [(np.asarray(one).dtype.str, np.asarray(one).shape, np.asarray(one).tobytes()) for one in group]
        for name, group in variables.items()
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "saved.npz"
    checkpoints.save(path, groups(), STATE)
    return path


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def damage_an_array(path):
    """Flips a bit in the values of one array, which leaves the header and all others whole."""
    content = path.read_bytes()
    place = content.index(b"model/001.npy")
    flip(path, 8 * (content.index(b"\n", place) + 2))


def test_a_checkpoint_restores_every_bit(saved):
    into = groups(fill=9)
    assert checkpoints.restore(saved, into) == STATE == checkpoints.read_header(saved)["state"]
    assert bits(into) == bits(groups())


def test_equal_content_gives_equal_bytes(saved, tmp_path):
    checkpoints.save(tmp_path / "again.npz", groups(), STATE)
    assert (tmp_path / "again.npz").read_bytes() == saved.read_bytes()


def comes_back_or_is_known_to_be_damaged(path):
    """Restores what may be damaged: either everything as it was saved, or `CorruptFileError` and nothing changed."""
    into = groups(fill=9)
    untouched = bits(into)
    try:
        state = checkpoints.restore(path, into)
    except CorruptFileError as error:
        assert str(path) in str(error)
        assert bits(into) == untouched
        return False
    assert state == STATE
    assert bits(into) == bits(groups())
    return True


many = settings(max_examples=examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture])
numbers = st.integers(0, 2**40)


@many
@given(bit=numbers)
def test_a_flipped_bit_is_noticed_or_does_not_matter(saved, tmp_path, bit):
    shutil.copy(saved, tmp_path / "damaged.npz")
    flip(tmp_path / "damaged.npz", bit)
    comes_back_or_is_known_to_be_damaged(tmp_path / "damaged.npz")


@many
@given(number=numbers)
def test_a_file_cut_short_is_always_noticed(saved, tmp_path, number):
    content, path = saved.read_bytes(), tmp_path / "damaged.npz"
    path.write_bytes(content[: number % len(content)])
    assert not comes_back_or_is_known_to_be_damaged(path)
    with pytest.raises(CorruptFileError):
        checkpoints.read_header(path)


@pytest.mark.parametrize("change", ["another shape", "one more", "one group more"])
def test_a_checkpoint_of_another_model_is_not_reported_as_damaged(saved, change):
    into = groups(fill=9)
    if change == "another shape":
        into["optimizer"][-1] = keras.Variable(np.zeros(3, np.uint32), dtype="uint32")
    elif change == "one more":
        into["model"].append(keras.Variable(np.zeros(3)))
    else:
        into["other"] = [keras.Variable(np.zeros(3))]
    untouched = bits(into)
    with pytest.raises(UserError, match="belongs to another model") as raised:
        checkpoints.restore(saved, into)
    assert not isinstance(raised.value, CorruptFileError)
    assert bits(into) == untouched


def series_of(folder, *steps):
    series = Series(folder)
    for step in steps:
        series.save(groups(fill=step), step, {"step": step})
    return series


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def restored(series):
    into = groups(fill=99)
    state = series.restore(into)
    assert bits(into) == bits(groups(fill=state["step"]))
    return state["step"]


def test_only_the_newest_checkpoints_stay(tmp_path):
    series = series_of(tmp_path, 8, 9, 10, 100)
    assert NUM_CHECKPOINTS == 2 and names(tmp_path) == ["step-000000010.npz", "step-000000100.npz"]
    assert restored(series) == 100 == series.read_header()["state"]["step"]
    assert restored(series_of(tmp_path, 999_999_999, 1_000_000_000)) == 1_000_000_000


@pytest.mark.parametrize(
    "damage", [lambda path: flip(path, 4_000), lambda path: path.write_bytes(b""), damage_an_array]
)
def test_where_the_newest_is_damaged_the_one_before_it_serves_and_both_are_named(tmp_path, damage):
    series_of(tmp_path, 10, 20)
    damage(tmp_path / "step-000000020.npz")
    line = r"step-000000020\.npz: cannot be read.*resuming from step-000000010\.npz$"
    with pytest.warns(FileWarning, match=line):
        assert Series(tmp_path).read_header()["state"] == {"step": 10}
    series = Series(tmp_path)
    with pytest.warns(FileWarning, match=line) as told:
        assert restored(series) == 10
    assert len(told) == 1
    series.save(groups(fill=11), 11, {"step": 11})
    assert names(tmp_path) == ["step-000000010.npz", "step-000000011.npz"]
    assert restored(series) == 11


def test_where_all_are_damaged_the_folder_to_delete_is_named(tmp_path):
    series = series_of(tmp_path, 10, 20)
    for path in series.paths():
        flip(path, 4_000)
    with pytest.raises(UserError, match=r"step-000000020\.npz: cannot be read") as raised:
        series.restore(groups())
    assert f"delete {tmp_path} to start again" in str(raised.value)
    assert len(names(tmp_path)) == 2


def test_the_training_whose_steps_a_damaged_one_selected_is_named_too(tmp_path):
    """Else it would go on as it began, with another number of steps."""
    for name in ("select", "retrain", "prepared"):
        (tmp_path / name).mkdir()
        series_of(tmp_path / name, 10)
    expected = {"select": f"{tmp_path / 'select'} and {tmp_path / 'retrain'}", "retrain": f"{tmp_path / 'retrain'}"}
    for name, folders in expected.items():
        flip(tmp_path / name / "step-000000010.npz", 4_000)
        with pytest.raises(UserError, match=f"delete {folders} to start again"):
            Series(tmp_path / name).read_header()


def test_a_training_beyond_its_last_step_is_refused_in_one_line(trained):
    with pytest.raises(UserError, match=r"has taken 40 steps, but this run ends after 30; delete .*") as error:
        train(trained, validate=scripted([]), steps=30)
    assert len(str(error.value).splitlines()) == 1


def test_a_finished_training_with_fewer_steps_than_a_new_selection_is_refused(tmp_path):
    """Else weights of the old number of steps would be measured as those of the new one."""
    train(tmp_path, steps=20, stop_after=10)
    with pytest.raises(UserError, match=r"has taken 10 steps, but this run ends after 15; delete .* to train again"):
        train(tmp_path, steps=20, stop_after=15)
    assert train(tmp_path, steps=20, stop_after=10).step == 10


@pytest.mark.parametrize("kill", [10, 20], ids=["on the way", "at the end"])
def test_a_kill_before_the_best_weights_are_written_loses_none(tmp_path, monkeypatch, kill):
    """They are written anew from the checkpoint of the same step, even if no step follows."""
    choices, values, expected, resumed = {"steps": 20, "evaluate_every": 10}, [0.1, 0.2], new_model(), new_model()
    train(tmp_path / "straight", expected, scripted(values), **choices)
    save = checkpoints.save

    def save_until_killed(path, groups, state):
        if path.name == BEST and state["step"] == kill:
            raise Killed
        save(path, groups, state)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoints, "save", save_until_killed)
        train(tmp_path / "killed", validate=scripted(values), **choices)
    if kill == 20:
        load_weights(resumed, tmp_path / "killed")
        np.testing.assert_equal(weights(resumed), weights(expected))
    train(tmp_path / "killed", resumed, scripted(values[kill // 10 :]), **choices)
    np.testing.assert_equal(weights(resumed), weights(expected))


def test_a_finished_training_is_read_and_not_written(tmp_path, monkeypatch):
    train(tmp_path, validate=scripted([0.1, 0.2]), steps=20, evaluate_every=10)
    monkeypatch.setattr(checkpoints, "save", lambda *_: pytest.fail("nothing is new"))
    assert train(tmp_path, validate=scripted([]), steps=20, evaluate_every=10).best_step == 20


def test_a_checkpoint_of_another_model_is_not_passed_over(tmp_path):
    series = series_of(tmp_path, 10)
    checkpoints.save(tmp_path / "step-000000020.npz", {"model": [keras.Variable(np.zeros(3))]}, {"step": 20})
    with pytest.raises(UserError, match=r"step-000000020\.npz: belongs to another model"):
        series.restore(groups())


HEADERS = {
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "a list": b"[]",
    "no shapes": b'{"state": {"step": 7}}',
    "shapes of another kind": b'{"shapes": 3, "state": {"step": 7}}',
    "no step": b'{"shapes": {}, "state": {}}',
    "a state of another kind": b'{"shapes": {}, "state": "x"}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_whole_file_with_a_wrong_header_is_damaged(tmp_path, header):
    path = tmp_path / "best.npz"
    npz.write(path, {"header": np.frombuffer(header, np.uint8), "model/000": np.zeros(3, np.float32)})
    for read in (
        checkpoints.read_header,
        lambda path: checkpoints.restore(path, {"model": [keras.Variable(np.ones(3))]}),
    ):
        with pytest.raises(CorruptFileError, match=r"best\.npz: cannot be read"):
            read(path)


NDCG = (0.1, 0.4, 0.3, 0.2)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A training that nothing happened to: its folder and its state."""
    folder = tmp_path_factory.mktemp("straight")
    return folder, train(folder, validate=scripted(NDCG))


@pytest.fixture
def trained(straight, tmp_path):
    """A copy of the folder of a finished training."""
    return shutil.copytree(straight[0], tmp_path / "trained")


@pytest.mark.parametrize("name", [BEST, STEP_40])
def test_weights_of_an_earlier_step_are_never_taken_for_those_of_a_damaged_file(trained, name):
    damage_an_array(trained / name)
    model = new_model()
    before = weights(model)
    with pytest.raises(UserError):
        load_weights(model, trained)
    np.testing.assert_equal(weights(model), before)


def test_the_last_weights_are_not_replaced_by_earlier_ones_where_there_was_no_validation(tmp_path):
    train(tmp_path, steps=20, evaluate_every=5)
    damage_an_array(tmp_path / "step-000000020.npz")
    with pytest.raises(UserError, match="no finished training"):
        load_weights(new_model(), tmp_path)


def test_damaged_best_weights_name_the_folder_to_delete(trained):
    (trained / BEST).write_bytes((trained / BEST).read_bytes()[:-1])
    with pytest.raises(UserError, match=r"best\.npz: cannot be read .*; delete .*trained to train again"):
        train(trained, validate=scripted([]))
    (trained / BEST).unlink()
    with pytest.raises(UserError, match=r"best\.npz: cannot be read .*; delete .*trained to train again"):
        load_weights(new_model(), trained)
