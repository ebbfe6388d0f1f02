"""DATASETS: name -> where a data set comes from, how it is read, and what the paper says of it."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from bert4rec_tf.data.readers import read_pairs
from bert4rec_tf.data.synthetic import MarkovCatalogue, OrderlessCatalogue
from bert4rec_tf.errors import UserError, unknown_name
from bert4rec_tf.sequences import Sequences


@dataclass(frozen=True)
class Dataset:
    """One data set.

    Attributes:
        title: its name in the paper's tables.
        file: the processed file, looked for in the data folder, also with `.gz`; None for a built-in one.
        read: makes `Sequences` from the file's path.
        generator: makes a built-in one.
    """

    title: str
    file: str | None = None
    read: Callable[[Path], Sequences] = read_pairs
    generator: MarkovCatalogue | OrderlessCatalogue | None = None


DATASETS: dict[str, Dataset] = {
    "beauty": Dataset("Beauty", "beauty.txt"),
    "steam": Dataset("Steam", "steam.txt"),
    "ml-1m": Dataset("ML-1m", "ml-1m.txt"),
    "ml-20m": Dataset("ML-20m", "ml-20m.txt"),
    "synthetic": Dataset("Synthetic", generator=MarkovCatalogue()),
    "synthetic-orderless": Dataset("Synthetic, orderless", generator=OrderlessCatalogue()),
}


def find(name: str) -> Dataset:
    """Returns the data set `name`. Raises UserError with the nearest name for an unknown one."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    return DATASETS[name]


def default_folder() -> Path:
    """Returns the environment's BERT4REC_DATA, else a folder in the user's cache."""
    named = os.environ.get("BERT4REC_DATA")
    cache_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(cache_folder) / "bert4rec_tf"


def locate(name: str, folder: Path | None = None) -> Path | None:
    """Returns the file of a data set, plain or `.gz`; None for a built-in one. Raises UserError where there is none."""
    dataset = find(name)
    if dataset.file is None:
        return None
    folder = folder or default_folder()
    for path in (folder / dataset.file, folder / f"{dataset.file}.gz"):
        if path.exists():
            return path
    raise UserError(f"{folder / dataset.file}: no such file, nor the same with .gz. Put it there, or set --data_dir")


def load(name: str, folder: Path | None = None) -> Sequences:
    """Reads or makes a data set.

    Args:
        name: a name in DATASETS.
        folder: where its file lies; `default_folder()` where none is named.

    Raises:
        UserError: for an unknown name, and for a missing, empty or malformed file.
    """
    dataset, path = find(name), locate(name, folder)
    return dataset.generator.sequences() if path is None else dataset.read(path)


@cache
def paper() -> dict[str, Any]:
    """Returns the published numbers: `table1[dataset]`, `table2[dataset][model][metric]` and the like."""
    return json.loads(resources.files("bert4rec_tf").joinpath("paper.json").read_text())


def describe(name: str, sequences: Sequences) -> str:
    """Returns the data set's row of Table 1, with the paper's below it where it has one."""
    rows = [
        ("", "users", "items", "actions", "mean length", "density"),
        (
            find(name).title,
            f"{sequences.num_users:,}",
            f"{sequences.num_items:,}",
            f"{sequences.num_actions:,}",
            f"{sequences.num_actions / sequences.num_users:.2f}",
            f"{sequences.density:.2%}",
        ),
    ]
    published = paper()["table1"].get(name)
    if published:
        rows.append(
            (
                "the paper's Table 1",
                f"{published['users']:,}",
                f"{published['items']:,}",
                published["actions"],
                f"{published['mean_length']:.1f}",
                published["density"],
            )
        )
    text = "\n".join(f"{row[0]:<20}" + "".join(f"{cell:>13}" for cell in row[1:]) for row in rows)
    if sequences.num_left_out:
        text += f"\n{sequences.num_left_out:,} users with a single action are left out."
    return text
