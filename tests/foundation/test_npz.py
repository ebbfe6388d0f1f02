"""Arrays come back as they were written."""

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


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(npz.CorruptFileError, match=r"none\.npz: cannot be read"):
        npz.read(tmp_path / "none.npz")
