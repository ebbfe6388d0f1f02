"""What TensorBoard reads from the folder of a training that was stopped and went on."""

import numpy as np
import pytest
import tensorflow as tf
from support import trainings
from support.trainings import interrupted_during, killed_at_step
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bert4rec_tf.training import calls
from bert4rec_tf.training.tensorboard import TensorBoardWriter

TRAINING = {f"training/{name}" for name in ("loss", "learning_rate", "gradient_norm", "clipped")}
VALIDATION = {"validation/hr@10", "validation/ndcg@10"}


def take_step(model, optimizer, batch, clip_norm):
    """Computes nothing but what it gives back."""
    loss = tf.reduce_mean(tf.cast(batch["items"], tf.float32))
    return {"loss": loss, "gradient_norm": loss, "learning_rate": loss / 1000}


@pytest.fixture(scope="module", autouse=True)
def cheap_steps(quick):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "take_step", take_step)
        yield


def train(folder, **changes):
    def measure():
        return {"hr@10": 0.25, "ndcg@10": 0.125}

    trainings.train(folder, validate=measure, steps=120, evaluate_every=40, **changes)


def killed(folder, step, monkeypatch):
    """A sitting that is killed before this step: what is not in the file by then never comes into it."""
    done = max((int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.npz")), default=0)
    with monkeypatch.context() as patch, killed_at_step(step - done):
        patch.setattr(TensorBoardWriter, "close", lambda writer: None)
        train(folder)


def curves(folder):
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    return {
        tag: [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


def steps(curve):
    return [step for step, _ in curve]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    train(folder)
    return curves(folder)


def test_every_curve_is_there_with_the_last_steps(straight):
    assert straight.keys() == TRAINING | VALIDATION
    assert all(steps(straight[tag]) == [50, 100, 120] for tag in TRAINING)
    assert {tag: straight[tag] for tag in VALIDATION} == {
        "validation/hr@10": [(40, 0.25), (80, 0.25), (120, 0.25)],
        "validation/ndcg@10": [(40, 0.125), (80, 0.125), (120, 0.125)],
    }


def test_points_are_means_of_the_steps_since_the_last_one(tmp_path):
    writer = TensorBoardWriter(tmp_path / "tensorboard", clip_norm=1.0)
    for step in range(1, 71):
        writer.add(step, {"loss": float(step), "gradient_norm": step - 35.5, "learning_rate": 0.5})
    writer.flush(is_last=True)
    writer.close()
    found = curves(tmp_path)
    assert found["training/loss"] == [(50, 25.5), (70, 60.5)]
    np.testing.assert_allclose([value for _, value in found["training/clipped"]], [14 / 50, 1.0])
    assert found["training/learning_rate"] == [(50, 0.5), (70, 0.5)]


def test_a_training_that_is_killed_again_and_again_has_every_step_once(tmp_path, monkeypatch, straight):
    for step in (35, 65, 65, 110):
        killed(tmp_path, step, monkeypatch)
    train(tmp_path)
    found = curves(tmp_path)
    assert {tag: steps(curve) for tag, curve in found.items()} == {tag: steps(curve) for tag, curve in straight.items()}
    assert found["training/loss"][-1] == straight["training/loss"][-1]


def test_a_training_stopped_by_ctrl_c_has_a_point_where_it_stopped(tmp_path):
    with pytest.raises(KeyboardInterrupt), interrupted_during(65):
        train(tmp_path)
    train(tmp_path)
    assert steps(curves(tmp_path)["training/loss"]) == [50, 65, 100, 120]


def test_a_training_that_a_callback_ends_goes_on_from_that_measurement_and_has_all_points(tmp_path, straight):
    def end_at_40(row):
        if row["step"] == 40 and not any(tmp_path.glob("step-*40.npz")):
            pytest.fail("the checkpoint comes first")
        if row["step"] == 80 and len(told) < 2:
            raise KeyError
        told.append(row["step"])

    told = []
    with pytest.raises(KeyError):
        train(tmp_path, report=end_at_40)
    train(tmp_path, report=told.append)
    found = curves(tmp_path)
    assert all(steps(found[tag]) == [50, 80, 100, 120] for tag in TRAINING)
    losses, whole = dict(found["training/loss"]), dict(straight["training/loss"])
    assert (30 * losses[80] + 20 * losses[100]) / 50 == pytest.approx(whole[100], rel=1e-6)
    assert {tag: steps(found[tag]) for tag in VALIDATION} == {tag: steps(straight[tag]) for tag in VALIDATION}
    assert [row if isinstance(row, int) else row["step"] for row in told] == [40, 40, 80, 120]


def test_a_folder_that_cannot_be_written_to_is_an_error_with_its_name(tmp_path):
    place = tmp_path / "tensorboard"
    place.write_text("a file")
    with pytest.raises(OSError, match="tensorboard") as raised:
        TensorBoardWriter(place, clip_norm=0)
    assert raised.value.filename == str(place)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = TensorBoardWriter(None, clip_norm=0)
    writer.write(1, "validation", {"hr@10": 0.5})
    writer.flush()
    writer.close()
    assert not list(tmp_path.iterdir())
