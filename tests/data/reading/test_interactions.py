"""Files of one's own: whatever is written in any layout is read back as a plain reading of the rows has it."""

import contextlib
import datetime
import gzip
import io
import json
import os
import random
import string
import time
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.interaction_files import (
    HEADER,
    LAYOUTS,
    ROWS,
    as_csv,
    as_json,
    as_literals,
    as_parquet,
    as_text,
    histories,
    plainly,
    rated,
    read,
    refusal,
    write,
)

import bert4rec_tf as b4r
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import blocks, records
from bert4rec_tf.data.reading.columns import JSON, LITERALS, Columns
from bert4rec_tf.data.reading.times import EARLIEST, LATEST, UNIT_NAMES, count_units
from bert4rec_tf.foundation.errors import UserError


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_read_and_its_columns_are_guessed(tmp_path, name, packed):
    if packed and name == "ratings.parquet":
        pytest.skip("Parquet packs by itself")
    sequences, report = read(write(tmp_path, name + packed, LAYOUTS[name](ROWS)))
    assert histories(sequences) == plainly(ROWS) == {"ann": ["a b", "7", "lamp"], "bob": ["lamp", "007"]}
    assert sequences.num_left_out == 1 and report.read == {"users": 3, "items": 4, "actions": 6}


def test_pairs_without_times_stay_in_the_order_of_the_file(tmp_path):
    sequences, report = read(write(tmp_path, "pairs.txt", b"b 1\na 2\nb 3\n a\t 1 \n\nb 2\n"))
    assert histories(sequences) == {"b": ["1", "3", "2"], "a": ["2", "1"]}
    assert "the order of the file" in report.columns


WORDS = st.text(string.ascii_letters + string.digits + ",;'\\|é日-_", min_size=1, max_size=4).map("x{}y".format)
TEXTS = st.text(string.ascii_letters + " ,;:'\"\\|é日\t", min_size=1, max_size=4).map("x{}y".format)
TIMES = st.integers(-3, 3) | st.integers(-(2**40), 2**40)


def tables(ids):
    rows = st.tuples(ids | st.just("x"), st.sampled_from("abc") | ids, TIMES)
    return st.lists(rows, max_size=25).map(lambda rows: [("x", "a", 0), ("x", "b", 0), ("x", "c", 0), *rows])


def with_many_blanks(rows):
    draw = random.Random(len(rows))
    lines = (
        draw.choice([" ", "  ", "\t", " \t "]).join(map(str, row)) + draw.choice(["", " ", "\t"]) for row in rows[1:]
    )
    lines = [" ".join(map(str, rows[0])), *lines]  # a tab in the first line would separate the columns of all
    return "".join(f"{draw.choice(['', ' '])}{line}\n" for line in lines).encode()


