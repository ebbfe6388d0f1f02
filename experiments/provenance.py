"""What results were measured on and with: the file of the data set, and the commit of the code."""

import functools
import hashlib
import subprocess
from pathlib import Path
from typing import Any

from bert4rec_tf.data.reading import archives
from bert4rec_tf.data.sources import datasets, download
from bert4rec_tf.data.sources.datasets import File, Source

REPOSITORY = Path(__file__).parents[1]


@functools.cache
def commit(repository: Path = REPOSITORY) -> str | None:
    """Returns the commit of a checkout, with "+" where the package differs from it; None where there is no checkout."""
    try:
        root, head = _git(repository, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        changed = _git(repository, "status", "--porcelain", "--", "bert4rec_tf")
    except (OSError, subprocess.CalledProcessError):
        return None
    if not repository.samefile(root):
        return None
    return f"{head}+" if changed else head


def _git(repository: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", repository, *arguments], capture_output=True, check=True, encoding="utf-8"
    ).stdout


def data_file(dataset: str, folder: Path | None) -> dict[str, Any] | None:
    """Returns what is known of a data set's file; None where it is built in or not there.

    Returns:
        `name`; `sha256` of its content, that is of what is packed in it; `as_published`, whether it is the authors'
        file, None where nothing tells that: their checksum is that of what they put up, which may be an archive.

    Raises:
        UserError: where the file cannot be read.
    """
    found = datasets.present(dataset, folder)
    if found is None:
        return None
    file, path = found
    with archives.opened(path, file.member) as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"name": path.name, "sha256": digest, "as_published": _as_published(datasets.source_of(dataset), file, path)}


def _as_published(source: Source, file: File, path: Path) -> bool | None:
    checksum = source.fetched.remote.checksum
    if download.digest(path, checksum) == checksum:
        return True
    return False if file == source.fetched else None


def named(file: dict[str, Any] | None) -> str:
    """Names a file and its content."""
    return "an unknown file" if file is None else f"{file['name']}, SHA-256 of its content {file['sha256']}"


def sentence(dataset: str, file: dict[str, Any] | None) -> str:
    """Says which file the results of a data set were measured on."""
    title = datasets.find(dataset).title
    if datasets.source_of(dataset) is None:
        return f"{title}: built in."
    if file is None or file["as_published"] is None:
        return f"{title}: {named(file)}. Whether it is the authors' own file is not known."
    if file["as_published"]:
        return f"{title}: {named(file)}, the authors' own file."
    return (
        f"{title}: {named(file)}. This is not the file that the authors published: the order of actions at equal times "
        "may be another, and with it the items that are held out."
    )
