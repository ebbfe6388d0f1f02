"""Odd inputs that are read right, or refused with words that help: a list that must never get worse."""

import csv
import datetime
import gzip
import importlib
import io
import json
import pickle
import tarfile
import zipfile
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import bert4rec_tf as b4r

XYZ = {"a": ["x", "y", "z"], "b": ["y", "x"]}
ROWS = [("a", "z", 30), ("b", "x", 20), ("a", "x", 10), ("b", "y", 10), ("a", "y", 20)]
"""Users a and b, in no order."""

BASE, ZONES = 1_600_000_000, (None, datetime.UTC)
FRAME = pd.DataFrame(ROWS, columns=["user", "item", "time"])
TEXT = "user,item,time\n" + "".join(f"{user},{item},{time}\n" for user, item, time in ROWS)


def with_times(times, header="user,item,time", separator=","):
    """The rows, with these texts in place of the times 10, 20 and 30."""
    body = [separator.join((user, item, times[time // 10 - 1])) for user, item, time in ROWS]
    return "\n".join([header, *body, ""])


def with_ids(users, items):
    """The rows, with other ids, and their histories."""
    names = {**dict(zip("ab", users)), **dict(zip("xyz", items))}
    text = "user,item,time\n" + "".join(f"{names[user]},{names[item]},{time}\n" for user, item, time in ROWS)
    return text, {names[user]: [names[item] for item in history] for user, history in XYZ.items()}


def parquet(table):
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()


def tar_archive(mode):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        entry = tarfile.TarInfo("a.csv")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT.encode()))
    return file.getvalue()


def zip_archive(*names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, TEXT)
    return file.getvalue()


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


RECORDS = [{"user": user, "item": item, "time": time} for user, item, time in ROWS]
NO_HEADER = {"columns": "user,item,time"}

FILES = {
    "plain": (TEXT, XYZ),
    "a NUL in another column": (TEXT.replace("time\n", "time,x\n").replace("0\n", "0,\0\n"), XYZ),
    "a NUL in an id": with_ids(("a\0b", "b"), "xyz"),
    "emoji": with_ids(("\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467"), ("\U0001f3ae", "y", "z")),
    "right to left": with_ids(("\u05d0\u05d1", "b"), ("\u0645\u0631\u062d\u0628\u0627", "y", "z")),
    "5,000 characters": with_ids(("a" * 5_000, "b"), ("x" * 5_000, "y", "z")),
    "quotes": (
        with_ids(('"a ""great"" one"', "b"), "xyz")[0],
        {'a "great" one': XYZ["a"], "b": XYZ["b"]},
    ),
    "commas in quotes": (with_ids(('"a, b"', "b"), "xyz")[0], {"a, b": XYZ["a"], "b": XYZ["b"]}),
    "leading zeros": with_ids(("007", "7"), ("01", "1", "001")),
    "numbers of 64 bits": with_ids((str(2**63 - 1), str(2**63)), (str(2**64), "-1", str(10**25))),
    "hexadecimal ids": with_ids(("0x10", "16"), ("1e3", "1000", "True")),
    "blank ids": (TEXT.replace("b,y", " ,y"), "user's id is missing"),
    "no id": (TEXT.replace("b,y", ",y"), "row 5: the user's id is missing"),
    "the word None": (TEXT.replace("b,y", "None,y"), "keep_missing_words"),
    "the word None, kept": (
        TEXT.replace("b,", "None,"),
        {"a": XYZ["a"], "None": XYZ["b"]},
        {"keep_missing_words": True},
    ),
    "blanks around cells": (TEXT.replace(",", " , "), XYZ),
    "a mark of byte order": ("\ufeff" + TEXT, XYZ),
    "Windows line ends": (TEXT.replace("\n", "\r\n"), XYZ),
    "old Mac line ends": (TEXT.replace("\n", "\r"), XYZ),
    "no last line end": (TEXT.rstrip(), XYZ),
    "blank lines": (TEXT.replace("\n", "\n\n"), XYZ),
    "UTF-16": (TEXT.encode("utf-16"), "UTF-16"),
    "UTF-16 without a mark": (TEXT.encode("utf-16-be"), "UTF-16"),
    "UTF-16 with names that nobody knows": (TEXT.replace("user", "kunde").encode("utf-16"), "UTF-16"),
    "a mark before an id": with_ids(("\ufeffa", "b"), "xyz"),
    "a repeated header with blanks and a mark": (f"{TEXT}\ufeff{TEXT.replace(',', ', ')}", XYZ),
    "cp1252 in another column": (
        TEXT.replace("time\n", "time,title\n").replace("0\n", "0,caf\xe9\n").encode("cp1252"),
        XYZ,
    ),
    "cp1252 in an id": (TEXT.replace("a,", "\xe9,").encode("cp1252"), "not UTF-8"),
    "semicolons": (TEXT.replace(",", ";"), XYZ),
    "tabs": (TEXT.replace(",", "\t"), XYZ),
    "tabs in .tsv": ("a.tsv", TEXT.replace(",", "\t"), XYZ),
    "tabs between quotes": ("a.tsv", FRAME.to_csv(sep="\t", index=False, quoting=csv.QUOTE_ALL), XYZ),
    "tabs between quoted texts": (
        "a.tsv",
        FRAME.replace({"x": '12" vinyl'}).to_csv(sep="\t", index=False, quoting=csv.QUOTE_NONNUMERIC),
        {"a": ['12" vinyl', "y", "z"], "b": ["y", '12" vinyl']},
    ),
    "tabs and single quotes of inches": (
        "a.tsv",
        TEXT.replace(",", "\t").replace("x", '12"'),
        {"a": ['12"', "y", "z"], "b": ["y", '12"']},
    ),
    "double colons without a header": ("a.dat", TEXT[15:].replace(",", "::"), XYZ, NO_HEADER),
    "blanks without a header": ("a.txt", TEXT[15:].replace(",", " "), XYZ, NO_HEADER),
    "an index of pandas": (FRAME.to_csv(), XYZ),
    "RecBole's header": (TEXT.replace("user,item,time", "user_id:token,item_id:token,timestamp:float"), XYZ),
    "camel case": (TEXT.replace("user,item,time", "userId,movieId,timestamp"), XYZ),
    "gzip": ("a.csv.gz", gzip.compress(TEXT.encode()), XYZ),
    "gzip cut short": ("a.csv.gz", gzip.compress(TEXT.encode() * 50)[:60], "a.csv.gz: cut short"),
    "gzip with a damaged end": ("a.csv.gz", gzip.compress(TEXT.encode())[:-8] + b"\0" * 8, "a.csv.gz: damaged"),
    "text under the name of gzip": ("a.csv.gz", TEXT, "not packed with gzip"),
    "Excel": (
        "a.xlsx",
        zip_archive("[Content_Types].xml", "xl/worksheets/sheet1.xml"),
        "an Excel file; save it as CSV",
    ),
    "Excel before 2007": ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Excel file; save it as CSV"),
    "a zip archive": (zip_archive("a.csv"), "unpack it"),
    "a zip archive without files": (zip_archive(), "unpack it"),
    "a tar archive": ("a.tar", tar_archive("w"), "unpack it"),
    "a packed tar archive": ("a.tar.gz", tar_archive("w:gz"), "unpack it"),
    "a pickle": ("a.pkl", pickle.dumps(FRAME), "a.pkl: is no text; save it as CSV, JSON lines or Parquet"),
    "a row too short": (TEXT + "a,q\n", "row 7: expected 3 columns, found 2"),
    "a quote that stays open": (TEXT + 'a,"q,5\n', "quote is never closed"),
    "a quote in the header that stays open": ('"' + TEXT, "line 1: a quote is never closed"),
    "nothing": ("", "the file is empty"),
    "columns that differ by a sign": (
        TEXT.replace("user", "user_id,userid").replace("\na", "\na,c").replace("\nb", "\nb,d"),
        "Add --user_column=user_id or --user_column=userid",
    ),
    "a column of users beside that of other ids": (
        "user_id,user,item,time\n" + "".join(f"7,{user},{item},{BASE}\n" for user in "abc" for item in "xyz"),
        "several columns may have the users: user_id (7, 7, 7); user (a, a, a)",
    ),
    "guests without an id beside their names": (
        f"user_id,user,item,time\n,guest 1,x,{BASE}\n,guest 2,x,{BASE}\n1,bob,x,{BASE}\n1,bob,y,{BASE + 1}\n",
        "row 2: the user's id is missing",
    ),
    "ids that Excel rounded": (with_ids(("1E+11", "b"), "xyz")[0], "an id is written as a rounded number"),
    "ids that pandas made fractions": (with_ids(("1.2345678901234568e+18", "b"), "xyz")[0], "a rounded number"),
    "ids that R shortened": (with_ids("ab", ("1e+05", "y", "z"))[0], "row 3: an id is written as a rounded number"),
    "quotes between tabs under a bare header": (
        with_ids("ab", ('"x"', '"y"', '"z"'))[0].replace(",", "\t"),
        XYZ,
    ),
    "quotes between tabs around some ids": (with_ids("ab", ('"x"', "y", "z"))[0].replace(",", "\t"), XYZ),
    "what pandas writes between tabs": (
        FRAME.replace({"x": '12" vinyl'})
        .assign(title='two\nlines\n"and" quotes', note="a\ttab")
        .to_csv(sep="\t", index=False),
        {"a": ['12" vinyl', "y", "z"], "b": ["y", '12" vinyl']},
    ),
    "quotes between blanks, as R writes them": (
        "a.txt",
        '"user" "item" "time"\n' + "".join(f'"{user}" "{item} {item}" {time}\n' for user, item, time in ROWS),
        {user: [f"{item} {item}" for item in items] for user, items in XYZ.items()},
    ),
    "quotes between blanks below a header without any": (
        "a.txt",
        "user item time\n" + "".join(f'"{user}" "{item}" {time}\n' for user, item, time in ROWS),
        XYZ,
    ),
    "quotes between tabs around titles alone": (
        "user\titem\ttitle\ttime\n"
        + "".join(f'{user}\t{item}\t"Title"\t{time}\n' for user, item, time in ROWS)
        + 'b\tz\t"open title\t40\n',
        "row 7: a quote is never closed; if quotes are plain characters there, read it in pandas with",
    ),
    "quotes between tabs around lines": (
        "user\titem\ttitle\ttime\n"
        + "".join(f'"{user}"\t"{item}"\t"Title"\t{time}\n' for user, item, time in ROWS)
        + '"b"\t"z"\t"two\nlines"\t40\n"b"\t"w"\t"Title"\t50\n',
        {**XYZ, "b": [*XYZ["b"], "z", "w"]},
    ),
    "quotes between tabs, one of them open": (
        "user\titem\ttitle\ttime\n" + "".join(f'"{user}"\t"{item}"\t"Heroes\t{time}\n' for user, item, time in ROWS),
        "row 2: an opening quote takes in the text up to a later one: '\"Heroes'; if quotes are plain characters there",
    ),
    "quotes between tabs that would swallow rows": (
        "user\titem\ttitle\ttime\n"
        + "".join(f"{user}\t{item}\tx\t{time}\n" for user, item, time in ROWS * 300)
        + 'a\tx\t"1\t9\na\tx\t2\t9\na\tx\t"3\t9\n',
        "row 1502: an opening quote takes in the text up to a later one: '\"1'",
    ),
    "quotes after blanks between tabs": (
        with_ids("ab", (' "x"', ' "y"', ' "z"'))[0].replace(",", "\t"),
        "row 2: an id has a blank before its quotes",
    ),
    "quotes between blanks in aligned columns": (
        "a.txt",
        "user item time\n" + "".join(f'{user}  "{item}"   {time}\n' for user, item, time in ROWS),
        "quotes between several blanks cannot be read",
    ),
    "quotes between blanks around items alone": (
        "a.txt",
        "user item time\n" + "".join(f'{user} "{item} {item}" {time}\n' for user, item, time in ROWS),
        {user: [f"{item} {item}" for item in items] for user, items in XYZ.items()},
    ),
    "quotes between tabs that close in a later row": (
        "user\titem\ttitle\ttime\n"
        + 'a\tx\t"Weird\t1\n'
        + "".join(f"{user}\t{item}\tx\t{time}\n" for user, item, time in ROWS)
        + 'a\tx\t12"\t9\n',
        "row 2: an opening quote takes in the text up to a later one: '\"Weird'",
    ),
    "quotes after blanks": (
        "user, item, time\n" + "".join(f'"{user}", "{item}", {time}\n' for user, item, time in ROWS),
        "row 2: an id has a blank before its quotes",
    ),
    "a header of two lines": (
        '"user\nid",item,note\na,x,n\na,y,n\na,z,n\nb,y,n\nb,x,n\n',
        XYZ,
        {"time_column": "none"},
    ),
    "cells that could name columns": (
        "who,what,segment,kind,time\n" + "".join(f"{user},{item},member,book,{time}\n" for user, item, time in ROWS),
        XYZ,
        {"user_column": "who", "item_column": "what"},
    ),
    "hours in a name of two words": (
        with_times(["2020-01-01,9", "2020-01-01,12", "2020-01-01,15"], "user,item,date,orderHour"),
        XYZ,
        {"time_column": "date,orderHour", "test_from": "2020-01-01T12:30"},
    ),
    "times that Excel rounded": (with_times(["1.50E+12", "1.51E+12", "2E+12"]), "row 2: the time was rounded"),
    "times with exponents that say all": (with_times([f"{BASE + n:.12E}" for n in range(3)]), XYZ),
    "a day and hours": (
        with_times(["2020-01-01,9", "2020-01-01,12", "2020-01-01,15"], "user,item,date,hour"),
        XYZ,
        {"time_column": "date,hour", "test_from": "2020-01-01T12:30"},
    ),
    "a day and no hour": (
        with_times(["2020-01-01,9:00", "2020-01-01,", "2020-01-01,15:00"], "user,item,date,clock"),
        "row 3: the time is missing",
        {"time_column": "date,clock"},
    ),
    "dates": (with_times(["2020-01-01", "2020-01-02", "2020-02-01"]), XYZ),
    "dates and times": (with_times(["2020-01-01 09:00:00", "2020-01-01 09:30", "2020-01-01 10:00:00.5"]), XYZ),
    "hours without a zero": (with_times(["2020-01-01 9:00", "2020-01-01 09:30:00", "2020-01-01 10:00"]), XYZ),
    "days in numbers": (with_times(["20200131", "20200201", "20200303"]), XYZ),
    "days in numbers that begin with the day": (with_times(["31012020", "1022020", "3032020"]), "seems to be DDMMYYYY"),
    "days in numbers that begin with the month": (
        with_times(["1312020", "2012020", "3032020"]),
        "seems to be MMDDYYYY",
    ),
    "zones": (with_times(["2020-01-01T09:00:00Z", "2020-01-01 09:00:01 UTC", "2020-01-02T00:00:00+00:00"]), XYZ),
    "mixed offsets": (
        with_times(["2020-01-01T12:00:00+05:00", "2020-01-01T08:00:00Z", "2020-01-01T07:00:00-03:00"]),
        XYZ,
    ),
    "times with and without a zone": (
        with_times(["2020-01-01", "2020-01-02T00:00:00Z", "2020-01-03"]),
        "not of the same kind",
    ),
    "a day that is none": (with_times(["2020-01-31", "2020-02-30", "2020-03-01"]), "row 3: the date does not exist"),
    "days of Britain": (with_times(["01/02/2020", "02/02/2020", "03/02/2020"]), 'format="%d.%m.%Y"'),
    "days of Germany": (with_times(["01.02.2020", "02.02.2020", "03.02.2020"]), 'format="%d.%m.%Y"'),
    "days with names of months": (with_times(["1 Feb 2020", "Feb 2 2020", "3 February 2020"]), 'format="%d.%m.%Y"'),
    "years first, with slashes": (with_times(["2020/01/01", "2020-01-02", "2020/02/01 10:00"]), XYZ),
    "Unix seconds": (with_times([str(BASE + n) for n in range(3)]), XYZ),
    "Unix milliseconds": (with_times([str((BASE + n) * 1_000) for n in range(3)]), XYZ),
    "nanoseconds of 64 bits": (with_times([str(BASE * 10**9 + n) for n in range(3)]), XYZ),
    "fractions of seconds": (with_times([f"{BASE}.{n}" for n in range(3)]), XYZ),
    "serials of Excel": (with_times(["43830.25", "43830.5", "43831"]), XYZ),
    "two units": (with_times([str(BASE), str(BASE + 5), str(BASE * 1_000)]), "must have one unit"),
    "negative times": (with_times(["-30", "-20", "-10"]), XYZ),
    "a time that is missing": (with_times(["1", "", "3"]), "row 3: the time is missing"),
    "JSON lines": ("a.jsonl", json_lines(RECORDS), XYZ),
    "JSON with numbers for ids": (
        "a.jsonl",
        json_lines([{**row, "item": "xyz".index(row["item"])} for row in RECORDS]),
        {"a": ["0", "1", "2"], "b": ["1", "0"]},
    ),
    "JSON with other keys and lists": ("a.jsonl", json_lines([{**row, "tags": [1, {"b": 2}]} for row in RECORDS]), XYZ),
    "a JSON array": ("a.json", json.dumps(RECORDS), "JSON array"),
    "JSON that is no object": ("a.jsonl", json_lines(RECORDS) + "[1, 2]\n", "line 6: not a record"),
    "dictionaries of Python": ("a.json", "".join(f"{row!r}\n" for row in RECORDS), XYZ),
    "Parquet": ("a.parquet", parquet(pa.Table.from_pandas(FRAME)), XYZ),
    "Parquet with a time stamp": (
        "a.parquet",
        parquet(pa.Table.from_pandas(FRAME.assign(time=pd.to_datetime(FRAME["time"], unit="D")))),
        XYZ,
    ),
    "Parquet with dictionaries": (
        "a.parquet",
        parquet(pa.Table.from_pandas(FRAME.astype({"user": "category", "item": "category"}))),
        XYZ,
    ),
    "Parquet that is cut": ("a.parquet", parquet(pa.Table.from_pandas(FRAME))[:99], "cut short or damaged"),
}


def outcome(call):
    """The histories of what is read, or the message of the error."""
    try:
        sequences = call()
    except b4r.UserError as error:
        return str(error)
    return {user: sequences.vocabulary.decode(sequences[row]) for row, user in enumerate(sequences.users.tolist())}


def check(found, expected):
    if isinstance(expected, str):
        assert isinstance(found, str) and expected in found and "\n" not in found, found
    elif expected is not None:
        assert found == expected
    else:
        assert isinstance(found, dict), found


@pytest.mark.parametrize("kind", FILES)
def test_an_odd_file_is_read_right_or_clearly_refused(kind, tmp_path):
    name, content, expected, options = "a.csv", *FILES[kind][:2], {}
    if isinstance(FILES[kind][0], str) and FILES[kind][0].startswith("a.") and len(FILES[kind]) > 2:
        name, content, expected, *rest = FILES[kind]
        options = rest[0] if rest else {}
    elif len(FILES[kind]) > 2:
        options = FILES[kind][2]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    check(outcome(lambda: b4r.load(b4r.Interactions(tmp_path / name, **options), tmp_path)), expected)


def polars_frame():
    return importlib.import_module("polars").DataFrame(FRAME.to_dict("list"))


def polars_categories():
    polars = importlib.import_module("polars")
    return polars_frame().with_columns(polars.col("user", "item").cast(polars.Categorical))


def polars_times():
    polars = importlib.import_module("polars")
    return polars_frame().with_columns(polars.from_epoch("time", time_unit="s"))


def duckdb_relation():
    frame = FRAME  # noqa: F841  DuckDB finds it by its name
    return importlib.import_module("duckdb").sql("select * from frame")


def reversed_rows():
    return FRAME.iloc[::-1].set_axis([0] * len(FRAME))


def days():
    return pd.to_datetime(FRAME["time"], unit="D")


FRAMES = {
    "a DataFrame": (lambda: FRAME, XYZ),
    "reversed rows with a repeated index": (reversed_rows, XYZ),
    "an index of several levels": (lambda: FRAME.assign(k=range(5), l=0).set_index(["k", "l"]), XYZ),
    "ArrowDtype": (lambda: FRAME.astype({n: pd.ArrowDtype(pa.string()) for n in ("user", "item")}), XYZ),
    "ArrowDtype for times": (lambda: FRAME.assign(time=days().astype(pd.ArrowDtype(pa.timestamp("us")))), XYZ),
    "ArrowDtype for all": (
        lambda: FRAME.convert_dtypes(dtype_backend="pyarrow"),
        XYZ,
    ),
    "categories": (lambda: FRAME.astype("category").astype({"time": int}), XYZ),
    "categories that do not occur": (lambda: FRAME.assign(item=pd.Categorical(FRAME["item"], list("qzyxw"))), XYZ),
    "categories of numbers": (
        lambda: FRAME.assign(item=FRAME["item"].map("xyz".index).astype("category")),
        {"a": ["0", "1", "2"], "b": ["1", "0"]},
    ),
    "objects of several types": (
        lambda: FRAME.assign(item=FRAME["item"].replace({"z": 3}).astype(object)),
        "column item has values of several types; make them texts: frame['item'].astype(str)",
    ),
    "polars": (polars_frame, XYZ),
    "categories of polars": (polars_categories, XYZ),
    "times of polars": (polars_times, XYZ),
    "DuckDB": (duckdb_relation, XYZ),
    "an Arrow table": (lambda: pa.Table.from_pandas(FRAME), XYZ),
    "a record batch": (lambda: pa.RecordBatch.from_pandas(FRAME), XYZ),
    "large texts": (
        lambda: pa.table(
            {n: pa.array(FRAME[n], pa.large_string()) for n in ("user", "item")} | {"time": FRAME["time"]}
        ),
        XYZ,
    ),
    "Int64 with a gap": (
        lambda: FRAME.assign(user=pd.array([1, 2, None, 2, 1], "Int64")),
        "row 3: the user's id is missing",
    ),
    "fractions for ids": (lambda: FRAME.assign(user=[1.0, 2, 1, 2, np.nan]), "column user: ids must be texts or whole"),
    "whole numbers of 64 bits": (
        lambda: FRAME.assign(user=FRAME["user"].map({"a": 2**63, "b": 2**64 - 1}).astype("uint64")),
        {str(2**63): XYZ["a"], str(2**64 - 1): XYZ["b"]},
    ),
    "decimals for times": (lambda: FRAME.assign(time=FRAME["time"].map(Decimal)), XYZ),
    "dates of Python": (lambda: FRAME.assign(time=days().dt.date), XYZ),
    "moments of Python": (lambda: FRAME.assign(time=days().dt.to_pydatetime().astype(object)), XYZ),
    "a zone": (lambda: FRAME.assign(time=days().dt.tz_localize("Asia/Tokyo")), XYZ),
    "a zone in some": (
        lambda: FRAME.assign(
            time=pd.Series([datetime.datetime(2020, 1, n + 1, tzinfo=ZONES[n % 2]) for n in range(5)], dtype=object)
        ),
        "in all of its times or in none",
    ),
    "bytes for ids": (
        lambda: FRAME.assign(user=FRAME["user"].str.encode("utf-8")),
        "ids must be texts or whole numbers",
    ),
    "truth values for ids": (lambda: FRAME.assign(user=FRAME["user"] == "a"), "ids must be texts or whole numbers"),
    "a missing time": (lambda: FRAME.assign(time=days().where(FRAME["time"] > 10)), "the time is missing"),
    "events in lists": (lambda: FRAME.assign(action=[["buy"]] * 5), XYZ),
    "times in lists": (
        lambda: FRAME.assign(day=[["2020-01-01"]] * 5),
        "column day: a part of a time must be a number, a date or a text",
        {"time": "day,time"},
    ),
    "events that are asked for in lists": (
        lambda: FRAME.assign(action=[["buy"]] * 5),
        "column action: events must be texts or numbers",
        {"event_column": "action", "events": "buy"},
    ),
    "a column twice": (lambda: pd.concat([FRAME, FRAME[["item"]]], axis=1), "has 2 columns 'item'"),
    "no table": (lambda: [("a", "x")], "must be a pandas DataFrame or an Arrow table"),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_an_odd_table_is_read_right_or_clearly_refused(kind):
    make, expected, *options = FRAMES[kind]
    try:
        frame = make()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    check(outcome(lambda: b4r.interactions(frame, **dict(*options))), expected)
