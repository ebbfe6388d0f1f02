"""Which file of a data set results were measured on."""

import hashlib
from pathlib import Path
from typing import Any

from bert4rec_tf import files
from bert4rec_tf.data import datasets, download
from bert4rec_tf.data.datasets import Source


def data_file(dataset: str, folder: Path | None) -> dict[str, Any] | None:
    """Returns what is known of a data set's file; None where it is built in or not there.

    Returns:
        `name`; `sha256` of its content, unpacked; `as_published`, whether that is the authors' file.
    """
    found = datasets.present(dataset, folder)
    if found is None:
        return None
    path = found[1]
    with files.open_binary(path) as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "sha256": content, "as_published": _as_published(datasets.source_of(dataset), path)}


def _as_published(source: Source, path: Path) -> bool:
    checksum = source.fetched.remote.checksum
    return download.digest(path, checksum) == checksum


def named(file: dict[str, Any] | None) -> str:
    """Names a file and its content."""
    return "an unknown file" if file is None else f"{file['name']}, SHA-256 of its content {file['sha256']}"


def sentence(title: str, file: dict[str, Any] | None) -> str:
    """Says which file the results of a data set were measured on."""
    if file is None:
        return f"{title}: built in."
    known = f"{title}: {named(file)}"
    if file["as_published"]:
        return f"{known}, the authors' own file."
    return (
        f"{known}. This is not the file that the authors published: the order of actions at equal times may be "
        "another, and with it the items that are held out."
    )
