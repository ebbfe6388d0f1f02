"""Arrays come back as they were written."""

import hashlib

import numpy as np
import pytest

from bert4rec_tf.foundation import npz

TABLE = np.arange(6, dtype=np.int32).reshape(2, 3)


@pytest.mark.parametrize("array", [TABLE, np.asfortranarray(TABLE), TABLE[:, ::2], TABLE[:0], np.array(7)])
def test_written_arrays_are_read_back(tmp_path, array):
    npz.write(tmp_path / "one.npz", {"one": array})
    found = npz.read(tmp_path / "one.npz")["one"]
    assert found.dtype == array.dtype and found.shape == array.shape
    assert np.array_equal(found, array)


def test_a_fingerprint_tells_names_types_shapes_and_values_apart_but_not_layouts_in_memory():
    arrays = {"a": TABLE, "b": np.array(7)}
    others = [
        {"c": TABLE, "b": np.array(7)},
        {"a": TABLE.astype(np.int64), "b": np.array(7)},
        {"a": TABLE.reshape(3, 2), "b": np.array(7)},
        {"a": TABLE + 1, "b": np.array(7)},
    ]
    fingerprints = {npz.compute_fingerprint(one) for one in (arrays, *others)}
    assert len(fingerprints) == 5
    assert npz.compute_fingerprint({"a": np.asfortranarray(TABLE), "b": np.array(7)}) in fingerprints
    text = b"a <i4 (2, 3)" + TABLE.tobytes() + b"b <i8 ()" + np.array(7).tobytes()
    assert npz.compute_fingerprint(arrays) == hashlib.sha256(text).hexdigest()


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(npz.CorruptFileError, match=r"none\.npz: cannot be read"):
        npz.read(tmp_path / "none.npz")
