"""Reads and writes `.npz` files without pickle, and detects damage."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import LocalCopy

UNREADABLE = (OSError, LookupError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)
"""The exceptions that reading a damaged archive can raise."""


class CorruptFileError(UserError):
    """A file that cannot be read: missing, cut short or damaged."""


def write(path: Path, arrays: Mapping[str, np.ndarray], compressed: bool = False) -> None:
    """Writes arrays under their names, atomically. Equal arrays give equal bytes."""
    save = np.savez_compressed if compressed else np.savez
    with files.atomic_write(path) as aside, open(aside, "wb") as file:
        save(file, allow_pickle=False, **arrays)


def mapped(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an uncompressed file as memory maps, read from the disk when they are used.

    A file in a store is copied first. Checksums are not verified. Raises CorruptFileError if the file is missing or
    cannot be read.
    """
    found: dict[str, np.ndarray] = {}
    try:
        copy = LocalCopy(path.parent, [path.name])
        local = copy.folder / path.name  # still mapped when the copy is deleted
        with zipfile.ZipFile(local) as archive, local.open("rb") as file:
            for member in archive.infolist():
                file.seek(member.header_offset)
                sizes = struct.unpack("<HH", file.read(30)[26:])  # of the name and of what follows it
                begin = file.seek(sum(sizes), io.SEEK_CUR)
                np.lib.format.read_magic(file)
                shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
                name, offset = member.filename.removesuffix(".npy"), file.tell()
                if shape and 0 not in shape:
                    found[name] = np.memmap(local, dtype, "r", offset, shape, "F" if by_columns else "C")
                else:  # too small to be mapped
                    file.seek(begin)
                    found[name] = np.lib.format.read_array(file, allow_pickle=False)
    except UNREADABLE as error:
        raise CorruptFileError(f"{path}: cannot be read ({error})") from error
    return found


def checked(path: Path) -> dict[str, np.ndarray]:
    """Returns `mapped` arrays, after reading all of them once to verify their checksums."""
    try:
        copy = LocalCopy(path.parent, [path.name])
        with zipfile.ZipFile(copy.folder / path.name) as archive:
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"bad checksum of {damaged}")
    except UNREADABLE as error:
        raise CorruptFileError(f"{path}: cannot be read ({error})") from error
    return mapped(copy.folder / path.name)


def read(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Returns the named arrays of a file, by default all, after verifying their checksums.

    Raises CorruptFileError if the file or one of these arrays is missing or cannot be read.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            wanted = [f"{name}.npy" for name in names] if names is not None else archive.namelist()
            contents = {name.removesuffix(".npy"): archive.read(name) for name in wanted}
        return {
            name: np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
            for name, content in contents.items()
        }
    except UNREADABLE as error:
        raise CorruptFileError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def of_lines(texts: Iterable[str]) -> np.ndarray:
    """Returns texts without line breaks as an array that needs no pickle: UTF-8, one per line."""
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def lines(array: np.ndarray) -> list[str]:
    """Returns the texts that `of_lines` was given. Raises UnicodeDecodeError for what is not UTF-8."""
    return array.tobytes().decode().split("\n") if array.size else []
