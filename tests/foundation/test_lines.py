"""Texts in the bytes of a file, against a Python list."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec_tf.foundation.lines import Lines

texts = st.lists(st.text(st.characters(blacklist_characters="\n", codec="utf-8"), max_size=4), unique=True)


@given(texts, st.lists(st.text(st.characters(), max_size=4)))
def test_lines_are_a_list(known, others):
    lines = Lines.from_texts(known)
    assert len(lines) == len(known) and list(lines) == known and lines[:3] == known[:3]
    assert [lines[row] for row in range(-len(known), len(known))] == known * 2
    assert lines.select(np.arange(len(known)) % 2 == 0) == known[::2]
    assert lines.select(np.arange(len(known)) < 0) == []
    asked = [*known, *others]
    assert lines.contains_each(asked).tolist() == [text in known for text in asked]
    for text in asked:
        assert (text in lines) == (text in known)


def test_few_of_many_lines_are_those_of_a_list():
    texts = [f"Zeile {number} ü" for number in range(1_000)]
    mask = np.arange(1_000) % 97 == 5
    assert Lines.from_texts(texts).select(mask) == texts[5::97]


@pytest.mark.parametrize("content", [b"cut", b"a\nb", b"\xff\n"])
def test_a_damaged_file_is_refused(content):
    with pytest.raises(ValueError):
        Lines(content)


def test_a_row_beyond_the_end_is_an_index_error():
    with pytest.raises(IndexError):
        Lines.from_texts(["a"])[1]
