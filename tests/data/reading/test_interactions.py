"""Files of one's own: every layout against a plain reading, and any bytes at all."""

import csv
import gzip
import io
import json
import string

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import blocks, conversion, delimited, layouts, records, whole_numbers
from bert4rec_tf.foundation.errors import UserError

ROWS = [
    ("ann", "lamp", 30),
    ("bob", "lamp", 10),
    ("ann", "a b", 20),
    ("bob", "007", 10),
    ("ann", "7", 20),
    ("cat", "7", 5),
]
HEADER = ("user_id", "item_id", "timestamp")


def plainly(rows, min_user=1, min_item=1):
    """Users' items by time and row, after the filter; by hand."""
    of_users, of_items = {}, {}
    for user, item, _ in rows:
        of_users[user] = of_users.get(user, 0) + 1
        of_items[item] = of_items.get(item, 0) + 1
    kept = {}
    for user, item, time in rows:
        if of_users[user] >= min_user and of_items[item] >= min_item:
            kept.setdefault(user, []).append((time, item))
    kept = {user: actions for user, actions in kept.items() if len(actions) >= max(min_user, 2)}
    return {user: [item for _, item in sorted(actions, key=lambda action: action[0])] for user, actions in kept.items()}


def histories(sequences):
    return {user: sequences.vocabulary.decode(sequences[row]) for row, user in enumerate(sequences.users)}


def as_text(rows, separator, header=None, end="\n"):
    lines = [separator.join(header)] if header else []
    return "".join(f"{line}{end}" for line in lines + [separator.join(map(str, row)) for row in rows]).encode()


def as_csv(rows, header=HEADER):
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return file.getvalue().encode()


def as_json(rows, names=HEADER):
    return "".join(json.dumps(dict(zip(names, row))) + "\n" for row in rows).encode()


def as_literals(rows, names=HEADER):
    def literal(value):
        return "u" + ascii(value) if isinstance(value, str) else repr(value)

    def line(row):
        return "{" + ", ".join(f"u'{name}': {literal(value)}" for name, value in zip(names, row)) + "}\n"

    return "".join(map(line, rows)).encode()


def as_parquet(rows, names=HEADER):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(dict(zip(names, map(list, zip(*rows))))), file)
    return file.getvalue()


LAYOUTS = {
    "ratings.csv": lambda rows: as_csv(rows),
    "semicolons.csv": lambda rows: as_text(rows, ";", HEADER),
    "ratings.tsv": lambda rows: as_text(rows, "\t", HEADER),
    "u.data": lambda rows: as_text([(user, item, 3, time) for user, item, time in rows], "\t"),
    "ratings.dat": lambda rows: as_text([(user, item, 3, time) for user, item, time in rows], "::"),
    "recbole.inter": lambda rows: as_text(rows, "\t", ("user_id:token", "item_id:token", "timestamp:float")),
    "reviews.json": lambda rows: as_json(rows, ("reviewerID", "asin", "unixReviewTime")),
    "reviews.jsonl": lambda rows: as_json(rows),
    "steam.json": lambda rows: as_literals(rows, ("username", "product_id", "date")),
    "ratings.parquet": lambda rows: as_parquet(rows),
}
PARTS = {"ratings.parquet"}


def write(folder, name, content):
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def read(path, **options):
    return conversion.convert(Interactions(str(path), **options))


