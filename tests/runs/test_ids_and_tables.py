"""Ids in the type they had, tables of every library, the names of columns, `plot` and `compare`."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import console
from support.profiles import examples

import bert4rec_tf as b4r
from bert4rec_tf.commands import recommend, similar
from bert4rec_tf.data.id_types import drop_wrong_types
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.export.layout import TITLES
from bert4rec_tf.foundation import plots
from bert4rec_tf.runs import exporting
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.serving.client import SavedRecommender
from bert4rec_tf.serving.http.app import open_rules, open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings

pytestmark = pytest.mark.usefixtures("quick")

ROWS = [(user, (3 * user + 2 * place) % 40, place) for user in range(60) for place in range(8)]
FRAME = pd.DataFrame(ROWS, columns=["client", "Artikel-Nr", "when"]).astype({"Artikel-Nr": np.uint32})
MOVIES = pd.DataFrame({"Artikel-Nr": range(40), "title": [f"Movie {item}" for item in range(40)], "kind": [0, 1] * 20})
LATER = pd.DataFrame([(user, (3 * user + 16) % 40, 9) for user in range(60)], columns=FRAME.columns)
NAMES = {"user": "client", "item": "Artikel-Nr", "time": "when"}
COUNTING = {"model": "item_transitions", "silent": True}
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


class Stream:
    """A table of which only the Arrow stream is known, as of polars' or DuckDB's."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


class Interchange:
    """A table of which only the interchange protocol is known."""

    def __init__(self, table):
        self.table = table

    def __dataframe__(self, nan_as_null=False, allow_copy=True):
        return self.table.__dataframe__(nan_as_null, allow_copy)


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT4REC_DATA", str(tmp_path))


@pytest.fixture(scope="module")
def counted():
    return b4r.fit(FRAME, **NAMES, titles=MOVIES, **COUNTING)


@pytest.mark.long
def test_recommendations_of_integers_merge_with_a_table_of_integers(counted, tmp_path):
    for model in (counted, b4r.open(counted.save(tmp_path / "kept")), b4r.open(tmp_path / "kept" / "saved_model")):
        best = model.recommend(user=3, k=4)
        assert best["item"].dtype == np.uint32 and best["item"][0] == 25
        merged = best.merge(MOVIES.rename(columns={"Artikel-Nr": "item", "title": "name"}), on="item")
        assert merged["name"].tolist() == [f"Movie {item}" for item in best["item"]]
        everybody = model.recommend_all(k=1, silent=True)
        assert everybody.dtypes[["user", "item"]].tolist() == [np.int64, np.uint32]
        assert model.similar(7, k=3)["item"].dtype == np.uint32
        assert sorted(model.items) == list(range(40)) and model.users == list(range(60))
        assert model.recommend(user=3, candidates=[99]).dtypes["item"] == np.uint32


def test_a_number_and_its_text_are_the_same_id(counted):
    one, other, scalar = (
        counted.recommend(user=of(3), history=[of(5), of(7)], k=9, exclude=[of(9)], candidates=[*map(of, range(20))])
        for of in (int, str, pa.scalar)
    )
    pd.testing.assert_frame_equal(one, other)
    pd.testing.assert_frame_equal(one, scalar)
    assert not one.empty and 9 not in one["item"].tolist()
    pd.testing.assert_frame_equal(counted.similar("7"), counted.similar(7))
    pd.testing.assert_frame_equal(
        counted.recommend_all(["3", 4], k=2, silent=True), counted.recommend_all(pa.array([3, 4]), k=2, silent=True)
    )


@pytest.mark.parametrize("stranger", ["03", " 3", "+3", "1_0", "3.0"])
def test_a_stranger_is_not_given_the_id_of_a_user_whose_number_his_text_is(counted, stranger):
    found = counted.recommend_all([3, stranger], k=1, silent=True)
    assert found["user"].tolist() == ["3", stranger] and found["basis"].tolist() == ["history", "popular"]


