"""A run in a store gives what a run in a folder gives, also after it was killed."""

import pytest
from support import whole_runs
from support.ranking_oracle import make_sequences
from support.trainings import EACH_STEP, killed_at_step

from bert4rec_tf.config import presets
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import LOCK, expand_path
from bert4rec_tf.runs import driver, exporting
from bert4rec_tf.runs.workdir import WorkDirectory
from bert4rec_tf.serving.client import Choices, SavedRecommender

pytestmark = pytest.mark.usefixtures("quick")

SEQUENCES = make_sequences([[(7 * user + 3 * place) % 30 + 1 for place in range(5)] for user in range(40)], 30)
SETTINGS = {"protocol": "select", "steps": 6, "evaluate_every": 3, "warmup_steps": 1, "batch_size": 8}
RUN = presets.make_run("synthetic", "bpr_mf", **SETTINGS)
PLACES = {"workdir": "memory://bucket/runs/one", "prepared_dir": "memory://bucket/prepared"}


def go(**places):
    return driver.execute(RUN, sequences=SEQUENCES, silent=True, execution=EACH_STEP, **places)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    go(workdir=folder / "work", prepared_dir=folder / "prepared")
    for path in folder.rglob(LOCK):
        path.unlink()
    return folder


def test_a_killed_run_in_a_store_resumes_to_the_files_of_a_local_run(memory, local, tmp_path):
    with killed_at_step(5):
        go(**PLACES)
    assert memory.exists("/bucket/runs/one/select/step-000000004.npz")
    go(**PLACES)
    for name, folder in (("runs/one", "work"), ("prepared", "prepared")):
        memory.get(f"/bucket/{name}", str(tmp_path / folder), recursive=True)
        whole_runs.assert_same_runs(local / folder, tmp_path / folder)

    other = presets.make_run("synthetic", "bpr_mf", seed=2, **SETTINGS)
    with pytest.raises(UserError, match="memory://bucket/runs/one: holds another run"):
        driver.open_experiment(other, SEQUENCES, **PLACES)


def test_a_model_is_exported_to_a_store_and_opened_there(memory, local):
    workdir = WorkDirectory(local / "work")
    url = expand_path("memory://bucket/served")
    exporting.check_export(url)
    exporting.export(workdir, url)
    assert {"saved_model.pb", "assets/vocabulary.txt"} <= {
        name.removeprefix("/bucket/served/") for name in memory.find("/bucket")
    }
    model = SavedRecommender(url)
    seen = SEQUENCES.vocabulary.decode(SEQUENCES[3])
    known = model.recommend([seen], ["user3"], Choices(k=30)).items[0]
    assert sorted(known + seen) == sorted(SEQUENCES.vocabulary.items)
    assert model.folder == url and model.card["model"] == "BprMf"

    memory.pipe_file("/bucket/other/mine.txt", b"x")
    with pytest.raises(UserError, match="memory://bucket/other: holds other files than an older export"):
        exporting.check_export(expand_path("memory://bucket/other"))
    memory.rm("/bucket/served/saved_model.pb")
    with pytest.raises(UserError, match=r"^memory://bucket/served/saved_model\.pb: cannot be read"):
        SavedRecommender(url)
