"""What is measured on held-out items, against plain loops over the histories as they were written down.

The test items, and the validation items for what is chosen by them, are unknown to the measured model.
"""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from support.held_out import (
    BEFORE,
    CASES,
    EVIDENCE,
    ITEMS,
    OWN_TEST,
    OWN_VALIDATION,
    QUICK,
    SHORT,
    TEST,
    TRAINING,
    USERS,
    VALIDATION,
    Case,
    give_mix,
    hold_out_last,
    open_run,
)
from support.ranking_oracle import make_sequences, plain_lists, plain_metrics

from bert4rec_tf.config.run_record import ALL, FIXED_STEPS, SELECT, SELECT_AND_RETRAIN
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.evaluation.candidates import SAMPLERS
from bert4rec_tf.evaluation.metrics import COUNT_BASELINES, FULL, METRICS, PROTOCOLS
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.models import MODELS
from bert4rec_tf.runs import trainings

pytestmark = pytest.mark.usefixtures("quick")


TARGETS = {"validation": VALIDATION, "test": TEST}
COUNTS = {
    part: Counter(item for history in [*histories, *SHORT] for item in history) for part, histories in BEFORE.items()
}
"""How often each item occurs there. The users who are not measured have nothing held out."""


def count(name, part, metrics):
    """Returns a model that has counted what comes before the held-out items of `part`, as a run did."""
    model = MODELS[name](ITEMS)
    chosen = ItemTransitionsSettings(**metrics["transitions"]["settings"])
    model.adapt(make_sequences([*BEFORE[part], *SHORT], ITEMS), chosen)
    return model


def score(model, part):
    """Returns the scores of all items after what comes before a held-out item, float64 [users, n]."""
    histories = BEFORE[part]
    lengths = np.array(list(map(len, histories)), np.int32)
    items = np.array([history + [0] * (max(lengths) - len(history)) for history in histories], np.int32)
    batch = {"users": np.arange(USERS, dtype=np.int32), "items": items, "lengths": lengths}
    return np.asarray(model.score(batch)).astype(np.float64)


def measure(scores, part, protocol):
    """Returns the metrics of the held-out items, by the scores of all items for each user."""
    ranks = []
    for user, row in enumerate(scores):
        target = TARGETS[part][user]
        known = BEFORE[part][user] if protocol == FULL else [*TRAINING[user], VALIDATION[user], TEST[user]]
        rivals = [item for item in range(1, ITEMS + 1) if item not in known and item != target]
        ranks.append(sum(row[item - 1] >= row[target - 1] for item in rivals))
    return plain_metrics(ranks)


def assert_measured(found, scores):
    """`found`: protocol -> metrics of the test items."""
    for protocol in PROTOCOLS:
        expected = measure(scores, "test", protocol)
        assert {name: found[protocol][name] for name in METRICS} == pytest.approx(expected), protocol


LARGE_STEPS = {"learning_rate": 0.3}
"""So that no two scores are nearly equal."""


@dataclasses.dataclass
class FinishedRun:
    """A finished run.

    Attributes:
        metrics: what it measured.
        model, part: the model to measure on the test items, and the part that it knows nothing of.
        choosing: the model to measure on the validation items.
    """

    metrics: dict
    model: object
    part: str
    choosing: object


def run_and_measure(folder, case, protocol):
    settings = {"protocol": protocol, **(LARGE_STEPS if case.is_trained else {})}
    settings |= give_mix(case) if protocol == FIXED_STEPS else {}
    experiment = open_run(folder, case, hold_out_last(VALIDATION, TEST), **settings)
    experiment.prepare()
    model = experiment.train()
    metrics = experiment.evaluate(model)
    part = "validation" if protocol in (SELECT, ALL) else "test"
    if not case.is_trained:
        tested, validated = (count(case.model, one, metrics) for one in (part, "validation"))
        return FinishedRun(metrics, tested, part, validated)
    if protocol == FIXED_STEPS:
        return FinishedRun(metrics, model, part, model)
    selected = trainings.load_model(experiment.workdir, SELECT)
    return FinishedRun(metrics, selected if part == "validation" else model, part, selected)


MEASURED = [
    *((Case(model), protocol) for model in QUICK for protocol in (FIXED_STEPS, ALL)),
    (EVIDENCE, SELECT_AND_RETRAIN),
]


def list_other_runs():
    for case in CASES:
        for protocol in (SELECT, FIXED_STEPS, SELECT_AND_RETRAIN, ALL):
            if case.is_trained and (case, protocol) not in MEASURED:
                yield pytest.param((case, protocol), marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[*MEASURED, *list_other_runs()], ids=lambda param: "-".join(map(str, param)))
def finished_run(quick, request, tmp_path_factory):
    return run_and_measure(tmp_path_factory.mktemp("measured") / "run", *request.param)


def test_validation_items_are_measured_with_a_model_that_does_not_know_them(finished_run):
    scores = score(finished_run.choosing, "validation")
    has_selection = SELECT in finished_run.metrics
    assert ("validation" in finished_run.metrics) == has_selection
    for protocol in PROTOCOLS if has_selection else ():
        found = {name: finished_run.metrics["validation"][protocol][name] for name in METRICS}
        assert found == pytest.approx(measure(scores, "validation", protocol)), protocol


def test_transitions_are_chosen_without_the_validation_items(finished_run):
    """NDCG@10 of the chosen settings is that of transitions counted before these items."""
    chosen = finished_run.metrics["transitions"]
    scores = score(count("item_transitions", "validation", finished_run.metrics), "validation")
    assert chosen["ndcg@10"] == pytest.approx(measure(scores, "validation", FULL)["ndcg@10"])


def test_the_measured_model_knows_no_test_item(finished_run):
    scores = score(finished_run.model, "test")
    assert_measured(finished_run.metrics["test"], scores)


def test_baselines_count_the_actions_of_the_measured_model(finished_run):
    for name in COUNT_BASELINES:
        counted = count(name, finished_run.part, finished_run.metrics)
        assert_measured(finished_run.metrics[name], score(counted, "test"))


def test_the_popularity_of_lists_is_that_before_the_test_items(finished_run):
    scores = score(finished_run.model, "test") + 1e-9 * np.arange(ITEMS, 0, -1)  # ties go by the number
    task = RankingTask(
        make_sequences([*BEFORE["test"], *SHORT], ITEMS), np.arange(USERS), np.array(TEST), {}, all_items=True
    )
    listed = [COUNTS["test"][item] for found in plain_lists(task, FULL, scores) for item in found]
    found = finished_run.metrics["test"][FULL]["popularity@10"]
    assert found == pytest.approx(np.mean(listed) / (USERS + len(SHORT)))


# What the documentation promises of candidates.


def test_candidates_are_drawn_by_the_whole_histories_whatever_the_model(tmp_path):
    """So they are never an item of their user, and held-out items count."""
    sequences = hold_out_last(OWN_VALIDATION, OWN_TEST)
    for model in ("pop", "bpr_mf"):
        experiment = open_run(tmp_path / model, Case(model), sequences, num_negatives=5)
        for law, draw in SAMPLERS.items():
            expected = draw(sequences, experiment.split.users, 5, experiment.run.evaluation.candidates_seed)
            for part in ("validation", "test"):
                task = experiment.make_task(part, all_items=True)
                np.testing.assert_array_equal(task.negatives[law], expected)
