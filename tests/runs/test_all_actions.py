"""protocol=all: measured by the model that held out, and exported with all actions learnt."""

import json

import numpy as np
import pytest
import tensorflow as tf
from support.ranking_oracle import make_sequences
from support.shards import read_batches
from support.trainings import read_newest_weights

from bert4rec_tf.commands import summary
from bert4rec_tf.config import presets
from bert4rec_tf.runs import trainings, warm_start
from bert4rec_tf.runs.experiment import open_experiment
from bert4rec_tf.runs.exporting import export

pytestmark = pytest.mark.usefixtures("quick")

TINY = {"steps": 12, "evaluate_every": 4, "warmup_steps": 2, "batch_size": 8}
SEQUENCES = make_sequences([[(7 * user + 3 * place) % 30 + 1 for place in range(5)] for user in range(40)], 30)


def opened(folder, model="bpr_mf", watch=None, **settings):
    settings = {"protocol": "all", **(TINY if model != "pop" else {}), **settings}
    run = presets.make_run("synthetic", model, **settings)
    return open_experiment(run, SEQUENCES, folder, silent=True, watch=watch)


def executed(experiment):
    experiment.prepare()
    return experiment.evaluate(experiment.train())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    experiment = opened(tmp_path_factory.mktemp("all") / "work")
    return experiment, executed(experiment)


@pytest.mark.long
def test_the_metrics_are_those_of_the_protocol_that_holds_out(finished, tmp_path):
    experiment, metrics = finished
    expected = executed(opened(tmp_path / "select", protocol="select"))
    assert metrics["measured"] == expected["measured"] == "select"
    assert metrics["test"] == expected["test"] and metrics["validation"] == expected["validation"]
    assert metrics["all"]["steps"] == metrics["select"]["best_step"]
    assert experiment.evaluate(experiment.load_trained_model()) == metrics
    assert "the exported one was trained on them too" in summary.make_table(metrics)


def test_the_export_is_of_the_model_trained_on_all_actions(finished):
    experiment, _ = finished
    counts = experiment.workdir.read_ids().training_counts
    assert counts.tolist() == SEQUENCES.vocabulary.counts.tolist()
    folder = export(experiment.workdir)
    card = json.loads((folder / "assets.extra" / "model_card.json").read_text())
    assert card["data"]["training_actions"] == SEQUENCES.num_actions and card["metrics"]["measured"] == "select"
    loaded = tf.saved_model.load(str(folder))
    scores = loaded.score([["item1"]], ["user3"], [SEQUENCES.vocabulary.items.tolist()])["scores"].numpy()
    weights = read_newest_weights(experiment.workdir.path / "all")
    tables = {value.shape[0]: value for value in weights.values() if value.ndim == 2}
    products = tables[SEQUENCES.num_users][3] @ tables[SEQUENCES.num_items + 1][1:].T
    biases = next((value for value in weights.values() if value.shape == (SEQUENCES.num_items + 1,)), np.zeros(31))
    np.testing.assert_allclose(scores[0], products + biases[1:], rtol=1e-5, atol=1e-6)
    assert warm_start.read_start_weights(experiment.workdir.path).origin["checkpoint"] == "all"


@pytest.mark.long
def test_the_last_items_are_among_the_targets(tmp_path):
    experiment = opened(tmp_path / "work", "bert4rec", max_length=8, hidden_dim=8)
    model, last = trainings.make_model(experiment.run, 30, 40), {int(SEQUENCES[user][-1]) for user in range(40)}

    def last_targets(phase):
        found = set()
        for batch in read_batches(experiment.make_feed(phase, model), 0, 80):
            is_fifth = (batch["mask_positions"] == 4) & (batch["mask_targets"] > 0)
            found |= set(batch["mask_targets"][is_fifth].tolist())
        return found

    assert last_targets("all") == last and last_targets("retrain") == set()


def test_a_model_that_counts_is_measured_without_the_test_items_and_exported_with_them(tmp_path):
    experiment = opened(tmp_path / "work", "pop")
    metrics = executed(experiment)
    assert metrics["measured"] == "select" and metrics["test"] == metrics["pop"]
    model = tf.saved_model.load(str(export(experiment.workdir)))
    answer = model.recommend([["item1"]], k=30, exclude_seen=False)
    names = [item.decode() for item in answer["items"].numpy()[0]]
    counts = dict(zip(SEQUENCES.vocabulary.items.tolist(), SEQUENCES.vocabulary.counts.tolist()))
    assert answer["scores"].numpy()[0].tolist() == [counts[name] for name in names]


def test_a_stopped_training_on_all_actions_resumes_to_the_same_bits(finished, tmp_path):
    rows = []

    def stop(row):
        rows.append(row["step"])
        if rows.count(4) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executed(opened(tmp_path / "work", watch=stop, patience=0))
    assert (tmp_path / "work" / "all").is_dir() and not (tmp_path / "work" / "metrics.json").exists()
    again = opened(tmp_path / "work", patience=0)
    assert executed(again)["test"] == finished[1]["test"]
    np.testing.assert_equal(*(read_newest_weights(one.workdir.path / "all") for one in (finished[0], again)))


def test_each_protocol_has_its_measured_and_its_last_training(tmp_path):
    names = ("fixed", "select", "select_and_retrain", "all")
    measured = [opened(tmp_path / name, protocol=name).measured_training for name in names]
    assert measured == ["retrain", "select", "retrain", "select"]
    assert trainings.list_trainings(presets.make_run("own-shop"))[-1] == "all"
    assert trainings.list_trainings(presets.make_run("beauty"))[-1] == "retrain"
