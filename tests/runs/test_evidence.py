"""Runs of a network with evidence of transitions: what is chosen, measured, exported, served, resumed and continued."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from support import trainings
from support.evidence_oracle import histories_of, plain_evidence
from support.models import SEQUENCES
from support.paths import ROOT
from support.profiles import slow_but

import bert4rec_tf as b4r
from bert4rec_tf.config import presets
from bert4rec_tf.config.run_record import ALL, FIXED_STEPS, RETRAIN, SELECT, SELECT_AND_RETRAIN, Run
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.evaluation.metrics import FULL, LIST_METRICS, METRICS, NDCG, PROTOCOLS
from bert4rec_tf.evaluation.mix_search import GAINS, SHARES
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.experiment import open_experiment
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.runs.trainings import load_model
from bert4rec_tf.training import loop

pytestmark = pytest.mark.usefixtures("quick")

SMALL = {
    "hidden_dim": 8,
    "num_heads": 1,
    "num_layers": 1,
    "max_length": 6,
    "steps": 6,
    "warmup_steps": 1,
    "evaluate_every": 3,
    "batch_size": 32,
    "num_negatives": 10,
}
RNG = np.random.default_rng(3)
WALKS = [np.cumsum([RNG.integers(30), *RNG.choice([1, 1, 2, 7], RNG.integers(4, 9))]) % 30 for _ in range(45)]
HISTORIES = [list(dict.fromkeys(walk.tolist())) for walk in WALKS]
"""Each item is mostly followed by the next one, and no user has an item twice."""

ROWS = [(user, f"i{item}", place) for user, history in enumerate(HISTORIES) for place, item in enumerate(history)]
FRAME = pd.DataFrame(ROWS, columns=["user_id", "item_id", "time"])
NUM_ITEMS = FRAME["item_id"].nunique()
POWER = 0.25
"""`evidence_popularity_power` of these runs, the default."""


@pytest.fixture(scope="module")
def fitted():
    """A model of own data with the settings of own data: evidence, and steps chosen among all items."""
    return b4r.fit(FRAME, model="sasrec", preset="best", protocol=SELECT_AND_RETRAIN, silent=True, **SMALL)


def open_run(folder, model="sasrec", sequences=SEQUENCES, **settings):
    run = presets.make_run("beauty", model, **settings)
    return open_experiment(run, sequences, folder, silent=True)


def execute(experiment):
    experiment.prepare()
    return experiment.evaluate(experiment.train())


def load(fitted, phase):
    """Returns the model of a finished training."""
    workdir = WorkDirectory(fitted.workdir)
    return load_model(workdir, phase)


def score_all(model, items, history):
    """Returns raw id -> the score of the model, without its export."""
    numbers = {item: number for number, item in enumerate(items, start=1)}
    batch = {
        "users": np.zeros(1, np.int32),
        "items": np.array([[numbers[item] for item in history]], np.int32),
        "lengths": np.array([len(history)], np.int32),
    }
    scores = model.score(batch).numpy()[0].astype(np.float64)
    if model.scores_are_logits:
        scores -= np.log(np.exp(scores).sum())
    return dict(zip(items, scores.tolist()))


def rank_test_items(fitted, scores_after):
    """The rank of each user's test item, by plain loops. `scores_after`: history -> raw id -> score."""
    ranks = []
    for user in fitted.users:
        history = [f"i{item}" for item in HISTORIES[int(user)]]
        target, known = history[-1], history[:-1]
        scores = scores_after(known)
        rivals = [item for item in scores if item != target and item not in known]
        ranks.append(sum(scores[item] >= scores[target] for item in rivals))
    return ranks


def test_own_data_have_evidence_and_a_mix_of_the_validation_items(fitted):
    run = fitted.metrics["run"]
    assert run["architecture"]["evidence"] == "transitions" and run["training"]["selection_metric"] == "full"
    gain, popularity, scale = load(fitted, SELECT).evidence.mix.numpy().tolist()
    assert gain in np.array(GAINS, np.float32)
    assert min(abs(popularity / gain - share) for share in SHARES) < 1e-6
    assert load(fitted, RETRAIN).evidence.mix.numpy().tolist() == [gain, popularity, scale]


def test_transitions_are_counted_in_the_actions_of_each_training(fitted):
    """`retrain` learns the validation items too."""
    settings = ItemTransitionsSettings(**fitted.metrics["transitions"]["settings"])
    numbers = {item: number for number, item in enumerate(fitted.items, start=1)}
    for phase, held_out in ((SELECT, 2), (RETRAIN, 1)):
        known = [[numbers[f"i{item}"] for item in history[:-held_out]] for history in HISTORIES]
        assert_counted(load(fitted, phase).evidence, plain_evidence(known, NUM_ITEMS, settings, POWER))


