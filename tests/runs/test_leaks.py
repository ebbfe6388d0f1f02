"""Nothing that is made before the held-out items are read depends on them.

The data come in versions that differ in held-out items alone. What two versions give is compared file by file and array
by array, so what a later model or setting writes is compared too; only what may differ is named. What is measured on
held-out items is compared with plain loops over the histories as they were written down here.

Three things know the held-out items on purpose, so no test expects otherwise:

- Items are numbered by their counts in all data, as in the original program, and `negative_sampling=log_uniform` draws
  by these numbers. All versions have the same numbers.
- Candidates are never an item of the user's whole history, because the same ones serve validation and test. So what is
  chosen on validation items may differ where a test item is new to its user. Where choices are compared, the test items
  are not.
- Candidates are drawn by the counts in all data. Elsewhere than in the test of that, every item that a user has not met
  is a candidate.
"""

import dataclasses
import fnmatch
import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from support import whole_runs
from support.features import both
from support.ranking_oracle import make_sequences, plain_lists, plain_metrics

from bert4rec_tf.config import presets
from bert4rec_tf.config.data_names import OWN, TimeSplit
from bert4rec_tf.config.model_settings import ATTENTION_MODELS, MODEL_SETTINGS, list_used_features
from bert4rec_tf.config.popularity_option import CORRECTION
from bert4rec_tf.config.run_record import ALL, FIXED, SELECT, SELECT_AND_RETRAIN
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.evaluation import evidence_search
from bert4rec_tf.evaluation.metrics import (
    COLD,
    COUNT_BASELINES,
    FULL,
    LIST_METRICS,
    METRICS,
    POPULAR,
    PROTOCOLS,
    UNIFORM,
)
from bert4rec_tf.evaluation.popularity_penalty import ALPHAS
from bert4rec_tf.evaluation.ranker import RankingTask
from bert4rec_tf.models import MODELS
from bert4rec_tf.runs import phases
from bert4rec_tf.runs.pipeline import Experiment
from bert4rec_tf.runs.workdir import WorkDirectory
from bert4rec_tf.training import trainer

pytestmark = pytest.mark.usefixtures("quick")


# The data. Items 1 to COMMON are what users share; each user has two further items, which nobody else meets.

COMMON, USERS = 20, 24
ITEMS = COMMON + 2 * USERS
RNG = np.random.default_rng(7)
SHARES = 1 / np.arange(1, COMMON + 1)
ORDERS = [(RNG.choice(COMMON, COMMON, replace=False, p=SHARES / SHARES.sum()) + 1).tolist() for _ in range(USERS)]
TRAINING = [order[: 2 + user % 7] for user, order in enumerate(ORDERS)]
"""Each user's items before the validation item, oldest first."""

VALIDATION, TEST = [order[8] for order in ORDERS], [order[9] for order in ORDERS]
"""Items that are new to their user and known to others."""

OWN_VALIDATION, OWN_TEST = (list(range(first, first + USERS)) for first in (COMMON + 1, COMMON + 1 + USERS))
SEEN, OTHER_SEEN = [items[0] for items in TRAINING], [items[1] for items in TRAINING]
"""Items that their user has met before, so that they change neither a user's candidates nor unseen items."""

SHORT = [[1, 2], [3, 4], [5], []]
"""Users who are not measured, with all their items before the held-out ones."""

LATER_OF_SHORT = [[], [], OWN_TEST[:2], OWN_TEST[2:4]]


def hold_out_last(validation, test):
    """Returns data of which each user's last two actions are held out."""
    return make_sequences([*join_columns(TRAINING, validation, test), *SHORT], ITEMS)


def hold_out_by_time(validation, test):
    """Returns data with a cut after the validation items, and one to three actions after it."""
    later = [[item] * (1 + user % 3) for user, item in enumerate(test)]
    return add_later(join_columns(TRAINING, validation), later, validates_later=False)


def hold_out_given(known, test):
    """Returns data whose later actions are both validation and test items, as `fit` has them with `validation=`."""
    return add_later(known, [[item, item] for item in test], validates_later=True)


def add_later(known, later, validates_later):
    later = [*later, *LATER_OF_SHORT]
    sequences = make_sequences(join_columns([*known, *SHORT], later), ITEMS)
    return dataclasses.replace(sequences, num_later=np.array(list(map(len, later))), validates_later=validates_later)


