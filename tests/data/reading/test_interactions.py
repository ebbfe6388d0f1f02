"""Files of one's own: whatever is written in any layout is read back as a plain reading of the rows has it."""

import gzip
import json
import os
import random
import string
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.interaction_files import (
    HEADER,
    LAYOUTS,
    ROWS,
    WITHOUT_HEADER,
    as_csv,
    as_json,
    as_literals,
    as_parquet,
    as_text,
    histories,
    options_of,
    plainly,
    rated,
    read,
    refusal,
    write,
)
from support.profiles import examples

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import records
from bert4rec_tf.data.reading.columns import JSON, LITERALS, Columns
from bert4rec_tf.data.reading.conversion import list_files
from bert4rec_tf.foundation.errors import UserError


@pytest.mark.parametrize("name", [*LAYOUTS, "ratings.csv.gz", "steam.json.gz"])
def test_every_layout_is_read_and_its_columns_are_guessed(tmp_path, name):
    path = write(tmp_path, name, LAYOUTS[name.removesuffix(".gz")](ROWS))
    sequences, report = read(path, **options_of(name))
    assert histories(sequences) == plainly(ROWS) == {"ann": ["a b", "7", "lamp"], "bob": ["lamp", "007"], "cat": ["7"]}
    assert report.read == report.kept == {"users": 3, "items": 4, "actions": 6}


def test_pairs_without_times_stay_in_the_order_of_the_file(tmp_path):
    sequences, report = read(write(tmp_path, "pairs.txt", b"9 1\n8 2\n9 3\n 8\t 1 \n\n9 2\n"))
    assert histories(sequences) == {"9": ["1", "3", "2"], "8": ["2", "1"]}
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
    "a.tsv": (TEXTS, lambda rows: pd.DataFrame(rows, columns=HEADER).to_csv(sep="\t", index=False).encode()),
    "a.dat": (WORDS, lambda rows: as_text(rated(rows), "::")),
    "a.txt": (WORDS.filter(lambda text: not set(",;") & set(text)), lambda rows: with_many_blanks(rated(rows))),
}


@settings(deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(sorted(WRITERS)),
    least=st.integers(1, 3),
    duplicates=st.sampled_from(["drop", "keep"]),
    size=st.sampled_from([9, 60, 8 << 20]),
)
def test_any_written_rows_are_read_back_filtered_and_in_order(folder, data, name, least, duplicates, size):
    ids, written = WRITERS[name]
    rows = data.draw(tables(ids))
    path = write(folder, name, written(rows))
    expected = plainly(rows if duplicates == "keep" else dict.fromkeys(rows), least, least)
    options = {
        "duplicates": duplicates,
        "min_user_actions": least,
        "min_item_actions": least,
        "keep_missing_words": True,
    }
    if name in ("a.dat", "a.txt"):  # without a header, and with times that may be like ratings
        options |= WITHOUT_HEADER
    if len({item for items in expected.values() for item in items}) < 2:
        assert "left" in refusal(path, size, **options)
        return
    sequences, report = read(path, size, **options)
    assert histories(sequences) == expected
    assert report.read["actions"] == len(rows)


PACKED = gzip.compress(as_csv(ROWS))
DAMAGED = st.tuples(st.integers(0, len(PACKED) - 1), st.binary(max_size=3), st.booleans()).map(
    lambda damage: PACKED[: damage[0]] + damage[1] + PACKED[damage[0] + 1 :] * damage[2]
)


@settings(deadline=None)
@given(
    content=DAMAGED | st.binary(max_size=80) | st.text("user,item\t12 \n\r\"{}':", max_size=60).map(str.encode),
    name=st.sampled_from(["any.csv", "any.tsv", "any.txt", "any.json", "any.csv.gz", "any.parquet"]),
    packed=st.booleans(),
    policy=st.sampled_from(["refuse", "skip"]),
)
@example(content=b"\xff\xfeu\0s\0", name="any.csv", packed=False, policy="refuse")
@example(content=b"user,item,time\na,1,\xff\na,2,1\n", name="any.csv", packed=False, policy="skip")
@example(content=b'\x01\t"', name="any.csv", packed=False, policy="refuse")
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


LONG = ["{'a': '" + r"\'" * 300_000, "{'a': '" + "\\" * 600_001, "{'" * 300_000]
"""Lines that take for ever if they are looked at more than once."""


@pytest.mark.parametrize(
    "line",
    ["{'a': __import__('os')}", "{'a': 1", "{'a' 1}", "['a']", "{'a': 1} x", "{'a': b}", "{**{}}", "{1}", *LONG],
)
def test_only_dictionaries_of_literals_are_read(line):
    with pytest.raises(ValueError):
        records.parse_record(LITERALS, line)


def test_ids_are_texts(tmp_path):
    ids = ["007", "7", "7.0", "0xf4240", "1000000", "1e3", "True", "a b", "\u65e5"]
    rows = [(user, item, time) for time, (user, item) in enumerate(zip(ids * 2, ids + ids[::-1]))]
    assert histories(read(write(tmp_path, "ratings.csv", as_csv(rows)))[0]) == plainly(rows)


def test_the_guess_prefers_the_names_that_mean_the_thing():
    names = ["reviewerName", "asin", "reviewTime", "unixReviewTime", "reviewerID"]
    found = Columns("reviews.json", Interactions("x")).layout_from_sample(JSON, names, {name: [] for name in names})
    assert (found.user, found.item, found.times) == ("reviewerID", "asin", ("unixReviewTime",))


@pytest.mark.parametrize(
    ("file", "sizes"),
    [
        ("ml-100k-u.data.gz", (943, 1_682, 100_000)),
        ("ml-latest-small-2018-ratings.csv.gz", (610, 9_724, 100_836)),
        ("amazon-2014-Musical_Instruments_5.json.gz", (1_429, 900, 10_261)),
    ],
)
def test_real_files_are_read_with_their_columns_guessed(real_file, file, sizes):
    sequences, report = read(real_file(file), **(WITHOUT_HEADER if "u.data" in file else {}))
    assert (sequences.num_users, sequences.num_items, sequences.num_actions) == sizes
    assert "skipped" not in str(report) and "no time" not in report.columns


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


def test_two_stars_in_a_pattern_are_any_number_of_folders(logs):
    write(logs, "may/c.csv", as_csv(ROWS[:1]))
    write(logs, "may/1/d.csv", as_csv(ROWS[:1]))
    expected = sorted(Path(folder, name) for folder, _, names in os.walk(logs) for name in names)
    assert list_files(Interactions(logs / "**" / "*.csv")) == expected and len(expected) == 4


def test_a_folder_is_its_parquet_files(tmp_path):
    write(tmp_path, "part-1.parquet", as_parquet(ROWS[:3]))
    (tmp_path / "day.parquet").mkdir()  # as Spark writes one table
    write(tmp_path / "day.parquet", "part-0.parquet", as_parquet(ROWS[3:]))
    write(tmp_path, "_SUCCESS", b"")
    sequences, report = read(tmp_path)
    assert histories(sequences) == plainly(ROWS[3:] + ROWS[:3]) and report.read["actions"] == len(ROWS)


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
    assert "skipped 2 bad rows: the user's id is missing (the first: c.csv, row 8)" in str(report)


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


@settings(max_examples=examples(30), deadline=None)
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
