"""What could be read in two ways is an error that shows the values and the flag to add; then a's order is x, y, z."""

import gzip
import json
import shlex
import unicodedata

import pandas as pd
import pyarrow as pa
import pytest
from support.interaction_files import as_csv, as_json, as_parquet, histories, read, refusal, write

import bert4rec_tf as b4r
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.foundation.errors import UserError

XYZ = {"a": ["x", "y", "z"]}
BASE = 1_600_000_000


def text(*lines):
    return "\n".join([*lines, ""]).encode()


ASKED = {
    "day, month and year": (
        text("user,item,day,month,year", "a,x,28,1,2009", "a,z,5,3,2009", "a,y,6,2,2009"),
        "--time_column=year,month,day",
        "day (28, 5, 6)",
    ),
    "a date and a time of day": (
        text("user,item,date,time", "a,z,2020-01-01,2210", "a,y,2020-01-01,1530", "a,x,2020-01-01,0905"),
        "--time_column=date,time",
        "time (2210, 1530, 0905)",
    ),
    "a time of day with colons": (
        text("user,item,date,time", "a,z,2020-01-01,22:10:05.5", "a,y,2020-01-01,22:10:05", "a,x,2020-01-01,9:05"),
        "--time_column=date,time",
        "time (22:10:05.5, 22:10:05, 9:05)",
    ),
    "seconds spent": (
        text("user,item,event_time,time", f"a,x,{BASE},9", f"a,y,{BASE + 1},7", f"a,z,{BASE + 2},8"),
        "--time_column=event_time",
        "time (9, 7, 8)",
    ),
    "a date of release": (
        text(
            "user,item,date,rated", f"a,z,2001-01-01,{BASE + 2}", f"a,x,2002-01-01,{BASE}", "a,y,2003-01-01,1600000001"
        ),
        "--time_column=rated",
        "date (2001-01-01, 2002-01-01, 2003-01-01)",
    ),
    "the number of an order beside a day of the week": (
        text("user_id,product_id,order_number,day", "a,x,1,5", "a,z,3,0", "a,y,2,6"),
        "--time_column=order_number",
        "day (5, 0, 6)",
    ),
    "one column of an unknown name": (
        text("user,item,t_dat", "a,z,2020-01-03", "a,x,2020-01-01", "a,y,2020-01-02"),
        "--time_column=t_dat",
        "a column may have the times: t_dat (2020-01-03, 2020-01-01, 2020-01-02)",
    ),
    "two columns of items": (
        text("user_id,asin,parent_asin,timestamp", f"a,z,p,{BASE + 2}", f"a,x,p,{BASE}", f"a,y,p,{BASE + 1}"),
        "--item_column=asin",
        "parent_asin (p, p, p)",
    ),
    "two columns of users": (
        text("user,customer_id,item,time", "q,a,z,3", "r,a,x,1", "s,a,y,2"),
        "--user_column=customer_id",
        "user (q, r, s)",
    ),
    "no header": (text("a,z,3", "a,x,1", "a,y,2"), "--columns=user,item,time", "Row 1: a | z | 3"),
    "no header, and a column between": (
        text("a,z,80,3", "a,x,20.5,1", "a,y,9,2"),
        "--columns=user,item,_,time",
        "Row 1: a | z | 80 | 3; row 2: a | x | 20.5 | 1",
    ),
    "decimal commas": (
        text("a;z;5,0;1600000002", "a;x;4,5;1600000000", "a;y;4,0;1600000001"),
        '--separator=";" --columns=user,item,_,time',
        '--separator="," (a;z;5 | 0;1600000002) or --separator=";" (a | z | 5,0 | 1600000002)',
    ),
    "one line per user": (text("1 11 12 13", "2 11 14"), None, "seems to have one line per user"),
}


def flags(line):
    """The options of a command line, for `Interactions`."""
    return dict(flag.removeprefix("--").replace('"', "").split("=", 1) for flag in line.split())


@pytest.mark.parametrize("kind", ASKED)
def test_the_error_shows_the_values_and_a_flag_that_gives_the_right_order(kind, tmp_path):
    content, flag, shown = ASKED[kind]
    path = write(tmp_path, "a.csv" if b"," in content else "a.txt", content)
    message = refusal(path)
    assert shown in message
    if flag is None:
        return
    assert flag.split()[0] in message
    found = histories(read(path, **flags(flag))[0])
    assert found == XYZ