WRITERS = {
    "a.csv": (TEXTS, as_csv),
    "a.json": (TEXTS, as_json),
    "a.steam.json": (TEXTS, as_literals),
    "a.parquet": (TEXTS, as_parquet),
    "a.tsv": (WORDS, lambda rows: as_text(rows, "\t", HEADER)),
    "a.dat": (WORDS, lambda rows: as_text(rated(rows), "::")),
    "a.txt": (WORDS.filter(lambda text: not set(",;") & set(text)), lambda rows: with_many_blanks(rated(rows))),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("interactions")


@settings(deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(sorted(WRITERS)),
    least=st.integers(1, 3),
    size=st.sampled_from([9, 60, 8 << 20]),
)
def test_any_written_rows_are_read_back_filtered_and_in_order(folder, data, name, least, size):
    ids, written = WRITERS[name]
    rows = data.draw(tables(ids))
    path, expected = write(folder, name, written(rows)), plainly(rows, least, least)
    options = {"min_user_actions": least, "min_item_actions": least, "keep_missing_words": True}
    if name in ("a.dat", "a.txt"):  # without a header, and with times that may be like ratings
        options |= {"user_column": "1", "item_column": "2", "time_column": "4"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_SIZE", size)
        if len({item for items in expected.values() for item in items}) < 2:
            assert "left" in refusal(path, **options)
            return
        sequences, report = read(path, **options)
    assert histories(sequences) == expected
    assert report.read["actions"] == len(rows)


@settings(deadline=None)
@given(
    content=st.binary(max_size=80) | st.text("user,item\t12 \n\r\"{}':", max_size=60).map(str.encode),
    name=st.sampled_from(["any.csv", "any.tsv", "any.txt", "any.json", "any.csv.gz", "any.parquet"]),
    packed=st.booleans(),
    policy=st.sampled_from(["refuse", "skip"]),
)
@example(content=b"\xff\xfeu\0s\0", name="any.csv", packed=False, policy="refuse")
@example(content=b"user,item,time\na,1,\xff\na,2,1\n", name="any.csv", packed=False, policy="skip")
@example(content=b"PAR1", name="any.parquet", packed=False, policy="skip")
@example(content=b"{'a':" * 3_000, name="any.json", packed=False, policy="skip")
@example(content=b'{"a":' * 30_000, name="any.json", packed=False, policy="skip")
@example(content=as_parquet(ROWS).replace(b"lamp", b"la\xfdp"), name="any.parquet", packed=False, policy="skip")
@example(content=as_parquet(ROWS).replace(b"user_id", b"us\xe3r_id"), name="any.parquet", packed=False, policy="skip")
def test_any_bytes_are_read_or_refused_in_one_line(folder, content, name, packed, policy):
    path = folder / name
    path.write_bytes(gzip.compress(content) if packed else content)
    try:
        sequences, _ = read(path, bad_rows=policy)
    except UserError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        assert sequences.num_users > 0


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.text(max_size=12)
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.booleans()
        | st.none()
        | st.lists(st.integers(), max_size=2),
        max_size=5,
    ),
    st.booleans(),
)
@example({"text": "so 'username': u'x', said", "username": "it's me"}, True)
def test_python_dictionaries_are_read_as_python_reads_them(record, old):
    def literal(value):
        return ("u" if old else "") + (ascii if old else repr)(value) if isinstance(value, str) else repr(value)

    line = "{" + ", ".join(f"{literal(key)}: {literal(value)}" for key, value in record.items()) + "}"
    assert records.parse_record(LITERALS, line) == record


@pytest.mark.parametrize("line", ["{'a': '" + r"\'" * 300_000, "{'a': '" + "\\" * 600_001, "{'" * 300_000])
def test_a_long_odd_line_is_looked_at_once(line):
    with pytest.raises(ValueError):
        records.parse_record(LITERALS, line)


@pytest.mark.parametrize(
    "line",
    ["{'a': __import__('os')}", "{'a': 1", "{'a' 1}", "['a']", "{'a': 1} x", "{'a': b}", "{**{}}", "{1}", "(" * 999],
)
def test_only_dictionaries_of_literals_are_read(line):
    with pytest.raises(ValueError):
        records.parse_record(LITERALS, line)


def test_ids_are_texts(tmp_path):
    ids = ["007", "7", "7.0", "0xf4240", "1000000", "1e3", "True", "a b", "\u65e5"]
    rows = [(user, item, time) for time, (user, item) in enumerate(zip(ids * 2, ids + ids[::-1]))]
    assert histories(read(write(tmp_path, "ratings.csv", as_csv(rows)))[0]) == plainly(rows)


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
    assert histories(sequences) == {"a": ["3", "2", "1"]} and not report.bad


def test_the_first_time_that_is_one_says_the_kind_of_all(tmp_path):
    rows = [("a", str(place), time) for place, time in enumerate(["0x10", "soon", "9", "5", "2020-01-01", "7"])]
    sequences, report = read(write(tmp_path, "a.csv", as_csv(rows)), bad_rows="skip")
    assert histories(sequences) == {"a": ["3", "5", "2"]} and report.read["actions"] == 3


def test_columns_are_taken_by_name_and_by_number(tmp_path):
    header = ("when", "what", "who")
    rows = [(2, "1", "a"), (1, "2", "a")]
    named = {"user_column": "who", "item_column": "what", "time_column": "when"}
    path = write(tmp_path, "a.csv", as_csv(rows, header))
    assert histories(read(path, **named)[0]) == {"a": ["2", "1"]}
    assert histories(read(path, **{**named, "time_column": "none"})[0]) == {"a": ["1", "2"]}
    path = write(tmp_path, "b.txt", as_text(rows, " "))
    assert histories(read(path, user_column="3", item_column="2", time_column="1")[0]) == {"a": ["2", "1"]}