def refusal(path, **options):
    with pytest.raises(UserError) as refused:
        read(path, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_read_and_its_columns_are_guessed(tmp_path, name, packed):
    if packed and name in PARTS:
        pytest.skip("Parquet packs by itself")
    sequences, report = read(write(tmp_path, name + packed, LAYOUTS[name](ROWS)))
    assert histories(sequences) == plainly(ROWS) == {"ann": ["a b", "7", "lamp"], "bob": ["lamp", "007"]}
    assert sequences.num_left_out == 1 and report.read == {"users": 3, "items": 4, "actions": 6}


def test_pairs_without_times_stay_in_the_order_of_the_file(tmp_path):
    sequences, report = read(write(tmp_path, "pairs.txt", b"b 1\na 2\nb 3\n a\t 1 \n\nb 2\n"))
    assert histories(sequences) == {"b": ["1", "3", "2"], "a": ["2", "1"]}
    assert "the order of the file" in report.columns


IDS = st.text(string.ascii_letters + string.digits + " ,;:'\"\\|é日-_", min_size=1, max_size=4).map(
    lambda text: f"x{text}y"
)
TIMES = st.integers(-3, 3) | st.integers(-(2**40), 2**40)
TABLES = st.lists(st.tuples(IDS | st.just("x"), st.sampled_from("abc") | IDS, TIMES), min_size=1, max_size=25)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("interactions")


@settings(deadline=None, max_examples=150)
@given(rows=TABLES, name=st.sampled_from(["a.csv", "a.json", "a.steam.json", "a.parquet"]), least=st.integers(1, 3))
def test_whatever_rows_are_written_are_read_back_filtered_and_in_order(folder, rows, name, least):
    rows = [("x", "a", 0), ("x", "b", 0), ("x", "c", 0), *rows]
    written = {"a.csv": as_csv, "a.json": as_json, "a.steam.json": as_literals, "a.parquet": as_parquet}[name](rows)
    path, expected = write(folder, name, written), plainly(rows, least, least)
    options = {"min_user_actions": least, "min_item_actions": least}
    if len({item for items in expected.values() for item in items}) < 2:
        assert "left" in refusal(path, **options)
        return
    sequences, report = read(path, **options)
    assert histories(sequences) == expected
    assert report.read["actions"] == len(rows)


def slowly(monkeypatch):
    monkeypatch.setattr(delimited.Reader, "_read_at_once", lambda self, block, time_type: None)
    monkeypatch.setattr(records.Reader, "_read_at_once", lambda self, block: None)


FIELDS = st.sampled_from(
    [
        *["a", "b", "c", "7", "07", " a ", "", "nan", "NULL", "é", '"a"', '"a, b"', '"a""b"', 'a"b', '"', "x y", "\t"],
        *["1.5", "-3", "1e3", "2020-01-02", "inf"],
    ]
)
LINES = st.builds(
    "{}{}".format, st.lists(FIELDS, min_size=2, max_size=4).map(",".join), st.sampled_from(["\n", "\r\n", "\r"])
)
GOOD_LINES = st.builds("{},{},{}\n".format, st.sampled_from("abc"), st.sampled_from("123"), st.integers(0, 9))
CSVS = st.lists(LINES | GOOD_LINES, max_size=8).map(lambda lines: "user,item,time\na,1,1\na,2,2\n" + "".join(lines))
JSONS = st.lists(
    st.dictionaries(
        st.sampled_from(["user", "item", "time", "x"]),
        st.none()
        | st.integers(-5, 5)
        | st.sampled_from(["a", "b", "", "1", "2020-01-02", 1.5, True, [1], "\ud800", "a\n"]),
    ).map(json.dumps)
    | st.sampled_from(["", "{", "[1]", "null", '{"user": "a", "item": "b", "time": NaN}', '{"user":1}{"user":2}']),
    max_size=6,
).map(lambda lines: '{"user": "a", "item": "1", "time": 1}\n{"user": "a", "item": "2", "time": 2}\n' + "\n".join(lines))


def outcome(path, policy):
    try:
        sequences, report = read(path, bad_rows=policy)
    except UserError as error:
        return str(error)
    return histories(sequences), sequences.num_left_out, report


@settings(deadline=None, max_examples=300)
@given(content=CSVS.map(str.encode) | JSONS.map(str.encode), policy=st.sampled_from(["refuse", "skip"]))
@example(content=b'user,item,time\na,1,1\na,2,2\n"b,1,1\n', policy="skip")
@example(content=b'user,item,time\na,1,1\na,2,2\n"b"c,1,1\nb,"x"y"z",2\n', policy="skip")
@example(content=b'user,item,time\na,"1\n",1\na,2,2\na,3,3\n', policy="skip")
@example(content=b"user,item,time\na,1,1\na,2,2\na,3,0x10\n", policy="skip")
def test_reading_at_once_and_row_by_row_have_the_same_outcome(folder, content, policy):
    path = write(folder, "same.json" if content.startswith(b"{") else "same.csv", content)
    quick = outcome(path, policy)
    with pytest.MonkeyPatch.context() as patch:
        slowly(patch)
        assert outcome(path, policy) == quick


@settings(deadline=None, max_examples=300)
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
def test_any_bytes_are_read_or_refused_in_one_line(folder, content, name, packed, policy):
    path = folder / name
    path.write_bytes(gzip.compress(content) if packed else content)
    try:
        sequences, _ = read(path, bad_rows=policy)
    except UserError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        assert sequences.num_users > 0


@settings(deadline=None, max_examples=300)
@given(
    name=st.sampled_from(["ratings.csv", "reviews.json", "steam.json", "ratings.parquet"]),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=4),
    policy=st.sampled_from(["refuse", "skip"]),
)
@example(name="ratings.parquet", edits=[(0.02, 1, b"\xfd")], policy="skip")
@example(name="reviews.json", edits=[(0.01, 1, b"\xe3")], policy="skip")
def test_a_good_file_with_other_bytes_here_and_there_is_read_or_refused_in_one_line(folder, name, edits, policy):
    content = LAYOUTS[name](ROWS)
    for share, removed, put in edits:
        place = int(share * len(content))
        content = content[:place] + put + content[place + removed :]
    outcome = read_or_refuse(write(folder, f"damaged-{name}", content), policy)
    assert outcome is None or "\n" not in outcome


