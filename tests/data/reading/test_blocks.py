"""Blocks of a file: nothing is lost between them, they end where lines end, and their lines are numbered."""

import io
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ranking_oracle import FEW

from bert4rec_tf.data.reading import blocks

LINES = st.lists(st.sampled_from(["a,1", "bb,22", ""]), min_size=1, max_size=30)


@FEW
@given(LINES, st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=30, max_size=30), st.integers(1, 40))
def test_blocks_are_the_file_cut_at_ends_of_lines_and_numbered(lines, ends, size):
    content = "".join(line + end for line, end in zip(lines, ends)).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_SIZE", size)
        found = list(blocks.read_blocks(io.BytesIO(content), "ratings.csv"))
    assert b"".join(block[0] for block in found) == content
    before = b""
    for block in found:
        assert block[1] == 1 + len(re.findall(rb"\r\n|\r|\n", before))
        before += block[0]
    numbered = enumerate(re.findall(r"[^\r\n]*(?:\r\n|\r|\n)", content.decode()), start=1)
    assert list(itertools.chain.from_iterable(map(blocks.split_lines, found))) == list(numbered)
