"""Rules for what may be recommended, against plain Python: conditions on attributes, and a block list."""

import gc
import itertools
import re
import tracemalloc
import unicodedata
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from support.commands import console
from support.exports import HISTORIES, NAMES, NUM_ITEMS, VOCABULARY, transformer

import bert4rec_tf as b4r
from bert4rec_tf.export import saved_model
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.serving.client import Choices
from bert4rec_tf.serving.rules import (
    MAX_CONDITIONS,
    Attributes,
    WatchedFile,
    join_attributes,
    read_attributes,
    read_blocked,
)

KINDS = ["toys", "books", "food"]
TAGS = ("red", "red hot", "cold")
FRAME = pd.DataFrame(
    {
        "id": NAMES[:28],
        "category": [KINDS[number % 3] for number in range(28)],
        "in_stock": [number % 4 != 0 for number in range(28)],
        "price": [float(number) for number in range(28)],
        "tags": ["|".join(TAGS[: number % 4]) for number in range(28)],
    }
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules") / "model"
    export(transformer(), VOCABULARY, folder, ExportOptions(3, attributes=FRAME.set_index("id")))
    return b4r.open(folder)


def select(source, where):
    """The ids in a table for which a condition holds."""
    attributes = Attributes(source)
    return {*attributes.select(where, Lines.from_texts(attributes.frame.index)).list_allowed()}


CONDITIONS = {
    "in_stock and category == 'toys'": lambda row: row.in_stock and row.category == "toys",
    "not in_stock": lambda row: not row.in_stock,
    "price >= 1 and (category in ['books', 'food'] or price < 5)": lambda row: (
        row.price >= 1 and (row.category in ("books", "food") or row.price < 5)
    ),
    "price > 26": lambda row: row.price > 26,
    "price > -1": lambda row: True,
    "'red' in tags": lambda row: "red" in row.tags.split("|"),
    "'red hot' not in tags and 'red' in tags": lambda row: row.tags == "red",
}


def test_lists_of_values_are_searched_too(model):
    lists = FRAME.assign(tags=[cell.split("|") if cell else None for cell in FRAME["tags"]])
    for where in ("'red hot' in tags", "'red hot' not in tags"):
        texts, parts = (model.recommend(history=["0"], k=50, where=where, attributes=frame) for frame in (FRAME, lists))
        pd.testing.assert_frame_equal(texts, parts)


SIZES = pd.DataFrame({"id": [*"abcd"], "size": [[1, 2], [3.0], None, np.array([2, 4])], "price": [2, 1, 2, 3]})


def test_lists_of_numbers_are_searched():
    for where, expected in {
        "2 in size": {"a", "d"},
        "3 not in size": {"a", "c", "d"},
        "2 in price": {"a", "c"},
    }.items():
        assert select(SIZES, where) == expected
    for where in ("size == 2", "2 != size", "size in [2, 3]", "[2, 3] in size", "size == price", "size < 2"):
        with pytest.raises(
            b4r.UserError, match=r"\(`size` holds lists; look for a value in them, as in 'toys' in size"
        ):
            select(SIZES, where)
    with pytest.raises(b4r.UserError, match=r"\(`size` holds numbers, such as 1. Received: '2'"):
        select(SIZES, "'2' in size or price == 2")
    with pytest.raises(b4r.UserError, match=r"\(a list can hold the values of an attribute"):
        select(SIZES, "price == 2 or 2 in [1, 2]")


@pytest.mark.parametrize("where", CONDITIONS)
def test_as_many_allowed_items_as_there_are_come_back(model, where):
    allowed = {row.id for row in FRAME.itertuples() if CONDITIONS[where](row)}
    for history, k, exclude in itertools.product(HISTORIES[:3], (2, 50), ((), ("item 3", "0"))):
        ranked = model.recommend(history=history, k=NUM_ITEMS, exclude=exclude)["item"]
        expected = [item for item in ranked if item in allowed][:k]
        assert model.recommend(history=history, k=k, where=where, exclude=exclude)["item"].tolist() == expected
        some = [*NAMES[:9], NAMES[29]]
        among = model.recommend(history=history, k=k, where=where, candidates=some, exclude=exclude)["item"]
        assert among.tolist() == [item for item in ranked if item in allowed & {*some}][:k]
    many = model.recommend_all(histories=HISTORIES, k=50, where=where, silent=True)
    assert set(many["item"]) <= allowed
    near = model.similar("item 3", k=NUM_ITEMS)["item"]
    assert model.similar("item 3", k=4, where=where)["item"].tolist() == [one for one in near if one in allowed][:4]


def test_words_for_missing_values_do_not_make_texts_of_numbers_or_truths():
    frame = pd.DataFrame({"id": ["a", "b", "c"], "price": ["1", " N/A", "3.5"], "new": ["NULL", "yes", "true"]})
    assert select(frame, "price > 2") == {"c"} and select(frame.replace("yes", "-"), "new") == {"c"}
    assert select(frame.assign(price=["NA", "none", "-"]), "not price < 5") == {"a", "b", "c"}
    words = "`price` holds texts, such as 'on request'. Received: 5"
    with pytest.raises(b4r.UserError, match=re.escape(words)):
        select(frame.assign(price=["-", "on request", "1"]), "price < 5")


def test_a_table_of_attributes_without_rows_is_refused_and_one_from_before_kept(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("id,price\na,1\n")
    watched = WatchedFile(path, Attributes)
    path.write_text("id,price\n")
    watched.refresh()
    with pytest.warns(b4r.FileWarning, match=r"prices.csv: must have rows\. .*what it held before still counts"):
        watched.refresh()
    assert watched.content.frame["price"].to_dict() == {"a": 1}


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("colour == 'red'", "Unknown attribute: 'colour'. Known: category, in_stock, price"),
        ("price > 100", "`where` must leave items of the model. Received: where='price > 100', which leaves none"),
        ("price > 'x'", "`where` cannot be computed"),
        ("price >", "`where` must be a condition"),
        ("category.str.contains('t')", "`where` must consist of attributes, values, comparisons"),
        ("@__import__('os').system('true')", "`where` must be a condition"),
        ("price ** 9 > 1", "`where` must consist of attributes"),
        ("True", "`where` must be a condition on an attribute. Received: where='True'"),
        ("1", "`where` must be a condition on an attribute"),
        ("price != None", "`where` must not have None; price == price holds for items with a price. Received: where='"),
        ("category in ['toys', None]", "`where` must not have None"),
        ("price is None", "`where` must not have None"),
        ("category = 'toys'", "`where` must be a condition, in which == compares"),
        ("in_stock and category", "`where` cannot be computed (a text must be compared, as in category == 'toys')"),
        (3, "`where` must be a text. Received: where=3"),
    ],
)
def test_a_bad_condition_says_why(model, where, words):
    with pytest.raises(b4r.UserError, match=re.escape(words)):
        model.recommend(history=["0"], where=where)


