"""The folder of one run as its process' own."""

import importlib.metadata

import pytest
import tensorflow as tf
from support.ranking_oracle import make_sequences

from bert4rec_tf.config.run_record import SELECT, Run
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.environment import list_versions
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.experiment import open_experiment
from bert4rec_tf.runs.folder import RawIds, WorkDirectory


def test_only_the_first_lock_deletes_partial_files(tmp_path):
    workdir = WorkDirectory(tmp_path)
    sequences = make_sequences([[1, 2, 3], [2, 3, 1]], 3)
    ids = RawIds(sequences.vocabulary, sequences.vocabulary.counts)
    workdir.initialize(Run.make("beauty", "pop"), sequences, ids, environment={}, repeats={"validation": 0.0})
    (workdir.path / SELECT).mkdir()
    left = workdir.path / SELECT / ".file.partial"
    left.touch()
    with workdir.lock():
        assert not left.exists()
        with files.atomic_write(workdir.path / SELECT / "file") as aside:
            aside.write_text("new")
            with workdir.lock():
                assert aside.exists()
    assert (workdir.path / SELECT / "file").read_text() == "new"


@pytest.mark.parametrize("name", ["lost+found", ".DS_Store", "Thumbs.db"])
def test_what_the_system_puts_into_a_folder_is_nobody_s(tmp_path, name):
    """A new disk has the first, and a folder that was looked at the others."""
    (tmp_path / name).mkdir()
    WorkDirectory(tmp_path).refuse_foreign()
    (tmp_path / "notes").touch()
    with pytest.raises(UserError, match="is not a work directory of this program, and not empty"):
        WorkDirectory(tmp_path).refuse_foreign()


def test_another_model_is_the_difference_that_is_named(tmp_path):
    workdir, sequences = WorkDirectory(tmp_path), make_sequences([[1, 2, 3], [2, 3, 1]], 3)
    ids = RawIds(sequences.vocabulary, sequences.vocabulary.counts)
    workdir.initialize(Run.make("beauty", "sasrec"), sequences, ids, environment={}, repeats={"validation": 0.0})
    with pytest.raises(UserError, match=r"holds another run \(there model=sasrec, now model=auto\)"):
        workdir.check_run(Run.make("beauty", "auto"))


def test_what_follows_from_other_settings_is_not_the_difference_that_is_named(tmp_path):
    workdir, sequences = WorkDirectory(tmp_path), make_sequences([[1, 2, 3], [2, 3, 1]], 3)
    ids = RawIds(sequences.vocabulary, sequences.vocabulary.counts)
    first = Run.make("beauty", "sasrec", steps=100, evaluate_every=13, warmup_steps=10)
    workdir.initialize(first, sequences, ids, environment={}, repeats={"validation": 0.0})
    with pytest.raises(UserError, match=r"holds another run \(there steps=100, now steps=50\); name another --workdir"):
        workdir.check_run(first.change(steps=50, evaluate_every=7, warmup_steps=5))


def test_tensorflow_has_a_version_whatever_its_package_is_called(monkeypatch):
    """`tensorflow-cpu` is another package than `tensorflow` to pip, with the same module."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert list_versions()["tensorflow"] == tf.__version__


@pytest.mark.parametrize("num_items", [127, 128, 129])
def test_candidates_are_items_however_many_there_are(tmp_path, num_items):
    """Their numbers are kept in the shortest type: 128 does not fit into eight bits."""
    histories = [[(5 * user + place) % num_items + 1 for place in range(5)] for user in range(num_items)]
    sequences = make_sequences(histories, num_items)
    experiment = open_experiment(Run.make("own-shop", "pop"), sequences, tmp_path / "work", silent=True)
    for items in experiment.negatives.values():
        assert items.min() >= 1 and num_items - 9 <= items.max() <= num_items