def read_or_refuse(path, policy):
    try:
        read(path, bad_rows=policy)
    except UserError as error:
        return str(error)


def test_text_that_is_not_utf_8_is_refused_in_parquet_and_no_matter_in_the_name_of_a_json_key(tmp_path):
    for damage in ((b"lamp", b"la\xfdp"), (b"user_id", b"us\xe3r_id")):
        assert "damaged" in refusal(write(tmp_path, "a.parquet", as_parquet(ROWS).replace(*damage)))
    path = write(tmp_path, "a.json", as_json(ROWS).replace(b"user_id", b"us\xe3r_id"))
    assert histories(read(path, user_column="1")[0]) == plainly(ROWS)


@settings(deadline=None, max_examples=300)
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
def test_python_dictionaries_are_read_as_python_reads_them(record, old):
    def literal(value):
        return ("u" if old else "") + (ascii if old else repr)(value) if isinstance(value, str) else repr(value)

    line = "{" + ", ".join(f"{literal(key)}: {literal(value)}" for key, value in record.items()) + "}"
    names = tuple(record)
    assert records.literal_fields(line, names) == [record[name] for name in names]
    assert records.literal_fields(line, ("not there at all",)) == [None]


@pytest.mark.parametrize(
    "line",
    ["{'a': __import__('os')}", "{'a': 1", "{'a' 1}", "['a']", "{'a': 1} x", "{'a': b}", "{**{}}", "{1}", "(" * 999],
)
def test_what_is_no_dictionary_of_literals_is_not_read(line):
    with pytest.raises(ValueError):
        records.literal_fields(line, ("a",))


def test_a_review_that_quotes_a_key_does_not_deceive():
    line = """{u'text': u"so 'username': u'x', said", u'username': u'it\\'s me', 'product_id': u'7'}"""
    assert records.literal_fields(line, ("username", "product_id")) == ["it's me", "7"]


def test_ids_are_texts(tmp_path):
    rows = [
        ("007", "1.0", 1),
        ("007", "1", 2),
        ("7", "01", 3),
        ("7", "1e3", 4),
        ("a b", "True", 5),
        ("a b", "\u65e5", 6),
    ]
    assert histories(read(write(tmp_path, "ratings.csv", as_csv(rows)))[0]) == plainly(rows)