GAPS = pd.DataFrame(
    {
        "id": [*"abcdef"],
        "in stock": [4, 1, 2, 0, 0, 7],
        "discontinued": [0, 1, 0, 1, 0, 0],
        "price": [1.0, 30.0, np.nan, 5.0, np.nan, 0.0],
        "new": [True, None, False, None, True, True],
        "note": ["x & y", None, "`z`", "x", None, "not x"],
    }
)
GAPPY_CONDITIONS = {
    "`in stock` and price < 20": lambda row: row[1] > 0 and row[3] < 20,
    "not discontinued": lambda row: not row[2],
    "price": lambda row: row[3] > 0,
    "not price": lambda row: not row[3] > 0,
    "not new or `in stock`": lambda row: row[4] is not True or row[1] > 0,
    "not (new and (discontinued or not `in stock`))": lambda row: not (row[4] is True and (row[2] or not row[1])),
    "~new & price<20 | note=='x & y'": lambda row: (row[4] is not True and row[3] < 20) or row[5] == "x & y",
    "0 < `in stock` <= 2 and not price < 20": lambda row: 0 < row[1] <= 2 and not row[3] < 20,
    "note in ['`z`', 'x'] and new == False": lambda row: row[5] in ("`z`", "x") and row[4] is False,
    "(new and price) == (1 == 1)": lambda row: row[4] is True and row[3] > 0,
    "price == price": lambda row: row[3] == row[3],
    "not note == note or new == new": lambda row: not isinstance(row[5], str) or row[4] is not None,
}


