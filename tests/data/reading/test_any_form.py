"""Random rows in every form that needs a flag, or none, are read back as plain Python reads them."""

import datetime
import json

import pandas as pd
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.interaction_files import as_csv, as_json, as_parquet, as_text, histories, plainly, read, write
from support.profiles import examples

import bert4rec_tf as b4r
from bert4rec_tf.data.sources import inputs

MOMENTS = st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2025, 12, 31)).map(
    lambda moment: moment.replace(second=0, microsecond=0)
)
ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("uvwxyz"), MOMENTS), min_size=3, max_size=20).map(
    lambda rows: [*dict.fromkeys(rows), ("a", "u", rows[0][2]), ("a", "v", rows[0][2])]
)
QUICK = settings(max_examples=examples(60), deadline=None)


def split_day(moment):
    return moment.year, moment.month, moment.day


DAYTIMES = {
    "22:10": lambda moment: f"{moment:%H:%M}",
    "9:05": lambda moment: f"{moment.hour}:{moment:%M}",
    "22:10:00": lambda moment: f"{moment:%H:%M:%S}",
    "2210": lambda moment: f"{moment:%H%M}",
    "905": lambda moment: moment.hour * 100 + moment.minute,
    "90500": lambda moment: moment.hour * 10_000 + moment.minute * 100,
}


def frames(rows, daytime):
    """The rows with a date and a time of day, and with four columns: (header, rows, the flag)."""
    made = DAYTIMES[daytime]
    dates = [(user, item, f"{moment:%Y-%m-%d}", made(moment)) for user, item, moment in rows]
    parts = [(user, item, *split_day(moment), made(moment)) for user, item, moment in rows]
    yield ("user", "item", "date", "time"), dates, "date,time"
    yield ("user", "item", "year", "month", "day", "clock"), parts, "year,month,day,clock"


@QUICK
@given(ROWS, st.sampled_from(sorted(DAYTIMES)))
def test_joined_columns_are_the_times_that_they_say(folder, rows, daytime):
    if daytime == "90500":  # below one o'clock, five or six digits are not
        rows = [(user, item, moment.replace(hour=moment.hour or 1)) for user, item, moment in rows]
    expected = plainly(dict.fromkeys(rows))
    for header, table, flag in frames(rows, daytime):
        for name, make in (("a.csv", as_csv), ("a.json", as_json), ("a.parquet", as_parquet)):
            assert histories(read(write(folder, name, make(table, header)), time_column=flag)[0]) == expected
        frame = pd.DataFrame(table, columns=header)
        assert histories(b4r.interactions(frame, time=flag)) == expected
        assert histories(b4r.interactions(pa.Table.from_pandas(frame), time=flag)) == expected


@QUICK
@given(ROWS)
def test_days_in_three_columns(folder, rows):
    expected = plainly(dict.fromkeys((user, item, moment.date()) for user, item, moment in rows))
    table = [(user, item, *split_day(moment)) for user, item, moment in rows]
    header = ("user", "item", "year", "month", "day")
    assert histories(read(write(folder, "a.csv", as_csv(table, header)), time_column="year,month,day")[0]) == expected
    texts = [(user, item, f"{moment.year}", f"{moment:%m}", f"{moment:%d}") for user, item, moment in rows]
    path = write(folder, "a.parquet", as_parquet(texts, header))
    assert histories(read(path, time_column="year,month,day")[0]) == expected


@QUICK
@given(ROWS, st.sampled_from([",", ";", "\t", "::", "|"]), st.permutations(["user", "item", "time", "_", "_"]))
def test_columns_in_any_order_without_a_header(folder, rows, separator, order):
    seconds = [(user, item, int(moment.timestamp())) for user, item, moment in rows]
    values = [{"user": user, "item": item, "time": time, "_": 7} for user, item, time in seconds]
    path = write(folder, "a.dat", as_text([[row[name] for name in order] for row in values], separator))
    flags = {"separator": separator} if separator == "|" else {}
    assert histories(read(path, columns=",".join(order), **flags)[0]) == plainly(dict.fromkeys(seconds))


@QUICK
@given(ROWS, st.lists(st.integers(0, 22), max_size=3), st.sampled_from([11, 8 << 20]))
def test_headers_anywhere_change_nothing(folder, rows, places, size):
    header, *lines = as_csv([(user, item, moment.isoformat()) for user, item, moment in rows]).splitlines(keepends=True)
    places = [place for place in places if place <= len(lines)]
    for place in sorted(places, reverse=True):
        lines.insert(place, header)
    sequences, report = read(write(folder, "a.csv", header + b"".join(lines)), size)
    assert histories(sequences) == plainly(dict.fromkeys(rows))
    assert (f"skipped {len(places)} rows: the header again" in str(report)) == bool(places)


@QUICK
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, "ann", "bob"])), min_size=2, max_size=6))
def test_a_second_column_of_users_is_asked_about_by_the_same_rows_in_every_form(folder, pairs):
    rows = [(user, name, place) for place, (user, name) in enumerate(pairs)]
    header = ("user_id", "user", "item")
    table = pa.table({name: list(column) for name, column in zip(header, zip(*rows))})
    content = "".join(json.dumps(dict(zip(header, row))) + "\n" for row in rows).encode()
    names_by_user = [{name for other, name in pairs if other == user and name} for user, _ in pairs]
    sources = [table, table.to_pandas(), write(folder, "a.jsonl", content)]
    sources += [write(folder, "a.csv", as_csv([(user, name or "", place) for user, name, place in rows], header))]
    for source in sources:
        try:
            inputs.load_any(source, time="none", to_train=False)
        except b4r.UserError as error:
            assert "several columns may have the users" in str(error) and max(map(len, names_by_user)) > 1
        else:
            assert max(map(len, names_by_user)) < 2


@QUICK
@given(ROWS, st.lists(st.sampled_from(["view", "cart", "purchase"]), min_size=22, max_size=22), st.integers(1, 7))
def test_events_are_those_that_were_chosen(folder, rows, kinds, chosen):
    wanted = [kind for bit, kind in enumerate(("view", "cart", "purchase")) if chosen >> bit & 1]
    table = [(user, item, kind, moment.isoformat()) for (user, item, moment), kind in zip(rows, kinds)]
    kept = [(user, item, moment) for user, item, kind, moment in table if kind in wanted]
    header = ("user", "item", "action", "date")
    content = "".join(json.dumps(dict(zip(header, row))) + "\n" for row in table).encode()
    for path in (write(folder, "a.csv", as_csv(table, header)), write(folder, "a.jsonl", content)):
        options = {"event_column": "action", "events": ",".join(wanted)}
        try:
            found = histories(read(path, **options)[0])
        except b4r.UserError as error:
            assert len(kept) < 2 or "left" in str(error)
        else:
            assert found == plainly(dict.fromkeys(kept))


@QUICK
@given(ROWS, st.data())
def test_files_that_overlap_are_all_their_rows_once(folder, rows, data):
    parts = [data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=9)) for _ in range(3)]
    several = folder / "several"
    for number, part in enumerate([*parts, rows]):
        write(several, f"{number}.csv", as_csv([(user, item, moment.isoformat()) for user, item, moment in part]))
    together = [row for part in [*parts, rows] for row in part]
    assert histories(read(several / "*.csv")[0]) == plainly(dict.fromkeys(together))