def join_columns(*columns):
    """Returns one list for each user, of the items or lists of items in all columns."""
    return [
        [item for part in row for item in (part if isinstance(part, list) else [part])]
        for row in zip(*columns, strict=True)
    ]


# The runs.


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with a preset of a data set, and settings in place of the preset's.

    `is_long`: whether the preset is that of own data with long histories.
    """

    model: str
    preset: str = "fast"
    dataset: str = "beauty"
    settings: tuple = ()
    is_long: bool = False

    def __str__(self):
        settings = [f"{name}={value}" for name, value in self.settings] + ["long"] * self.is_long
        return "-".join([self.model, self.preset, self.dataset, *settings])

    @property
    def is_trained(self):
        return MODELS[self.model].examples is not None


SMALL = {
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "num_heads": 1,
    "num_layers": 1,
    "max_length": 10,
    "horizontal_filters": 2,
    "extra_negatives": 4,
    "shared_negatives": 8,
    "batch_size": 256,
    "warmup_steps": 0,
    "steps": 1,
    "evaluate_every": 1,
    "num_negatives": ITEMS,
}
"""So one step reads all examples, and its gradients are kept with the optimizer."""

MOST_COPIES = 2


class Long:
    """The size of data with long histories."""

    num_users, num_actions = 1_000, 90_000


def make_run(case, **settings):
    preset, size = (case.dataset, case.model, case.preset), Long if case.is_long else None
    known = presets.make_run(*preset, size=size, **dict(case.settings)).flatten()
    small = {name: value for name, value in SMALL.items() if name in known}
    if known.get("mask_copies", 0) > MOST_COPIES:
        small["mask_copies"] = MOST_COPIES
    return presets.make_run(*preset, size=size, **{**small, **dict(case.settings), **settings})


def open_run(folder, case, sequences, **settings):
    run = make_run(case, **settings)
    used = list_used_features(run.architecture)
    if used:
        features = both(sequences.vocabulary.items.tolist(), sequences.users.tolist())
        sequences = dataclasses.replace(sequences, features={name: features[name] for name in used})
    return Experiment(run, sequences, WorkDirectory(folder), silent=True)


def train(folder, case, sequences, **settings):
    """Trains in a new folder and returns the folder."""
    experiment = open_run(folder, case, sequences, **settings)
    experiment.prepare()
    experiment.train()
    return folder


OWN_DATA = f"{OWN}shop"
SAMPLED = (("loss", "sampled_softmax"), ("negative_sampling", "log_uniform"))
EVIDENCE = Case("sasrec", settings=(("evidence", "transitions"), ("selection_metric", "full")))
CASES = [
    *(Case(model) for model in MODELS),
    Case("bert4rec", "best", OWN_DATA),
    Case("sasrec", "best"),
    Case("bpr_mf", settings=(("negatives", "popular"),)),
    Case("bert4rec", settings=(("masking", "dynamic"), ("use_item_features", "add"))),
    EVIDENCE,
]


def list_slow_cases():
    """Yields the other presets and every choice of every setting of a model, so also those of a new one."""
    for name, dataset, model in presets.PRESETS:
        if name in ("fast", "best") and dataset in ("beauty", "ml-1m", OWN):
            yield Case(model, name, OWN_DATA if dataset == OWN else dataset)
            if dataset == OWN:
                yield Case(model, name, OWN_DATA, is_long=True)
    for model, kind in MODEL_SETTINGS.items():
        for field in dataclasses.fields(kind):
            for choice in field.metadata["limits"].get("choices", ()):
                if choice != field.default:
                    yield Case(model, settings=((field.name, choice),))
    for model in ATTENTION_MODELS:
        yield Case(model, settings=SAMPLED)
    yield Case("fpmc", "fast", OWN_DATA, (("negatives", "popular"),))
    yield Case("bert4rec", "best", OWN_DATA, (("use_user_features", True),))


QUICK = [name for name, kind in MODELS.items() if name == "bpr_mf" or kind.examples is None]
"""The models that only count, and a small one that is trained."""

SLOW_CASES = [case for case in dict.fromkeys(list_slow_cases()) if case not in CASES]


# What a training leaves behind.

OF_ALL_DATA = ("config.json", "vocabulary.npz: counts", "prepared/candidates-*")
"""Files that know the held-out items: the fingerprint of the data, their counts, and the candidates."""

OF_VALIDATION = ("select/curve.csv", "select/*: header", "transitions.json")
"""What holds the metrics on the validation items."""


def find_differences(one, other, *may_differ):
    """Names all that is not the same in two work directories, but for what may differ."""
    found = whole_runs.differences(one, other)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (one, other)]
    assert configs[0].pop("data_fingerprint") != configs[1].pop("data_fingerprint")
    return [f"config.json: {name}" for name in configs[0] if configs[0][name] != configs[1].get(name)] + [
        name for name in found if not any(fnmatch.fnmatch(name, pattern) for pattern in (*OF_ALL_DATA, *may_differ))
    ]


def read_losses(folder, phase):
    return [(row["step"], row["loss"]) for row in trainer.read_state(folder / phase).curve]


def find_protocols(case):
    """Returns the trainings that hold something out -> a protocol with no other training. Not all models have both."""
    return {phases.list_phases(make_run(case, protocol=protocol))[-1]: protocol for protocol in (SELECT, FIXED)}


def make_versions(phase):
    """Returns version -> data with the actions that `phase` may learn from and with other held-out items."""
    validation = OWN_VALIDATION if phase == SELECT else VALIDATION
    return {
        "last": hold_out_last(validation, OWN_TEST),
        "time": hold_out_by_time(validation, OWN_TEST),
        "given": hold_out_given(TRAINING if phase == SELECT else join_columns(TRAINING, VALIDATION), OWN_TEST),
    }


@pytest.fixture
def no_search(monkeypatch):
    """Has transitions counted by the settings that the search begins with, whatever the validation items are."""
    monkeypatch.setattr(evidence_search, "AXES", ())


def give_mix(case):
    """Returns settings with which nothing is chosen on the validation items for the evidence beside a network."""
    return {"evidence_gain": 2.0, "evidence_popularity": -0.2} if make_run(case).uses_evidence else {}


def assert_training_ignores(folder, case, names, **settings):
    """Checks that weights, optimizer, counts, examples and losses are the same in the versions with these names."""
    for phase, protocol in find_protocols(case).items():
        options = {"protocol": protocol, **give_mix(case), **settings}
        expected = train(folder / phase, case, hold_out_last(VALIDATION, SEEN), **options)
        for name, sequences in make_versions(phase).items():
            if name in names:
                found = train(folder / f"{phase}-{name}", case, sequences, **options)
                assert not find_differences(expected, found, *OF_VALIDATION), (phase, name)
                assert read_losses(found, phase) == read_losses(expected, phase)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_ignores_held_out_actions(no_search, tmp_path, case):
    assert_training_ignores(tmp_path, case, ["last"])


@pytest.mark.parametrize("model", QUICK)
def test_training_ignores_what_comes_after_a_cut(no_search, tmp_path, model):
    assert_training_ignores(tmp_path, Case(model), ["time", "given"])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_model_sees_what_comes_after_a_cut(no_search, tmp_path, case):
    assert_training_ignores(tmp_path, case, ["time", "given"])


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW_CASES, ids=str)
def test_no_setting_makes_a_training_see_held_out_actions(no_search, tmp_path, case):
    assert_training_ignores(tmp_path, case, ["last"], steps=3, evaluate_every=3)


# What is chosen on the validation items.

CHOOSING = {"steps": 3, "evaluate_every": 1}

OF_TEST = ("metrics.json", "ranks-test.npz: *")
"""Files with what was measured on the test items; of the first, the rest is compared by itself."""

LEARNT_FROM_ALL = ("all/*", "vocabulary.npz: training_counts", "prepared/*", "transitions.json")
"""Files of the training on all actions. Its shards lie beside those of `select`, whose weights are compared, and its
number of pairs beside how transitions are counted, which `metrics.json` has too."""


def choose(folder, case, sequences, protocol):
    """Trains, chooses and measures. Returns the folder."""
    experiment = open_run(folder, case, sequences, protocol=protocol, **(CHOOSING if case.is_trained else {}))
    experiment.prepare()
    experiment.evaluate(experiment.train(), "validation")
    return folder


def drop_test_results(content):
    """Returns metrics without what was measured on the test items, in all parts, and without the data and the time.

    Nor with those of lists: of items with equal scores, these have the candidates that were drawn first.
    """
    left_out = {"test", COLD, *COUNT_BASELINES, *LIST_METRICS, "beyond_counting", "data_fingerprint", "seconds"}
    if not isinstance(content, dict):
        return content
    return {name: drop_test_results(value) for name, value in content.items() if name not in left_out}


def assert_same_choices(folder, case, protocol, hold_out):
    one = choose(folder / "one", case, hold_out(VALIDATION, SEEN), protocol)
    other = choose(folder / "other", case, hold_out(VALIDATION, OTHER_SEEN), protocol)
    assert not find_differences(one, other, *OF_TEST, *(LEARNT_FROM_ALL if protocol == ALL else ()))
    contents = [json.loads((path / "metrics.json").read_text()) for path in (one, other)]
    for content in contents:
        content["transitions"]["pairs"].pop(ALL, None)
    assert contents[0]["test"] != contents[1]["test"]
    assert drop_test_results(contents[0]) == drop_test_results(contents[1])
    assert drop_test_results(contents[0])[CORRECTION]["validation"].keys() == set(map(str, ALPHAS))


SPLITS = {"last": hold_out_last, "time": hold_out_by_time}


@pytest.mark.parametrize(
    ("case", "protocol", "split"),
    [
        *((Case(model), SELECT_AND_RETRAIN, "time") for model in QUICK),
        (Case("bpr_mf"), ALL, "last"),
        (Case("sasrec", "best", OWN_DATA), SELECT_AND_RETRAIN, "last"),
        *(
            pytest.param(case, protocol, split, marks=pytest.mark.slow)
            for case in [*CASES, Case("bert4rec", "best"), Case("sasrec", "best", OWN_DATA)]
            for protocol, split in ((SELECT_AND_RETRAIN, "time"), (ALL, "last"))
        ),
    ],
    ids=str,
)
def test_nothing_is_chosen_by_the_test_items(tmp_path, case, protocol, split):
    """The steps, alpha, how transitions are counted and weighed, and all else that is not of the test items."""
    assert_same_choices(tmp_path, case, protocol, SPLITS[split])


# What is measured on held-out items, against plain loops.

TARGETS = {"validation": VALIDATION, "test": TEST}
BEFORE = {"validation": TRAINING, "test": join_columns(TRAINING, VALIDATION)}
"""Each user's items before the held-out one."""