def test_the_guess_prefers_the_names_that_mean_the_thing():
    names = ["reviewerName", "asin", "reviewTime", "unixReviewTime", "reviewerID"]
    found = Columns("reviews.json").layout_from_names(JSON, names)
    assert (found.user, found.item, found.time) == ("reviewerID", "asin", "unixReviewTime")


@pytest.mark.parametrize(
    ("file", "sizes"),
    [
        ("ml-100k-u.data.gz", (943, 1_682, 100_000)),
        ("ml-latest-small-2018-ratings.csv.gz", (610, 9_724, 100_836)),
        ("amazon-2014-Musical_Instruments_5.json.gz", (1_429, 900, 10_261)),
    ],
)
def test_real_files_are_read_with_their_columns_guessed(real_file, file, sizes):
    sequences, report = read(real_file(file))
    assert (sequences.num_users, sequences.num_items, sequences.num_actions) == sizes
    assert not report.bad and "no time" not in report.columns


def test_the_whole_of_ml_1m_is_filtered_to_table_1(real_file):
    sequences, report = read(real_file("ml-1m-full-seq.txt.gz"), min_item_actions=5)
    assert report.read == {"users": 6_040, "items": 3_706, "actions": 1_000_209}
    assert (sequences.num_users, sequences.num_items, sequences.num_actions) == (6_040, 3_416, 999_611)


# Several files


HALVES = {"b.csv": ROWS[:2], "a.csv": ROWS[2:]}


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "logs").mkdir()
    for name, rows in HALVES.items():
        write(tmp_path / "logs", name, as_csv(rows))
    return tmp_path / "logs"


def test_several_files_are_one_source_in_the_order_of_their_names(logs):
    rows = HALVES["a.csv"] + HALVES["b.csv"]
    for path in (logs / "*.csv", [logs / "b.csv", logs / "a.csv"], [logs / "*.csv", logs / "a.csv"]):
        assert histories(read(path)[0]) == plainly(rows)
        in_order = plainly([(user, item, 0) for user, item, _ in rows])
        assert histories(read(path, time_column="none")[0]) == in_order


def test_a_folder_is_its_parquet_files(tmp_path):
    write(tmp_path, "part-1.parquet", as_parquet(ROWS[:3]))
    (tmp_path / "day.parquet").mkdir()  # as Spark writes one table
    write(tmp_path / "day.parquet", "part-0.parquet", as_parquet(ROWS[3:]))
    write(tmp_path, "_SUCCESS", b"")
    for unfinished in ("_tmp.parquet", ".part-2.parquet", "_temporary/0/part-3.parquet", "a/.b/part-4.parquet"):
        (tmp_path / unfinished).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path, unfinished, as_parquet([("nobody", "x", 1), ("nobody", "y", 2)]))
    sequences, report = read(tmp_path)
    assert histories(sequences) == plainly(ROWS[3:] + ROWS[:3]) and report.read["actions"] == len(ROWS)


def test_the_folders_of_hive_are_a_column(tmp_path):
    for day, rows in {"day=10": [("a", "x"), ("b", "y")], "day=9": [("a", "z"), ("b", "z")]}.items():
        (tmp_path / day).mkdir()
        pd.DataFrame(rows, columns=["user", "item"]).to_parquet(tmp_path / day / "part-0.parquet")
    sequences, report = read(tmp_path)
    assert report.columns == "user 'user', item 'item', time 'day'"
    assert histories(sequences) == {"a": ["z", "x"], "b": ["z", "y"]}
    assert histories(read(tmp_path, item_column="day", time_column="none")[0]) == {"a": ["10", "9"], "b": ["10", "9"]}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.csv", b"user_id,movie_id,timestamp\na,1,2\n", "c.csv: its columns are user 'user_id', item 'movie_id'"),
        ("c.csv", b"user_id,item_id\na,1\n", "c.csv: its columns are user 'user_id', item 'item_id', the order"),
        ("c.csv", b"user_id,item_id,timestamp\na,1\n", "c.csv, row 2: expected 3 columns, found 2"),
        ("c.csv", b"user_id,item_id,timestamp\na,1,2020-01-01\n", "c.csv, row 2: the time is"),
        ("c.csv", b"", "c.csv: the file is empty"),
    ],
)
def test_the_file_that_differs_is_named(logs, name, content, words):
    write(logs, name, content)
    assert words in refusal(logs / "*.csv")


