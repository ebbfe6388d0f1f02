"""Users with one action are users: counted, recommended to, exported and trained on with, but not measured."""

import pandas as pd
import pytest
from support.profiles import slow_but

import bert4rec_tf as b4r
from bert4rec_tf.commands import data
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.runs import updating

pytestmark = pytest.mark.usefixtures("quick")
COLUMNS = ["user", "item", "time"]
MANY = [(f"u{user}", f"i{(user + place) % 12}", place) for user in range(40) for place in range(6)]
ONCE = [(f"once{user}", f"i{user % 12}", 3) for user in range(40)]
FRAME = pd.DataFrame([*MANY, *ONCE, ("lone", "rare", 1)], columns=COLUMNS)
COUNTING = {"model": "item_transitions", "silent": True}


@pytest.fixture(scope="module")
def counted():
    return b4r.fit(FRAME, **COUNTING)


def test_they_are_counted_but_not_measured(counted):
    sequences = b4r.interactions(FRAME)
    assert (sequences.num_users, sequences.num_actions, sequences.num_items) == (81, 281, 13)
    assert sequences.training_size == (40, 240)
    assert dict(zip(sequences.vocabulary.items, sequences.vocabulary.counts))["i1"] == FRAME["item"].eq("i1").sum()
    assert len(LeaveOneOut(sequences).users) == 40
    assert counted.metrics["users"] == 40 and counted.metrics["users_not_evaluated"] == 41


def test_settings_go_by_the_others():
    whole, others = (b4r.interactions(frame) for frame in (FRAME, FRAME[: len(MANY)]))
    runs = [b4r.make_run("own-shop", size=sequences) for sequences in (whole, others)]
    assert runs[0].digest == runs[1].digest


def test_they_are_recommended_to(counted, tmp_path):
    for model in (counted, b4r.open(counted.save(tmp_path / "kept"))):
        assert len(model.users) == 81
        best = model.recommend(user="once1", k=3)
        assert best.equals(model.recommend(history=["i1"], k=3))
        everybody = model.recommend_all(k=2, silent=True)
        assert everybody["user"].nunique() == 81 and everybody["user"].eq("lone").sum() == 2
        assert model.saved.get_history("lone") == ["rare"]


@pytest.mark.long
@pytest.mark.parametrize("model", slow_but(["bert4rec", "bpr_mf"], ["bert4rec", "bpr_mf", "fpmc", "gru4rec"]))
def test_every_kind_of_training_takes_them(model):
    small = {"steps": 4, "evaluate_every": 2, "batch_size": 8, "silent": True}
    small |= {"hidden_dim": 8, "num_layers": 1, "max_length": 8} if model == "bert4rec" else {}
    fitted = b4r.fit(FRAME, model=model, **small)
    assert len(fitted.recommend(user="lone", k=3)) == 3


def test_a_new_user_with_one_row_joins_in_a_continued_training(counted):
    more = counted.continue_training(pd.DataFrame([("new", "i3", 9), ("once0", "i5", 9)], columns=COLUMNS), silent=True)
    assert more.saved.get_history("new") == ["i3"] and more.saved.get_history("once0") == ["i0", "i5"]
    assert len(more.users) == 82
    with pytest.raises(b4r.UserError, match="the new data must have rows"):
        counted.continue_training(FRAME[:0], silent=True)


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 2])
def test_fitting_and_continuing_equals_fitting_all_at_once(counted, parts):
    known = counted if parts == 1 else b4r.fit(FRAME[::parts], **COUNTING)
    more = known.continue_training(FRAME, silent=True)
    continued, fitted = (updating.read_all_histories(model.saved) for model in (more, counted))
    assert continued.fingerprint == fitted.fingerprint == b4r.interactions(pd.concat([FRAME] * 2)).fingerprint


def test_one_line_says_how_many(tmp_path, capsys):
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    data.main([f"--interactions={tmp_path / 'a.csv'}", f"--data_dir={tmp_path}"])
    printed = capsys.readouterr().out
    assert "read: 81 users, 13 items, 281 actions" in printed and "kept: 81 users" in printed
    assert "41 of 81 users have one action: they get recommendations" in printed
    with pytest.warns(b4r.DataNote, match="^the table: 41 of 81 users have one action"):
        b4r.interactions(FRAME)