@pytest.mark.parametrize("where", GAPPY_CONDITIONS)
@pytest.mark.filterwarnings("error")
def test_numbers_and_gaps_are_true_or_false_within_a_condition(where):
    expected = {row[0] for row in GAPS.itertuples(index=False) if GAPPY_CONDITIONS[where](row)}
    assert select(GAPS, where) == expected


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("'4' in `in stock`", "`in stock` holds numbers, such as "),
        ("price != '30'", "`price` holds numbers, such as "),
        ("'30' == price", "`price` holds numbers, such as "),
        ("price not in ['y', 'x']", "`price` holds numbers, such as "),
        ("new == 'true'", "`new` holds true and false, such as "),
        ("note != 3", "`note` holds texts, such as '"),
        ("note not in [3]", "`note` holds texts, such as '"),
        ("note != price", "`note` holds texts, and `price` numbers"),
    ],
)
def test_a_text_is_not_compared_with_numbers_or_truths(where, words):
    with pytest.raises(b4r.UserError, match=re.escape(f"`where` cannot be computed ({words}")):
        select(GAPS, where)


@pytest.mark.parametrize("where", ["day > '2020-06-01'", "day == '2020-06-01'", "day not in ['2021-01-01']"])
def test_days_are_texts_in_a_table_a_file_and_an_export(tmp_path, where):
    days = [date(2020, 6, 1), date(2021, 1, 1), None, date(2019, 1, 1)]
    frame = pd.DataFrame({"id": NAMES[:4], "day": days})
    frame.to_parquet(tmp_path / "days.parquet")
    saved_model.write_attributes(read_attributes(frame, {}), tmp_path / "exported.parquet")
    expected = {
        "day > '2020-06-01'": {NAMES[1]},
        "day == '2020-06-01'": {NAMES[0]},
        "day not in ['2021-01-01']": {NAMES[0], NAMES[2], NAMES[3]},
    }[where]
    for source in (frame, tmp_path / "days.parquet", tmp_path / "exported.parquet"):
        assert select(source, where) == expected


def test_periods_are_texts_in_a_table_a_file_and_an_export(tmp_path):
    months = pd.PeriodIndex(["2020-02", None, "2020-03", "2021-01"], freq="M")
    frame = pd.DataFrame({"id": NAMES[:4], "month": months})
    frame.to_parquet(tmp_path / "months.parquet")
    saved_model.write_attributes(read_attributes(frame, {}), tmp_path / "exported.parquet")
    for source in (frame, tmp_path / "months.parquet", tmp_path / "exported.parquet"):
        assert select(source, "month == '2020-03'") == {NAMES[2]}
        assert select(source, "month > '2020-02'") == {NAMES[2], NAMES[3]}
        assert select(source, "not month == month") == {NAMES[1]}


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_moments_are_searched_as_they_are_compared(tmp_path, zone):
    days = pd.DataFrame({"id": NAMES[:4], "day": pd.to_datetime(["2020-01-01", "2020-01-02", None, "2020-01-03"])})
    days["day"] = days["day"].dt.tz_localize(zone)
    saved_model.write_attributes(read_attributes(days, {}), tmp_path / "exported.parquet")
    for source in (days, tmp_path / "exported.parquet"):
        assert select(source, "day == '2020-01-02'") == select(source, "day in ['2020-01-02']") == {NAMES[1]}
        assert select(source, "day in ['2020-01-02', '2020-01-03']") == {NAMES[1], NAMES[3]}
        assert select(source, "day not in ['2020-01-02']") == {NAMES[0], NAMES[2], NAMES[3]}
        assert select(source, "day in day") == {NAMES[0], NAMES[1], NAMES[3]}


