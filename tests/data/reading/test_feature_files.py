"""Features from files and tables, against what plain Python makes of them."""

import csv
import gzip
import itertools
import json
import os
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.profiles import examples
from support.ranking_oracle import make_sequences

from bert4rec_tf.config.model_settings import USER_FEATURES
from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.data.reading import feature_files
from bert4rec_tf.data.reading.rows import MISSING
from bert4rec_tf.data.reading.small_tables import read_columns
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import DataNote, DataWarning

ROWS = [
    ("10", "War|Drama", "1990", "red"),
    ("7", "Drama", "1994", ""),
    ("3", " Drama | War |", "", "red"),
    ("99", "", "1991", "blue"),
    ("5", "Crime", "1990", "white"),
]
NAMES = ["movieId", "genres", "year", "colour"]
CSV = "\n".join([",".join(NAMES), *(",".join(row) for row in ROWS)]) + "\n"


def values(found):
    """Raw id -> the names of its values."""
    rows = np.split(found.names[found.values], found.splits[1:-1])
    return {raw: sorted(row) for raw, row in zip(found.ids.tolist(), rows, strict=True)}


def read_features(tmp_path, text, name="items.csv"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return feature_files.read_features(path)


EXPECTED = {
    "10": ["colour=red", "genres=Drama", "genres=War", "year=1990"],
    "7": ["genres=Drama"],
    "3": ["colour=red", "genres=Drama", "genres=War"],
    "99": [],
    "5": ["year=1990"],
}
"""What two items share: not Crime, blue, white, 1991 and 1994."""


def test_cells_hold_one_or_several_values_and_values_of_a_single_item_are_dropped(tmp_path):
    found = read_features(tmp_path, CSV)
    assert values(found) == EXPECTED
    assert found.names.tolist() == ["genres=Drama", "genres=War", "year=1990", "colour=red"]
    assert found.values.dtype == np.int32 and found.splits.dtype == np.int64


@pytest.mark.parametrize("name", ["items.csv.gz", "items.tsv"])
def test_packed_and_other_separators_read_the_same(tmp_path, name):
    text = CSV.replace(",", "\t") if name.endswith(".tsv") else CSV
    assert read_features(tmp_path, "\ufeff" + text, name).fingerprint == read_features(tmp_path, CSV).fingerprint


def test_a_table_reads_as_its_file_does(tmp_path):
    frame = pd.DataFrame(ROWS, columns=NAMES).replace("", None)
    frame["movieId"] = frame["movieId"].astype(int)
    frame["year"] = pd.to_numeric(frame["year"]).astype("Int64")
    expected = read_features(tmp_path, CSV).fingerprint
    frame.to_parquet(tmp_path / "items.parquet")
    assert feature_files.read_features(frame).fingerprint == expected
    assert feature_files.read_features(frame.astype({"year": float})).fingerprint == expected
    assert feature_files.read_features(pa.Table.from_pandas(frame)).fingerprint == expected
    assert feature_files.read_features(tmp_path / "items.parquet").fingerprint == expected
    frame["genres"] = [None if pd.isna(cell) else cell.split("|") for cell in frame["genres"]]
    assert feature_files.read_features(frame).fingerprint == expected


def test_parquet_is_known_by_its_content_and_tabs_may_stand_between_quotes(tmp_path):
    frame = pd.DataFrame({"id": list("abc"), "genre": ["A|B", "A", "B"]})
    frame.to_parquet(tmp_path / "a.pq")
    frame.to_csv(tmp_path / "a.tsv", sep="\t", index=False, quoting=csv.QUOTE_ALL)
    for name in ("a.pq", "a.tsv"):
        assert values(feature_files.read_features(tmp_path / name)) == {
            "a": ["genre=A", "genre=B"],
            "b": ["genre=A"],
            "c": ["genre=B"],
        }


def test_row_numbers_of_pandas_are_no_features(tmp_path):
    frame = pd.DataFrame({"id": [f"i{row}" for row in range(30)], "genre": ["A", "B", "C"] * 10})
    frame.to_csv(tmp_path / "a.csv")
    pd.read_csv(tmp_path / "a.csv").to_csv(tmp_path / "b.csv", index=False)
    frame.sample(frac=1, random_state=1).to_parquet(tmp_path / "c.parquet")
    for name in ("a.csv", "b.csv", "c.parquet"):
        with pytest.warns(DataNote, match="has row numbers, and is ignored"):
            assert feature_files.read_features(tmp_path / name).names.tolist() == ["genre=A", "genre=B", "genre=C"]


def test_quotes_between_tabs_are_those_of_actions(tmp_path):
    (tmp_path / "a.tsv").write_text('id\tgenre\n"a\n1"\tx 1"\nb\t"x 1"""\n')
    assert read_columns(tmp_path / "a.tsv", "a.tsv", ["id"], None) == (
        "id",
        {"id": ["a\n1", "b"], "genre": ['x 1"', 'x 1"']},
    )
    for content, words in {
        'id\tgenre\na\t"x\nb\t"x\n': "a quote is never closed, or text follows it; if quotes",
        'id\tgenre\na\t"x\nb\tz"\nc\tq\n': "an opening quote takes in the text up to a later one: ",
    }.items():
        (tmp_path / "b.tsv").write_text(content)
        with pytest.raises(UserError, match=rf"b\.tsv, row 2: {words}"):
            feature_files.read_features(tmp_path / "b.tsv")
    (tmp_path / "b.csv").write_text('id,genre\na,"x" y\n')
    with pytest.raises(UserError, match="or text follows it; in a quoted field, write each quote twice"):
        feature_files.read_features(tmp_path / "b.csv")


def test_a_column_called_index_may_be_a_feature():
    frame = pd.DataFrame({"id": list("abcd"), "index": ["DAX", "SPX", "DAX", "SPX"]})
    assert feature_files.read_features(frame).names.tolist() == ["index=DAX", "index=SPX"]


def test_codes_with_a_low_line_are_no_numbers():
    sizes = [f"{size}_{size + 2}" for size in range(36, 48)] * 2
    found = feature_files.read_features(pd.DataFrame({"id": map(str, range(24)), "size": sizes}))
    assert values(found)["0"] == ["size=36_38"]


def test_rows_of_one_item_add_up(tmp_path):
    found = read_features(tmp_path, "id,tag\na,x\nb,x\na,y\nb,y\na,x\n")
    assert values(found) == {"a": ["tag=x", "tag=y"], "b": ["tag=x", "tag=y"]}


@pytest.mark.parametrize("skewed", [False, True])
def test_many_different_numbers_are_cut_at_their_quantiles(tmp_path, skewed):
    numbers = np.random.default_rng(2).integers(0, 40, 300)
    numbers = numbers // 7 * numbers if skewed else numbers
    cells = ["" if place % 10 == 0 else str(number) for place, number in enumerate(numbers)]
    found = read_features(tmp_path, "id,price\n" + "".join(f"{place},{cell}\n" for place, cell in enumerate(cells)))
    shown = values(found)
    known = sorted(int(cell) for cell in cells if cell)
    bins = {}
    for place, cell in enumerate(cells):
        if not cell:
            assert shown[str(place)] == []
            continue
        (name,) = shown[str(place)]
        low, high = map(int, name.removeprefix("price=").split(".."))
        assert low <= int(cell) <= high
        bins.setdefault(name, []).append(int(cell))
    spans = sorted((min(cells), max(cells)) for cells in bins.values())
    assert all(first[1] < second[0] for first, second in itertools.pairwise(spans))
    if not skewed:
        assert len(bins) == feature_files.BINS
        assert max(map(len, bins.values())) < 2.5 * len(known) / feature_files.BINS


def test_few_different_numbers_are_categories(tmp_path):
    found = read_features(tmp_path, "id,stars\n" + "".join(f"{place},{place % 10}\n" for place in range(40)))
    assert found.names.tolist() == [f"stars={number}" for number in range(10)]


def test_the_column_of_users_is_recognised_by_its_name(tmp_path):
    path = tmp_path / "users.csv"
    path.write_text("user_id,item_id,country\na,1,de\nb,1,de\n")
    assert values(feature_files.read_features(path, USER_FEATURES))["b"] == ["country=de", "item_id=1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column has a known name for ids; name one 'itemid'. Received: a, b"),
        ("id\n1\n", "the first line must be a header that names at least two columns, each once"),
        ("item,asin,x\n1,7,2\n1,8,2\n", "the ids may be in column 'item', where some repeat, or in 'asin'; remove"),
        ("id,x,x\n1,2,3\n", "the first line must be a header that names at least two columns, each once"),
        ("", "the first line must be a header that names at least two columns"),
        ("id,x\n1,2\n3\n", ", row 3: expected 2 columns, found 1: '3'"),
        ("id,x\n1,2\n,2\n", "an id must not be empty"),
        ("id,x\n1,2\n2,3\n", "no column has a value that 2 rows share"),
        ('id,x\n1,"2\n', ", row 2: a quote is never closed"),
        ('{"id": 1, "x": 2}\n', "must be CSV or Parquet, in which each column is a feature. Received: JSON"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(UserError) as raised:
        read_features(tmp_path, text)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_an_unreadable_table_of_features_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"items\.csv: no such file"):
        feature_files.read_features(tmp_path / "items.csv")
    (tmp_path / "items.csv").write_bytes(b"id,x\n1,\xff\n")
    with pytest.raises(UserError, match="cannot be read"):
        feature_files.read_features(tmp_path / "items.csv")
    (tmp_path / "items.xlsx").write_bytes(b"\xd0\xcf\x11\xe0")
    with pytest.raises(UserError, match=r"items\.xlsx: is an Excel file; save it as CSV"):
        feature_files.read_features(tmp_path / "items.xlsx")
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", tmp_path):
        with pytest.raises(UserError, match=f"{path}: is not a plain file"):
            feature_files.read_features(path)
    with pytest.raises(UserError, match=r"`item_features` must be a pandas DataFrame .* Received: int"):
        feature_files.read_features(3)


@pytest.mark.parametrize("source", [pd.DataFrame, lambda rows, columns: pa.table([*zip(*rows)], names=columns)])
def test_mistakes_in_a_table_are_named(source):
    with pytest.raises(UserError, match=r"must name each column once\. Received: id, tag, tag"):
        feature_files.read_features(source([("a", "x", "y"), ("b", "x", "y")], columns=["id", "tag", "tag"]))
    with pytest.raises(UserError, match="`item_features`, column id: ids must be texts or whole numbers"):
        feature_files.read_features(source([(1.0, "x"), (2.0, "x")], columns=["id", "tag"]))
    with pytest.raises(UserError, match="an id must not be empty"):
        feature_files.read_features(source([("a", "x"), (None, "x")], columns=["id", "tag"]))


TEXTS = [[0.5, -1.25], None, [3, 0.125], [], [1e-3, 2]]
"""A vector for some of ROWS."""
VECTORS = np.array([cell or [0, 0] for cell in TEXTS], np.float32)


def frame_with(cells):
    frame = pd.DataFrame(ROWS, columns=NAMES).replace("", None)
    return frame.assign(text=pd.Series(cells, dtype=object))


def test_lists_with_fractions_are_vectors_beside_the_categories(tmp_path):
    found = feature_files.read_features(frame_with(TEXTS))
    assert values(found) == EXPECTED
    assert found.names.tolist()[4:] == ["text[0]", "text[1]"]
    np.testing.assert_array_equal(found.vectors, VECTORS)
    assert found.vectors.dtype == np.float32
    expected, plain = found.fingerprint, frame_with(TEXTS)
    arrays = [None if cell is None else np.array(cell, np.float32) for cell in TEXTS]
    assert feature_files.read_features(frame_with(arrays)).fingerprint == expected
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float64())):
        table = pa.Table.from_pandas(plain.drop(columns="text")).append_column("text", pa.array(TEXTS, kind))
        assert feature_files.read_features(table).fingerprint == expected
    plain.to_parquet(tmp_path / "items.parquet")
    assert feature_files.read_features(tmp_path / "items.parquet").fingerprint == expected
    cells = ["" if cell is None else json.dumps(cell) for cell in TEXTS]
    frame_with(cells).to_csv(tmp_path / "items.csv", index=False)
    assert feature_files.read_features(tmp_path / "items.csv").fingerprint == expected