def test_skipped_rows_of_several_files_are_counted_together(logs):
    for name in ("c.csv", "d.csv"):
        write(logs, name, as_csv([*ROWS, ("", "lamp", 1)]))
    _, report = read(logs / "*.csv", bad_rows="skip")
    assert report.bad == {"the user's id is missing": (2, "c.csv, row 8")}


def test_a_pattern_and_a_folder_without_files_are_refused(logs):
    assert "*.tsv: no such file" in refusal(logs / "*.tsv")
    assert f"name others by a pattern: '{logs}/*.csv'" in refusal(logs)
    os.mkfifo(logs / "pipe.csv")
    assert f"{logs / 'pipe.csv'}: is not a plain file" in refusal(logs / "pipe.csv")


def test_a_list_of_files_survives_json(logs):
    asked = Interactions([logs / "a.csv", str(logs / "*.csv")], min_user_actions=2)
    again = Interactions(**json.loads(json.dumps(asked.to_dict())))
    assert again == asked and again.name == asked.name
    assert Interactions(logs / "*.csv").name == Interactions(f"{logs}/").name == "own-logs"


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
CUT = 1_577_836_800
"""2020-01-01, in seconds."""


@settings(max_examples=40, deadline=None)
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
        assert "the times must have one unit" in refusal(path, test_from="2020-01-01")
        return
    sequences, report = read(path, test_from="2020-01-01")
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


@settings(max_examples=40, deadline=None)
@given(st.permutations(["user", "item", "rating", "time"]), st.sampled_from([*UNITS, "date"]), st.integers(0, 99))
def test_four_columns_without_a_header_are_read_by_their_values(folder, order, unit, seed):
    rng = np.random.default_rng(seed)
    seconds = rng.integers(CUT - 10**8, CUT + 10**8, 12).tolist()
    texts = [
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second)) if unit == "date" else str(second * UNITS[unit])
        for second in seconds
    ]
    table = {
        "user": [f"{n % 4}" for n in range(12)],
        "item": [f"{n % 5}" for n in range(12)],
        "rating": [f"{n % 5 + 1}" for n in range(12)],
        "time": texts,
    }
    rest = [name for name in order if name != "time"]
    rows = list(zip(*(table[name] for name in order)))
    expected = plainly(list(zip(table[rest[0]], table[rest[1]], seconds)))
    for header in (None, ["0", "1", "2", "3"]):
        sequences, report = read(write(folder, "plain.csv", as_text(rows, ",", header)))
        assert histories(sequences) == expected
        assert f"time {'column ' if header is None else ''}" in report.columns
        is_told = order[3] != "time"
        assert report.doubt == (f"its columns have no names; their values say: {report.columns}" if is_told else "")


def test_a_guess_is_told_once(tmp_path, capsys):
    rows = [f"{user},{item},{CUT + item},3" for user in range(3) for item in range(10, 14)]
    own = b4r.Interactions(write(tmp_path, "a.csv", "\n".join(rows).encode()))
    for _ in range(2):  # the second time, from the kept conversion
        b4r.load(own, tmp_path)
        assert capsys.readouterr().err.count("have no names; their values say: user column 1, ") == 1
    pairs = ["0,1", *(f"{user},{item}" for user in range(3) for item in range(10, 14))]
    sequences = b4r.load(b4r.Interactions(write(tmp_path, "b.csv", "\n".join(pairs).encode())), tmp_path)
    assert sequences.num_actions == 13
    assert capsys.readouterr().err.count("its first line, 0 and 1, may be a header") == 1


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(UNITS)), st.lists(st.sampled_from([0, -1, 253402300799, 10**13 - 1]), max_size=3))
def test_times_outside_the_unit_of_most_are_warned_of(folder, unit, odd):
    rows = [("a", f"i{n}", (CUT + n) * UNITS[unit]) for n in range(9)]
    odd = [time for time in odd if not any(count_units(np.array([time])).values())]
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        read(write(folder, "a.csv", as_csv([*rows, *(("a", "odd", time) for time in odd)])))
    told = f"{len(odd)} of the {9 + len(odd)} times, in {UNIT_NAMES[unit]}, are not from 1980 to 2099"
    assert (told in errors.getvalue()) == bool(odd)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["1,1577836800,1577836801,5", "1,1577836802,1577836803,4"], "give --time_column=2 or --time_column=3"),
        (["1,2020-01-01,2020-01-02,5", "1,2020-01-03,2020-01-04,4"], "give --time_column=2 or --time_column=3"),
        (["1,10,3,5", "1,11,4,4"], "give --time_column=3 or --time_column=4"),
        (["1,10,300,500", "1,11,400,40"], "give --time_column=3 or --time_column=4"),
    ],
)
def test_values_that_can_be_read_in_two_ways_are_refused(tmp_path, rows, words):
    path = write(tmp_path, "a.csv", "\n".join(rows).encode())
    assert words in refusal(path)
    assert read(path, time_column="4")[0].num_actions == 2