def test_lists_mean_the_same_in_a_table_and_in_an_export(tmp_path):
    frame = pd.DataFrame(
        {
            "id": NAMES[:3],
            "sizes": [[1, 5], [2], None],
            "tags": [["a", "b"], ["b"], ["c"]],
            "days": [[date(2020, 1, 1)], [date(2020, 1, 2), date(2020, 1, 3)], None],
        }
    )
    saved_model.write_attributes(read_attributes(frame, {}), tmp_path / "exported.parquet")
    for source in (frame, tmp_path / "exported.parquet"):
        assert select(source, "5 in sizes") == {NAMES[0]} and select(source, "'b' in tags") == {NAMES[0], NAMES[1]}
        assert select(source, "'2020-01-03' in days") == {NAMES[1]}
        with pytest.raises(b4r.UserError, match="`tags` holds lists; look for a value in them"):
            select(source, "tags == 'a'")


LARGE = 2**53 + 1


@pytest.mark.parametrize(
    "cells",
    [
        [LARGE, LARGE + 1, None],
        pd.array([LARGE, LARGE + 1, None], "Int64"),
        [str(LARGE), str(LARGE + 1), None],
        [LARGE, LARGE + 1, LARGE + 4],
        [Decimal(LARGE), Decimal(LARGE + 1), None],
        pd.array([LARGE, 2**63 + 5, None], "UInt64"),
    ],
    ids=["objects", "Int64", "texts", "no gap", "decimals", "UInt64"],
)
def test_large_whole_numbers_are_exact(tmp_path, cells):
    frame = pd.DataFrame({"id": NAMES[:3], "seller": pd.Series(cells, dtype=getattr(cells, "dtype", object))})
    saved_model.write_attributes(read_attributes(frame, {}), tmp_path / "exported.parquet")
    for source in (frame, tmp_path / "exported.parquet"):
        for is_one in (f"seller == {LARGE}", f"seller in [{LARGE}, 0.5, {LARGE - 1}]", f"seller < {LARGE + 1}"):
            assert select(source, is_one) == {NAMES[0]}
        for is_other in (f"seller != {LARGE}", f"seller not in [{LARGE}]", f"not seller <= {LARGE}"):
            assert select(source, is_other) == {NAMES[1], NAMES[2]}
        assert select(source, "seller") == {*NAMES[:3]} - ({NAMES[2]} if pd.isna(cells[2]) else set())


def test_new_rows_join_known_attributes_without_a_change_of_these(tmp_path):
    days = [date(2020, 1, 1), date(2020, 1, 2)]
    known = pd.DataFrame({"id": ["a", "b"], "seller": [LARGE, LARGE - 1], "day": pd.to_datetime(days), "text": days})
    saved_model.write_attributes(read_attributes(known, {}), tmp_path / "known.parquet")
    new = pd.DataFrame({"id": ["c", "b"], "kind": ["x", "y"], "day": [days[1]] * 2, "text": [days[0]] * 2})
    joined = join_attributes(Attributes(tmp_path / "known.parquet"), read_attributes(new, {}))
    saved_model.write_attributes(joined, tmp_path / "joined.parquet")
    for where, expected in {
        f"seller == {LARGE}": {"a"},
        f"seller in [{LARGE - 1}]": set(),
        "day == '2020-01-01'": {"a"},
        "day in ['2020-01-02']": {"b", "c"},
        "text == '2020-01-01'": {*"abc"},
        "kind == 'y'": {"b"},
    }.items():
        assert select(tmp_path / "joined.parquet", where) == expected, where