def test_lists_of_other_things_than_fractions_are_categories(tmp_path):
    found = feature_files.read_features(pd.DataFrame({"id": ["a", "b"], "tags": [[3, 17], [17]]}))
    assert found.vectors is None and found.names.tolist() == ["tags=17"]
    found = read_features(tmp_path, 'id,tag\na,[REC]\nb,[REC]\nc,"[1, 2]"\nd,"[1, 2]"\n')
    assert found.vectors is None and found.names.tolist() == ["tag=1", "tag=2", "tag=[REC]"]
    found = read_features(tmp_path, "id,tag\na,\"['x, y', 'z']\"\nb,\"['x, y']\"\nc,['z']\n")
    assert found.names.tolist() == ["tag=x, y", "tag=z"]
    found = read_features(tmp_path, "id,tag\na,[{[]: 1}]\nb,[{[]: 1}]\n")
    assert found.names.tolist() == ["tag=[{[]: 1}]"], "a text that Python cannot make a value of"


def test_empty_vectors_alone_are_no_values(tmp_path):
    table = pa.table({"id": list("abc"), "tag": ["x"] * 3, "text": pa.array([[], None, []], pa.list_(pa.float32()))})
    pyarrow.parquet.write_table(table, tmp_path / "items.parquet")
    with pytest.warns(DataWarning, match="column text is ignored"):
        assert feature_files.read_features(tmp_path / "items.parquet").names.tolist() == ["tag=x"]


