"""DATASETS: name -> where a data set comes from, how it is read, and what the paper says about it."""

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bert4rec_tf.config.data_names import RAW, Interactions, PublishedFile, add_source, is_own, remove_source
from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.data.reading import blocks, conversion
from bert4rec_tf.data.reading.report import Report, describe_singles
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.data.sources import download
from bert4rec_tf.data.sources.download import Remote
from bert4rec_tf.data.sources.synthetic import MarkovCatalogue, OrderlessCatalogue
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.foundation.stores import expand_local_path, find_cache_folder
from bert4rec_tf.foundation.warning import DataWarning, warn

AUTHORS = "https://raw.githubusercontent.com/FeiSun/BERT4Rec/615eaf2004abecda487a38d5b0c72f3dcfcae5b3/data/"
GROUPLENS = "https://files.grouplens.org/datasets/movielens/"
SNAP = "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/"

MOVIELENS_TERMS = (
    "MovieLens data are GroupLens': for research, to be acknowledged; not to be passed on, nor used commercially, "
    "without their permission (https://files.grouplens.org/datasets/movielens/)."
)


@dataclass(frozen=True)
class Source:
    """A file that holds a data set.

    Attributes:
        name: its path in the data folder. It is looked for with and without `.gz`.
        remote: where to download it; None if it cannot be downloaded.
        columns: how a raw file names users, items and times (`Interactions`); None for the authors' processed file.
        min_item_actions: the filter of a raw file, beside at least five actions per user.
        terms: printed after a download; None for none.
    """

    name: str
    remote: Remote | None = None
    columns: Mapping[str, Any] | None = None
    min_item_actions: int = 1
    terms: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A data set: its title in the paper's tables, and the authors' file and the publisher's, or a `generator`.

    `remark` says why it differs from Table 1.
    """

    title: str
    processed: Source | None = None
    raw: Source | None = None
    generator: MarkovCatalogue | OrderlessCatalogue | None = None
    remark: str | None = None


def _make_authors_source(name: str, git_blob: str, terms: str | None = None) -> Source:
    """Returns a file in the authors' repository. `git_blob`: its id there."""
    file = f"{name}.txt"
    return Source(file, Remote((AUTHORS + file,), f"git:{git_blob}"), terms=terms)


def _name_columns(user: str, item: str, time: str) -> dict[str, str]:
    return {"user_column": user, "item_column": item, "time_column": time}


_RATINGS = {"columns": "user,item,_,time"}

_RATINGS_BEAUTY = Remote(
    (SNAP + "ratings_Beauty.csv",),
    "sha256:17d5232b90444beecfe758ce1446e5300230491f3a88ac802992ca95fc4c150f",
)
_STEAM_REVIEWS = Remote(
    (
        "https://cseweb.ucsd.edu/~wckang/steam_reviews.json.gz",
        "https://mcauleylab.ucsd.edu/public_datasets/data/steam/steam_reviews.json.gz",
    ),
    "sha256:40c6343deedf488689987749c5f8435233da48c163fbaa2a7766c215d584bc61",
)
_ML_1M = Remote(
    (GROUPLENS + "ml-1m.zip",),
    "sha256:a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
    "ratings.dat",
)
_ML_20M = Remote(
    (GROUPLENS + "ml-20m.zip",),
    "sha256:96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
    "ratings.csv",
)
_ML_20M_PROCESSED = Remote((AUTHORS + "ml-20m.zip",), "git:94df4e7735d9776c21561168b6ee437bf969335a", "ml-20m.txt")

DATASETS: dict[str, Dataset] = {
    "beauty": Dataset(
        "Beauty",
        _make_authors_source("beauty", "16718a33ebdb33504f257421b18ae8bf3ddfe327"),
        Source("ratings_Beauty.csv", _RATINGS_BEAUTY, _RATINGS, 5),
    ),
    "steam": Dataset(
        "Steam",
        _make_authors_source("steam", "d277c3a119f12764dc2822eca9684949a516b244"),
        Source("steam_reviews.json.gz", _STEAM_REVIEWS, _name_columns("username", "product_id", "date"), 5),
    ),
    "steam-sample": Dataset(
        "Steam, sample", Source("steam-sample.csv", columns=_name_columns("user", "item", "timestamp"))
    ),
    "ml-1m": Dataset(
        "ML-1m",
        _make_authors_source("ml-1m", "9ab8e3edb8742f8d8cc4911e3dee25e82a6fcc24", MOVIELENS_TERMS),
        Source("ml-1m/ratings.dat", _ML_1M, _RATINGS, 5, MOVIELENS_TERMS),
        remark="Table 1's mean length and density of ML-1m are those without the two held-out actions of every user.",
    ),
    "ml-20m": Dataset(
        "ML-20m",
        Source("ml-20m.txt", _ML_20M_PROCESSED, terms=MOVIELENS_TERMS),
        Source("ml-20m/ratings.csv", _ML_20M, _name_columns("userId", "movieId", "timestamp"), terms=MOVIELENS_TERMS),
    ),
    "synthetic": Dataset("Synthetic", generator=MarkovCatalogue()),
    "synthetic-orderless": Dataset("Synthetic, orderless", generator=OrderlessCatalogue()),
}


