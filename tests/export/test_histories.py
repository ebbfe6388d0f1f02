"""Users' histories in an export, against lists of lists."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.profiles import examples
from support.ranking_oracle import any_histories

from bert4rec_tf.data.sequences import ActionTimes
from bert4rec_tf.export.histories import HISTORIES, TIMES, keep_last, read_histories, read_times, write_histories
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines


def listed(histories):
    return {user: histories[row].tolist() for row, user in enumerate(histories.users)}


@given(
    sequences=any_histories(),
    most=st.integers(1, 45),
    one_time=st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e30, 1e30),
)
@settings(max_examples=examples(30))
def test_histories_keep_the_last_items_of_every_user(tmp_path_factory, sequences, most, one_time):
    folder = tmp_path_factory.mktemp("kept")
    path = folder / HISTORIES
    path.parent.mkdir()
    if one_time is not None:
        values = np.arange(sequences.num_actions)[::-1].astype(np.array(one_time).dtype)
        values[::3] = one_time
        sequences = replace(sequences, times=ActionTimes(values, "dates"))
    kept = keep_last(sequences, most)
    write_histories(kept, folder)
    assert (folder / TIMES).exists() == (one_time is not None)
    if one_time is not None:
        times, stored = np.split(sequences.times.values, sequences.splits[1:-1]), read_times(folder)
        np.testing.assert_array_equal(stored.values, np.concatenate([part[-most:] for part in times]))
        assert stored.meaning == "dates"
    found = read_histories(path, sequences.vocabulary.items)
    expected = {name: sequences[row].tolist()[-most:] for row, name in enumerate(sequences.users.tolist())}
    assert listed(found) == listed(kept) == expected
    assert found.vocabulary.counts.tolist() == kept.count_items()[1:].tolist()
    content = path.read_bytes()
    write_histories(found, folder)
    assert path.read_bytes() == content


ITEMS = Lines.from_texts("abc")
GOOD = {
    "items": np.array([3, 1, 2], np.int32),
    "lengths": np.array([1, 2], np.int32),
    "users": np.frombuffer("ann\n日本".encode(), np.uint8),
}
DAMAGES = {
    "an unknown item": {"items": np.array([3, 1, 4], np.int32)},
    "the padding": {"items": np.array([3, 0, 2], np.int32)},
    "an item too few": {"items": np.array([3, 1], np.int32)},
    "a user too few": {"users": np.frombuffer(b"ann", np.uint8)},
    "a negative length": {"lengths": np.array([4, -1], np.int32)},
    "lengths of text": {"lengths": np.array(["1", "2"])},
    "items of text": {"items": np.array(["3", "1", "2"])},
    "items of fractions": {"items": np.array([3.5, 1.5, 2.5], np.float32)},
    "one item and no list": {"items": np.array(3, np.int32)},
    "no UTF-8": {"users": np.frombuffer(b"ann\n\xff", np.uint8)},
}


def test_whole_histories_are_read(tmp_path):
    npz.write(tmp_path / "histories.npz", GOOD)
    assert listed(read_histories(tmp_path / "histories.npz", ITEMS)) == {"ann": [3], "日本": [1, 2]}


def test_a_header_that_claims_more_than_there_is_is_damage(tmp_path):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<i4", "fortran_order": False, "shape": (2**44,)})
    with zipfile.ZipFile(tmp_path / "histories.npz", "w") as archive:
        for name in GOOD:
            archive.writestr(f"{name}.npy", content.getvalue())
    with pytest.raises(UserError, match=r"histories\.npz: cannot be read"):
        read_histories(tmp_path / "histories.npz", ITEMS)


@pytest.mark.parametrize("arrays", [{"steps": np.array(["1"]), "meaning": np.zeros(1, np.uint8)}, {"meaning": None}])
def test_damaged_times_are_named(tmp_path, arrays):
    (tmp_path / TIMES).parent.mkdir()
    npz.write(tmp_path / TIMES, {name: np.zeros(0) if value is None else value for name, value in arrays.items()})
    with pytest.raises(UserError, match=r"times\.npz: cannot be read"):
        read_times(tmp_path)


@pytest.mark.parametrize("changes", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named(tmp_path, changes):
    npz.write(tmp_path / "histories.npz", {**GOOD, **changes})
    with pytest.raises(UserError, match=r"histories\.npz: does not fit the model"):
        read_histories(tmp_path / "histories.npz", ITEMS)
