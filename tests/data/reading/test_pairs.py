"""Files of `user item` lines: what is read, and which line is named where it cannot be."""

import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.interaction_files import histories, write

from bert4rec_tf.data.reading.blocks import open_unpacked
from bert4rec_tf.data.reading.conversion import parse_pairs
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.foundation.errors import UserError

LINE_ENDS = r"\r\n|\r|\n"


def plainly_read(content):
    """The pairs of a file, read row by row; the number of the first bad row where there is one."""
    rows = filter(None, (line.strip(" \t") for line in re.split(LINE_ENDS, content.decode("latin-1"))))
    pairs = []
    for number, row in enumerate(rows, start=1):
        found = re.fullmatch(r"(-?[0-9]+)[ \t]+(-?[0-9]+)", row)
        if not found:
            return number
        pairs.append(found.groups())
    return pairs


INTEGERS = st.integers(1, 3) | st.sampled_from([-1, 2**63, -(2**63) - 1, "007"])
BLANKS = st.text(" \t", max_size=2)
ROWS = st.builds(
    "{}{}{}{}{}{}{}".format,
    *(BLANKS, INTEGERS, st.just(" ") | st.just("\t"), BLANKS, INTEGERS, BLANKS, st.sampled_from(["\n", "\r\n", "\n"])),
)
GOOD_ROWS = st.lists(ROWS, min_size=1, max_size=12).map("".join)
NEARLY_GOOD = st.lists(ROWS | st.text("-0123456789 \t\r\n", max_size=4), max_size=8).map("".join)
TEXTS = st.one_of(GOOD_ROWS, GOOD_ROWS.map(str.rstrip), NEARLY_GOOD, st.text("-012 \t\r\n", max_size=40))


@settings(deadline=None)
@given(content=TEXTS.map(str.encode) | st.binary(max_size=60), packed=st.booleans())
@example(content=b"1 2\r\n\t 1\t  3 \r1 2", packed=False)
@example(content=b"1 2\n1 3\n\n", packed=True)
@example(content=b" \n", packed=False)
@example(content=b"1 7\n1 0007\n1 x\n", packed=False)
@example(content=b"1 2\n1 " + b"0" * 300 + b"3\n", packed=False)
@example(content=b"1 2\n1 3\n1 -\n", packed=False)
@example(content=b"1 2\n1 3\n1 4\x0b\n", packed=False)
@example(content=b"\xfe\xff", packed=False)
def test_any_bytes_are_read_as_a_plain_reader_does_or_refused_at_its_line(folder, content, packed):
    path, expected = write(folder, "data.txt.gz" if packed else "data.txt", content), plainly_read(content)
    try:
        with open_unpacked(path) as file:
            sequences = parse_pairs(file.read(), path)
    except UserError as error:
        message = str(error)
        assert str(path) in message and "\n" not in message
        if not content.strip():
            assert "the file is empty" in message
        elif isinstance(expected, int):
            assert re.search(rf"{path}, row {expected}: (expected 2|an id is not)", message), message
        else:
            assert re.search("no user has two actions|there is only one item", message), message
        return
    assert not isinstance(expected, int)
    kept = {}
    for user, item in expected:
        kept.setdefault(user, []).append(item)
    assert histories(sequences) == kept


@pytest.mark.parametrize(("name", "sizes"), [("beauty", (40_226, 54_542, 353_962)), ("ml-1m", (6_040, 3_416, 999_611))])
def test_real_data_have_the_sizes_of_table_1_and_every_user_is_evaluated(real_data, name, sizes):
    sequences = real_data(name)
    assert (sequences.num_users, sequences.num_items, sequences.num_actions) == sizes
    assert LeaveOneOut(sequences).num_not_evaluated == 0
    if name == "beauty":
        assert np.count_nonzero(sequences.vocabulary.counts < 5) == 37_501, "rare items stay"