def find_dataset(name: str) -> Dataset:
    """Returns the data set `name`, which may end in `-raw`.

    Raises UserError for an unknown name (it suggests the nearest one), or a source that the data set does not have.
    """
    if is_own(name):
        raise UserError(f"{name!r} are data of your own: name their file (--interactions=FILE, or `interactions`)")
    if remove_source(name) not in DATASETS:
        raise unknown_name_error("dataset", name, DATASETS)
    dataset = DATASETS[remove_source(name)]
    if name.endswith(RAW) and dataset.raw is None:
        raise UserError(f"{remove_source(name)!r} has no raw source. Received: source=raw")
    return dataset


def find_source(name: str) -> Source | None:
    """Returns where the data set of this name comes from; None for a built-in one."""
    return find_dataset(name).raw if name.endswith(RAW) else find_dataset(name).processed


def resolve_data_folder(folder: Path | str | None = None) -> Path:
    """Returns `folder`, else the environment variable BERT4REC_DATA, else a folder in the user's cache.

    Raises UserError for a URL.
    """
    data_folder = folder or os.environ.get("BERT4REC_DATA")
    return expand_local_path(data_folder, "data_dir") if data_folder else find_cache_folder()


def find_file(name: str, folder: Path | None = None) -> Path | None:
    """Returns the file of a data set in `folder`, plain or `.gz`; None if there is none, or it is built in."""
    source, folder = find_source(name), folder or resolve_data_folder()
    if source is None:
        return None
    base = folder / source.name.removesuffix(".gz")
    return next((path for path in (base, base.with_name(f"{base.name}.gz")) if path.exists()), None)


def find_or_download(name: str, folder: Path | None = None) -> Path | None:
    """Does what `find_file` does, but downloads a missing file. Raises UserError if it cannot."""
    source, folder = find_source(name), folder or resolve_data_folder()
    path = find_file(name, folder)
    if path or source is None:
        return path
    if source.remote is None:
        raise UserError(f"{name!r} cannot be downloaded. Put {source.name} or {source.name}.gz into {folder}")
    if download.fetch(source.remote, folder / source.name) and source.terms:
        print(source.terms, flush=True)
    return folder / source.name


def _read_authors_file(source: Source, path: Path) -> Sequences:
    """Reads a file of the authors. Warns if it is not the one that they published."""
    with blocks.open_unpacked(path) as file:
        content = file.read()
    if source.remote is not None and source.remote.member is None:
        checksum = source.remote.checksum
        if download.checksum_as(io.BytesIO(content), checksum) != checksum:
            warn(
                f"{path}: is not the file that the authors published ({checksum}); results may differ from theirs",
                DataWarning,
            )
    return conversion.parse_pairs(content, path)


def load(data: str | Interactions, folder: Path | str | None = None, source: str = "processed") -> Sequences:
    """Reads or makes data.

    Args:
        data: a name in DATASETS, or your own files.
        folder: for downloads and converted files; by default `resolve_data_folder()`.
        source: `processed` (the authors' file) or `raw` (the publisher's).

    Raises:
        UserError: for an unknown name, or a file that cannot be downloaded or read.
    """
    sequences, report = load_with_report(data, folder, source)
    if isinstance(data, Interactions) and report is not None:
        report.warn_of_notes(sequences)
    return sequences


def load_with_report(
    data: str | Interactions, folder: Path | str | None = None, source: str = "processed"
) -> tuple[Sequences, Report | None]:
    """Does what `load` does, and returns the report of the conversion too; None if nothing was converted."""
    folder = resolve_data_folder(folder)
    if isinstance(data, Interactions):
        return conversion.convert_once(data, folder)
    name = add_source(data, source)
    generator = find_dataset(name).generator
    if generator is not None:
        return generator.make_sequences(), None
    origin, path = cast(Source, find_source(name)), cast(Path, find_or_download(name, folder))
    if origin.columns is None:
        return _read_authors_file(origin, path), None
    bounds: dict[str, Any] = {"min_user_actions": 5, "min_item_actions": origin.min_item_actions}
    interactions = PublishedFile(str(path), **origin.columns, **bounds, bad_rows="skip")
    return conversion.convert_once(interactions, folder)


def format_table1_columns(sequences: Sequences) -> dict[str, str]:
    return {
        "users": f"{sequences.num_users:,}",
        "items": f"{sequences.num_items:,}",
        "actions": f"{sequences.num_actions:,}",
        "mean length": f"{sequences.num_actions / sequences.num_users:.2f}",
        "density": f"{sequences.density:.2%}",
    }


def describe_data(name: str, sequences: Sequences, report: Report | None = None) -> str:
    """Returns the report, and below it the data's row of Table 1 and the paper's, if there is one."""
    columns, dataset = format_table1_columns(sequences), None if is_own(name) else find_dataset(name)
    rows = [("", *columns), (dataset.title if dataset else name, *columns.values())]
    paper_row = read_paper()["table1"].get(remove_source(name))
    if paper_row:
        paper_columns = [f"{paper_row['users']:,}", f"{paper_row['items']:,}", paper_row["actions"]]
        rows.append(("the paper's Table 1", *paper_columns, f"{paper_row['mean_length']:.1f}", paper_row["density"]))
    width = max(20, *(len(row[0]) + 1 for row in rows))
    lines = [f"{row[0]:<{width}}" + "".join(f"{cell:>13}" for cell in row[1:]) for row in rows]
    lines += [dataset.remark] if dataset and dataset.remark else []
    lines += describe_singles(sequences)
    return "\n".join([*([str(report)] if report else []), *lines])
