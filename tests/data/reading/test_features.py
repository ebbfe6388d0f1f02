"""Features from files and tables, against what plain Python makes of them."""

import gzip
import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bert4rec_tf.config.model_settings import USER_FEATURES
from bert4rec_tf.data.features import Features
from bert4rec_tf.data.reading import features
from bert4rec_tf.foundation.errors import UserError

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


def read(tmp_path, text, name="items.csv"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return features.read(path)


EXPECTED = {
    "10": ["colour=red", "genres=Drama", "genres=War", "year=1990"],
    "7": ["genres=Drama"],
    "3": ["colour=red", "genres=Drama", "genres=War"],
    "99": [],
    "5": ["year=1990"],
}
"""What two items share: not Crime, blue, white, 1991 and 1994."""


def test_a_cell_holds_one_value_or_several_and_what_one_item_has_is_left_out(tmp_path):
    found = read(tmp_path, CSV)
    assert values(found) == EXPECTED
    assert found.names.tolist() == ["genres=Drama", "genres=War", "year=1990", "colour=red"]
    assert found.values.dtype == np.int32 and found.splits.dtype == np.int64


@pytest.mark.parametrize("name", ["items.csv.gz", "items.tsv"])
def test_packed_and_other_separators_read_the_same(tmp_path, name):
    text = CSV.replace(",", "\t") if name.endswith(".tsv") else CSV
    assert read(tmp_path, "\ufeff" + text, name).fingerprint == read(tmp_path, CSV).fingerprint


def test_a_table_reads_as_its_file_does(tmp_path):
    frame = pd.DataFrame(ROWS, columns=NAMES).replace("", None)
    frame["movieId"] = frame["movieId"].astype(int)
    frame["year"] = pd.to_numeric(frame["year"]).astype("Int64")
    expected = read(tmp_path, CSV).fingerprint
    frame.to_parquet(tmp_path / "items.parquet")
    assert features.read(frame).fingerprint == expected
    assert features.read(frame.astype({"year": float})).fingerprint == expected
    assert features.read(pa.Table.from_pandas(frame)).fingerprint == expected
    assert features.read(tmp_path / "items.parquet").fingerprint == expected
    frame["genres"] = [None if pd.isna(cell) else cell.split("|") for cell in frame["genres"]]
    assert features.read(frame).fingerprint == expected


def test_rows_of_one_item_add_up(tmp_path):
    found = read(tmp_path, "id,tag\na,x\nb,x\na,y\nb,y\na,x\n")
    assert values(found) == {"a": ["tag=x", "tag=y"], "b": ["tag=x", "tag=y"]}


@pytest.mark.parametrize("skewed", [False, True])
def test_many_different_numbers_are_cut_at_their_quantiles(tmp_path, skewed):
    numbers = np.random.default_rng(2).integers(0, 40, 300)
    numbers = numbers // 7 * numbers if skewed else numbers
    cells = ["" if place % 10 == 0 else str(number) for place, number in enumerate(numbers)]
    found = read(tmp_path, "id,price\n" + "".join(f"{place},{cell}\n" for place, cell in enumerate(cells)))
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
        assert len(bins) == features.BINS
        assert max(map(len, bins.values())) < 2.5 * len(known) / features.BINS


def test_bins_of_large_numbers_have_names_of_their_own():
    numbers = pd.Series(range(10**9, 10**9 + 100))
    names = features.read(pd.DataFrame({"id": numbers.astype(str), "size": numbers})).names.tolist()
    assert len(names) == features.BINS and "size=1.00000001e+09..1.00000002e+09" in names


def test_few_different_numbers_are_categories(tmp_path):
    found = read(tmp_path, "id,stars\n" + "".join(f"{place},{place % 10}\n" for place in range(40)))
    assert found.names.tolist() == [f"stars={number}" for number in range(10)]


def test_the_order_of_the_rows_decides_only_the_order_of_the_ids(tmp_path):
    one, other = read(tmp_path, CSV), read(tmp_path, "\n".join(CSV.split("\n")[:1] + CSV.split("\n")[5:0:-1]) + "\n")
    assert values(one) == values(other) and one.names.tolist() == other.names.tolist()
    assert one.of(other.ids.tolist()).fingerprint == other.fingerprint


def test_blanks_around_an_id_are_no_part_of_it_as_in_a_file_of_interactions(tmp_path):
    assert read(tmp_path, "genre, item\nwar, 1\nwar,\t2 \n").ids.tolist() == ["1", "2"]


def test_users_are_found_by_their_own_names_of_columns(tmp_path):
    path = tmp_path / "users.csv"
    path.write_text("user_id,item_id,country\na,1,de\nb,1,de\n")
    assert values(features.read(path, USER_FEATURES))["b"] == ["country=de", "item_id=1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column has a known name for ids; name one 'itemid'. Received: a, b"),
        ("id\n1\n", "the first line must name at least two columns, each once"),
        ("id,x,x\n1,2,3\n", "the first line must name at least two columns, each once"),
        ("", "the first line must name at least two columns"),
        ("id,x\n1,2\n3\n", ", row 3: expected 2 columns, found 1: '3'"),
        ("id,x\n1,2\n,2\n", "an id must not be empty"),
        ("id,x\n1,2\n2,3\n", "no column has a value that 2 rows share"),
        ('id,x\n1,"2\n', ", row 2: a quote is never closed"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(UserError) as raised:
        read(tmp_path, text)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_what_is_no_table_is_named(tmp_path):
    with pytest.raises(UserError, match=r"items\.csv: cannot be read"):
        features.read(tmp_path / "items.csv")
    (tmp_path / "items.csv").write_bytes(b"id,x\n1,\xff\n")
    with pytest.raises(UserError, match="cannot be read"):
        features.read(tmp_path / "items.csv")
    with pytest.raises(UserError, match=r"`item_features` must be a pandas DataFrame .* Received: int"):
        features.read(3)


@pytest.mark.parametrize("source", [pd.DataFrame, lambda rows, columns: pa.table([*zip(*rows)], names=columns)])
def test_mistakes_in_a_table_are_named(source):
    with pytest.raises(UserError, match=r"must name each column once\. Received: id, tag, tag"):
        features.read(source([("a", "x", "y"), ("b", "x", "y")], columns=["id", "tag", "tag"]))
    with pytest.raises(UserError, match="an id must not be empty"):
        features.read(source([("a", "x"), (None, "x")], columns=["id", "tag"]))


def test_features_come_back_from_arrays_and_json(tmp_path):
    found = read(tmp_path, CSV)
    for again in (Features.from_arrays(found.arrays()), Features.from_dict(found.to_dict())):
        assert again.fingerprint == found.fingerprint and values(again) == values(found)