@pytest.mark.parametrize("zone", [" UTC", "UTC", " GMT", "Z", " +00:00", "+0000"])
def test_names_of_the_zone_are_read(tmp_path, zone):
    rows = [("a", "x", f"2020-01-02 10:00:00{zone}"), ("a", "y", f"2020-01-01 10:00:00.5{zone}")]
    assert histories(read(write(tmp_path, "a.csv", as_csv(rows)))[0]) == {"a": ["y", "x"]}


@pytest.mark.parametrize("bad", [1, 4])
def test_skipping_is_advised_only_where_few_rows_are_bad(tmp_path, bad):
    rows = [("a", f"i{place}", "01/02/2020" if place >= 6 - bad else place) for place in range(6)]
    message = refusal(write(tmp_path, "a.csv", as_csv(rows)))
    assert ("--bad_rows=skip skips such rows" in message) == (bad == 1) and ("as 4 of 6 rows are" in message) == (
        bad == 4
    )


@pytest.mark.parametrize("stem", ["track", "song", "book", "product", "game", "movie"])
@pytest.mark.parametrize("who", ["user", "customer"])
def test_ids_are_preferred_to_names(tmp_path, stem, who):
    header = (who, stem, f"{who}_id", f"{stem}_id", "time")
    path = write(tmp_path, "a.csv", as_csv([("Ann", "Song", "1", "7", 1), ("Ann", "Song", "1", "8", 2)], header))
    assert histories(read(path)[0]) == {"1": ["7", "8"]}


NEAR = 1_700_000_000_000_000_000
"""Nanoseconds, of which float64 holds every 256th."""


@settings(max_examples=25, deadline=None)
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
def test_times_in_a_type_that_cannot_hold_their_order_are_warned_of(times, capfd):
    b4r.interactions(pa.table({"user": ["a", "a"], "item": ["x", "y"], "time": times}))
    assert "times that differ may become equal" in capfd.readouterr().err


def test_a_zone_in_some_times_alone_is_refused():
    moments = [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)]
    frame = pd.DataFrame({"user": ["a", "a"], "item": ["x", "y"], "time": pd.Series(moments, dtype=object)})
    with pytest.raises(UserError, match="column time must have a zone in all of its times or in none"):
        b4r.interactions(frame)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 10**6)), min_size=12), st.randoms())
def test_the_order_of_the_rows_changes_neither_numbers_nor_the_fingerprint(folder, actions, random):
    rows = [(f"{user}" if user % 3 else f"0{user}", f"{item}", 13 * time + item) for user, item, time in actions]
    rows = list({(user, time): (user, item, time) for user, item, time in rows}.values())
    rows += [("z", "0", 1), ("z", "1", 2)]
    shuffled = random.sample(rows, len(rows))
    first, second = (read(write(folder, "a.csv", as_csv(some)))[0] for some in (rows, shuffled))
    assert first.fingerprint == second.fingerprint
    keys = [(not user.isdigit() or user[0] == "0", len(user), user) for user in first.users.tolist() if user != "0"]
    assert [key for key in keys if not key[0]] == sorted(key for key in keys if not key[0])
    counts = first.vocabulary.counts.tolist()
    assert counts == sorted(counts, reverse=True)
    numbered = list(zip([-count for count in counts], map(int, first.vocabulary.items)))
    assert numbered == sorted(numbered)
