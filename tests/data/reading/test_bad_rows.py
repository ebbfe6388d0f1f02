"""Every kind of bad row, what is no mistake, and files that cannot be understood."""

import csv
import gzip
import io
import re

import pytest
from data.reading.test_interactions import ROWS, as_json, as_parquet, histories, plainly, read, refusal, write
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec_tf.data.reading import bad_rows, blocks, delimited, layouts, times

KINDS = tuple(times.TYPES)

GOOD = b'user,item,time,title\na,1,5,lamp\na,2,4,"two, three"\nb,1,1,x\nb,3,2,y\n'
BAD = {
    "too few columns": (b"a,3\n", "expected 4 columns, found 2"),
    "too many columns": (b"a,3,1,x,y\n", "expected 4 columns, found 5"),
    "no user": (b",3,1,x\n", bad_rows.NO_USER),
    "only blanks for a user": (b"  ,3,1,x\n", bad_rows.NO_USER),
    "no item": (b"a,,1,x\n", bad_rows.NO_ITEM),
    "an item that is NaN": (b"a,NaN,1,x\n", bad_rows.NO_ITEM),
    "no time": (b"a,3,,x\n", bad_rows.NO_TIME),
    "a word for a time": (b"a,3,yesterday,x\n", bad_rows.NO_TIME),
    "a time that is NaN": (b"a,3,nan,x\n", bad_rows.NO_TIME),
    "an infinite time": (b"a,3,inf,x\n", bad_rows.NO_TIME),
    "a date among numbers": (b"a,3,2020-01-01,x\n", bad_rows.NO_TIME),
    "Latin-1 in an id": ("a,caf\u00e9,1,x\n".encode("latin-1"), bad_rows.NO_UTF8),
    "an end of line in an id": (b'a,"3\n4",1,x\n', bad_rows.MANY_LINES),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_refused_with_its_line_or_passed_over_and_counted(tmp_path, kind):
    line, expected = BAD[kind]
    path = write(tmp_path, "ratings.csv", GOOD + line + b"b,2,3,z\n" + line)
    assert f"{path}, line 6: {expected}" in refusal(path)
    sequences, report = read(path, bad_rows="skip")
    assert histories(sequences) == {"a": ["2", "1"], "b": ["1", "3", "2"]}
    assert report.bad == {expected: (2, 6)}
    assert f"passed over 2 bad rows: {expected} (the first: line 6)" in str(report)


def test_a_quote_that_is_never_closed_swallows_nothing(tmp_path):
    path = write(tmp_path, "ratings.csv", GOOD + b'a,3,1,"x\nb,2,3,z\nb,1,4,z\n')
    assert f"{path}, line 6: {bad_rows.UNCLOSED}" in refusal(path)
    sequences, report = read(path, bad_rows="skip")
    assert histories(sequences) == {"a": ["2", "1"], "b": ["1", "3", "2", "1"]}
    assert report.bad == {bad_rows.UNCLOSED: (1, 6)}


def test_two_stray_quotes_do_not_hide_the_rows_between_them(tmp_path):
    path = write(tmp_path, "ratings.csv", GOOD + b'a,3,1,"x\nb,2,3,z\nb,1,4,"z\nb,2,5,"z ""z\nz"\n')
    sequences, report = read(path, bad_rows="skip")
    assert histories(sequences) == {"a": ["2", "1"], "b": ["1", "3", "2", "2"]}
    assert report.bad == {bad_rows.UNCLOSED: (2, 6)}


def rows_of(content):
    """What the row-by-row reading of a comma-separated block of three columns yields."""
    layout = layouts.Layout(layouts.TEXT, 0, 1, width=3)
    reader = delimited.Reader(layout, bad_rows.BadRows("file", skip=True))
    return list(reader._rows(blocks.Block(content.encode(), 1)))


VALUES = st.text('ab", \n\r', max_size=5)


@settings(deadline=None)
@given(
    before=st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=6),
    after=st.lists(st.sampled_from(["a,b,c", "", 'a,b"x,c', '"a",b,c']), max_size=6),
    strays=st.integers(0, 2),
)
def test_quoted_rows_are_those_of_the_standard_library_and_a_stray_quote_takes_its_line_alone(before, after, strays):
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\r\n").writerows(before)
    found = rows_of(file.getvalue() + 'a,"b,c\n' * strays + "".join(f"{line}\n" for line in after))
    expected = [list(row) for row in before] + ['a,"b,c'] * strays
    expected += [line.replace('"a"', "a").split(",") for line in after if line]
    assert [row for _, row in found] == expected
    lines = re.split(r"\r\n|\r|\n", file.getvalue())
    assert [number for number, row in found if row == 'a,"b,c'] == [len(lines) + place for place in range(strays)]