def test_an_export_without_types_returns_texts(counted):
    opened = b4r.open(counted.workdir)
    opened.saved.columns = {}
    assert opened.recommend(user=3, k=1)["item"].tolist() == ["25"] and set(opened.users) == {*map(str, range(60))}


@given(st.data(), st.sampled_from(INTEGERS))
@settings(max_examples=examples(60), deadline=None)
def test_integers_of_every_type_come_back(data, kind):
    limits = np.iinfo(kind)
    ids = st.integers(int(limits.min), int(limits.max))
    rows = data.draw(st.lists(st.tuples(ids, ids), min_size=2, max_size=8, unique_by=lambda row: row[1]))
    users, items = (np.array([*column, *column], kind) for column in zip(*rows))
    sequences = b4r.interactions(pd.DataFrame({"user": users, "item": items}))
    saved = SavedRecommender.__new__(SavedRecommender)
    saved.card = {"columns": drop_wrong_types(sequences)}
    for role, texts, values in (("user", sequences.users, users), ("item", sequences.vocabulary.items, items)):
        restored = saved.restore_ids(role, list(texts))
        assert restored.dtype == kind and set(restored.tolist()) == set(values.tolist())


WHOLE_NUMBERS = st.integers(-130, 300) | st.integers(-(2**63), 2**64 - 1)
OTHER_TEXTS = st.sampled_from(["007", "+1", "1.0", "-0", "x", str(2**64), str(-(2**63) - 1)])


@given(st.lists(WHOLE_NUMBERS.map(str), min_size=1), st.lists(OTHER_TEXTS, max_size=1), st.sampled_from(INTEGERS))
def test_a_type_is_kept_or_widened_if_every_id_has_it(texts, others, kind):
    sequences = b4r.interactions(pd.DataFrame({"user": [1, 1], "item": np.array([1, 2], kind)}))
    sequences.vocabulary.__dict__["items"] = np.array(texts + others, object)
    limits = {name: np.iinfo(name) for name in (kind, "int64", "uint64")}
    fitting = [name for name in limits if all(limits[name].min <= int(text) <= limits[name].max for text in texts)]
    expected = None if others or not fitting else fitting[0]
    assert drop_wrong_types(sequences)["item"].get("type") == expected


def test_tables_of_other_libraries_are_taken_wherever_a_dataframe_is(counted):
    table = pa.table(FRAME)
    views = pa.table({name: table[name].cast(pa.string()).cast(pa.string_view()) for name in FRAME.columns[:2]})
    views = views.append_column("when", table["when"])
    expected = b4r.interactions(FRAME, **NAMES)
    for wrapped in (Stream(table), Interchange(table), Stream(views)):
        read = inputs.load_any(wrapped, **NAMES)[1]
        assert read.fingerprint == expected.fingerprint
    assert read.columns == {role: {"name": name} for role, name in NAMES.items()}
    for kind in (Stream, Interchange):
        pd.testing.assert_frame_equal(counted.evaluate(kind(pa.table(LATER))), counted.evaluate(LATER))
        assert counted.saved.choose_titles(kind(pa.table(MOVIES)))[0] == counted.titles
        features = b4r.with_features(expected, item_features=kind(pa.table(MOVIES.drop(columns="title"))))
        assert features.features["item_features"].names.tolist() == ["kind=0", "kind=1"]
    for bad in (42, pd.Series([1]), Stream(pa.chunked_array([[1]]))):
        with pytest.raises(b4r.UserError, match="`data`"):
            b4r.fit(bad)