def test_folders_of_year_month_and_day_are_joined(tmp_path):
    for item, (year, month, day) in {"z": (2009, 3, 5), "x": (2009, 1, 28), "y": (2009, 2, 6)}.items():
        write(tmp_path, f"t/year={year}/month={month}/day={day}/0.parquet", as_parquet([("a", item)], ("user", "item")))
    assert "--time_column=year,month,day" in refusal(tmp_path / "t")
    assert histories(read(tmp_path / "t", time_column="year,month,day")[0]) == XYZ


def test_a_table_is_asked_for_in_the_same_way():
    frame = pd.DataFrame({"user": ["a"] * 3, "item": list("zxy"), "year": 2009, "month": [3, 1, 2], "day": [5, 28, 6]})
    with pytest.raises(UserError, match="time=year,month,day, time=year, "):
        b4r.interactions(frame)
    assert histories(b4r.interactions(frame, time="year,month,day")) == XYZ
    frame = frame.assign(date=pd.Timestamp("2020-01-01"), time=[2210, 905, 1530])
    first = b4r.interactions(frame, time="date,time")
    assert histories(first) == XYZ
    later = inputs.load_any(frame, to_train=False, known_columns=first.columns)[1]
    assert histories(later) == XYZ and later.columns == first.columns
    with pytest.raises(UserError, match="time=date,time, time=date, time=time or time=none"):
        b4r.fit(frame[["user", "item", "date", "time"]])


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (("2020-01-01", "24:30"), "the date does not exist"),
        (("2020-02-30", "12:00"), "the date does not exist"),
        (("2020-01-01", "soon"), "the time is not a number"),
        (("", "12:00"), "the time is missing"),
        (("2020-01-01", ""), "the time is missing"),
    ],
)
def test_a_bad_part_of_a_time_is_a_bad_row(tmp_path, times, words):
    path = write(tmp_path, "a.csv", text("user,item,date,time", "a,x,2020-01-01,1200", "a,y,{},{}".format(*times)))
    assert f"row 3: {words}" in refusal(path, time_column="date,time")


def test_columns_without_a_header_are_joined(tmp_path):
    path = write(tmp_path, "a.csv", text("a,z,9,2020-01-01,2210", "a,x,9,2020-01-01,0905", "a,y,9,2020-01-01,1530"))
    assert histories(read(path, columns="user,item,_,date,time", time_column="date,time")[0]) == XYZ


def test_at_most_four_columns_are_joined(tmp_path):
    path = write(tmp_path, "a.csv", as_csv([(1,) * 7], ("user", "item", *"abcde")))
    assert "`time_column` must name at most 4 columns" in refusal(path, time_column="a,b,c,d,e")


def test_an_amazon_file_needs_no_flag(tmp_path):
    rows = [("a", "z", BASE + 2, "09 13, 2020"), ("a", "x", BASE, "09 14, 2020"), ("a", "y", BASE + 1, "01 1, 2019")]
    path = write(tmp_path, "r.json", as_json(rows, ("reviewerID", "asin", "unixReviewTime", "reviewTime")))
    assert histories(read(path)[0]) == XYZ


# Keys of records


