"""Arrays in `.npz` files that are whole or known to be damaged. No pickle."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

UNREADABLE = (
    OSError,
    LookupError,
    EOFError,
    ValueError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
"""What reading a damaged archive can end in."""


class CorruptFileError(UserError):
    """A file that cannot be read: missing, cut short, or with a bit that flipped."""


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays under their names; the file appears whole or not at all, and equal arrays give equal bytes."""
    with files.atomic_write(path) as aside, open(aside, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Returns the named arrays of a file, or all.

    All bytes of an array, and so their checksum, are read before anything in them is believed.

    Raises:
        CorruptFileError: where the file, or one of these arrays, cannot be read or is not there.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            wanted = [f"{name}.npy" for name in names] if names is not None else archive.namelist()
            contents = {name.removesuffix(".npy"): archive.read(name) for name in wanted}
        return {
            name: np.lib.format.read_array(io.BytesIO(found), allow_pickle=False) for name, found in contents.items()
        }
    except UNREADABLE as error:
        raise CorruptFileError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