def test_texts_that_end_as_midnight_does_stay_as_they_are(tmp_path):
    frame = pd.DataFrame({"id": ["a", "b"], "day": ["2020-01-01 00:00:00", "x"]})
    saved_model.write_attributes(read_attributes(frame, {}), tmp_path / "exported.parquet")
    for source in (frame, tmp_path / "exported.parquet"):
        assert select(source, "day == '2020-01-01 00:00:00'") == {"a"}


def test_rows_of_one_id_are_counted():
    with pytest.warns(b4r.DataWarning, match="`attributes`: 2 rows have the id of a later one, which counts"):
        assert select(pd.DataFrame({"id": ["a", "a", "b", "a"], "price": [1, 2, 3, 4]}), "price > 2") == {"a", "b"}


def test_ids_in_the_index_are_named():
    with pytest.raises(b4r.UserError, match=r"price, tags; pass frame\.reset_index\(\), because the index has id$"):
        Attributes(FRAME.set_index("id"))


@pytest.mark.parametrize("lost", [None, ""])
@pytest.mark.filterwarnings("error")
def test_rows_without_an_id_are_left_out_and_counted(tmp_path, lost):
    frame = pd.DataFrame({"id": [lost, "a", lost, "b"], "price": [1, 2, 3, 4]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    for source in (frame, tmp_path / "a.csv"):
        with pytest.warns(b4r.DataWarning, match=r"(`attributes`|a\.csv): 2 rows have no id and are left out"):
            assert select(source, "price > 0") == {"a", "b"}
    with pytest.raises(b4r.UserError, match=r"`attributes`: must have rows\. Received: 2 without an id"):
        Attributes(frame[::2])


def test_numbers_too_large_for_64_bits_are_texts():
    frame = pd.DataFrame({"id": NAMES[:3], "seller": [str(10**20), str(10**20 + 1), None]})
    assert select(frame, f"seller == '{10**20 + 1}'") == {NAMES[1]}


@pytest.mark.parametrize("where", ["price <= 19.99", "price == 19.99", "price in [19.99, 7]", "not price > 19.99"])
def test_decimals_are_compared_as_numbers(tmp_path, where):
    prices = [Decimal("19.99"), Decimal("20.00"), Decimal("25.50")]
    frame = pd.DataFrame({"id": NAMES[:3], "price": prices})
    frame.to_parquet(tmp_path / "a.parquet")
    for source in (frame, tmp_path / "a.parquet"):
        assert select(source, where) == {NAMES[0]}


@pytest.mark.parametrize("where", ["new == False", "new != False", "not new"])
def test_truths_with_gaps_mean_the_same_in_a_file(tmp_path, where):
    GAPS[["id", "new"]].to_csv(tmp_path / "a.csv", index=False)
    assert select(tmp_path / "a.csv", where) == select(GAPS, where)


def test_a_condition_that_would_take_long_is_not_computed():
    for where in (" or ".join(["price"] * 1_001), "price" + " < 9" * 1_001, f"price in [{'-price, ' * 1_001}]"):
        with pytest.raises(b4r.UserError, match="`where` may have 1,000 operators; `in` takes more values"):
            select(GAPS, where)
    assert select(GAPS, f"price in {[*range(5, 9_000)]}") == {"b", "d"}


def test_an_attribute_with_a_blank_is_named_in_backticks():
    for where, words in (
        ("in stock", "`where` must be a condition, with the attribute `in stock` in backticks"),
        ("`in stok`", "Did you mean '`in stock`'? Known: `in stock`, discontinued, new, note, price"),
    ):
        with pytest.raises(b4r.UserError, match=re.escape(words)):
            select(GAPS, where)


def test_a_condition_without_the_attributes_of_the_items_says_so(model, tmp_path):
    with pytest.raises(b4r.UserError, match=r"`attributes` must have ids of the model's items.* such as 'a'"):
        model.recommend(history=["0"], where="price > 0", attributes=GAPS)
    bare = tmp_path / "bare"
    export(transformer(), VOCABULARY, bare, ExportOptions(3))
    with pytest.raises(b4r.UserError, match="`where` needs attributes of the items: give `attributes=TABLE`"):
        b4r.open(bare).recommend(history=["0"], where="price > 0")
    ended = console("recommend", f"--model={bare}", "--where=price > 0", "--history=0", cwd=tmp_path)
    assert "error: `where` needs attributes of the items: give --attributes=TABLE. " in ended.stderr


def test_attributes_may_come_from_a_table_or_a_file(model, tmp_path):
    other = pd.DataFrame({"item": NAMES[:4], "new": [True, False, True, None]})
    assert set(model.recommend(history=["0"], where="new", attributes=other)["item"]) == {NAMES[0], NAMES[2]}
    (tmp_path / "a.csv").write_text("id,stock,new\nitem 3,7,true\nit's,0,FALSE\nitem 4,,true\n")
    assert select(tmp_path / "a.csv", "new and stock > 3") == {"item 3"}
    assert select(tmp_path / "a.csv", "not new") == {"it's"}
    arguments = ("--model=" + str(model.saved.folder), "--attributes=a.csv", "--where=new")
    ended = console("recommend", *arguments, "--history=0", cwd=tmp_path)
    assert ended.returncode == 0 and {"item 3", "item 4"} == {line[6:12] for line in ended.stdout.splitlines()[1:]}
    assert "item 3" in console("similar", *arguments, "--item=0", cwd=tmp_path).stdout
    ended = console(
        "recommend",
        "--model=" + str(model.saved.folder),
        "--attributes=no.csv",
        "--where=new",
        "--history=0",
        cwd=tmp_path,
    )
    assert ended.returncode == 2 and ended.stderr.startswith("error: no.csv: ") and ended.stderr.count("\n") == 1


def test_attributes_are_read_only_for_a_condition(model):
    opened = b4r.open(model.saved.folder)
    opened.recommend(history=["0"])
    opened.similar("0")
    assert "attributes" not in vars(opened.saved)
    opened.recommend(history=["0"], where="in_stock")
    assert "attributes" in vars(opened.saved)


def test_items_are_looked_through_once_for_each_condition_and_few_are_kept(model, monkeypatch):
    items, found = model.saved.items, []
    monkeypatch.setattr(
        type(items), "__iter__", lambda self: found.append(self) or map(self.__getitem__, range(len(self)))
    )
    monkeypatch.setattr(model.saved, "attributes", Attributes(FRAME))
    choices = [model.saved.restrict(Choices(k=3), "in_stock") for _ in range(3)]
    assert choices[0] == choices[2] and found == [items]
    assert set(choices[0].candidates or NAMES) - set(choices[0].exclude) == set(FRAME[FRAME["in_stock"]]["id"])
    for price in range(MAX_CONDITIONS):
        model.saved.restrict(Choices(k=3), f"price >= {price}")
    model.saved.restrict(Choices(k=3), "in_stock")
    assert len(found) == MAX_CONDITIONS + 2


def test_kept_conditions_take_a_byte_for_each_item():
    ids = [f"item {number}" for number in range(10_000)]
    items, attributes = Lines.from_texts(ids), Attributes(pd.DataFrame({"id": ids, "price": range(len(ids))}))
    attributes.select("price > -1", items)
    tracemalloc.start()
    for price in range(8):
        attributes.select(f"price > {price}", items)
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] < 2 * 8 * len(ids)
    tracemalloc.stop()


def test_blocked_ids_may_hold_what_only_python_takes_for_the_end_of_a_line(tmp_path):
    ids = ["a\u2028b", "\xa0c", "d\x0ce", "f"]
    (tmp_path / "blocked.txt").write_bytes("\ufeffa\u2028b\r\n\xa0c\n\n  d\x0ce\t\rf".encode())
    assert read_blocked(tmp_path / "blocked.txt", Lines.from_texts(ids)) == set(ids)


def test_a_watched_file_is_read_when_it_changes_and_kept_when_it_disappears(tmp_path):
    path = tmp_path / "blocked.txt"

    def read_all(path):
        return read_blocked(path, Lines.from_texts("abc"))

    with pytest.raises(b4r.UserError, match="cannot be read"):
        WatchedFile(path, read_all)
    path.write_text("a\nb\n")
    watched = WatchedFile(path, read_all)

    def refresh_twice():
        watched.refresh()
        watched.refresh()
        return watched.content

    assert refresh_twice() == {"a", "b"}
    path.write_text("")  # as the shell does before a command writes
    watched.refresh()
    assert watched.content == {"a", "b"}
    path.write_text("c\n")
    watched.refresh()
    assert watched.content == {"a", "b"}
    assert refresh_twice() == {"c"}
    for number in range(4):  # a file that is replaced all the time is read at times
        path.write_text("b\n" * (number + 1))
        watched.refresh()
    assert watched.content == {"b"}
    path.write_text("c\n")
    assert refresh_twice() == {"c"}
    path.unlink()
    with pytest.warns(b4r.FileWarning, match="what it held before still counts") as caught:
        assert refresh_twice() == {"c"}
    assert len(caught) == 1
    path.write_text("\n")
    with pytest.warns(b4r.FileWarning, match=r"blocked.txt: is empty now; what it held before no longer") as caught:
        assert refresh_twice() == frozenset()
    assert len(caught) == 1


def test_a_block_list_of_an_editor_blocks_and_other_ids_are_counted_once(tmp_path):
    path = tmp_path / "blocked.txt"
    apart = unicodedata.normalize("NFD", "zwölf")
    path.write_bytes(f"p1 \r\n\tp2\r\n{apart}\r\np1\r\n  \r\n".encode("utf-8-sig"))
    items = Lines.from_texts(["p2", "zwölf", "p3"])
    line = r"blocked.txt: 1 of 3 blocked ids are no items of the model, such as 'p1'$"
    with pytest.warns(b4r.UnknownIdWarning, match=line) as caught:
        watched = WatchedFile(path, lambda path: read_blocked(path, items))
        watched.refresh()
        assert watched.content == {"p1", "p2", "zwölf"}
    assert len(caught) == 1


def test_explanations_are_what_leaving_items_out_does(model):
    history = ["two words", "日本語", "0", "item 3"]
    found = model.recommend(history=history, k=6, explain=True)
    everything = {"k": NUM_ITEMS, "exclude_seen": False}
    whole = model.recommend(history=history, **everything).set_index("item")["score"]
    bare = model.recommend(history=[], **everything).set_index("item")["score"]
    for row in found.itertuples():
        gain = whole[row.item] - bare[row.item]
        assert row.lift == pytest.approx(np.exp(gain), rel=1e-3)
        falls = {}
        for left in history:
            others = [item for item in history if item != left]
            falls[left] = (
                whole[row.item] - model.recommend(history=others, **everything).set_index("item")["score"][row.item]
            )
        raising = {item: fall for item, fall in falls.items() if fall > 1e-4} if gain > 0 else {}
        expected = sorted(raising, key=lambda item: -raising[item])[:3]
        assert [reason["item"] for reason in row.reasons] == expected
        for reason in row.reasons:
            assert reason["share"] == pytest.approx(raising[reason["item"]] / sum(raising.values()), abs=1e-3)
    assert found["reasons"].map(len).gt(0).any() and (found["lift"] < 1).any() == (found["reasons"].map(len) == 0).any()