def test_rows_of_one_item_repeat_its_vector():
    frame = pd.DataFrame({"id": ["a", "a", "b", "a"], "tag": list("xyxy"), "text": [[0.5], [0.5], [1.0], None]})
    found = feature_files.read_features(frame)
    np.testing.assert_array_equal(found.vectors, [[0.5], [1]])
    frame.at[3, "text"] = [0.25]
    with pytest.raises(UserError, match=r"column text, item a: must have one vector\. Received: two diff"):
        feature_files.read_features(frame)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ([0.5], "column text, item 5: a vector must have 2 numbers, as the first one. Received: 1 numbers"),
        ([0.5, float("nan")], "column text, item 5: a vector must be a list of finite numbers. Received: [0.5, nan]"),
        ([0.5, 1e300], "column text, item 5: a vector must be a list of finite numbers. Received: [0.5, 1e+300]"),
        (["0.5", "1"], "column text, item 5: a vector must be a list of finite numbers. Received: ['0.5', '1']"),
        ("0.5, 1", "column text, item 5: a vector must be a list of finite numbers. Received: 0.5, 1"),
    ],
)
def test_a_bad_vector_is_named_with_its_column_and_item(tmp_path, cell, message):
    cells = [*TEXTS[:4], cell]
    texts = ["" if one is None else one if isinstance(one, str) else json.dumps(one) for one in cells]
    frame_with(texts).to_csv(tmp_path / "items.csv", index=False)
    for source in (frame_with(cells), tmp_path / "items.csv"):
        with pytest.raises(UserError) as raised:
            feature_files.read_features(source)
        assert message in str(raised.value) and "\n" not in str(raised.value)


