"""A full disk, where no file can become larger than a limit, ends a run in one line and spoils nothing."""

import shutil

import pytest
from support import whole_runs as runs
from support.commands import refused
from support.whole_runs import FLAGS

pytestmark = pytest.mark.slow


def size(work, name):
    return next(work.glob(name)).stat().st_size


def copied(work, folder, *without):
    """Puts a copy of a run's folder somewhere else, some parts of it left out."""
    shutil.copytree(work.parent, folder, ignore=shutil.ignore_patterns(*without, ".lock"), dirs_exist_ok=True)
    return folder / "work"


def too_large(folder, name, limit, *flags):
    """Runs where no file can become larger than `limit`, which is first too little for the file called `name`."""
    work = folder / "work"
    before = runs.contents_of(work)
    line = refused(runs.run(folder, *flags, "--workdir=work", limit=limit))
    assert line.startswith(f"error: work/{name}") and "File too large" in line, line
    after = runs.contents_of(work)
    assert {path: after.get(path) for path in before} == before
    assert not runs.partials(work)


def no_room_for_the_vocabulary_and_the_examples(folder, uninterrupted):
    expected, flags = uninterrupted("static"), FLAGS["static"]
    too_large(folder, "vocabulary.npz", size(expected, "vocabulary.npz") - 1, *flags)
    too_large(folder, "prepared/", size(expected, "prepared/*/train-00000*") - 1, *flags)
    runs.assert_same_runs(expected, runs.finished(folder, *flags))


def no_room_for_candidates_curves_and_checkpoints(folder, uninterrupted):
    expected, flags = uninterrupted("dynamic"), FLAGS["dynamic"]
    work = copied(expected, folder, "candidates-*", "retrain", "metrics.json", "ranks-test.npz", "saved_model")
    too_large(folder, "prepared/candidates-", size(expected, "prepared/candidates-*") - 1, *flags)
    (candidates,) = expected.glob("prepared/candidates-*")
    shutil.copy(candidates, work / "prepared")
    too_large(folder, "retrain/tensorboard/events.", 20, *flags)
    too_large(folder, "retrain/step-000000004.npz", size(expected, "retrain/step-000000008.npz") // 2, *flags)
    runs.assert_same_runs(expected, runs.finished(folder, *flags))


def no_room_for_results_and_the_exported_model(folder, uninterrupted):
    expected, flags = uninterrupted("dynamic"), FLAGS["dynamic"]
    copied(expected, folder)
    too_large(folder, "metrics.json", size(expected, "metrics.json") - 1, *flags, "--mode=evaluate")
    too_large(folder, "saved_model", size(expected, "saved_model/saved_model.pb") // 2, *flags, "--mode=export")
    runs.assert_same_runs(expected, runs.finished(folder, *flags))


FULL_DISKS = [
    no_room_for_candidates_curves_and_checkpoints,
    no_room_for_the_vocabulary_and_the_examples,
    no_room_for_results_and_the_exported_model,
]


@pytest.mark.parametrize("scenario", FULL_DISKS, ids=lambda scenario: scenario.__name__)
def test_a_full_disk_ends_in_one_line_and_spoils_nothing(tmp_path, uninterrupted, scenario):
    scenario(tmp_path, uninterrupted)