def assert_counted(evidence, expected):
    """`expected`: item -> {item: evidence}."""
    splits, neighbors, strengths = (
        one.numpy().tolist() for one in (evidence.splits, evidence.neighbors, evidence.strengths)
    )
    found = {
        item: dict(zip(neighbors[begin:end], strengths[begin:end]))
        for item, (begin, end) in enumerate(itertools.pairwise(splits))
        if end > begin
    }
    assert found.keys() == expected.keys()
    for item, row in expected.items():
        assert found[item] == pytest.approx(row, rel=1e-5)


def test_the_ranks_are_those_of_the_exported_model(fitted):
    model = load(fitted, RETRAIN)

    def recommend(history):
        table = fitted.recommend(history=history, k=NUM_ITEMS, exclude_seen=False)
        exported = dict(zip(table["item"], table["score"]))
        assert exported == pytest.approx(score_all(model, fitted.items, history), rel=1e-4, abs=1e-5)
        return exported

    with np.load(fitted.workdir / "ranks-test.npz") as ranks:
        assert ranks[FULL].tolist() == rank_test_items(fitted, recommend)
    batch, alone = fitted.recommend_all(users=[3], k=5, silent=True), fitted.recommend(user=3, k=5)
    assert batch["item"].tolist() == alone["item"].tolist()
    np.testing.assert_allclose(batch["score"], alone["score"], rtol=1e-5, atol=1e-6)


def test_the_validation_is_measured_by_every_protocol(fitted):
    validation = fitted.metrics["validation"]
    assert set(validation) == set(PROTOCOLS)  # no target is a repeat, so there is no protocol of new items
    assert all(set(validation[protocol]) == {*METRICS, *LIST_METRICS} for protocol in PROTOCOLS)
    best = loop.read_state(fitted.workdir / SELECT).best()
    assert validation[FULL][NDCG] == pytest.approx(best[NDCG]), "among all items, by which the step was chosen"


def plain_difference(ranks, counted):
    """The mean by which NDCG@10 exceeds that of counting, and its 95 % interval."""
    gains = [
        sum(sign / math.log2(rank + 2) for sign, rank in ((1, one), (-1, other)) if rank < 10)
        for one, other in zip(ranks, counted, strict=True)
    ]
    mean = sum(gains) / len(gains)
    deviation = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1) / len(gains))
    return {"mean": mean, "low": mean - 1.96 * deviation, "high": mean + 1.96 * deviation}


@pytest.mark.parametrize("protocol", slow_but([ALL], [SELECT, SELECT_AND_RETRAIN, ALL]))
def test_a_run_is_compared_with_the_run_that_only_counts(tmp_path, protocol):
    """With the same protocol, so with what has counted the same actions."""
    settings = {"steps": 2, "evaluate_every": 1, "batch_size": 32, "num_negatives": 10, "protocol": protocol}
    counting = {name: settings[name] for name in ("num_negatives", "protocol")}
    found = execute(open_run(tmp_path / "network", "bpr_mf", hidden_dim=8, **settings))
    counted = execute(open_run(tmp_path / "counting", "item_transitions", **counting))
    assert found["item_transitions"] == counted["test"] == counted["item_transitions"]
    assert found["transitions"]["settings"] == counted["transitions"]["settings"]
    assert found["measured"] == counted["measured"] and found["pop"] == counted["pop"]
    ranks = [np.load(tmp_path / name / "ranks-test.npz")[FULL].tolist() for name in ("network", "counting")]
    expected = plain_difference(*ranks)
    assert {name: found["beyond_counting"][name] for name in expected} == pytest.approx(expected)
    assert counted["beyond_counting"]["mean"] == 0


@pytest.mark.slow
def test_probabilities_are_about_the_shares_of_hits():
    """On test items, of the best item of all. Without the scale that was chosen, the model is too sure of it."""
    path = ROOT / "examples/actions.csv"
    settings = {**SMALL, "steps": 20, "evaluate_every": 20}
    fitted = b4r.fit(path, model="sasrec", preset="best", holdout=2, silent=True, **settings)
    model, split = load(fitted, SELECT), LeaveOneOut(inputs.load_any(path)[1])
    items, lengths = split.histories("test").take_last(split.users, model.max_history)

    def measure_confidence():
        scores = model.score({"users": split.users.astype(np.int32), "items": items, "lengths": lengths})
        hits = np.argmax(scores, axis=1) + 1 == split.targets("test")
        return float(tf.reduce_mean(tf.reduce_max(tf.nn.softmax(scores), axis=1))), hits.mean()

    confidence, hit_rate = measure_confidence()
    assert hit_rate > 0.2 and confidence == pytest.approx(hit_rate, abs=0.1)
    model.evidence.mix.assign([*model.evidence.mix.numpy()[:2], 1.0])
    unscaled_confidence, same_hit_rate = measure_confidence()
    assert unscaled_confidence > hit_rate + 0.2 and same_hit_rate == hit_rate


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    run = presets.make_run("beauty", "sasrec", evidence="transitions", selection_metric="full", **SMALL)
    trainings.assert_a_kill_changes_nothing(tmp_path, run, SEQUENCES)