@pytest.mark.parametrize("line", ['x",",y\n', '"a,b,c\n', 'a,b,"\n', 'a,"""b,c\n'])
def test_many_odd_quotes_take_a_number_of_steps_that_grows_with_the_lines(monkeypatch, line):
    lines_parsed, begun = [], delimited.Reader._begun

    def counted(self, *lines, **options):
        lines_parsed.append(len(lines))
        return begun(self, *lines, **options)

    monkeypatch.setattr(delimited.Reader, "_begun", counted)
    assert len(rows_of(line * 500)) <= 500
    assert sum(lines_parsed) <= 4 * 500


TIME_TEXTS = st.from_regex(
    r"[-+]?[0-9x.]{1,4}(e[0-9]{1,3})?|2020-[0-9]{2}-[0-9]{2}([ T][0-9:.]{1,8}[Z+-]?[0-9:]{0,5})?"
)


@settings(deadline=None)
@given(texts=st.lists(TIME_TEXTS | st.text("0123456789-:.T Zex", max_size=12), max_size=8), kind=st.sampled_from(KINDS))
def test_the_times_that_are_none_are_found_as_one_by_one(texts, kind):
    assert times.not_of(texts, kind) == {text for text in texts if times.converted([text], kind) is None}


BAD_RECORDS = {
    "no object": (b"[1, 2]\n", bad_rows.NO_RECORD),
    "half an object": (b'{"user": "a"\n', bad_rows.NO_RECORD),
    "two objects": (
        b'{"user": "a", "item": "1", "time": 1}{"user": "a", "item": "1", "time": 1}\n',
        bad_rows.NO_RECORD,
    ),
    "no user": (b'{"item": "1", "time": 1}\n', bad_rows.NO_USER),
    "null for an item": (b'{"user": "a", "item": null, "time": 1}\n', bad_rows.NO_ITEM),
    "a fraction for an item": (b'{"user": "a", "item": 1.5, "time": 1}\n', bad_rows.NO_ID),
    "a list for a user": (b'{"user": ["a"], "item": "1", "time": 1}\n', bad_rows.NO_ID),
    "NaN for a time": (b'{"user": "a", "item": "1", "time": NaN}\n', bad_rows.NO_TIME),
    "a truth value for a time": (b'{"user": "a", "item": "1", "time": true}\n', bad_rows.NO_TIME),
    "an end of line in an id": (b'{"user": "a\\n", "item": "1", "time": 1}\n', bad_rows.MANY_LINES),
    "half a character": (b'{"user": "\\ud800", "item": "1", "time": 1}\n', bad_rows.NO_UTF8),
    "half a character for a time": (b'{"user": "a", "item": "1", "time": "\\ud800"}\n', bad_rows.NO_TIME),
}


@pytest.mark.parametrize("kind", BAD_RECORDS)
def test_a_bad_record_is_refused_with_its_line_or_passed_over(tmp_path, kind):
    line, expected = BAD_RECORDS[kind]
    rows = [("a", "1", 5), ("a", "2", 4), ("b", "1", 1), ("b", "nan", 2)]
    path = write(tmp_path, "ratings.json", as_json(rows, ("user", "item", "time")) + line)
    assert f"{path}, line 5: {expected}" in refusal(path)
    sequences, report = read(path, bad_rows="skip")
    assert histories(sequences) == {"a": ["2", "1"], "b": ["1", "nan"]} and report.bad == {expected: (1, 5)}


def test_bad_rows_of_parquet_are_named_by_their_number(tmp_path):
    rows = [*ROWS, (None, "lamp", 1), ("ann", "", 1), ("ann", "lamp", None)]
    path = write(tmp_path, "ratings.parquet", as_parquet(rows))
    assert f"{path}, row 7: {bad_rows.NO_USER}" in refusal(path)
    sequences, report = read(path, bad_rows="skip")
    assert histories(sequences) == plainly(ROWS)
    assert report.bad == {bad_rows.NO_USER: (1, 7), bad_rows.NO_ITEM: (1, 8), bad_rows.NO_TIME: (1, 9)}


