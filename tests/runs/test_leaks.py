"""Nothing that is made before the held-out items are read depends on them.

The data come in versions that differ in held-out items alone. What two versions give is compared file by file and array
by array, so what a later model or setting writes is compared too; only what may differ is named. What is measured on
held-out items has a file of its own, `test_leaks_in_metrics.py`.

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

import pandas as pd
import pytest
from support import whole_runs
from support.held_out import (
    BEFORE,
    CASES,
    OTHER_SEEN,
    OWN_DATA,
    OWN_TEST,
    OWN_VALIDATION,
    QUICK,
    SEEN,
    TEST,
    VALIDATION,
    Case,
    give_mix,
    hold_out_by_time,
    hold_out_last,
    make_run,
    open_run,
    train,
)
from support.profiles import slow_but

from bert4rec_tf.config import presets
from bert4rec_tf.config.data_names import OWN
from bert4rec_tf.config.model_settings import ALONE, AUTO, MODEL_SETTINGS
from bert4rec_tf.config.run_record import ALL, FIXED_STEPS, SELECT, SELECT_AND_RETRAIN
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.evaluation import evidence_search
from bert4rec_tf.evaluation.metrics import COLD, COUNT_BASELINES, LIST_METRICS
from bert4rec_tf.runs import trainings
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.training import loop

pytestmark = pytest.mark.usefixtures("quick")


def list_slow_cases():
    """Yields the other presets and every choice of every setting of a model, so also those of a new one."""
    for name, dataset, model in presets.PRESETS:
        if name in ("fast", "best") and dataset in ("beauty", "ml-1m", OWN):
            yield Case(model, name, OWN_DATA if dataset == OWN else dataset)
            if dataset == OWN:
                yield Case(model, name, OWN_DATA, is_long=True)
    own = {AUTO: {"dataset": OWN_DATA}}  # it has no preset for a data set
    for model, kind in MODEL_SETTINGS.items():
        for field in dataclasses.fields(kind):
            needed = tuple((other, values[0]) for other, values in field.metadata["only_with"].items())
            for choice in field.metadata["limits"].get("choices", ()):
                if choice != field.default:
                    # The rule for your own data sets first item vectors, which `alone` has none of.
                    more = (("initial_vectors", "random"),) if model == AUTO and choice == ALONE else ()
                    yield Case(model, settings=(*needed, (field.name, choice), *more), **own.get(model, {}))
    yield Case("fpmc", "fast", OWN_DATA, (("negatives", "popular"),))
    yield Case("bert4rec", "best", OWN_DATA, (("use_user_features", True),))


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
    if "features" in configs[0]:
        assert configs[0].pop("actions_fingerprint") != configs[1].pop("actions_fingerprint")
    del configs[0]["ids_fingerprint"], configs[1]["ids_fingerprint"]  # of vocabulary.npz, which is compared below
    return [f"config.json: {name}" for name in configs[0] if configs[0][name] != configs[1].get(name)] + [
        name for name in found if not any(fnmatch.fnmatch(name, pattern) for pattern in (*OF_ALL_DATA, *may_differ))
    ]


def read_losses(folder, phase):
    return [(row["step"], row["loss"]) for row in loop.read_state(folder / phase).curve]


def find_protocols(case):
    """Returns the trainings that hold something out -> a protocol with no other training. Not all models have both."""
    return {
        trainings.list_trainings(make_run(case, protocol=protocol, **give_mix(case)))[-1]: protocol
        for protocol in (SELECT, FIXED_STEPS)
    }


def make_versions(phase):
    """Returns version -> data with the actions that `phase` may learn from and with other held-out items."""
    validation = OWN_VALIDATION if phase == SELECT else VALIDATION
    return {
        "last": hold_out_last(validation, OWN_TEST),
        "time": hold_out_by_time(validation, OWN_TEST),
    }


@pytest.fixture
def no_search(monkeypatch):
    """Has transitions counted by the settings that the search begins with, whatever the validation items are."""
    monkeypatch.setattr(evidence_search, "AXES", ())


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


ONE_OF_EACH = [
    case for case in CASES if case.settings or case.model in ("pop", "item_transitions", "bpr_mf", "caser", "bert4rec")
]
"""The models that count, each kind of examples, a preset for own data, and single settings."""


@pytest.mark.parametrize("case", slow_but(ONE_OF_EACH, CASES), ids=str)
def test_training_ignores_held_out_actions(no_search, tmp_path, case):
    assert_training_ignores(tmp_path, case, ["last"])


@pytest.mark.parametrize("case", slow_but([Case(model) for model in QUICK], CASES), ids=str)
def test_training_ignores_what_comes_after_a_cut(no_search, tmp_path, case):
    assert_training_ignores(tmp_path, case, ["time"])


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
    experiment.evaluate(experiment.train())
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
    assert contents[0]["test"] != contents[1]["test"]
    assert drop_test_results(contents[0]) == drop_test_results(contents[1])


SPLITS = {"last": hold_out_last, "time": hold_out_by_time}


@pytest.mark.parametrize(
    ("case", "protocol", "split"),
    [
        *((Case(model), SELECT_AND_RETRAIN, "time") for model in QUICK),
        (Case("bpr_mf"), ALL, "last"),
        pytest.param(Case("sasrec", "best", OWN_DATA), SELECT_AND_RETRAIN, "last", marks=pytest.mark.long),
        *(
            pytest.param(case, protocol, split, marks=pytest.mark.slow)
            for case in [*CASES, Case("bert4rec", "best"), Case("sasrec", "best", OWN_DATA)]
            for protocol, split in ((SELECT_AND_RETRAIN, "time"), (ALL, "last"))
        ),
    ],
    ids=str,
)
def test_nothing_is_chosen_by_the_test_items(tmp_path, case, protocol, split):
    """The steps, how transitions are counted and weighed, and all else that is not of the test items."""
    assert_same_choices(tmp_path, case, protocol, SPLITS[split])


# From a table of actions.


def make_table(test):
    """One row per action, in the order of their times; those from 100 on are held out."""
    rows = [(time, user, item) for user, items in enumerate(BEFORE["test"]) for time, item in enumerate(items)]
    rows += [(100 + user, user, item) for user, item in enumerate(test)]
    return pd.DataFrame(sorted(rows), columns=["time", "user", "item"]).astype({"item": str})


@pytest.mark.parametrize("model", QUICK)
@pytest.mark.parametrize("test_from", [None, 100], ids=["last", "time"])
def test_test_items_of_a_table_do_not_reach_the_training(tmp_path, model, test_from):
    """Users swap their test items, so that every item keeps its count in all data, and so its number."""
    tables = [make_table(test) for test in (TEST, TEST[1:] + TEST[:1])]
    versions = [inputs.load_any(table, test_from=test_from)[1] for table in tables]
    assert versions[0].vocabulary.items.tolist() == versions[1].vocabulary.items.tolist()
    assert versions[0].fingerprint != versions[1].fingerprint
    one, other = (
        train(tmp_path / str(number), Case(model), sequences, protocol=FIXED_STEPS)
        for number, sequences in enumerate(versions)
    )
    assert not find_differences(one, other)
    counts = Counter(str(item) for items in BEFORE["test"] for item in items)
    found = WorkDirectory(one).read_ids().training_counts.tolist()
    assert found == [counts[item] for item in versions[0].vocabulary.items.tolist()]
