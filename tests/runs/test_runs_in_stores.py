"""A run in a store gives what a run in a folder gives, also after it was killed."""

import json

import pytest
from support import whole_runs
from support.ranking_oracle import make_sequences
from support.trainings import Killed, small_and_quick

from bert4rec_tf.config import presets
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import expanded_path
from bert4rec_tf.runs import exporting, pipeline
from bert4rec_tf.serving.client import Choices, SavedRecommender
from bert4rec_tf.training.trainer import Trainer

SEQUENCES = make_sequences([[(7 * user + 3 * place) % 30 + 1 for place in range(5)] for user in range(40)], 30)
SETTINGS = {"steps": 6, "evaluate_every": 3, "warmup_steps": 1, "batch_size": 8, "hidden_dim": 8, "num_heads": 1}
SETTINGS |= {"num_layers": 1, "max_length": 6, "mask_copies": 2, "num_negatives": 5}
RUN = presets.make_run("synthetic", "bert4rec", protocol="select_and_retrain", **SETTINGS)
PLACES = {"workdir": "memory://bucket/runs/one", "prepared_dir": "memory://bucket/prepared"}


@pytest.fixture(scope="module", autouse=True)
def quick():
    with small_and_quick():
        yield


def go(**places):
    return pipeline.execute(RUN, sequences=SEQUENCES, silent=True, checkpoint_seconds=0, **places)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    go(workdir=folder / "work", prepared_dir=folder / "prepared")
    return folder


def test_a_run_in_a_store_is_killed_and_goes_on_to_what_a_folder_holds(memory, local, tmp_path, monkeypatch):
    count, steps = Trainer._count, []

    def killed_at_the_fifth(trainer, made):
        steps.append(made)
        if len(steps) == 5:
            raise Killed
        count(trainer, made)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "_count", killed_at_the_fifth)
        go(**PLACES)
    assert memory.exists("/bucket/runs/one/select/step-000000004.npz")
    go(**PLACES)
    assert len(steps) == 5
    for name, folder in (("runs/one", "work"), ("prepared", "prepared")):
        memory.get(f"/bucket/{name}", str(tmp_path / folder), recursive=True)
        whole_runs.assert_same_runs(local / folder, tmp_path / folder)

    with pytest.raises(UserError, match="memory://bucket/runs/one: holds another run"):
        pipeline.execute(
            presets.make_run("synthetic", "bert4rec", seed=2, **SETTINGS), sequences=SEQUENCES, silent=True, **PLACES
        )


def test_a_model_is_exported_to_a_store_and_opened_there(memory, local):
    workdir = pipeline.WorkDirectory(local / "work")
    expected = exporting.export(workdir, local / "export")
    exporting.check_export(expanded_path("memory://bucket/served"))
    exporting.export(workdir, expanded_path("memory://bucket/served"))
    assert memory.exists("/bucket/served/saved_model.pb")
    history, choices = [SEQUENCES.vocabulary.items[:3].tolist()], Choices(k=5)
    model, other = SavedRecommender(expanded_path("memory://bucket/served")), SavedRecommender(expected)
    assert model.recommend(history, [""], choices).items == other.recommend(history, [""], choices).items
    assert str(model.folder) == "memory://bucket/served" and model.card == other.card

    memory.pipe_file("/bucket/other/mine.txt", b"x")
    with pytest.raises(UserError, match="memory://bucket/other: holds other files than an older export"):
        exporting.check_export(expanded_path("memory://bucket/other"))
    memory.rm("/bucket/served/saved_model.pb")
    with pytest.raises(UserError, match="memory://bucket/served/saved_model.pb: cannot be read"):
        SavedRecommender(expanded_path("memory://bucket/served"))
    assert json.loads(memory.cat_file("/bucket/served/assets.extra/model_card.json"))["model"] == "BERT4Rec"
