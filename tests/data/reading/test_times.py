"""Times of every kind: their order, units and zones."""

import datetime
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.interaction_files import (
    HEADER,
    as_csv,
    as_json,
    as_parquet,
    histories,
    plainly,
    read,
    refusal,
    write,
)
from support.profiles import examples

import bert4rec_tf as b4r
from bert4rec_tf.data.reading import times
from bert4rec_tf.data.reading.times import EARLIEST, LATEST, count_units
from bert4rec_tf.data.sequences import UNIT_NAMES
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.errors import UserError

KINDS_OF_TIMES = {
    "days": ["2020-01-02", "2020-01-01 23:59:59.5", "2019-12-31T00:00:00"],
    "a zone": ["2020-01-02T00:00:00Z", "2020-01-02T00:30:00+01:00", "2020-01-01T00:00:00+0100"],
    "fractions": ["1.5", "1", "-2e3"],
    "very large numbers": ["9223372036854775807", "9223372036854775806", "-1"],
    "blanks around them": [" 3 ", "2", "\t1"],
}


@pytest.mark.parametrize("kind", KINDS_OF_TIMES)
@pytest.mark.parametrize("written", [as_csv, as_json, as_parquet])
def test_times_of_every_kind_order_the_actions(tmp_path, kind, written):
    rows = [("a", str(place), time) for place, time in enumerate(KINDS_OF_TIMES[kind], start=1)]
    sequences, report = read(write(tmp_path, "a.data", written(rows)), user_column="user_id")
    assert histories(sequences) == {"a": ["3", "2", "1"]} and not report.notes


def test_the_first_time_that_is_one_says_the_kind_of_all(tmp_path):
    rows = [("a", str(place), time) for place, time in enumerate(["0x10", "soon", "9", "5", "2020-01-01", "7"])]
    sequences, report = read(write(tmp_path, "a.csv", as_csv(rows)), bad_rows="skip")
    assert histories(sequences) == {"a": ["3", "5", "2"]} and report.read["actions"] == 3


def test_an_impossible_date_costs_few_conversions(tmp_path, monkeypatch):
    rows = [("a", f"i{n % 9}", f"2020-01-01T{n // 60:02}:{n % 60:02}:00") for n in range(1_400)]
    rows[700] = ("a", "odd", "2020-02-30")
    calls, cast = [], times._cast
    monkeypatch.setattr(times, "_cast", lambda *arguments: calls.append(arguments) or cast(*arguments))
    sequences, report = read(write(tmp_path, "a.csv", as_csv(rows)), bad_rows="skip")
    assert histories(sequences) == plainly(rows[:700] + rows[701:]) and len(calls) < 30
    assert "the date does not exist, or is not from 1678 to 2261 (the first: row 702)" in str(report)


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


CUT = 1_577_836_800
"""2020-01-01, in seconds."""


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(list(UNITS)), st.lists(st.integers(0, 2**62), max_size=6), st.integers(0, 10**6))
def test_the_unit_of_a_date_does_not_depend_on_a_few_odd_times(folder, unit, odd, seed):
    rng = np.random.default_rng(seed)
    plain = [(f"u{n % 9}", f"i{n % 5}", int(rng.integers(CUT - 10**8, CUT + 10**8)) * UNITS[unit]) for n in range(45)]
    others = [
        one for name, scale in UNITS.items() if name != unit for one in odd if EARLIEST * scale <= one < LATEST * scale
    ]
    rows = plain + [(f"x{n}", "i0", one) for n, one in enumerate(odd) for _ in range(2)]
    path = write(folder, "units.csv", as_csv(rows))
    if others:
        assert "the times must have one unit" in refusal(path, test_from="2020-01-01", future_times=True)
        return
    sequences, report = read(path, test_from="2020-01-01", future_times=True)
    counts = dict(zip(sequences.users.tolist(), sequences.num_later.tolist()))
    for user in {user for user, _, _ in plain}:
        assert counts[user] == sum(when >= CUT * UNITS[unit] for name, _, when in plain if name == user)
    assert "seconds since 1970" in str(report)


@pytest.mark.parametrize(
    "times", [(2019, 2020), (20191231, 20200101), (20191231235959, 20200101000000), (43830, 43831)]
)
def test_a_date_among_numbers_that_are_no_unix_times_is_refused(tmp_path, times):
    rows = [(user, item, time) for user in "ab" for item, time in zip("xy", times)]
    path = write(tmp_path, "a.csv", as_csv(rows))
    assert "`test_from` must be a number like the times" in refusal(path, test_from="2020-01-01")
    assert "numbers of no known unit" in str(read(path, test_from=str(times[1]))[1])


def test_times_in_two_units_are_refused(tmp_path):
    rows = [("a", "x", CUT), ("a", "y", CUT + 1), ("b", "x", CUT * 1000), ("b", "y", CUT)]
    expected = "the times must have one unit. Received: 3 seconds and 1 milliseconds since 1970"
    assert expected in refusal(write(tmp_path, "a.csv", as_csv(rows)))


