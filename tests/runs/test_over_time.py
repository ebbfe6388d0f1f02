"""Models measured over time, and by an attribute, against single fits."""

import functools
import tempfile

import numpy as np
import pandas as pd
import pytest

import bert4rec_tf as b4r
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation.metrics import compute_difference, compute_per_user
from bert4rec_tf.foundation import plots
from bert4rec_tf.notebook import fitting
from bert4rec_tf.notebook.user_tables import label_cases

pytestmark = pytest.mark.usefixtures("quick")
DAY = 86_400
ROWS = [
    (user, f"i{(3 * user + 2 * place) % 40}", 1_700_000_000 + DAY * (2 * place + user % 2))
    for user in range(60)
    for place in range(12)
]
FRAME = pd.DataFrame(ROWS, columns=["user", "item", "time"])
AS_NUMBERED_DAYS = FRAME.assign(time=pd.to_datetime(FRAME.time, unit="s").dt.strftime("%Y%m%d").astype(int))


@pytest.mark.slow
def test_each_period_is_measured_by_what_came_before(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = b4r.cross_validate(FRAME, folds=2, test_days=4, models=["item_transitions", "pop"], silent=True)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    end = FRAME["time"].max()
    for fold, days in ((1, 8), (2, 4)):
        before = FRAME[FRAME["time"] <= end - (days - 4) * DAY]
        alone = b4r.fit(before, model="pop", holdout=2, test_from=end - days * DAY + 1, silent=True).metrics
        row = found.folds.loc[fold, "pop"]
        assert row["ndcg@10"] == pytest.approx(alone["test"]["full"]["ndcg@10"]) and row["cases"] == alone["users"]
        assert row["low"] < row["ndcg@10"] < row["high"]
    shares = found.folds.xs("pop", level="model")
    expected = np.average(shares["ndcg@10"], weights=shares["cases"])
    assert found.summary.loc["pop", "ndcg@10"] == pytest.approx(expected)
    assert found.summary.loc["pop", "high"] < 0 and np.isnan(found.summary.loc["item_transitions", "low"])
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    monkeypatch.setattr(plots, "is_available", lambda: True)
    axes = found.plot().axes[0]
    assert len(axes.containers) == 2 and axes.get_ylabel() == "ndcg@10"


def test_the_folds_of_a_user_are_not_taken_as_independent(monkeypatch):
    """Every user is in both folds, with the same ranks: twice the cases, and nothing new."""
    of_users = {"pop": np.arange(60) % 7, "item_transitions": np.arange(60) % 3}
    monkeypatch.setattr(fitting, "_measure", lambda part, name, options: of_users[name])
    twice = b4r.cross_validate(FRAME, folds=2, test_days=4, models=["pop", "item_transitions"], silent=True)
    gains = [compute_per_user("ndcg@10", of_users[name]) for name in of_users]
    once = compute_difference(*gains)
    row = twice.summary.loc["item_transitions"]
    assert (row["difference"], row["low"], row["high"]) == pytest.approx((once.mean, once.low, once.high))


@pytest.mark.slow
def test_models_are_compared_by_an_attribute_of_items_or_users():
    items = pd.DataFrame({"item": [f"i{number}" for number in range(40)], "kind": ["a", "b"] * 20})
    users = pd.DataFrame({"user": range(60), "side": ["left" if user < 40 else "right" for user in range(60)]})
    whole = b4r.compare(FRAME, ["item_transitions", "pop"], silent=True)
    for by, table in (("kind", items), ("side", users)):
        found = b4r.compare(FRAME, ["item_transitions", "pop"], by=by, attributes=table, silent=True)
        assert found.index.get_level_values(by).unique().tolist() == sorted(table[by].unique())
        cases = found.xs("pop", level="model")
        assert cases["cases"].sum() == 60
        assert np.average(cases["ndcg@10"], weights=cases["cases"]) == pytest.approx(whole.loc["pop", "ndcg@10"])
    some = b4r.compare(FRAME, ["pop"], by="rank", attributes=users[:30].assign(rank=[1.0, None, 2.0] * 10), silent=True)
    assert some.loc[("1", "pop"), "cases"] == some.loc[("2", "pop"), "cases"] == 10 and len(some) == 2
    assert found.loc[("left", "pop"), "cases"] == 40 and np.isnan(found.loc[("right", "pop"), "low"])


@pytest.mark.parametrize("compare", [b4r.compare, b4r.cross_validate])
def test_wrong_models_and_options_are_refused_before_any_training(monkeypatch, compare):
    monkeypatch.setattr(fitting, "_measure", None)
    for models, options, words in (
        (["sasrec", "pop"], {"hidden_dim": 8}, "Unknown setting of model 'pop': 'hidden_dim'"),
        (["sasrec", "pop"], {"minutes": -5}, "`minutes` must be"),
        (["pop", "pop"], {}, "`models` must be a list of different names"),
        ("pop", {}, "`models` must be a list of different names"),
        (["pop", b4r.MODELS["pop"]], {}, "`models` must be a list of different names"),
        ([["pop"]], {}, r"`model` must be a name or a subclass of `b4r.Recommender`. Received: \['pop'\]"),
        (["sasrec"], {"tets_from": 5}, "Did you mean 'test_from'"),
        (["sasrec"], {"modles": ["pop"]}, "Did you mean 'models'"),
        (["sasrec"], {"model": "pop"}, "`model` must be left out: `models` has the names"),
        (["sasrec", "pop"], {"item_features": FRAME}, "`item_features` needs model="),
        (["sasrec"], {"holdout": 1, "protocol": "select"}, "`holdout` must be left out with `protocol`"),
    ):
        with pytest.raises(b4r.UserError, match=words):
            compare(FRAME, models=models, silent=True, **options)


def test_minutes_are_for_the_models_that_are_trained(monkeypatch):
    class Asked(Exception):
        pass

    @functools.wraps(fitting.fit)
    def ask(source, model, **options):
        raise Asked(options)

    monkeypatch.setattr(fitting, "fit", ask)
    for models, options in ((["sasrec", "pop"], {"minutes": 5}), (["pop", "sasrec"], {})):
        with pytest.raises(Asked) as asked:
            b4r.compare(FRAME, models=models, minutes=5, silent=True)
        assert asked.value.args == ({"holdout": 2, "silent": True, **options},)


def test_options_are_judged_by_the_settings_that_are_fitted(monkeypatch):
    """Beauty's preset has a fixed number of steps, and no patience; a comparison holds out two actions."""
    monkeypatch.setattr(fitting, "_measure", lambda *_: ([], 0.0))
    monkeypatch.setattr(fitting, "_tabulate", lambda measured: pd.DataFrame(index=list(measured), columns=["a", "b"]))
    monkeypatch.setattr(fitting.inputs, "load_any", lambda *_, **__: (None, b4r.interactions(FRAME), None))
    assert list(b4r.compare("beauty", ["bert4rec"], patience=3).index) == ["bert4rec"]


def test_ids_of_items_and_users_alike_need_the_column_s_name(monkeypatch):
    monkeypatch.setattr(fitting, "_measure", None)
    ages = pd.DataFrame({"id": range(60), "age": ["young", "old"] * 30})
    alike = FRAME.assign(item=FRAME["item"].str[1:].astype(int))
    with pytest.raises(b4r.UserError, match=r"a column `item` or `user`\. Those of the column 'id' may be either"):
        b4r.compare(alike, ["pop"], by="age", attributes=ages, silent=True)
    split = LeaveOneOut(b4r.interactions(alike))
    labels = label_cases(split.sequences, "age", ages.rename(columns={"id": "user"}))
    assert labels.tolist() == ["young" if int(user) % 2 == 0 else "old" for user in split.sequences.users[split.users]]


def test_a_wrong_attribute_is_refused_before_any_training(monkeypatch):
    monkeypatch.setattr(fitting, "_measure", None)
    items = pd.DataFrame({"item": [f"i{number}" for number in range(40)], "kind": ["a", "b"] * 20})
    for options, words in (
        ({"by": "colour", "attributes": items}, "Unknown attribute: 'colour'"),
        ({"by": "kind"}, "must be given together"),
        ({"attributes": items}, "must be given together"),
    ):
        with pytest.raises(b4r.UserError, match=words):
            b4r.compare(FRAME, ["pop"], silent=True, **options)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (FRAME.drop(columns="time"), {}, "`data` must have times"),
        (FRAME, {"folds": 0}, "`folds` and `test_days` must be above 0"),
        (FRAME, {"test_days": "7"}, "`folds` and `test_days` must be above 0"),
        (FRAME, {"test_days": np.inf}, "`folds` and `test_days` must be above 0"),
        (AS_NUMBERED_DAYS, {}, "times that count on evenly.* Received: 202"),
        (FRAME, {"folds": 9}, "must leave 30 users to measure in each period"),
    ],
)
def test_what_cannot_be_split_by_time_says_why(data, options, words):
    with pytest.raises(b4r.UserError, match=words):
        b4r.cross_validate(data, models=["pop"], silent=True, **options)