def test_keys_of_later_lines_count(tmp_path):
    lines = [{"user": "a", "item": "z"}, {"user": "a", "item": "x", "ts": 1}, {"user": "a", "item": "y", "ts": 2}]
    for write_line in (json.dumps, repr):
        path = write(tmp_path, "a.json", "".join(f"{write_line(line)}\n" for line in lines).encode())
        assert "line 1: the time is missing" in refusal(path)
        assert histories(read(path, bad_rows="skip")[0]) == {"a": ["x", "y"]}
    lines[0]["ts"] = 3
    path = write(tmp_path, "a.json", "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    assert histories(read(path)[0]) == XYZ


def test_a_key_beyond_the_sample_that_may_be_the_time_is_refused(tmp_path):
    lines = [{"user": f"u{n % 9}", "item": f"i{n % 7}"} for n in range(1_200)]
    lines[1_100] |= {"shop": 1}
    lines[1_150] |= {"ts": 1}
    path = write(tmp_path, "a.json", "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    assert "line 1151: the key 'ts' is in no line" in refusal(path)
    assert read(path, time_column="none")[0].num_actions == 1_200


# Repeated rows


ROWS = [("a", "z", 3), ("a", "x", 1), ("b", "x", 1), ("a", "y", 2), ("a", "x", 9)]


def test_exact_repeats_are_dropped_and_counted(tmp_path):
    path = write(tmp_path, "a.csv", as_csv([*ROWS, *ROWS[:2], ("b", "y", 1)]))
    sequences, report = read(path)
    assert histories(sequences) == {"a": ["x", "y", "z", "x"], "b": ["x", "y"]}
    expected = "dropped 2 rows that repeat user, item and time of another (the first: user 'a', item 'z')"
    assert expected in str(report) and report.read["actions"] == 8 and report.kept["actions"] == 6
    assert histories(read(path, duplicates="keep")[0])["a"] == ["x", "x", "y", "z", "z", "x"]
    assert histories(read(path, time_column="none")[0])["a"] == ["z", "x", "y", "x", "z", "x"]


def test_a_file_twice_and_weekly_exports_that_overlap_are_that_file(tmp_path):
    for folder, parts in (("one", [ROWS]), ("two", [ROWS, ROWS]), ("weeks", [ROWS[:3], ROWS[1:], ROWS[2:4]])):
        for number, part in enumerate(parts):
            write(tmp_path, f"{folder}/{number}.csv", as_csv(part))
    prints = {folder: read(tmp_path / folder / "*.csv")[0].fingerprint for folder in ("one", "two", "weeks")}
    assert len(set(prints.values())) == 1


def test_a_file_beside_its_packed_copy_is_refused(tmp_path):
    write(tmp_path, "all.csv", as_csv(ROWS))
    write(tmp_path, "all.csv.gz", as_csv(ROWS))
    assert "is there twice, packed too" in refusal(tmp_path / "all*")


def test_immediate_repeats_without_times_are_reported(tmp_path):
    doubled = [(user, f"i{n}") for user in "abc" for n in range(9) for _ in range(2)]
    with pytest.warns(b4r.DataWarning, match="53% of the actions after a user's first have the item of the one before"):
        b4r.load(b4r.Interactions(write(tmp_path, "a.csv", as_csv(doubled, ("user", "item")))), tmp_path)


# Headers


def test_a_header_inside_a_file_is_skipped_and_counted(tmp_path):
    content = as_csv(ROWS[:2]) + as_csv(ROWS[2:])
    sequences, report = read(write(tmp_path, "a.csv", content))
    assert histories(sequences)["a"] == ["x", "y", "z", "x"]
    assert "skipped 1 rows: the header again (the first: row 4)" in str(report)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_line_of_excel_names_the_separator(tmp_path, separator):
    lines = [f"sep={separator}", "user|item|time|price, EUR; net", "a|z|3|1,5", "a|x|1|2;5", "a|y|2|3"]
    content = text(*(line.replace("|", separator) for line in lines))
    if separator == "\t":
        assert histories(read(write(tmp_path, "a.csv", content))[0]) == XYZ
    lines = [f"sep={separator}", "user|item|time", "a|z|3", "a|x|1", "a|y|2"]
    plain = text(*(line.replace("|", separator) for line in lines))
    assert histories(read(write(tmp_path, "a.csv", plain))[0]) == XYZ


def test_a_comma_in_the_header_alone_separates_nothing(tmp_path):
    rows = [f"a;{item};{BASE + place};5,0" for item, place in (("z", 2), ("x", 0), ("y", 1))]
    content = text("user_id;item_id;timestamp;price, EUR", *rows)
    assert histories(read(write(tmp_path, "a.csv", content))[0]) == XYZ


@pytest.mark.parametrize("separator", [" ", ",", "\t", "::"])
def test_two_whole_numbers_in_a_line_need_no_header(tmp_path, separator):
    rows = [("7", "1"), ("8", "2"), ("7", "3")]
    path = write(tmp_path, "a.txt", text(*(separator.join(row) for row in rows)))
    assert histories(read(path)[0]) == {"7": ["1", "3"], "8": ["2"]}


def test_columns_of_another_number_or_of_a_header_are_refused(tmp_path):
    path = write(tmp_path, "a.csv", text("a,x,1", "a,y,2"))
    message = refusal(path, columns="user,item")
    assert "must name the 3 columns, of which the first row has a | x | 1" in message
    path = write(tmp_path, "b.csv", as_csv(ROWS))
    assert "Leave out --columns" in refusal(path, columns="item,user,time")
    with_header = read(path, columns="user,item,time")[0]
    assert with_header.fingerprint == read(path)[0].fingerprint, "as where only some of many files have a header"
    for name, content in (("a.json", as_json(ROWS)), ("a.parquet", as_parquet(ROWS))):
        assert "leave out --columns" in refusal(write(tmp_path, name, content), columns="user,item,time")
    numbered = text("0,1,2", "a,z,3", "a,x,1", "a,y,2")  # as pandas writes a table without names
    assert histories(read(write(tmp_path, "a.csv", numbered), columns="user,item,time")[0]) == XYZ
    empty = text(",,", "a,z,3", "a,x,1", "a,y,2")
    assert "row 1: the user's id is missing" in refusal(write(tmp_path, "b.csv", empty), columns="user,item,time")


@pytest.mark.parametrize("separator", ["|", "^", " ", "\\t", "::", "x"])
def test_a_separator_of_ones_own(tmp_path, separator):
    body = text("user_id,item_id,timestamp", "a,z,3", "a,x,1", "a,y,2")
    path = write(tmp_path, "a.txt", body.replace(b"x", b"w").replace(b",", separator.replace("\\t", "\t").encode()))
    assert histories(read(path, separator=separator)[0]) == {"a": ["w", "y", "z"]}


@pytest.mark.parametrize("separator", ["||", "", '"', "\n", "\u00a7"])
def test_a_separator_that_is_none(separator):
    with pytest.raises(UserError, match="`separator` must be one character, :: or"):
        b4r.Interactions("a.csv", separator=separator)


# Events


def test_the_advice_on_events_can_be_followed(tmp_path):
    rows = [("a", item, kind, place) for place, item in enumerate("xyz") for kind in ("add, remove", "look around")]
    rows += [("a", "v", "", 9), ("a", "w", "look around", 9)]
    path = write(tmp_path, "a.csv", as_csv(rows, ("user", "item", "event", "time")))
    advice = next(note for note in read(path)[1].notes if "keeps these alone" in note)
    words = shlex.split(advice.partition("count alike. ")[2].removesuffix(" keeps these alone"))
    options = dict(word.removeprefix("--").split("=", 1) for word in words)
    assert options == {"event_column": "event", "events": '"add, remove"'}
    for events in (options["events"], ["add, remove"]):
        assert histories(read(path, event_column="event", events=events)[0]) == {"a": ["x", "y", "z"]}


def test_true_and_false_are_events_in_json(tmp_path):
    rows = [("a", item, place != 3, place) for place, item in enumerate("xyzw")]
    path = write(tmp_path, "a.json", as_json(rows, ("user", "item", "bought", "time")))
    assert histories(read(path, event_column="bought", events="true")[0]) == {"a": ["x", "y", "z"]}


def test_events_are_named_and_selected(tmp_path):
    rows = [("a", "w", "view", 0), ("a", "z", "purchase", 3), ("a", "x", "purchase", 1), ("b", "w", "view", 1)]
    rows += [("a", "y", "purchase", 2), ("a", "y", "cart", 2)]
    for name, content in (
        ("a.csv", as_csv(rows, ("user_id", "item_id", "event_type", "timestamp"))),
        ("a.json", as_json(rows, ("user_id", "item_id", "event_type", "timestamp"))),
        ("a.parquet", as_parquet(rows, ("user_id", "item_id", "event_type", "timestamp"))),
    ):
        path = write(tmp_path, name, content)
        _, report = read(path)
        assert "events (event_type): 3 purchase, 2 view, 1 cart; all count alike" in str(report)
        assert "--event_column=event_type --events=cart keeps these alone" in str(report)
        bought, report = read(path, event_column="event_type", events="purchase")
        assert histories(bought) == XYZ and "kept: purchase" in str(report)
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "event_type", "timestamp"])
    options = {"event_column": "event_type", "events": "purchase, sale"}
    for events in ("purchase, sale", ["purchase", "sale"]):
        with pytest.warns(b4r.DataWarning, match="no row has the event 'sale'"):
            assert histories(b4r.interactions(frame, **{**options, "events": events})) == XYZ
    assert histories(b4r.interactions(frame.astype({"event_type": "category"}), **options)) == XYZ
    with pytest.raises(UserError, match="`event_column` and `events` need each other"):
        b4r.Interactions(path, events="purchase")
    with pytest.raises(UserError, match="must be separated by commas on one line"):
        b4r.Interactions(path, event_column="event", events="purchase\ncart")
    for nothing in ("", " ", []):
        with pytest.raises(UserError, match="`events` must name kinds of events"):
            b4r.Interactions(path, event_column="event_type", events=nothing)
    rows[1] = ("a", "z", "", 3)
    path = write(tmp_path, "b.csv", as_csv(rows, ("user_id", "item_id", "event_type", "timestamp")))
    without_event = read(path, event_column="event_type", events='"",purchase')[0]
    assert histories(without_event) == XYZ, "in quotes, an empty text is the event of rows without one"