HANDLED = {
    "a mark of the byte order": b"\xef\xbb\xbf" + GOOD,
    "Windows line ends": GOOD.replace(b"\n", b"\r\n"),
    "old Mac line ends": GOOD.replace(b"\n", b"\r"),
    "mixed line ends": GOOD.replace(b"\n", b"\r\n", 2).replace(b"y\n", b"y\r"),
    "no end of the last line": GOOD.rstrip(),
    "blank lines": GOOD.replace(b"\n", b"\n\n"),
    "blanks around ids": GOOD.replace(b"\na,", b"\n a ,").replace(b",1,", b", 1,"),
    "quotes around everything": GOOD.replace(b"a,1,5", b'"a","1","5"'),
    "Latin-1 in another column": GOOD.replace(b"lamp", "caf\u00e9".encode("latin-1")),
    "an end of line in another column": GOOD.replace(b"two,", b"two\r\n"),
    "a fraction for a time": GOOD.replace(b",5,", b",5.5,"),
}


@pytest.mark.parametrize("kind", HANDLED)
def test_what_is_no_mistake_is_read_the_same(tmp_path, kind):
    sequences, report = read(write(tmp_path, "ratings.csv", HANDLED[kind]))
    assert histories(sequences) == {"a": ["2", "1"], "b": ["1", "3"]} and not report.bad


COLUMNS = {
    "a name that is not there": ("a.csv", GOOD, {"user_column": "usr"}, "Unknown column", "Did you mean 'user'?"),
    "a number that is not there": (
        "u.data",
        b"1\t2\t3\t4\n",
        {"item_column": "9"},
        "`item_column` must be from 1 to 4",
    ),
    "no known user": ("a.csv", b"who,item\na,1\n", {"item_column": "item"}, "Name --user_column, one of: who, item"),
    "three columns without a header": ("a.csv", b"a,1,2\n", {}, "--time_column=none"),
    "one column": ("a.csv", b"a\nb\n", {}, "expected at least two columns"),
    "the same column twice": ("a.csv", GOOD, {"user_column": "item"}, "must differ"),
    "text of 16 bits": ("a.csv", GOOD.decode().encode("utf-16"), {}, "save it as UTF-8"),
    "nothing": ("a.csv", b"\n\n", {}, "the file is empty"),
    "a header only": ("a.csv", b"user,item\n", {}, "no user has two actions left"),
    "one user with one item": ("a.csv", b"user,item\na,1\na,1\n", {}, "only one item left"),
    "a filter that leaves nothing": ("a.csv", GOOD, {"min_user_actions": 9}, "no user has two actions left"),
    "an archive cut short": ("a.csv.gz", gzip.compress(GOOD)[:40], {}, "damaged"),
    "an archive": ("a.csv", b"PK\x03\x04" + GOOD, {}, "is packed; unpack it"),
    "a packed file by another name": ("a.csv", gzip.compress(GOOD), {}, "under a name that ends in .gz"),
    "a JSON array": ("a.json", b'[{"user": "a", "item": 1},\n{"user": "a", "item": 2}]', {}, "begins a JSON array"),
    "a JSON object of many lines": ("a.json", b'{\n"user": "a"\n}', {}, "line 1: neither a whole JSON object"),
    "packed parquet": ("a.parquet.gz", gzip.compress(as_parquet(ROWS)), {}, "is not read from .gz"),
    "bad rows only": (
        "a.csv",
        b"user,item,date\na,1,01/02/2020\na,2,01/03/2020\n",
        {"bad_rows": "skip"},
        f"nothing to learn from; passed over 2 bad rows: {bad_rows.NO_TIME} (the first: line 2)",
    ),
    "no parquet": ("a.parquet", b"PAR1 and more", {}, "damaged"),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_file_that_cannot_be_understood_is_refused(tmp_path, kind):
    name, content, options, *words = COLUMNS[kind]
    path = tmp_path / name
    path.write_bytes(content)
    line = refusal(path, **options)
    assert all(word in line for word in words), line
