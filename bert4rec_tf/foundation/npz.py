"""Reads and writes `.npz` files without pickle, and detects damage."""

import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError

DAMAGE_ERRORS = (OSError, LookupError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)
"""The exceptions that reading a damaged archive can raise."""


class CorruptFileError(UserError):
    """A file that cannot be read: missing, cut short or damaged."""


def write(path: Path, arrays: Mapping[str, np.ndarray], compressed: bool = False) -> None:
    """Writes arrays under their names, atomically. Equal arrays give equal bytes."""
    save = np.savez_compressed if compressed else np.savez
    with files.atomic_write(path) as temp_path, open(temp_path, "wb") as file:
        save(file, allow_pickle=False, **arrays)


def read(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Returns the named arrays of a file, by default all, after verifying their checksums.

    Raises CorruptFileError if the file or one of these arrays is missing or cannot be read.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = [f"{name}.npy" for name in names] if names is not None else archive.namelist()
            return {
                name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in members
            }
    except (*DAMAGE_ERRORS, MemoryError) as error:  # a damaged header can claim any number of values
        raise CorruptFileError(str(files.unreadable_error(path, error))) from error


def compute_fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of named arrays, in their order: of their names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def encode_lines(texts: Iterable[str]) -> np.ndarray:
    """Returns texts without line breaks as an array that needs no pickle: UTF-8, one per line."""
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def decode_lines(array: np.ndarray) -> list[str]:
    """Returns the texts that `encode_lines` was given. Raises UnicodeDecodeError for what is not UTF-8."""
    return array.tobytes().decode().split("\n") if array.size else []