def test_a_first_line_that_may_be_a_header_is_warned_of(tmp_path):
    pairs = ["0,1", *(f"{user},{item}" for user in range(3) for item in range(10, 14))]
    with pytest.warns(b4r.DataWarning, match="its first line, 0 and 1, may be a header") as told:
        sequences = b4r.load(b4r.Interactions(write(tmp_path, "b.csv", "\n".join(pairs).encode())), tmp_path)
    assert sequences.num_actions == 13 and sum("may be a header" in str(one.message) for one in told) == 1
    rows = ["0,1,2", *(f"{user},{item},{item}" for user in range(3) for item in range(10, 14))]
    with pytest.warns(b4r.DataWarning, match="its first line, 0, 1, 2, counts as a header that pandas wrote"):
        path = write(tmp_path, "c.csv", "\n".join(rows).encode())
        assert b4r.load(b4r.Interactions(path, columns="user,item,time"), tmp_path).num_actions == 12


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from(sorted(UNITS)), st.lists(st.sampled_from([0, -1, 5, 300_000_000]), max_size=3))
def test_times_outside_the_unit_of_most_are_warned_of(folder, unit, odd):
    rows = [("a", f"i{n}", (CUT + n) * UNITS[unit]) for n in range(9)]
    odd = [time for time in odd if not any(count_units(np.array([time])).values())]
    _, report = read(write(folder, "a.csv", as_csv([*rows, *(("a", "odd", time) for time in odd)])))
    told = f"{len(odd)} of the {9 + len(odd)} times, in {UNIT_NAMES[unit]}, are not from 1980 to 2099"
    assert list(report.doubts) == [told] * bool(odd)


@pytest.mark.parametrize("odd", [(), ("1970-01-01",), ("1900-01-01", "1970-01-01")])
def test_a_few_dates_before_1980_are_warned_of_each_time_and_fractions_of_seconds_are_not(tmp_path, odd):
    rows = [("a", f"i{n}", f"2020-01-01T10:00:00.{n}23Z") for n in range(9)]
    rows += [("a", "odd", f"{day}T10:00:00Z") for day in odd]
    path = write(tmp_path, "a.csv", as_csv(rows))
    told = f"{len(odd)} of the {len(rows)} times are not from 1980 to 2099"
    for _ in range(2):  # the second time from the kept conversion
        with warnings.catch_warnings(record=True, action="always") as caught:
            datasets.load_with_report(b4r.Interactions(path), tmp_path)
        assert [str(one.message).endswith(told) for one in caught] == [True] * bool(odd)


@pytest.mark.parametrize("zone", [" UTC", "UTC", " GMT", "Z", " +00:00", "+0000"])
def test_names_of_the_zone_are_read(tmp_path, zone):
    rows = [("a", "x", f"2020-01-02 10:00:00{zone}"), ("a", "y", f"2020-01-01 10:00:00.5{zone}")]
    assert histories(read(write(tmp_path, "a.csv", as_csv(rows)))[0]) == {"a": ["y", "x"]}


NEAR = 1_700_000_000_000_000_000
"""Nanoseconds, of which float64 holds every 256th."""


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, 300), min_size=2, max_size=9, unique=True), st.sampled_from(["1.5e18", "7.0", "1e3"]))
def test_64_bits_of_times_keep_their_order_beside_a_whole_fraction(folder, offsets, odd):
    numbers = [NEAR + offset for offset in offsets]
    rows = [("a", f"i{place}", number) for place, number in enumerate(numbers)]
    expected = plainly([*rows, ("a", "odd", float(odd))])
    assert histories(read(write(folder, "a.csv", as_csv([*rows, ("a", "odd", odd)])))[0]) == expected
    assert histories(read(write(folder, "a.jsonl", as_json([*rows, ("a", "odd", float(odd))])))[0]) == expected
    halves = [(user, item, f"{number}.5" if place % 2 else number) for place, (user, item, number) in enumerate(rows)]
    assert histories(read(write(folder, "a.csv", as_csv(halves)))[0]) == plainly(rows)
    frame = pd.DataFrame(rows, columns=HEADER)
    frame[HEADER[2]] = [Decimal(number) for number in numbers]
    assert histories(b4r.interactions(frame)) == plainly(rows)
    several = folder / "several"
    several.mkdir(exist_ok=True)
    paths = [
        write(several, "a.parquet", as_parquet(rows)),
        write(several, "b.parquet", as_parquet([("a", "odd", float(odd))])),
    ]
    assert histories(read([str(path) for path in paths])[0]) == expected


@pytest.mark.parametrize(
    "times",
    [
        pa.array(np.array([1_577_836_800, 1_577_836_801], np.float32)),
        pa.array([float(NEAR), float(NEAR)]),
        pa.array([Decimal("1577836800.000000001"), Decimal("1577836800.000000002")]),
        pa.array([str(NEAR), "1.5"]),
        pa.array([str(NEAR), f"{float(NEAR)}"]),
        pa.array([str(NEAR), f"{NEAR}.5"]),
    ],
)
def test_times_in_a_type_that_cannot_hold_their_order_are_warned_of(times):
    with pytest.warns(b4r.DataWarning, match="times that differ may become equal"):
        b4r.interactions(pa.table({"user": ["a", "a"], "item": ["x", "y"], "time": times}))


def test_a_zone_in_some_times_alone_is_refused():
    moments = [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)]
    frame = pd.DataFrame({"user": ["a", "a"], "item": ["x", "y"], "time": pd.Series(moments, dtype=object)})
    with pytest.raises(UserError, match="column time must have a zone in all of its times or in none"):
        b4r.interactions(frame)