def test_features_survive_arrays_and_their_sizes_json(tmp_path):
    found = read_features(tmp_path, CSV)
    again = Features.from_arrays(found.to_arrays())
    assert again.fingerprint == found.fingerprint and values(again) == values(found)
    assert Features.from_sizes(json.loads(json.dumps(found.sizes))).sizes == found.sizes


SEQUENCES = make_sequences([[1, 2, 3], [3, 2, 4, 1]], 4)


@pytest.mark.parametrize("make", [lambda raw: f"00{raw}", lambda raw: f"{raw}.0", str.upper])
def test_features_and_titles_whose_ids_match_nothing_are_refused(make):
    for kind, ids in {"item_features": SEQUENCES.vocabulary.items, "user_features": SEQUENCES.users}.items():
        frame = pd.DataFrame({"id": [make(raw) for raw in ids], "tag": "a"})
        with pytest.raises(UserError, match=rf"`{kind}` must have ids of the data, such as '{ids[0]}'\. Received: "):
            feature_files.with_features(SEQUENCES, **{kind: frame})
    with pytest.raises(UserError, match="`titles` must have ids of the data"):
        feature_files.check_matches("titles", ["x"], SEQUENCES.vocabulary.items)


@pytest.mark.parametrize("num_known", [1, 2, 4])
def test_few_matches_are_warned_of_and_new_items_need_a_request(num_known, capsys, recwarn):
    items = SEQUENCES.vocabulary.items.tolist()
    frame = pd.DataFrame({"id": [*items[:num_known], "new", "newer"], "tag": "a"})
    found = feature_files.with_features(SEQUENCES, item_features=frame)
    line = f"item_features: {num_known} of the 4 ids of the data match; 2 others"
    assert line in capsys.readouterr().out and [str(one.message) for one in recwarn] == [line] * (num_known < 2)
    assert found.vocabulary.items.tolist() == items and found.features["item_features"].lengths.sum() == num_known
    more = feature_files.with_features(SEQUENCES, item_features=frame, new_items=True)
    assert more.vocabulary.items.tolist() == [*items, "new", "newer"]


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sampled_from([*sorted(MISSING), "$12", "1,200.5", "€ 7", "cheap"]), max_size=3))
def test_a_few_odd_cells_leave_the_other_numbers_of_a_column(odd):
    frame = pd.DataFrame({"id": [f"i{n}" for n in range(43)], "price": [*odd, *map(str, range(43 - len(odd)))]})
    with warnings.catch_warnings(record=True, action="always") as told:
        found = feature_files.read_features(frame)
    no_value = [cell for cell in odd if cell in MISSING or cell == "cheap"]
    assert len(found.names) == feature_files.BINS and (found.lengths == 0).sum() == len(no_value)
    assert any("other cells are left out, such as 'cheap'" in str(one.message) for one in told) == ("cheap" in odd)