@pytest.mark.slow
def test_a_continued_training_counts_the_new_actions_too(fitted):
    later = pd.DataFrame(
        [(user, f"i{(history[-1] + 11) % 30}", 99) for user, history in enumerate(HISTORIES)], columns=FRAME.columns
    )
    better = fitted.continue_training(later, silent=True)
    assert better.metrics["initial"]["items"]["shared"] == NUM_ITEMS
    settings = ItemTransitionsSettings(**better.metrics["transitions"]["settings"])
    numbers = {item: number for number, item in enumerate(better.items, start=1)}
    known = [[numbers[f"i{item}"] for item in history] for history in HISTORIES]  # without the new, held-out actions
    assert_counted(load(better, RETRAIN).evidence, plain_evidence(known, NUM_ITEMS, settings, POWER))
    assert load(fitted, RETRAIN).evidence.num_pairs < load(better, RETRAIN).evidence.num_pairs


def test_given_factors_need_no_validation_items(tmp_path):
    given = {"evidence_gain": 2.0, "evidence_popularity": -0.3, "evidence_temperature": 4.0}
    experiment = open_run(tmp_path / "work", evidence="transitions", protocol=FIXED_STEPS, **SMALL, **given)
    metrics = execute(experiment)
    assert "select" not in metrics and "validation" not in metrics and not (tmp_path / "work" / SELECT).exists()
    mix = experiment.load_trained_model().evidence.mix.numpy().tolist()
    assert mix == pytest.approx([2.0, -0.3, 0.25])


@pytest.mark.parametrize(
    ("protocol", "given", "message"),
    [
        (FIXED_STEPS, {}, "must be given with protocol=fixed"),
        (FIXED_STEPS, {"evidence_gain": 2.0}, "must be given together"),
        (SELECT, {"evidence_popularity": 0.0}, "must be given together"),
        (SELECT, {"evidence_temperature": 2.0}, "must be given together, and with `evidence_temperature`"),
    ],
)
def test_factors_that_cannot_be_chosen_are_refused_before_the_folder_is_made(tmp_path, protocol, given, message):
    with pytest.raises(UserError, match=f"`evidence_gain` and `evidence_popularity` {message}") as error:
        open_run(tmp_path / "work", evidence="transitions", protocol=protocol, **SMALL, **given)
    assert len(str(error.value).splitlines()) == 1 and not (tmp_path / "work").exists()


@pytest.mark.parametrize("protocol", [FIXED_STEPS, SELECT])
def test_a_share_that_is_not_chosen_must_be_given(protocol):
    """The search chooses it together with the gain and the popularity, or not at all."""
    given = {"evidence_gain": 2.0, "evidence_popularity": -0.3}
    settings = {**SMALL, "dataset": "beauty", "model": "auto", "protocol": protocol, **given}
    with pytest.raises(UserError, match="`network_share` must be given to auto with `evidence_gain`") as error:
        Run.make(**settings).refuse_unused(given)
    assert len(str(error.value).splitlines()) == 1
    assert Run.make(**settings, network_share=0.25).given_mix == (2.0, -0.3, 1.0)


@pytest.mark.parametrize("content", ["{", "[]", '{"settings": {"window": 0}, "ndcg@10": 1}', "{}"])
def test_a_damaged_record_of_the_transitions_is_refused_in_one_line(tmp_path, content):
    workdir = WorkDirectory(tmp_path)
    workdir.transitions.write_text(content)
    with pytest.raises(UserError, match=r"transitions\.json: cannot be read") as error:
        workdir.read_transitions()
    assert len(str(error.value).splitlines()) == 1


def test_transitions_are_counted_as_an_item_transitions_run_says(tmp_path):
    """Given settings stay, and the others are chosen. The baseline reads as much of a history as the run."""
    experiment = open_run(tmp_path, "item_transitions", window=3, smoothing=7.0, max_history=1, num_negatives=10)
    metrics = execute(experiment)
    assert metrics["test"] == metrics["item_transitions"] and metrics["beyond_counting"]["high"] == 0
    settings = metrics["transitions"]["settings"]
    assert (settings["window"], settings["smoothing"]) == (3, 7.0) and None not in {
        settings[name] for name in settings if name != "num_neighbors"
    }
    evidence = plain_evidence(
        histories_of(experiment.select_data(experiment.measured_training)),
        SEQUENCES.num_items,
        ItemTransitionsSettings(**settings),
    )
    assert_counted(experiment.load_trained_model().evidence, evidence)