# The rest


def test_whole_numbers_name_columns():
    frame = pd.DataFrame([("a", "z", 3), ("a", "x", 1), ("a", "y", 2)])
    assert histories(b4r.interactions(frame, user=0, item=1, time=2)) == XYZ
    with pytest.raises(UserError, match=r"`user` must be a column, of: 0, 1, 2\. Received: user=3"):
        b4r.interactions(frame, user=3, item=1)


def test_ids_that_a_spreadsheet_rounded_are_refused(tmp_path):
    path = write(tmp_path, "a.csv", text("user,item,time", "a,1.23457E+11,1", "a,1.23458E+11,2"))
    assert "row 2: an id is written as a rounded number" in refusal(path)
    with pytest.raises(UserError, match="row 2: an id is written as a rounded number"):
        b4r.interactions(pd.DataFrame({"user": ["a", "a"], "item": ["x", "1.23457E+11"]}))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            ("2020013110", "2020013111", "2020020100"),
            "2034-01-04. 2020020100, if it counts seconds since 1970. It may be a date and an hour",
        ),
        (("2020-01-31", "2030-01-01", "9999-12-31"), "the date does not exist, or is not from 1678"),
        (("2020-01-31", "2030-01-01", "2199-12-31"), "the latest time is in the future: 2199-12-31. If"),
    ],
)
def test_times_in_the_future_are_refused_unless_they_are_allowed(tmp_path, times, words):
    path = write(tmp_path, "a.csv", as_csv([("a", item, time) for item, time in zip("xyz", times)]))
    assert words in refusal(path)
    if "not" not in words:
        assert histories(read(path, future_times=True)[0]) == XYZ


