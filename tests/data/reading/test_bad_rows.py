"""Bad rows of every kind whatever stands beside them, what is no mistake, and files that cannot be understood."""

import csv
import gzip
import io
import re
import warnings
from collections import Counter

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.interaction_files import (
    HEADER,
    ROWS,
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
from bert4rec_tf.data.reading import blocks
from bert4rec_tf.data.reading import rows as bad_rows
from bert4rec_tf.foundation.errors import UserError

LATIN = "caf\u00e9".encode("latin-1")
BAD = {
    b"a{}3": bad_rows.BAD_WIDTH.format(4, 2),
    b"a{}3{}1{}x{}y": bad_rows.BAD_WIDTH.format(4, 5),
    b"a{}" + LATIN: bad_rows.BAD_WIDTH.format(4, 2),
    b"NaN{}3{}1{}x": bad_rows.NO_USER,
    b"a{}NaN{}1{}x": bad_rows.NO_ITEM,
    b"None{}3{}1{}x": bad_rows.NO_USER,
    b"a{}3{}yesterday{}x": bad_rows.BAD_TIME,
    b"a{}3{}nan{}x": bad_rows.MISSING_TIME,
    b"a{}3{}inf{}x": bad_rows.BAD_TIME,
    b"a{}3{}1e999{}x": bad_rows.BAD_TIME,
    b"a{}3{}0x10{}x": bad_rows.BAD_TIME,
    b"a{}3{}2020-01-01{}x": bad_rows.OTHER_KIND,
    b"a{}3{}31.01.2020{}x": bad_rows.OTHER_DATE,
    b"a{}" + LATIN + b"{}1{}x": bad_rows.NO_UTF8,
    LATIN + b"{}3{}1{}x": bad_rows.NO_UTF8,
}
EMPTY = {
    b"{}3{}1{}x": bad_rows.NO_USER,
    b" \t {}3{}1{}x": bad_rows.NO_USER,
    b"a{}{}1{}x": bad_rows.NO_ITEM,
    b"a{}3{}{}x": bad_rows.MISSING_TIME,
    b"{}{}{}": bad_rows.NO_USER,
}
GOOD = {
    b"a{}1{}5{}lamp": ("a", "1", 5),
    b"a{}2{}4.5{}" + LATIN: ("a", "2", 4.5),
    b"b{}1{}-1{}x": ("b", "1", -1),
    b"b {}  07{}1e3{}": ("b", "07", 1e3),
    b"\xe6\x97\xa5{}2{} 2 {}y": ("\u65e5", "2", 2),
    b"": None,
}
RECORDS = {
    b"[1, 2]": bad_rows.NO_RECORD,
    b'{"user": "a"': bad_rows.NO_RECORD,
    b'{"user": "a", "item": "1", "time": 1}{"user": "a", "item": "1", "time": 1}': bad_rows.NO_RECORD,
    b'{"item": "1", "time": 1}': bad_rows.NO_USER,
    b'{"user": "nan", "item": "1", "time": 1}': bad_rows.NO_USER,
    b'{"user": "a", "item": null, "time": 1}': bad_rows.NO_ITEM,
    b'{"user": "a", "item": 1.5, "time": 1}': bad_rows.NO_ID,
    b'{"user": true, "item": 1, "time": 1}': bad_rows.NO_ID,
    b'{"user": ["a"], "item": "1", "time": 1}': bad_rows.NO_ID,
    b'{"user": "a", "item": "1", "time": NaN}': bad_rows.MISSING_TIME,
    b'{"user": "a", "item": "1", "time": true}': bad_rows.BAD_TIME,
    b'{"user": "a", "item": "1", "time": {"$date": "2020-01-31"}}': bad_rows.BAD_TIME,
    b'{"user": "a", "item": "1"}': bad_rows.MISSING_TIME,
    b'{"user": "a\\n", "item": "1", "time": 1}': bad_rows.MANY_LINES,
    b'{"user": "\\ud800", "item": "1", "time": 1}': bad_rows.NO_UTF8,
    b'{"user": "' + LATIN + b'", "item": "1", "time": 1}': bad_rows.NO_UTF8,
    b'{"user": "a", "item": "1", "time": "\\ud800"}': bad_rows.BAD_TIME,
}
GOOD_RECORDS = {
    b'{"user": "a", "item": "1", "time": 5}': ("a", "1", 5),
    b'{"user": "a", "item": 2, "time": "4.5", "x": [1, {}]}': ("a", "2", 4.5),
    b'{"user": "Nan", "item": "1", "time": -1.5}': ("Nan", "1", -1.5),
    b'{"user": "a", "user": "b", "item": 2, "time": 3}': ("b", "2", 3),
    b" ": None,
}


def filled(lines, separator):
    return {line.replace(b"{}", separator): expected for line, expected in lines.items()}


def lines_of(name):
    """The good and the bad lines of a layout: line -> its row, line -> what is wrong with it."""
    if name == "a.json":
        return GOOD_RECORDS, RECORDS
    separator = {"a.csv": b",", "a.tsv": b"\t", "a.dat": b"::", "a.txt": b" "}[name]
    if name == "a.txt":
        good = {line: row for line, row in GOOD.items() if not line.endswith(b"{}")}
        return filled(good, b" ") | {b"a 2 4.5 x": ("a", "2", 4.5)} | filled(good, b"\t  "), filled(BAD, b" ") | filled(
            BAD, b" \t"
        )
    bad = {line: kind for line, kind in EMPTY.items() if name != "a.tsv" or b"\t" not in line}
    return filled(GOOD, separator), filled(BAD | bad, separator)


@st.composite
def files(draw):
    name = draw(st.sampled_from(["a.csv", "a.tsv", "a.dat", "a.txt", "a.json"]))
    good, bad = lines_of(name)
    starts = [b"a 1 5 lamp", b"a 2 4.5 x"] if name == "a.txt" else draw(st.permutations(list(good)[:2]))
    body = draw(st.lists(st.sampled_from([*good, *bad]), max_size=8))
    return name, [*starts, *body], draw(st.sampled_from([b"\n", b"\r\n", b"\r"])), draw(st.sampled_from([20, 8 << 20]))


def check(folder, name, lines, end, size):
    """Reads a file of some lines, of which a table says what each is."""
    good, bad = lines_of(name)
    rows = [good[line] for line in lines if good.get(line)]
    unit, counted = ("line", lines) if name == "a.json" else ("row", [line for line in lines if line])
    kinds = [(number, bad[line]) for number, line in enumerate(counted, start=1) if line in bad]
    path = write(folder, name, end.join(lines))
    options = {} if name == "a.json" else {"columns": "user,item,time,_"}
    options |= {"block_size": size, "duplicates": "keep"}
    sequences, report = read(path, bad_rows="skip", **options)
    assert histories(sequences) == plainly(rows)
    first = {kind: number for number, kind in reversed(kinds)}
    counts = Counter(kind for _, kind in kinds)
    skipped = [note for note in report.notes if note.startswith("skipped")]
    assert set(skipped) == {
        f"skipped {counts[kind]} bad rows: {kind} (the first: {unit} {first[kind]})" for kind in first
    }
    if kinds:
        number, kind = kinds[0]
        assert f"{path}, {unit} {number}: {kind}" in refusal(path, **options)


@settings(deadline=None)
@given(files())
@example(("a.txt", [b"a 1 5 lamp", b"a\t  2\t  4.5\t  " + LATIN], b"\n", blocks.BLOCK_SIZE))
@example(("a.txt", [b"a 1 5 lamp", b"a\t  2\t  4.5\t  " + LATIN, b"a 3"], b"\n", blocks.BLOCK_SIZE))
@example(("a.json", [*list(GOOD_RECORDS)[:2], b"[1, 2]"], b"\r\n", 35))  # the first block ends between \r and \n
def test_each_bad_row_is_named_or_skipped(folder, file):
    name, lines, end, size = file
    check(folder, name, lines, end, size)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.dat", "a.txt", "a.json"])
def test_all_kinds_of_bad_rows_in_one_file_are_named(tmp_path, name):
    good, bad = lines_of(name)
    check(tmp_path, name, [line for pair in zip([*good] * len(bad), bad) for line in pair], b"\n", 8 << 20)


TITLED = b'user,item,time,title\na,1,5,lamp\na,2,4,"two, three"\nb,1,1,x\nb,3,2,y\n'


def test_a_quoted_end_of_line_in_an_id_is_bad_and_begins_no_row(tmp_path):
    path = write(tmp_path, "a.csv", TITLED + b'a,"3\n4",1,x\n\na,3,1,"x\r\ny"\na,3\n')
    assert "row 6: an id contains a line break" in refusal(path)
    _, report = read(path, bad_rows="skip")
    for kind, row in ((bad_rows.MANY_LINES, 6), (bad_rows.BAD_WIDTH.format(4, 2), 8)):
        assert f"skipped 1 bad rows: {kind} (the first: row {row})" in report.notes


@pytest.mark.parametrize("policy", ["refuse", "skip"])
@pytest.mark.parametrize("end", [b'a,3,1,"x\nb,2,3,z\n', b'a,3,1,"x', b'a,"zzz,1', b'a,"3', b'"'])
def test_a_quote_that_is_never_closed_refuses_the_file(tmp_path, end, policy):
    path = write(tmp_path, "ratings.csv", TITLED + end)
    for size in (10, blocks.BLOCK_SIZE):
        assert f"{path}, row 6: a quote is never closed" in refusal(path, bad_rows=policy, block_size=size)


PARTS = st.sampled_from(['"', '""', ",", "\n", "\r\n", "\r", "a", "1", "x,1,2\n", '"\n', "\xff"])


@settings(deadline=None)
@given(st.lists(PARTS, max_size=40).map("".join))
@example('1","aaa, \n,aa\n')
def test_quotes_are_read_as_the_csv_module_does_in_blocks_of_any_size(folder, text):
    path = write(folder, "quotes.csv", b"user,item,time\na,1,1\na,2,2\n" + text.encode("latin-1"))
    outcomes = []
    for size in (9, 8 << 20):
        try:
            sequences, report = read(path, size, bad_rows="skip")
            outcomes.append((histories(sequences), report.notes))
        except UserError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
    counts = Counter(len(fields) for fields in csv.reader(io.StringIO(text, newline="")) if fields)
    if isinstance(outcomes[0], str):
        assert "a quote is never closed" in outcomes[0]
    else:
        expected = {bad_rows.BAD_WIDTH.format(3, width): count for width, count in counts.items() if width != 3}
        notes = [re.match(r"skipped ([0-9]+) bad rows: (expected .*) \(the first", note) for note in outcomes[0][1]]
        found = {note[2]: int(note[1]) for note in notes if note}
        assert found == expected


def test_a_line_beyond_the_limit_is_refused():
    stream = io.BytesIO(TITLED + b"a,1,2," + b"x" * 200 + b"\n")
    with pytest.raises(UserError, match=r"ratings\.csv, line 6: longer than 100 bytes"):
        list(blocks.read_blocks(stream, "ratings.csv", 10, 100))


def test_bad_rows_of_parquet_are_named_by_their_number(tmp_path):
    rows = [*ROWS, (None, "lamp", 1), ("ann", "", 1), ("ann", "lamp", None)]
    path = write(tmp_path, "ratings.parquet", as_parquet(rows))
    assert f"{path}, row 7: {bad_rows.NO_USER}" in refusal(path)
    sequences, report = read(path, bad_rows="skip")
    assert histories(sequences) == plainly(ROWS)
    for kind, row in ((bad_rows.NO_USER, 7), (bad_rows.NO_ITEM, 8), (bad_rows.MISSING_TIME, 9)):
        assert f"skipped 1 bad rows: {kind} (the first: row {row})" in report.notes


HANDLED = {
    "a mark of the byte order": b"\xef\xbb\xbf" + TITLED,
    "mixed line ends": TITLED.replace(b"\n", b"\r\n", 2).replace(b"y\n", b"y\r"),
    "blank lines before the header": b"\n \r\n" + TITLED,
    "quotes around everything": TITLED.replace(b"a,1,5", b'"a","1","5"'),
    "quotes inside a field": TITLED.replace(b"lamp", b'lamp of 5" by 3"'),
    "a quote inside a field": TITLED.replace(b"lamp", b'lamp of 5"'),
    "quotes inside fields beside quoted ends of lines": TITLED.replace(b"lamp", b'5"').replace(b"two,", b'""\n""'),
    "an end of line in another column": TITLED.replace(b"two,", b"two\r\n"),
}


@pytest.mark.parametrize("size", [11, 8 << 20])
@pytest.mark.parametrize("kind", HANDLED)
def test_unusual_but_valid_files_are_read_the_same(tmp_path, kind, size):
    sequences, report = read(write(tmp_path, "ratings.csv", HANDLED[kind]), size)
    assert histories(sequences) == {"a": ["2", "1"], "b": ["1", "3"]} and not report.notes


NOT_UNDERSTOOD = {
    "a name that is not there": ("a.csv", TITLED, {"user_column": "usr"}, "Unknown column", "Did you mean 'user'?"),
    "a number that is not there": (
        "u.data",
        b"1\t2\t3\t40\n",
        {"user_column": "1", "item_column": "9"},
        "columns go by their names, of: 1, 2, 3, 40. Received: 9. A text without a header takes --columns=user,item",
    ),
    "a header in another language": (
        "a.csv",
        b"Kunde,Artikel-Nr,Kaufdatum\na,b,2020-01-01\n",
        {},
        "Row 1: Kunde | Artikel-Nr | Kaufdatum; row 2: a | b | 2020-01-01",
        "if the first line is a header, give --user_column, --item_column, --time_column",
    ),
    "no known user": (
        "a.csv",
        b"who,item\na,1\n",
        {"item_column": "item"},
        "Give --user_column; the columns are: who, item",
    ),
    "three columns without a header": ("a.csv", b"a,1,2\n", {}, "--columns=user,item,time"),
    "one column": (
        "a.csv",
        b"a\nb\n",
        {},
        "expected at least two columns, found 'a'; remove the lines above the header",
    ),
    "bars between columns": (
        "a.csv",
        TITLED.replace(b",", b"|"),
        {},
        "found 'user|item|time|title'; add --separator=\"|\"",
    ),
    "blanks in .csv": ("a.csv", b"user item\na 1\n", {}, 'add --separator=" "'),
    "commas in .tsv": ("a.tsv", b"user,item\na,1\n", {}, 'add --separator=","'),
    "a title": (
        "a.csv",
        b"All, of May\n\n" + TITLED,
        {},
        "line 3: names the columns; remove the lines above this header",
    ),
    "a comment": ("a.txt", b"# a b\n" + TITLED.replace(b",", b"|"), {}, "line 2: names the columns; remove the lines"),
    "a title above unknown names": ("a.csv", b"Mai\nKunde,Artikel\na,b\n", {}, "remove the lines above the header"),
    "the same column twice": ("a.csv", TITLED, {"user_column": "item"}, "must differ"),
    "text of 16 bits": ("a.csv", TITLED.decode().encode("utf-16"), {}, "save it as UTF-8"),
    "nothing": ("a.csv", b"\n\n", {}, "the file is empty"),
    "a header only": ("a.csv", b"user,item\n", {}, "no user has two actions left"),
    "one user with one item": ("a.csv", b"user,item\na,1\na,1\n", {}, "only one item left"),
    "a filter that leaves nothing": (
        "a.csv",
        TITLED,
        {"min_user_actions": 9},
        "left are those with --min_user_actions=9",
    ),
    "an archive cut short": ("a.csv.gz", gzip.compress(TITLED)[:40], {}, "cut short"),
    "an archive": ("a.csv", b"PK\x03\x04" + TITLED, {}, "is packed; unpack it"),
    "a packed file by another name": ("a.csv", gzip.compress(TITLED), {}, "under a name that ends in .gz"),
    "a JSON array": ("a.json", b'[{"user": "a", "item": 1},\n{"user": "a", "item": 2}]', {}, "begins a JSON array"),
    "a JSON object of many lines": ("a.json", b'{\n"user": "a"\n}', {}, "line 1: neither a whole JSON object"),
    "packed parquet": ("a.parquet.gz", gzip.compress(as_parquet(ROWS)), {}, "is not read from .gz"),
    "fractions for ids": ("a.parquet", as_parquet([(1.5, "a", 1)]), {}, "ids must be texts or whole numbers"),
    "bad rows only": (
        "a.csv",
        b"user,item,date\na,1,01/02/2020\na,2,01/03/2020\n",
        {"bad_rows": "skip"},
        f"nothing to learn from; skipped 2 bad rows: {bad_rows.OTHER_DATE} (the first: row 2)",
    ),
    "no parquet": ("a.parquet", b"PAR1 and more", {}, "damaged"),
}


@pytest.mark.parametrize("kind", NOT_UNDERSTOOD)
def test_a_file_that_cannot_be_understood_is_refused(tmp_path, kind):
    name, content, options, *words = NOT_UNDERSTOOD[kind]
    path = tmp_path / name
    path.write_bytes(content)
    line = refusal(path, **options)
    assert all(word in line for word in words), line


def test_a_separator_that_a_message_names_reads_the_file(tmp_path):
    path = write(tmp_path, "a.csv", b"user|item|time\na|1|1\na|2|2\nb|1|1\n")
    with pytest.raises(UserError, match=r'add `separator="\|"` \(options of'):
        b4r.fit(path)
    assert histories(read(path, separator="|")[0]) == {"a": ["1", "2"], "b": ["1"]}


def test_json_is_read_with_a_byte_order_mark_and_other_keys_in_another_encoding(tmp_path):
    path = write(tmp_path, "a.json", blocks.BOM + as_json(ROWS).replace(b"user_id", b"us\xe3r_id"))
    assert histories(read(path, user_column="us\ufffdr_id")[0]) == plainly(ROWS)


TIMED = "user,item,time\na,1,{}\na,2,{}\na,3,{}\n"
NOT_TIMES = {
    "2^63": ("9", f"{2**63}", "8"),
    "2^63 - 1, beside a fraction that float64 holds": ("9.5", f"{2**63 - 1}", "8"),
    "beyond 2^63, between whole numbers that no fraction tells apart": (f"{2**62 + 1}", "1e19", f"{2**62}"),
    "a long text": ("2020-01-02", "2020-01-01" + "T" * 60_000, "2020-01-01"),
    "many digits": ("2", "1" * 40_000, "1"),
}


@pytest.mark.parametrize("kind", NOT_TIMES)
def test_rows_with_invalid_times_are_bad_and_the_others_keep_their_order(tmp_path, kind):
    path = write(tmp_path, "a.csv", TIMED.format(*NOT_TIMES[kind]).encode())
    assert f"row 3: {bad_rows.BAD_TIME}" in refusal(path)
    assert histories(read(path, bad_rows="skip")[0]) == {"a": ["3", "1"]}


WORDS = st.sampled_from(sorted(bad_rows.MISSING - {""}))


@settings(max_examples=examples(40), deadline=None)
@given(WORDS, st.sampled_from(["user", "item"]), st.sampled_from(["a.csv", "a.json", "a.parquet"]))
def test_a_word_for_a_missing_value_is_an_id_only_on_request(folder, word, role, name):
    odd = ("a", word, 9) if role == "item" else (word, "lamp", 9)
    rows = [*ROWS, odd, (*odd[:2], 10)]
    make = {"a.csv": as_csv, "a.json": as_json, "a.parquet": as_parquet}[name]
    path = write(folder, name, make(rows))
    assert f"the {role}'s id is missing" in (line := refusal(path)) and "keep_missing_words keeps such words" in line
    assert histories(read(path, bad_rows="skip")[0]) == plainly(ROWS)
    assert histories(read(path, keep_missing_words=True)[0]) == plainly(rows)
    frame = pd.DataFrame(rows, columns=HEADER)
    assert histories(b4r.interactions(frame, bad_rows="skip")) == plainly(ROWS)
    assert histories(b4r.interactions(frame, keep_missing_words=True)) == plainly(rows)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(2, 60))