@settings(deadline=None)
@given(
    st.lists(st.integers(-30, 300).map(str) | st.integers(-(2**63), 2**63 - 1).map(str), max_size=30),
    st.sampled_from([None, None, "007", "-0", "+5", "", " 5", "5.0", "1e3", "x", "9" * 20]),
    st.integers(1, 3),
)
def test_whole_numbers_are_coded_by_first_appearance_and_nothing_else_is(texts, odd, chunks):
    texts = [*texts, odd] if odd is not None else texts
    column = pa.chunked_array([texts[place::chunks] for place in range(chunks)], pa.string())
    found = whole_numbers.coded(column)
    if odd is not None:
        assert found is None
    elif found is not None:
        expected = column.dictionary_encode().combine_chunks()
        assert found.to_pylist() == column.to_pylist()
        assert found.dictionary.to_pylist() == expected.dictionary.to_pylist()
    else:
        assert not texts or max(map(int, texts)) - min(map(int, texts)) > len(texts)


@pytest.mark.parametrize("rows", [["0xf4240", "1000000"], ["07", "7"], ["7", "70"]])
def test_ids_that_look_like_one_number_are_two(tmp_path, rows):
    table = [("u", row, time) for time, row in enumerate(rows)]
    assert histories(read(write(tmp_path, "a.csv", as_csv(table)))[0]) == {"u": rows}


def test_repeated_rows_are_repeated_actions(tmp_path):
    rows = [("a", "1", 1), ("a", "1", 1), ("a", "2", 1)]
    assert histories(read(write(tmp_path, "ratings.csv", as_csv(rows)))[0]) == {"a": ["1", "1", "2"]}


def test_dates_with_and_without_a_zone_are_ordered(tmp_path):
    plain = as_csv([("a", "1", "2020-01-02"), ("a", "2", "2020-01-01 23:59:59.5"), ("a", "3", "2019-12-31T00:00:00")])
    zoned = as_csv([("a", "1", "2020-01-02T00:00:00Z"), ("a", "2", "2020-01-02T00:30:00+01:00")])
    assert histories(read(write(tmp_path, "a.csv", plain))[0]) == {"a": ["3", "2", "1"]}
    assert histories(read(write(tmp_path, "b.csv", zoned))[0]) == {"a": ["2", "1"]}


def test_whole_and_broken_times_in_different_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "SIZE", 16)
    rows = [("a", str(number), 10 - number + (0.5 if number == 7 else 0)) for number in range(10)]
    assert histories(read(write(tmp_path, "a.csv", as_csv(rows)))[0]) == plainly(rows)


@settings(deadline=None, max_examples=60)
@given(rows=TABLES, size=st.integers(4, 60), bad=st.booleans())
def test_the_size_of_blocks_makes_no_difference(folder, rows, size, bad):
    rows = [("x", "a", 0), ("x", "b", 0), *rows]
    path = write(folder, "blocks.csv", as_csv(rows) + (b"x,1\n" if bad else b""))
    whole = outcome(path, "refuse"), outcome(path, "skip")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "SIZE", size)
        assert (outcome(path, "refuse"), outcome(path, "skip")) == whole


def test_columns_are_taken_by_name_and_by_number(tmp_path):
    header = ("when", "what", "who")
    rows = [(2, "1", "a"), (1, "2", "a")]
    named = {"user_column": "who", "item_column": "what", "time_column": "when"}
    path = write(tmp_path, "a.csv", as_csv(rows, header))
    assert histories(read(path, **named)[0]) == {"a": ["2", "1"]}
    assert histories(read(path, **{**named, "time_column": "none"})[0]) == {"a": ["1", "2"]}
    path = write(tmp_path, "b.txt", as_text(rows, " "))
    assert histories(read(path, user_column="3", item_column="2", time_column="1")[0]) == {"a": ["2", "1"]}


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


def test_the_guess_prefers_the_names_that_mean_the_thing():
    asked = Interactions("reviews.json")
    found = layouts.of_names(
        asked, layouts.JSON, ["reviewerName", "asin", "reviewTime", "unixReviewTime", "reviewerID"]
    )
    assert (found.user, found.item, found.time) == ("reviewerID", "asin", "unixReviewTime")
