"""Tables in memory: pandas and Arrow give what the same rows in a file give."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.interaction_files import HEADER, ROWS, as_csv, histories, plainly, read, write

import bert4rec_tf as b4r

FRAME = pd.DataFrame(ROWS, columns=HEADER)


def frames():
    day = pd.to_datetime(FRAME["timestamp"], unit="D")
    yield "as it is", FRAME
    yield "categories", FRAME.astype({"user_id": "category", "item_id": "category"})
    yield "the string type of pandas", FRAME.astype({"user_id": "string", "item_id": "string"})
    yield "datetimes", FRAME.assign(timestamp=day)
    yield "datetimes with a zone", FRAME.assign(timestamp=day.dt.tz_localize("Asia/Tokyo"))
    yield "dates", FRAME.assign(timestamp=day.dt.date)
    yield "texts of dates", FRAME.assign(timestamp=day.dt.strftime("%Y-%m-%d"))
    yield "fractions", FRAME.assign(timestamp=FRAME["timestamp"] / 7)
    yield "another index", FRAME.set_index(np.arange(len(ROWS))[::-1] * 3)
    yield "several pieces", pd.concat([FRAME[:2], FRAME[2:]])
    yield "an Arrow table", pa.Table.from_pandas(FRAME)
    yield (
        "an Arrow table in chunks",
        pa.concat_tables([pa.Table.from_pandas(FRAME[:4]), pa.Table.from_pandas(FRAME[4:])]),
    )
    views = pa.array(FRAME["user_id"]).dictionary_encode()
    views = pa.DictionaryArray.from_arrays(views.indices, views.dictionary.cast(pa.string_view()))
    yield "categories of polars", pa.Table.from_pandas(FRAME).set_column(0, "user_id", views)
    yield "a record batch", pa.RecordBatch.from_pandas(FRAME)


@pytest.mark.parametrize("frame", [pytest.param(frame, id=name) for name, frame in frames()])
def test_a_table_is_read_as_a_file_of_its_rows(frame, tmp_path):
    sequences = b4r.interactions(frame)
    assert histories(sequences) == plainly(ROWS)
    assert sequences.fingerprint == read(write(tmp_path, "ratings.csv", as_csv(ROWS)))[0].fingerprint


def test_columns_are_named_filtered_and_ordered_by_row():
    frame = FRAME.rename(columns={"user_id": "who", "item_id": 7, "timestamp": "when"})
    assert histories(b4r.interactions(frame, user="who", item="7", time="when")) == plainly(ROWS)
    in_order = plainly([(user, item, 0) for user, item, _ in ROWS], min_item=2)
    found = b4r.interactions(FRAME, time="none", min_item_actions=2)
    assert histories(found) == in_order


def test_whole_numbers_are_ids():
    frame = pd.DataFrame({"user": [2, 2, 1, 1], "item": pd.array([5, 3, 3, 5], "Int64"), "ts": [2, 1, 1, 2]})
    assert histories(b4r.interactions(frame)) == {"2": ["3", "5"], "1": ["3", "5"]}


MISSING = {
    "user_id": (None, "row 3: the user's id is missing: ', a b, 20'"),
    "item_id": (np.nan, "row 3: the item's id is missing: 'ann, , 20'"),
    "timestamp": (np.nan, "row 3: the time is missing"),
}


@pytest.mark.parametrize("column", MISSING)
def test_a_missing_value_is_refused_with_its_row_or_skipped(column):
    value, words = MISSING[column]
    frame = FRAME.copy()
    frame[column] = [value if row == 2 else found for row, found in enumerate(frame[column])]
    with pytest.raises(
        b4r.UserError, match="the table, " + words + r'.* \(b4r.interactions\(..., bad_rows="skip"\) skips'
    ):
        b4r.interactions(frame)
    assert histories(b4r.interactions(frame, bad_rows="skip")) == plainly(ROWS[:2] + ROWS[3:])


REFUSED = {
    "an unknown column": (FRAME, {"user": "usr"}, "Unknown column of the table: 'usr'. Did you mean 'user_id'?"),
    "a column that cannot be guessed": (
        FRAME.rename(columns={"user_id": "x"}),
        {},
        "Give user=; the columns are: x, item_id",
    ),
    "ids in the index": (
        FRAME.set_index(["user_id", "item_id"]),
        {},
        "; pass frame.reset_index(), because the index has user_id, item_id",
    ),
    "a named column in the index": (FRAME.set_index("item_id"), {"item": "item_id"}, "the index has item_id"),
    "the same column twice": (FRAME, {"user": "item_id"}, "the columns of users, items and times must differ"),
    "fractions for ids": (FRAME.assign(item_id=[1.0, 2, 3, 4, 5, np.nan]), {}, "use Int64"),
    "ids beyond 64 bits": (FRAME.assign(item_id=[2**70] * 6), {}, "whole numbers beyond 64 bits; make them texts"),
    "truth values for times": (FRAME.assign(timestamp=True), {}, "times must be numbers, dates, timestamps or texts"),
    "no table": ([1, 2], {}, "`frame` must be a pandas DataFrame or an Arrow table"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_table_that_cannot_be_understood_is_refused(kind):
    frame, options, words = REFUSED[kind]
    with pytest.raises(b4r.UserError) as refused:
        b4r.interactions(frame, **options)
    assert words in str(refused.value)


def test_a_guess_is_told_before_its_rows_fail():
    frame = FRAME.rename(columns={"timestamp": "moment"}).astype({"user_id": object})
    frame.loc[2, "user_id"] = None
    with (
        pytest.warns(b4r.DataWarning, match="no column has a known name for times"),
        pytest.raises(ValueError, match="row 3: the user's id is missing"),
    ):
        b4r.interactions(frame)


def test_blanks_around_ids_of_a_table_are_named_and_blanks_alone_are_missing():
    """A text file and the commands take such blanks away."""
    frame = FRAME.astype({"user_id": str, "item_id": str})
    frame.loc[frame["item_id"] == frame["item_id"][0], "item_id"] += " "
    with pytest.warns(b4r.DataWarning, match=r"1 ids have blanks around them, which .* \(the first: '.* '\)"):
        sequences = b4r.interactions(frame)
    assert sum(item.endswith(" ") for item in sequences.vocabulary.items) == 1
    frame.loc[0, "user_id"] = " "
    with pytest.raises(b4r.UserError, match="row 1: the user's id is missing"):
        b4r.interactions(frame)


def test_columns_of_several_levels_and_of_any_name_are_named_as_pandas_names_them():
    levels = FRAME.set_axis(pd.MultiIndex.from_product([["a"], FRAME.columns]), axis=1)
    days = FRAME.set_axis(pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]), axis=1)
    for frame in (levels, days):
        user, item, time = frame.columns
        assert histories(b4r.interactions(frame, user=user, item=item, time=time)) == plainly(ROWS)
    unnamed = FRAME.assign(other=0).set_axis([*FRAME.columns, None], axis=1)
    assert histories(b4r.interactions(unnamed)) == plainly(ROWS)
    for name in ("a", ("a", "x"), True, ["a"]):
        with pytest.raises(b4r.UserError):
            b4r.interactions(levels, user=name)
