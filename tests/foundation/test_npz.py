"""Arrays come back as they were written."""

import numpy as np
import pytest

from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.stores import Url

TABLE = np.arange(6, dtype=np.int32).reshape(2, 3)


@pytest.mark.parametrize("array", [TABLE, np.asfortranarray(TABLE), TABLE[:, ::2], TABLE[:0], np.array(7)])
def test_written_arrays_are_read_back(tmp_path, array):
    npz.write(tmp_path / "one.npz", {"one": array})
    found = npz.read(tmp_path / "one.npz")["one"]
    assert found.dtype == array.dtype and found.shape == array.shape
    assert np.array_equal(found, array)


def test_arrays_written_to_a_store_are_read_back():
    path = Url("memory://bucket/arrays/one.npz")
    npz.write(path, {"one": TABLE, "two": np.array(7)})
    found = npz.read(path)
    assert np.array_equal(found["one"], TABLE) and found["two"] == 7
    with pytest.raises(npz.CorruptFileError, match=r"none\.npz: cannot be read"):
        npz.read(path.parent / "none.npz")