def test_dates_are_numbers_and_columns_without_a_shared_value_are_named():
    days = pd.date_range("2019-01-01", periods=40)
    ids = [f"i{n}" for n in range(40)]
    for column in (days, days.strftime("%Y-%m-%d"), days.strftime("%Y/%m/%d"), days.astype(object)):
        frame = pd.DataFrame({"id": ids, "day": column, "name": [f"name {n}" for n in range(40)]})
        with pytest.warns(DataWarning, match="column name is ignored, because no value of it is shared by 2 ids"):
            found = feature_files.read_features(frame)
        assert len(found.names) == feature_files.BINS and (found.lengths == 1).all()


GENRES = ["Action", "Comedy", "Sci-Fi", "War"]


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(GENRES), min_size=1, max_size=3, unique=True), min_size=3, max_size=20),
    st.sampled_from([", ", ",", ";", "; ", " , ", "|"]),
)
def test_several_values_in_a_cell_are_read_or_the_column_is_named(rows, separator):
    cells = [separator.join(row) for row in rows]
    frame = pd.DataFrame({"id": [f"i{n}" for n in range(len(rows))], "genre": cells, "all": "a"})
    with warnings.catch_warnings(record=True, action="always") as caught:
        found = values(feature_files.read_features(frame))
    told = " ".join(str(one.message) for one in caught)
    is_list = separator == "|" or len({name for row in rows for name in row}) < len(set(cells))
    plain = [row if is_list else [cell] for row, cell in zip(rows, cells)]
    counts = Counter(itertools.chain(*plain))
    assert found == {
        f"i{n}": sorted(["all=a", *(f"genre={name}" for name in row if counts[name] > 1)])
        for n, row in enumerate(plain)
    }
    is_told = separator != "|" and any(len(row) > 1 for row in rows) and (is_list or len(set(cells)) < len(cells))
    assert is_told or is_list or not any(separator in cell for cell in cells) or "is ignored" in told
    assert ("is read as several values" in told) == (is_told and is_list)
    assert ("is read as one value; put | between several" in told) == (is_told and not is_list)


@pytest.mark.parametrize("cells", [["Lyon, France", "Nice, France"] * 2, ["Tolkien, J. R. R.", "Lewis, C. S."] * 2])
def test_names_with_a_comma_are_one_value_and_numbers_are_whole(cells):
    frame = pd.DataFrame({"id": list("abcd"), "name": cells, "price": ["1,200", "1,300"] * 2})
    with pytest.warns(DataWarning, match="column name: a cell with commas.*is read as one value") as told:
        found = feature_files.read_features(frame)
    assert found.names.tolist() == [*(f"name={cell}" for cell in sorted(cells[:2])), "price=1,200", "price=1,300"]
    assert len(told) == 1


def test_ids_in_the_index_are_named():
    frame = pd.DataFrame({"item": [*"ab"], "kind": ["x", "x"]}).set_index("item")
    with pytest.raises(UserError, match=r"Received: kind; pass frame\.reset_index\(\), because the index has item$"):
        feature_files.read_features(frame)


def test_periods_are_named_as_pandas_writes_them():
    months = pd.PeriodIndex(["2020-02", "2020-02", None, "1969-12", "1969-12"], freq="M")
    features = feature_files.read_features(pd.DataFrame({"item": [*"abcde"], "month": months}))
    february, december = ["month=2020-02"], ["month=1969-12"]
    assert values(features) == {"a": february, "b": february, "c": [], "d": december, "e": december}