COUNTS = {
    part: Counter(item for history in [*histories, *SHORT] for item in history) for part, histories in BEFORE.items()
}
"""How often each item occurs there. The users who are not measured have nothing held out."""

LOG_COUNTS = {part: np.log1p([counts[item] for item in range(1, ITEMS + 1)]) for part, counts in COUNTS.items()}


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


ALPHA = 0.7
LARGE_STEPS = {"learning_rate": 0.3}
"""So that scores differ by about as much as the correction changes them."""


@dataclasses.dataclass
class FinishedRun:
    """A finished run.

    Attributes:
        metrics: with the alpha that is best on the validation items.
        corrected: the metrics of the test items with ALPHA.
        model, part: the model to measure on the test items, and the part that it knows nothing of.
        choosing, choosing_part: the same of the model to measure on the validation items.
    """

    metrics: dict
    corrected: dict
    model: object
    part: str
    choosing: object
    choosing_part: str


def run_and_measure(folder, case, protocol):
    settings = {"protocol": protocol, **(LARGE_STEPS if case.is_trained else {})}
    settings |= give_mix(case) if protocol == FIXED else {}
    experiment = open_run(folder, case, hold_out_last(VALIDATION, TEST), **settings)
    experiment.prepare()
    model = experiment.train()
    metrics, corrected = (experiment.evaluate(model, alpha) for alpha in ("validation", ALPHA))
    found = metrics, corrected[CORRECTION]["test"]
    part = "validation" if protocol in (SELECT, ALL) else "test"
    if not case.is_trained:
        tested, validated = (count(case.model, one, metrics) for one in (part, "validation"))
        return FinishedRun(*found, tested, part, validated, "validation")
    if protocol == FIXED:
        return FinishedRun(*found, model, part, model, part)
    selected = phases.load_trained(experiment.run, ITEMS, USERS + len(SHORT), experiment.workdir, SELECT)
    return FinishedRun(*found, selected if part == "validation" else model, part, selected, "validation")