def test_names_given_to_fit_hold_for_the_other_tables(counted, tmp_path):
    assert counted.titles["7"] == "Movie 7" and counted.recommend(user=3)["title"][0] == "Movie 25"
    renamed = LATER.set_axis(["user", "item", "time"], axis=1)
    expected = counted.evaluate(renamed)
    trap = LATER.assign(item=0, user=0)  # usual names, but not those of `fit`
    pd.testing.assert_frame_equal(counted.evaluate(trap), expected)
    trap.to_csv(tmp_path / "later.csv", index=False)
    pd.testing.assert_frame_equal(counted.evaluate(tmp_path / "later.csv"), expected)
    pd.testing.assert_frame_equal(counted.evaluate(b4r.Interactions(str(tmp_path / "later.csv"))), expected)
    trap.drop(columns="user").rename(columns={"client": "user"}).to_csv(tmp_path / "user.csv", index=False)
    pd.testing.assert_frame_equal(counted.evaluate(tmp_path / "user.csv"), expected)
    renamed.to_csv(tmp_path / "renamed.csv", index=False)
    pd.testing.assert_frame_equal(counted.evaluate(tmp_path / "renamed.csv"), expected)
    features = MOVIES.assign(item="x").drop(columns="title")
    assert b4r.with_features(b4r.interactions(FRAME, **NAMES), item_features=features).num_items == 40
    MOVIES.assign(item="x").to_csv(tmp_path / "titles.csv", index=False)
    assert counted.saved.choose_titles(str(tmp_path / "titles.csv"))[0] == counted.titles


