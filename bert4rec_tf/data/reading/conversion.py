"""A file of interactions to `Sequences`, once: what was converted is read again for the same file and options."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import archives, bad_rows, blocks, delimited, layouts, records
from bert4rec_tf.data.reading.actions import Actions
from bert4rec_tf.data.reading.bad_rows import BadRows
from bert4rec_tf.data.reading.layouts import PARQUET, TEXT
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Transfer, warn

FORMAT = 1
"""The number of what conversion makes of a file; a change of it makes what was kept worthless."""

FOLDER = "converted"


@dataclass(frozen=True)
class Report:
    """What a conversion met.

    Attributes:
        path: the file.
        columns: what was taken for user, item and time.
        read, kept: users, items and actions before and after the filter.
        min_user_actions, min_item_actions: the filter.
        bad: kind of bad row -> how many were passed over, and the number of the first.
        unit: `line` or `row`.
    """

    path: str
    columns: str
    read: dict[str, int]
    kept: dict[str, int]
    min_user_actions: int = 1
    min_item_actions: int = 1
    bad: dict[str, tuple[int, int]] = field(default_factory=dict)
    unit: str = "line"

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.columns}", *bad_rows.told(self.bad, self.unit)]
        sizes = [", ".join(f"{count:,} {name}" for name, count in found.items()) for found in (self.read, self.kept)]
        lines.append(f"read: {sizes[0]}")
        lines.append(
            f"kept: {sizes[1]} (users with at least {self.min_user_actions}, items with at least "
            f"{self.min_item_actions} actions)"
        )
        return "\n".join(lines)


def convert(asked: Interactions, member: str | None = None) -> tuple[Sequences, Report]:
    """Reads a file of interactions.

    Args:
        asked: the file and how to read it.
        member: the file in the archive that it is.

    Raises:
        UserError: where the file is missing, damaged or empty, its columns cannot be found, a row is bad and not passed
            over, or nothing can be learnt from what is left.
    """
    path, actions = asked.file, Actions()
    with archives.opened(path, member) as stream:
        layout = layouts.find(asked, stream.read(layouts.SAMPLE), member)
    bad = BadRows(path, asked.bad_rows == "skip", "row" if layout.kind == PARQUET else "line")
    if layout.kind == PARQUET:
        from bert4rec_tf.data.reading import parquet

        for found in parquet.read(path, layout, bad):
            actions.add(found)
    else:
        reader = (delimited if layout.kind == TEXT else records).Reader(layout, bad)
        shown = Transfer(f"reading {path.name}", 0, path.stat().st_size)
        with shown, archives.opened(path, member, watch=shown.advance) as stream:
            for block in blocks.read(stream, path, layout.quoted):
                actions.add(reader.read(block))
    actions.tables[:] = _of_one_type(actions.tables)
    least = {"min_user_actions": asked.min_user_actions, "min_item_actions": asked.min_item_actions}
    sequences, sizes = actions.sequences(**least)
    why = "".join(f"; {line}" for line in bad_rows.told(bad.found, bad.unit))
    if sequences.num_users == 0:
        raise UserError(f"{path}: no user has two actions left, so there is nothing to learn from{why}")
    if sequences.num_items == 1:
        raise UserError(f"{path}: there is only one item left, so there is nothing to recommend{why}")
    return sequences, Report(str(path), str(layout), **sizes, **least, bad=bad.found, unit=bad.unit)


def _of_one_type(tables: list[pa.Table]) -> list[pa.Table]:
    """Makes the times of all blocks fractions where those of one are."""
    kinds = {found.schema.field("time").type for found in tables if "time" in found.column_names}
    if len(kinds) < 2:
        return tables
    return [found.set_column(2, "time", found["time"].cast(pa.float64(), safe=False)) for found in tables]


def converted(asked: Interactions, folder: Path, member: str | None = None) -> tuple[Sequences, Report]:
    """Returns what `convert` does, from `folder` where it was converted before. A damaged file there is made anew."""
    key = {"format": FORMAT, "source": checksum(asked.file), "member": member, "options": asked.options}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / FOLDER / f"{asked.name.removeprefix('own-')}-{digest}.npz"
    if path.exists():
        try:
            sequences, report = load(path)
            return sequences, replace(report, path=str(asked.file))
        except npz.CorruptFileError as error:
            warn(f"{error}; converted again")
    sequences, report = convert(asked, member)
    try:
        files.make_folder(path.parent)
        save(path, sequences, report)
    except UserError as error:
        warn(f"{error}; what was converted is not kept")
    return sequences, report


def checksum(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises UserError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def save(path: Path, sequences: Sequences, report: Report) -> None:
    """Writes sequences and report as one file of arrays."""
    texts = {
        "users": "\n".join(sequences.users.tolist()),
        "names": "\n".join(sequences.vocabulary.items.tolist()),
        "report": json.dumps(asdict(report)),
    }
    content: dict[str, Any] = {name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()}
    numbers = {"items": sequences.items, "splits": sequences.splits, "counts": sequences.vocabulary.counts}
    npz.write(path, {**content, **numbers, "left_out": np.array(sequences.num_left_out)})


def load(path: Path) -> tuple[Sequences, Report]:
    """Reads what `save` wrote. Raises `npz.CorruptFileError` where it cannot be read."""
    found = npz.read(path)
    try:
        users, names, report = (found[name].tobytes().decode() for name in ("users", "names", "report"))
        vocabulary = Vocabulary(np.array(names.split("\n"), object), found["counts"])
        users = np.array(users.split("\n"), object)
        sequences = Sequences(found["items"], found["splits"], users, vocabulary, int(found["left_out"]))
        content = json.loads(report)
        content["bad"] = {kind: tuple(counts) for kind, counts in content["bad"].items()}
        return sequences, Report(**content)
    except (KeyError, ValueError, TypeError) as error:
        raise npz.CorruptFileError(f"{path}: not what a conversion keeps ({error})") from error
