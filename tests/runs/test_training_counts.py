"""How often each item occurs in training: kept in the work directory, and used to correct an export for popularity."""

import collections
import json

import numpy as np
import pytest
import tensorflow as tf
from support.ranking_oracle import group_histories

from bert4rec_tf.config import presets
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.experiment import open_experiment
from bert4rec_tf.runs.exporting import export

USERS = [[(7 * user * user + step) % 30 for step in range(2 + user % 5)] for user in range(60)]


ITEMS = dict.fromkeys(item for user in USERS for item in user)


def sequences():
    return group_histories({f"user {number}": [f"item {item}" for item in items] for number, items in enumerate(USERS)})


def counted(held_out):
    """Counts the raw actions; users with two actions keep both."""
    found = collections.Counter()
    for user in USERS:
        found.update(user if len(user) < 3 else user[: len(user) - held_out])
    return {f"item {item}": found[item] for item in ITEMS}


def opened(folder, model="pop", **settings):
    run = presets.make_run("synthetic", model=model, **settings)
    return open_experiment(run, sequences(), folder, silent=True)


@pytest.mark.parametrize(
    "model, settings, held_out",
    [("pop", {}, 1), ("bert4rec", {"protocol": "select_and_retrain"}, 1), ("bert4rec", {"protocol": "select"}, 2)],
)
def test_training_counts_are_those_of_the_last_training(tmp_path, model, settings, held_out):
    experiment = opened(tmp_path / "work", model, **settings)
    items = experiment.sequences.vocabulary.items.tolist()
    assert dict(zip(items, experiment.workdir.read_ids().training_counts.tolist())) == counted(held_out)


@pytest.fixture
def trained(tmp_path):
    experiment = opened(tmp_path / "work")
    experiment.train()
    return experiment


def check_export(workdir, counts, strength):
    """Compares the default signature with POP's counts, corrected by `counts`."""
    folder = export(workdir, workdir.path.parent / "model", ExportOptions(30, strength))
    history = ["item 0", "item 3"]
    found = tf.saved_model.load(str(folder)).signatures["serving_default"](histories=tf.constant([history]))
    popular = counted(1)
    expected = {item: popular[item] - strength * np.log(counts[item] + 1) for item in popular if item not in history}
    items = [item.decode() for item in found["items"].numpy()[0] if item]
    assert set(items) == set(expected)
    scores = found["scores"].numpy()[0, : len(items)]
    np.testing.assert_allclose(scores, sorted(expected.values(), reverse=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scores, [expected[item] for item in items], rtol=1e-5, atol=1e-5)
    return json.loads((folder / "assets.extra" / "model_card.json").read_text())


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
def test_an_export_is_corrected_by_them_without_the_data(trained):
    card = check_export(trained.workdir, counted(1), 4.5)
    assert card["popularity_correction"] == 4.5
    assert card["data"]["training_actions"] == sum(counted(1).values())


def test_a_missing_file_is_written_again_with_the_data(trained):
    trained.workdir.vocabulary.unlink()
    with pytest.raises(UserError, match=r"vocabulary\.npz: cannot be read .*; delete it, and run with --mode=evaluate"):
        export(trained.workdir)
    opened(trained.workdir.path)
    check_export(trained.workdir, counted(1), 4.5)