@example(30, 3)
def test_a_user_with_an_implausible_share_is_named(folder, share, num_users):
    rows = [(f"u{user}", f"i{(user + place) % 7}", place) for user in range(num_users) for place in range(4)]
    rows += [("guest", f"i{place % 9}", place) for place in range(num_users * share)]
    with warnings.catch_warnings(record=True, action="always") as caught:
        sequences, report = read(write(folder, "a.csv", as_csv(rows)))
        report.warn_of_doubts(sequences)
    is_much = num_users * share > max(5 * 4, 0.1 * len(rows))
    assert any("user 'guest' has" in str(one.message) for one in caught) == is_much


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9))
def test_times_that_are_mostly_equal_are_named(folder, distinct):
    rows = [(f"u{user}", f"i{place}", place % distinct) for user in range(4) for place in range(10)]
    with warnings.catch_warnings(record=True, action="always") as caught:
        sequences, report = read(write(folder, "a.csv", as_csv(rows)))
        report.warn_of_doubts(sequences)
    assert any("have the time of the one before" in str(one.message) for one in caught) == ((10 - distinct) / 9 > 0.5)


@pytest.mark.parametrize(
    ("end", "is_cut"),
    [("5,c,P0", True), ("5,c,P0\n", False), ("5,c,P03", False), ("5,c,P00\n5,c,P0", True), ("5,P0,P01", False)],
)
def test_a_last_item_that_may_be_half_written_is_named(tmp_path, end, is_cut):
    content = "time,user,item\n1,a,P01\n2,a,P02\n3,b,P01\n" + end
    notes = read(write(tmp_path, "a.csv", content.encode()))[1].notes
    row = content.count("\n") + 1
    expected = f"row {row} has no line end, and no other row has its item 'P0': the file may be cut short"
    assert list(notes) == [expected] * is_cut
    renamed = content.replace("time,user,item", "item,user,time").replace("P0", "70").encode()
    assert not read(write(tmp_path, "b.csv", renamed))[1].notes


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
def test_a_single_user_is_named_and_few_rows_raise_no_doubts():
    frame = pd.DataFrame({"user": "a", "item": [1, 2, 3], "time": "2020-01-01"})
    with pytest.warns(b4r.DataNote, match="all actions are of one user, 'a'") as told:
        b4r.interactions(frame)
    assert len(told) == 1
    with pytest.warns(b4r.DataWarning, match="100% of the actions after a user's first have the time"):
        b4r.interactions(pd.concat([frame.assign(user=user) for user in range(15)]))
    b4r.interactions(pd.concat([frame.assign(user=user) for user in range(14)]))


def test_whole_numbers_that_are_written_as_fractions_are_told_of(tmp_path):
    rows = pd.DataFrame({"user": [1, None, 2, 2], "item": [5, 6, 5, 6], "time": [1, 2, 3, 4]}).dropna()
    rows.to_csv(tmp_path / "a.csv", index=False)
    with pytest.warns(b4r.DataWarning, match="the ids of all users end in .0, as '1.0', which is another id than '1'"):
        b4r.load(b4r.Interactions(tmp_path / "a.csv"))