MEASURED = [*((Case(model), protocol) for model in QUICK for protocol in (FIXED, ALL)), (EVIDENCE, SELECT_AND_RETRAIN)]


def list_other_runs():
    for case in CASES:
        for protocol in (SELECT, FIXED, SELECT_AND_RETRAIN, ALL):
            if case.is_trained and (case, protocol) not in MEASURED:
                yield pytest.param((case, protocol), marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[*MEASURED, *list_other_runs()], ids=lambda param: "-".join(map(str, param)))
def finished_run(quick, request, tmp_path_factory):
    return run_and_measure(tmp_path_factory.mktemp("measured") / "run", *request.param)


def test_alpha_is_chosen_without_the_validation_items(finished_run):
    """Unless the run has no `select`: then the model knows them too, and the record says so."""
    scores, correction = score(finished_run.choosing, "validation"), finished_run.metrics[CORRECTION]
    penalties = LOG_COUNTS[finished_run.choosing_part]
    curve = {alpha: measure(scores - alpha * penalties, "validation", POPULAR)["ndcg@10"] for alpha in ALPHAS}
    assert correction["validation"] == pytest.approx(curve)
    assert correction["alpha"] == max(ALPHAS, key=lambda alpha: (round(curve[alpha], 9), -alpha))
    assert correction["trained_on_validation"] == (finished_run.choosing_part == "test")
    if SELECT in finished_run.metrics:
        for protocol in PROTOCOLS:
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
    assert_measured(finished_run.corrected, scores - ALPHA * LOG_COUNTS[finished_run.part])


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