def test_names_given_to_fit_hold_for_the_commands_and_their_other_flags(counted, tmp_path):
    workdir = counted.save(tmp_path / "shop")
    LATER.assign(item=0, user=0).to_csv(tmp_path / "later.csv", index=False)
    flags = ("--model=shop", "--interactions=later.csv", "--bad_rows=skip")
    ended = console("recommend", *flags, "--output=lists.csv", "-k=3", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    lists = pd.read_csv(tmp_path / "lists.csv")
    expected = counted.recommend_all(LATER["client"], 3, True, LATER[["Artikel-Nr"]].to_numpy().tolist())
    assert lists[["user", "item"]].to_numpy().tolist() == expected[["user", "item"]].to_numpy().tolist()
    ended = console("update", *flags, cwd=tmp_path)
    assert ended.returncode == 0 and ended.stdout.endswith(": 60 new actions, 0 new items, 0 new users\n")
    assert b4r.open(workdir).saved.get_history("7") == [*counted.saved.get_history("7"), "37"]


def test_names_given_to_fit_hold_for_titles_and_attributes_of_commands_and_servers(counted, tmp_path):
    workdir = counted.save(tmp_path / "shop")
    films = MOVIES.assign(id=range(39, -1, -1), item=0, price=range(40))  # usual names, but not those of `fit`
    films.to_csv(tmp_path / "films.csv", index=False)
    expected = films[films["price"] > 37][["Artikel-Nr", "title"]].astype(str).to_numpy().tolist()
    flags = ("--model=shop", "--titles=films.csv", "--attributes=films.csv", "--where=price > 37")
    for command, item in (("recommend", "--history=7"), ("similar", "--item=7")):
        ended = console(command, *flags, item, cwd=tmp_path)
        rows = [line.split(maxsplit=3) for line in ended.stdout.splitlines()[1:]]
        assert rows and all([item, title] in expected for _, item, _, title in rows), ended
    paths = dict.fromkeys(("titles", "attributes"), str(tmp_path / "films.csv"))
    serving = ServerSettings(model=str(workdir), **paths)
    versions = open_versions(serving)
    assert versions.current.catalogue.describe("7")["title"] == "Movie 7"
    frame = open_rules(serving, versions).attributes.content.frame
    assert frame["price"].tolist() == films.set_index(films["Artikel-Nr"].astype(str))["price"][frame.index].tolist()


def test_titles_may_be_given_when_a_model_is_opened(counted):
    other = MOVIES.assign(title=MOVIES["title"].str.upper())
    opened = b4r.open(counted.workdir, titles=other)
    assert opened.recommend(user=3)["title"][0] == opened.recommend_all([3], k=1)["title"][0] == "MOVIE 25"
    with pytest.raises(b4r.UserError, match="`titles` must have columns named `id` and `title`, or be a dictionary"):
        b4r.open(counted.workdir, titles=MOVIES[["kind"]])
    with pytest.raises(b4r.UserError, match="`titles` must be a file, a dictionary or a table"):
        b4r.open(counted.workdir, titles=7)


def test_a_model_that_holds_titles_shows_them_everywhere(counted, tmp_path, capsys):
    workdir = counted.save(tmp_path / "shop")
    model = exporting.export(WorkDirectory(workdir))
    assert b4r.open(model).recommend(history=[7], k=1)["title"].tolist() == ["Movie 9"]
    for command, item in ((recommend, "--history=7"), (similar, "--item=7")):
        command.main([f"--model={model}", item, "-k=1"])
        assert "  Movie 9" in capsys.readouterr().out
    serving = ServerSettings(model=str(workdir))
    assert open_versions(serving).current.catalogue.describe("7")["title"] == "Movie 7"
    (model / TITLES).write_text("id\n7\n")
    with pytest.raises(b4r.UserError, match=r"titles.csv: the first line must be a header"):
        open_versions(serving)


def test_whole_numbers_of_a_file_have_a_type(tmp_path):
    FRAME.to_parquet(tmp_path / "rows.parquet")
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    FRAME.assign(client=FRAME["client"].map("{:03}".format)).to_csv(tmp_path / "zeros.csv", index=False)
    columns = {
        path.name: drop_wrong_types(inputs.load_any(path, **NAMES)[1]) for path in sorted(tmp_path.glob("*.[pc]*"))
    }
    assert columns["rows.parquet"]["item"] == {"name": "Artikel-Nr", "type": "uint32"}
    assert columns["rows.csv"]["item"] == {"name": "Artikel-Nr", "type": "int64"}
    assert columns["zeros.csv"] == {**columns["rows.csv"], "user": {"name": "client"}}, "leading zeros stay texts"
    both = [tmp_path / "rows.parquet", tmp_path / "wider.parquet"]
    FRAME.assign(**{"Artikel-Nr": FRAME["Artikel-Nr"].astype("int64") + 2**40}).to_parquet(both[1])
    assert drop_wrong_types(inputs.load_any(both, **NAMES)[1])["item"]["type"] == "int64"


def test_users_of_a_csv_with_a_gap_are_the_known_ones(counted, tmp_path):
    rows = LATER.astype({"client": float})
    rows.to_csv(tmp_path / "gap.csv", index=False)
    updated = counted.update(tmp_path / "gap.csv")
    assert updated.users == counted.users and len(updated.saved.get_history("3")) == 9
    pd.testing.assert_frame_equal(counted.evaluate(tmp_path / "gap.csv"), counted.evaluate(LATER))


def test_places_of_histories_are_numbers_whatever_the_users_are():
    model = b4r.fit(FRAME.astype({"client": str}), **NAMES, **COUNTING)
    found = model.recommend_all(histories=[FRAME["Artikel-Nr"][:2].tolist()] * 2, k=1, silent=True)
    assert found["user"].tolist() == [0, 1]
    assert model.recommend_all(users=["1"], k=1, silent=True)["user"].tolist() == ["1"]


def test_messages_name_arguments_and_no_flags(counted, tmp_path):
    (tmp_path / "rows.csv").write_text("Kunde,Artikel,Kaufdatum\n" + "1,2,3\n" * 9)
    for call, words in (
        (lambda: b4r.fit(tmp_path / "rows.csv"), "give `user`, `item`, `time`"),
        (lambda: b4r.fit(FRAME, user=3), "`user` must be"),
        (lambda: b4r.fit(FRAME, user_column="client"), "`user`, `item` and `time` name the columns"),
        (
            lambda: b4r.fit(FRAME, item_feature=MOVIES),
            "'item_feature'. Did you mean 'item_features'?",
        ),
        (lambda: b4r.fit(FRAME, model="bpr_mf", step=9), "Did you mean 'steps'?"),
        (lambda: b4r.fit(FRAME, callbacks=[1]), "`callbacks` must be functions"),
        (lambda: b4r.fit(b4r.Interactions(FRAME)), "`b4r.interactions` reads a table. Received: a DataFrame"),
        (lambda: b4r.fit(FRAME, duplicates="keep"), "'duplicates'. `b4r.interactions` takes it"),
        (lambda: b4r.fit(tmp_path / "rows.csv", user="Kunde", item="Artikle"), "Did you mean 'Artikel'"),
        (lambda: counted.recommend([1, 2]), "`recommend_all(users)`"),
    ):
        with pytest.raises(b4r.UserError, match=re.escape(words)) as raised:
            call()
        assert "_column" not in str(raised.value) and "--" not in str(raised.value)
    counted.evaluate(LATER)
    rows = [f"{user},{item},{item}\n" for user, items in (("a", "xyz"), ("b", "yzx"), ("c", "wxy")) for item in items]
    (tmp_path / "open.csv").write_text("user,item,Kaufdatum\n" + "".join(rows))
    with pytest.warns(b4r.DataWarning, match="Name one with `time=`, of: Kaufdatum; or give `time=none`"):
        b4r.fit(tmp_path / "open.csv", **COUNTING)


@pytest.mark.long
def test_the_figure_has_the_curve_and_both_parts_beside_counting(monkeypatch):
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    rows = [row for row in ROWS if row[2] < 4 + row[0] % 4]
    model = b4r.fit(
        pd.DataFrame(rows, columns=["user", "item", "time"]), model="bpr_mf", steps=12, evaluate_every=6, silent=True
    )
    with pytest.raises(b4r.UserError, match=re.escape("`plot` needs matplotlib: pip install 'bert4rec-tf[plots]'")):
        model.plot()
    monkeypatch.setattr(plots, "is_available", lambda: True)
    figure = model.plot()
    curve, by_length, by_count = [axes for axes in figure.axes if axes.get_xlabel()]
    assert curve.get_xlabel() == "step" and curve.lines[0].get_xdata().tolist() == [6, 12]
    assert [text.get_text() for text in by_length.get_xticklabels()] == ["3", "4", "5", "6"]
    (right,) = [axes for axes in figure.axes if axes.get_ylabel().startswith("NDCG@10")]
    assert right.get_ylabel() == "NDCG@10 of validation items among 100 popular" and len(right.lines) == 1
    measured = model.metrics
    for axes in (by_length, by_count):
        assert [line.get_label() for line in axes.lines] == ["BprMf", "counting"]
    sizes = np.full(4, 1 / 4)
    for line, key in zip(by_length.lines, ("test", "item_transitions")):
        assert line.get_ydata() @ sizes == pytest.approx(measured[key]["full"]["ndcg@10"])


@pytest.mark.long
def test_models_are_compared_on_one_split():
    table = b4r.compare(FRAME, ["item_transitions", "pop"], **NAMES, silent=True)
    assert list(table) == ["ndcg@10", "hr@10", "seconds", "difference", "low", "high"]
    assert table.index.tolist() == ["item_transitions", "pop"] and table["seconds"].gt(0).all()
    alone = b4r.fit(FRAME, **NAMES, model="pop", holdout=2, silent=True).metrics["test"]["full"]
    assert table.loc["pop", ["ndcg@10", "hr@10"]].tolist() == pytest.approx([alone["ndcg@10"], alone["hr@10"]])
    first, second = (row for _, row in table.iterrows())
    assert first[["difference", "low", "high"]].isna().all()
    assert second["difference"] == pytest.approx(second["ndcg@10"] - first["ndcg@10"])
    assert second["low"] < second["difference"] < second["high"] < 0
    for models, words in (("pop", "a list of different names"), (["pop", "popp"], "Did you mean 'pop'")):
        with pytest.raises(b4r.UserError, match=words):
            b4r.compare(FRAME, models, **NAMES)
    with pytest.raises(b4r.UserError, match="`data` must have 30 users with three actions"):
        b4r.compare(FRAME[FRAME["client"] < 20], ["pop"], **NAMES)