def test_ratings_are_said_not_to_be_used(tmp_path):
    path = write(tmp_path, "a.csv", as_csv([(*row, 5) for row in ROWS], ("user", "item", "time", "rating")))
    assert "ratings (rating) are not used: every row is an action" in str(read(path)[1])


def test_ids_of_two_unicode_forms_are_one(tmp_path):
    composed, apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    rows = [(composed, "x", 1), (apart, "y", 2), (composed, apart, 3)]
    sequences, report = read(write(tmp_path, "a.csv", as_csv(rows)))
    assert histories(sequences) == {composed: ["x", "y", composed]}
    assert "1 ids were not in Unicode's form NFC" in str(report)
    frame = pd.DataFrame(rows, columns=["user", "item", "time"])
    assert histories(b4r.interactions(frame)) == histories(sequences)


def test_whole_numbers_beyond_64_bits_say_what_to_do():
    frame = pd.DataFrame({"user": ["a", "a"], "item": [2**70, 2**70 + 1]})
    with pytest.raises(UserError, match="whole numbers beyond 64 bits; make them texts"):
        b4r.interactions(frame)
    assert b4r.interactions(frame.astype({"item": str})).num_items == 2


def test_sessions_are_users_only_without_others(tmp_path):
    frame = pd.DataFrame({"session_id": list("pqr"), "item": list("zxy"), "time": [3, 1, 2], "user_id": "a"})
    assert histories(b4r.interactions(frame)) == XYZ
    assert b4r.interactions(frame.drop(columns="user_id").assign(session_id="s")).users.tolist() == ["s"]


def test_packed_and_plain_ask_alike(tmp_path):
    content = ASKED["day, month and year"][0]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content))
    path = write(tmp_path, "b.csv", content)
    assert refusal(path).replace("b.csv", "a.csv.gz") == refusal(tmp_path / "a.csv.gz")
    table = pa.Table.from_pandas(pd.read_csv(path))
    with pytest.raises(UserError, match="time=year,month,day"):
        b4r.interactions(table)