def test_candidates_are_new_to_their_user_and_drawn_by_all_counts(tmp_path):
    """Held-out items count: of the items that only they have, there are as many candidates as their share says."""
    copies, sequences = 60, hold_out_last(OWN_VALIDATION, OWN_TEST)
    many = make_sequences([sequences[user] for _ in range(copies) for user in range(USERS)], ITEMS)
    drawn = {}
    for model in ("pop", "bpr_mf"):
        experiment = open_run(tmp_path / model, Case(model), many, num_negatives=1)
        drawn[model] = experiment.negatives
        for part in ("validation", "test"):
            assert np.array_equal(experiment.make_task(part).negatives[POPULAR], drawn[model][POPULAR])
    for protocol, items in drawn["pop"].items():
        assert np.array_equal(items, drawn["bpr_mf"][protocol])
        assert not [user for user, row in enumerate(items) if set(row) & set(many[user])]
    for protocol, weights in {POPULAR: many.count_items(), UNIFORM: np.ones(ITEMS + 1)}.items():
        shares = []
        for user in range(USERS):
            new = np.setdiff1d(np.arange(1, ITEMS + 1), many[user])
            shares.append(weights[new[new > COMMON]].sum() / weights[new].sum())
        spread = np.sqrt(np.mean(np.multiply(shares, np.subtract(1, shares))) / len(many.users))
        assert abs((drawn["pop"][protocol] > COMMON).mean() - np.mean(shares)) < 4 * spread


# From a table of actions.


def make_table(test):
    """One row per action, in the order of their times; those from 100 on are held out."""
    rows = [(time, user, item) for user, items in enumerate(BEFORE["test"]) for time, item in enumerate(items)]
    rows += [(100 + user, user, item) for user, item in enumerate(test)]
    return pd.DataFrame(sorted(rows), columns=["time", "user", "item"]).astype({"item": str})


@pytest.mark.parametrize("model", QUICK)
@pytest.mark.parametrize("split", [None, TimeSplit(100)], ids=["last", "time"])
def test_test_items_of_a_table_do_not_reach_the_training(tmp_path, model, split):
    """Users swap their test items, so that every item keeps its count in all data, and so its number."""
    tables = [make_table(test) for test in (TEST, TEST[1:] + TEST[:1])]
    versions = [inputs.load_any(table, split=split)[1] for table in tables]
    assert versions[0].vocabulary.items.tolist() == versions[1].vocabulary.items.tolist()
    assert versions[0].fingerprint != versions[1].fingerprint
    one, other = (
        train(tmp_path / str(number), Case(model), sequences, protocol=FIXED)
        for number, sequences in enumerate(versions)
    )
    assert not find_differences(one, other)
    counts = Counter(str(item) for items in BEFORE["test"] for item in items)
    found = WorkDirectory(one).read_ids().training_counts.tolist()
    assert found == [counts[item] for item in versions[0].vocabulary.items.tolist()]
