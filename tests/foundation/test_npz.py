"""Arrays come back as they were written, read or mapped."""

import numpy as np
import pytest

from bert4rec_tf.foundation import npz

TABLE = np.arange(6, dtype=np.int32).reshape(2, 3)


@pytest.mark.parametrize("array", [TABLE, np.asfortranarray(TABLE), TABLE[:, ::2], TABLE[:0], np.array(7)])
@pytest.mark.parametrize("read", [npz.read, npz.mapped, npz.checked])
def test_arrays_come_back(tmp_path, array, read):
    npz.write(tmp_path / "one.npz", {"one": array})
    found = read(tmp_path / "one.npz")["one"]
    assert found.dtype == array.dtype and found.shape == array.shape
    assert np.array_equal(found, array)
