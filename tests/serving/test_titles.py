"""Files of titles."""

import csv
import gzip
import io
import unicodedata

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.profiles import examples

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.titles import format_titles, read_titles, read_titles_and_tags


def test_columns_in_any_order_commas_quotes_lines_and_empty_titles(tmp_path):
    text = 'title,year,id\n"A, ""B""",1999,1\n\n,2000,02\nNA,1,nan\n"two\nlines",1,x\nagain,2,1\n'
    expected = {"1": "again", "02": "", "nan": "NA", "x": "two\nlines"}
    (tmp_path / "titles.csv").write_text(text, encoding="utf-8-sig")
    assert read_titles(tmp_path / "titles.csv") == expected
    (tmp_path / "titles.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert read_titles(tmp_path / "titles.csv.gz") == expected


@pytest.mark.parametrize(
    "content",
    [
        'movieId,title,genres\n1,Amélie (2001),Comedy|Drama\n2,"Him, Her",Drama\n',
        "ITEM_ID;Name\n1;Amélie (2001)\n2;Him, Her\n",
        "asin\tbrand\ttitle\n1\tx\tAmélie (2001)\n2\ty\tHim, Her\n",
        'id,title,artist\n1,Amélie (2001),x\n2,"Him, Her",x\n',
        "title:token_seq\titem_id:token\nAmélie (2001)\t1\nHim, Her\t2\n",
        "1::Amélie (2001)::Comedy|Drama\r\n2::Him, Her::Drama\r\n",
    ],
    ids=["MovieLens", "semicolons", "tabs", "artists that repeat", "RecBole", "double colons"],
)
def test_columns_are_found_by_their_usual_names(tmp_path, content):
    (tmp_path / "titles").write_text(content, encoding="utf-8", newline="")
    assert read_titles(tmp_path / "titles") == {"1": "Amélie (2001)", "2": "Him, Her"}


def test_the_films_of_movielens_are_in_latin_1(tmp_path):
    (tmp_path / "movies.dat").write_bytes('1::Amélie (2001)::Comedy\n2::"A"::B\n'.encode("latin-1"))
    assert read_titles(tmp_path / "movies.dat") == {"1": "Amélie (2001)", "2": '"A"'}


@pytest.mark.parametrize(
    "content",
    [
        "movieId,title,genres\n1,A,Comedy|Sci-Fi\n2,B,\n3,C, x | |y\n3,C,Drama\n",
        "1::A::Comedy|Sci-Fi\n2::B::\n3::C::Drama\n",
    ],
    ids=["MovieLens", "double colons"],
)
def test_tags_are_in_a_column_with_a_usual_name(tmp_path, content):
    (tmp_path / "titles").write_text(content, encoding="utf-8")
    titles, tags = read_titles_and_tags(tmp_path / "titles")
    assert titles == {"1": "A", "2": "B", "3": "C"}
    assert tags == {"1": ["Comedy", "Sci-Fi"], "2": [], "3": ["Drama"]}


def test_tags_of_a_table_may_be_numbers_and_lists():
    for tags, expected in (([7, 8], [["7"], ["8"]]), ([["x", "y z"], None], [["x", "y z"], []])):
        frame = pd.DataFrame({"id": ["a", "b"], "title": ["A", "B"], "category": tags})
        assert list(read_titles_and_tags(frame)[1].values()) == expected


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@settings(max_examples=examples(100))
@given(st.dictionaries(texts, texts, max_size=6))
def test_any_titles_that_were_written_are_read(tmp_path_factory, titles):
    made = io.StringIO(newline="")
    csv.writer(made).writerows([("id", "title"), *titles.items()])
    path = tmp_path_factory.getbasetemp() / "titles.csv"
    path.write_bytes(made.getvalue().encode())
    assert read_titles(path) == {unicodedata.normalize("NFC", item): title for item, title in titles.items()}


@pytest.mark.parametrize(
    ("columns", "first_id"),
    [
        ({"artist": pd.Categorical(["x", "x"]), "id": [1, 2]}, "1"),
        ({"id": pd.Categorical(["1", "2"])}, "1"),
        ({"movieId": [3, 4], "id": [1, 2]}, "3"),
        ({"item": [["x"], ["y"]], "id": [1, 2]}, "1"),
        ({"artist": ["x", "x"], "id": [1, 1]}, "x"),
    ],
)
def test_ids_are_in_a_column_without_repeats(columns, first_id):
    titles = read_titles(pd.DataFrame({**columns, "title": ["A", "B"]}))
    assert next(iter(titles)) == first_id


@settings(max_examples=examples(100))
@given(st.text(st.sampled_from("&;#x4amplt <"), max_size=9))
@example("a &amp; b")
@example("&amp;lt; &ampx &copy &#38; &")
@example("Tom & Jerry")
def test_titles_of_a_model_keep_what_looks_like_entities(tmp_path_factory, title):
    path = tmp_path_factory.getbasetemp() / "titles.csv"
    path.write_bytes(format_titles({"1": title}).encode())
    assert read_titles(path) == {"1": title}


def test_ids_in_the_index_are_named():
    with pytest.raises(UserError, match=r"Received: title; pass frame\.reset_index\(\), because the index has item$"):
        read_titles(pd.DataFrame({"item": [1], "title": ["A"]}).set_index("item"))


def test_titles_of_a_model_may_have_any_line_end_and_surrogates(tmp_path):
    titles = {"1": "Two\rlines", "2": 'Three "more"\r\nlines\n', "a\rb": "An id, not of the data", "3": "\ud83d"}
    (tmp_path / "titles.csv").write_bytes(format_titles(titles).encode())
    assert read_titles(tmp_path / "titles.csv") == {**titles, "3": "?"}


@settings(max_examples=examples(100))
@given(st.binary(max_size=60), st.sampled_from(["titles.csv", "titles.csv.gz"]))
def test_any_bytes_are_titles_or_a_users_mistake(tmp_path_factory, content, name):
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content if path.suffix == ".gz" else b"id,title\n" + content)
    try:
        read_titles(path)
    except UserError as error:
        assert str(error).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"id,genres\n1,a\n", "first line must be a header with the columns `id` .* and `title`"),
        (b"1::A\n2::B::C\n3::D\n", "titles.csv, row 2: expected 2 columns, found 3: '2::B::C'$"),
        (b"", "first line must be a header"),
        (b"1,A\n2,B\n", "first line must be a header"),
        (b"id,title\n1,\xff\n", "must be in UTF-8"),
        (b"id,title\n1,A\n2,B, and C\n", "titles.csv, row 3: expected 2 columns, found 3: .* in double quotes"),
        (None, "no such file"),
    ],
)
def test_an_invalid_file_of_titles_is_an_error(tmp_path, content, words):
    path = tmp_path / "titles.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_titles(path)
