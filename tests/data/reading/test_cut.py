"""`test_from`: how many of each user's actions come from a time on, against a plain count."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.interaction_files import as_csv, read, refusal, write

import bert4rec_tf as b4r
from bert4rec_tf.data.reading import conversion, tables
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.data.sources import datasets

DAYS = pd.date_range("2019-11-01", periods=12, freq="10D")
ROWS = [(f"u{user}", f"i{(user + 3 * place) % 7}", day) for place, day in enumerate(DAYS) for user in range(1, 6)][:-7]
SECONDS = DAYS.astype("int64") // 10**9 if DAYS.unit == "ns" else DAYS.as_unit("s").astype("int64")


def frame(convert):
    table = pd.DataFrame(ROWS, columns=["user", "item", "time"])
    return table.assign(time=convert(table["time"]))


FORMS = {
    "dates": lambda days: days,
    "zoned dates": lambda days: days.dt.tz_localize("UTC"),
    "texts": lambda days: days.dt.strftime("%Y-%m-%d"),
    "seconds": lambda days: days.map(dict(zip(DAYS, SECONDS))),
    "milliseconds": lambda days: days.map(dict(zip(DAYS, SECONDS * 1_000))),
    "nanoseconds": lambda days: days.map(dict(zip(DAYS, SECONDS * 10**9))),
    "fractions": lambda days: days.map(dict(zip(DAYS, SECONDS + 0.25))),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", ["2020-01-01", " 2020-01-10 ", "2020-01-10T00:00:00Z", "1990-01-01", "2030-01-01"])
def test_a_date_cuts_times_of_every_kind(form, cut):
    expected = {}
    for user, _, day in ROWS:
        expected[user] = expected.get(user, 0) + (day >= pd.Timestamp(cut.strip()[:10]))
    asked = b4r.Interactions("x", test_from=cut)
    sequences = tables.read_frame(frame(FORMS[form]), asked)
    assert dict(zip(sequences.users.tolist(), sequences.num_later.tolist())) == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_behind_all_times_shows_the_last_one(form):
    sequences = tables.read_frame(frame(FORMS[form]), b4r.Interactions("x", test_from="2030-01-01"))
    last = ROWS[-1][2].strftime("%Y-%m-%dT00:00:00")
    assert str(LeaveOneOut(sequences).why_unmeasurable()).endswith(f"measure on; the last action is of {last}")


@pytest.mark.parametrize(("form", "factor"), [("seconds", 1), ("fractions", 1), ("milliseconds", 1_000)])
def test_a_number_of_their_unit_cuts_times_as_its_date_does(form, factor):
    number, date = (
        tables.read_frame(frame(FORMS[form]), b4r.Interactions("x", test_from=cut))
        for cut in (str(1_577_836_800 * factor), "2020-01-01")
    )
    assert number.num_later.tolist() == date.num_later.tolist() and date.num_later.any()


def test_a_date_cuts_nanoseconds_to_the_last_one():
    times = 1_577_836_800 * 10**9 + np.array([-100, -1, 0, 1])
    table = pd.DataFrame({"user": "a", "item": list("wxyz"), "time": times})
    sequences = tables.read_frame(table, b4r.Interactions("x", test_from="2020-01-01"))
    assert sequences.num_later.tolist() == [2]


def test_a_number_cuts_numbers(tmp_path):
    rows = [("a", "x", 5), ("a", "y", 7), ("b", "x", 9), ("b", "z", 1), ("c", "x", 9)]
    table = pd.DataFrame(rows, columns=["user", "item", "time"])
    assert b4r.interactions(table, test_from=7).num_later.tolist() == [1, 1, 1]
    path = write(tmp_path, "a.csv", as_csv(rows))
    sequences, _ = conversion.convert(b4r.Interactions(path, test_from="7"))
    assert sequences.users.tolist() == ["a", "b", "c"] and sequences.num_later.tolist() == [1, 1, 1]
    for _ in range(2):  # the second time from the kept conversion
        again = datasets.load(b4r.Interactions(path, test_from="7"), tmp_path)
        assert again.fingerprint == sequences.fingerprint and np.array_equal(again.num_later, [1, 1, 1])
    assert datasets.load(b4r.Interactions(path), tmp_path).num_later is None
    assert b4r.Interactions(path, test_from="7").name != b4r.Interactions(path).name


@pytest.mark.parametrize(
    ("times", "cut", "message"),
    [
        ("seconds", "soon", "`test_from` must be a number or a date .* Received: test_from=soon"),
        ("dates", "1577836800", "`test_from` must be a date .* Received: test_from=1577836800"),
        ("dates", "2020-02-30", "must be a date"),
        (None, "2020-01-01", "`test_from` needs a column of times"),
        ("seconds", "20200131", "`test_from` must be seconds since 1970, .* Received: test_from=20200131"),
        ("seconds", "1577836800000", "`test_from` must be seconds since 1970"),
        ("fractions", "1577836800000.5", "`test_from` must be seconds since 1970"),
        ("milliseconds", "1577836800", "`test_from` must be milliseconds since 1970"),
        ("nanoseconds", "1577836800", "`test_from` must be nanoseconds since 1970"),
    ],
)
def test_a_time_that_does_not_fit_is_refused(times, cut, message):
    table = frame(FORMS[times or "dates"])
    options = {"test_from": cut} if times else {"test_from": cut, "time_column": "none"}
    with pytest.raises(b4r.UserError, match=message):
        tables.read_frame(table, b4r.Interactions("x", **options))


ZONE = "US/Pacific"
EVENINGS = [("a", "x", "2024-06-01 20:00"), ("a", "y", "2024-06-02 20:00"), ("a", "z", "2024-06-03 00:00")]


def zoned_frame(zone, rows=EVENINGS):
    table = pd.DataFrame(rows, columns=["user", "item", "time"])
    return table.assign(time=pd.to_datetime(table["time"]).dt.tz_localize(zone))


DAY = "2024-06-03"
CUTS = [
    *((ZONE, cut, 1) for cut in (DAY, f"{DAY} 00:00", pd.Timestamp(DAY), f"{DAY}T07:00Z", pd.Timestamp(DAY, tz=ZONE))),
    (ZONE, f"{DAY}T00:00:00+00:00", 2),
    ("-07:00", DAY, 1),
    ("UTC", DAY, 1),
    ("Etc/UTC", f"{DAY}T00:00:00-01:00", 0),
]


@pytest.mark.parametrize(("zone", "cut", "num_later"), CUTS)
def test_a_date_without_a_zone_is_in_that_of_the_times(tmp_path, zone, cut, num_later):
    table = zoned_frame(zone)
    table.to_parquet(tmp_path / "a.parquet")
    sequences = [
        b4r.interactions(table, test_from=cut),
        b4r.interactions(pa.Table.from_pandas(table), test_from=cut),
        b4r.interactions(table.astype({"time": object}), test_from=cut),
        read(tmp_path / "a.parquet", test_from=cut)[0],
    ]
    assert [one.num_later.tolist() for one in sequences] == [[num_later]] * 4


def test_a_day_that_begins_at_one_o_clock_is_cut_there():
    rows = [("a", "x", "2018-11-03 23:59"), ("a", "y", "2018-11-04 01:00")]
    sequences = b4r.interactions(zoned_frame("America/Sao_Paulo", rows), test_from="2018-11-04")
    assert sequences.num_later.tolist() == [1]


def test_texts_and_moments_with_an_offset_each_are_cut_in_utc():
    offsets = ["+02:00", "-07:00", "+01:00"]
    texts = pd.DataFrame([(user, item, time + zone) for (user, item, time), zone in zip(EVENINGS, offsets)])
    texts.columns = ["user", "item", "time"]
    moments = texts.assign(time=texts["time"].map(pd.Timestamp).astype(object))
    for table in (texts, moments):
        assert b4r.interactions(table, test_from=DAY).num_later.tolist() == [1]  # 20:00-07:00
    rows = pd.concat([moments, moments.head(1).assign(time=pd.NaT)])
    assert b4r.interactions(rows, test_from=DAY, bad_rows="skip").num_actions == len(moments)


def test_a_date_without_a_zone_is_refused_among_several_zones(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, zone in zip(paths, (ZONE, "Europe/Berlin")):
        zoned_frame(zone).to_parquet(path)
    files = [*map(str, paths)]
    assert refusal(files, test_from=DAY) == (
        "`test_from` must have a zone, as in 2020-01-31T00:00+00:00, for times in Europe/Berlin and US/Pacific. "
        f"Received: test_from={DAY}"
    )
    assert read(files, test_from=f"{DAY}T00:00Z")[0].num_later.tolist() == [2]
    zoned_frame("Europe/Paris").to_parquet(paths[0])  # with the same clock
    assert read(files, test_from=DAY)[0].num_later.tolist() == [1]
