"""An index of an export's items for approximate search: lists of similar items. A search reads only a few lists.

faiss groups the items and reads the lists. A malicious file in faiss' own format could crash its reader, so the lists
are kept as plain arrays, which are checked before faiss gets them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError

INDEX = Path("assets.extra", "item_index.npz")
"""The file in the folder of a SavedModel."""

EXACT, APPROXIMATE = SEARCHES = ("exact", "approximate")

FIELDS = ("centroids", "sizes", "items", "rows", "probes", "k", "popularity_correction")
K = 10
"""Recall is measured on this many best items."""

SAMPLE, ROUNDS = 64, 10
"""The lists' centroids are computed from this many items per list, in this many rounds."""

BLOCK = 1 << 16
HALF = np.float16

Rows = Callable[[np.ndarray], np.ndarray]
"""Items, int32 [m] -> their rows, float32 [m, w]: vectors, with the bias in the last column."""


def needed() -> Any:
    """Returns the module faiss. Raises UserError if it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(f"Approximate search needs faiss: pip install 'bert4rec-tf[search]' ({error})") from error
    return faiss


def check_recall(name: str, recall: float) -> None:
    """Raises UserError for a recall that is not above 0 and at most 1."""
    if not 0 < recall <= 1:
        raise UserError(f"`{name}` must be above 0 and at most 1. Received: {name}={recall}")


class ItemIndex:
    """The lists in memory.

    Args:
        found: the arrays named in FIELDS. Of the lists: `centroids` float32 [c, w], `sizes` int32 [c], `items` int32
            [n], list after list, and the items' `rows` float16 [n, w]. A row ends with the item's bias, lowered by the
            export's `popularity_correction`. `probes`: how many lists to read. `k`: the export's default.

    Attributes:
        probes: how many lists a search reads.
        k, popularity_correction: as above.

    Raises:
        ValueError: if the arrays do not fit together.
        UserError: if faiss is not installed.
    """

    def __init__(self, found: dict[str, np.ndarray]) -> None:
        faiss = needed()
        centroids, sizes, items, rows = (found[name] for name in FIELDS[:4])
        kinds = {"centroids": np.float32, "sizes": np.int32, "items": np.int32, "rows": HALF}
        if any(found[name].dtype != kind for name, kind in kinds.items()) or len(rows) != len(items):
            raise ValueError("its arrays have other types or sizes")
        (number, width), ends = centroids.shape, np.cumsum(sizes, dtype=np.int64)
        if rows.shape[1:] != (width,) or sizes.shape != (number,) or (sizes < 0).any() or ends[-1] != len(items):
            raise ValueError("its lists do not fit its rows")
        if items.min() < 1 or items.max() > len(items) or not 1 <= found["probes"] <= number:
            raise ValueError("it names items or lists that are not there")
        self.probes, self.k = int(found["probes"]), int(found["k"])
        self.popularity_correction = float(found["popularity_correction"])
        self._nearest = faiss.IndexFlatIP(width)
        self._nearest.add(np.ascontiguousarray(centroids))
        half = faiss.ScalarQuantizer.QT_fp16
        self._lists = faiss.IndexIVFScalarQuantizer(self._nearest, width, number, half, faiss.METRIC_INNER_PRODUCT)
        self._lists.by_residual, self._lists.is_trained, self._lists.ntotal = False, True, len(items)
        for number, (begin, end) in enumerate(zip(ends - sizes, ends)):
            if begin < end:
                ids, codes = items[begin:end].astype(np.int64), np.ascontiguousarray(rows[begin:end]).view(np.uint8)
                pointers = faiss.swig_ptr(ids), faiss.swig_ptr(codes)
                self._lists.invlists.add_entries(number, int(end - begin), *pointers)

    def __len__(self) -> int:
        """The number of items."""
        return self._lists.ntotal

    def search(self, vectors: np.ndarray, k: int, probes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best items it finds, int64 [b, k], and their scores, float32 [b, k]. Missing items are -1.

        `vectors`: float32 [b, d]. `k`: at least 1. `probes`: how many lists to read; None for the export's number.
        Raises ValueError if the vectors are not as wide as the rows.
        """
        asked = np.pad(vectors, [(0, 0), (0, 1)], constant_values=1)
        if asked.shape[1] != self._lists.d:
            raise ValueError("its rows are not as wide as the model's vectors")
        self._lists.nprobe = self.probes if probes is None else probes
        scores, items = self._lists.search(asked, k)
        return items, scores

    @classmethod
    def read(cls, path: Path) -> "ItemIndex":
        """Reads the file of an export. Raises UserError if it is missing or damaged, or faiss is not installed."""
        needed()
        if not path.exists():
            raise UserError(f"{path}: no such file; export the model again with --with_index=0.95, or search exactly")
        found = npz.checked(path)
        try:
            return cls({name: found[name] for name in FIELDS})
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise npz.CorruptFileError(f"{path}: is not an index of items ({error})") from error


def make(
    rows: Rows,
    num_items: int,
    wanted: float,
    vectors: np.ndarray,
    best: np.ndarray,
    k: int,
    popularity_correction: float,
) -> tuple[dict[str, np.ndarray], float]:
    """Groups the items into lists, and finds how many lists a search must read.

    Args:
        rows: returns the rows of items.
        num_items: n.
        wanted: the share of the best K items that a search must find.
        vectors: float32 [q, d], of the users on whom the recall is measured.
        best: these users' K best items by exact search, int32 [q, K]; all n if fewer.
        k, popularity_correction: the export's defaults.

    Returns:
        The arrays of an `ItemIndex`, and its recall.

    Raises:
        UserError: if a row does not fit into float16, or faiss is not installed.
    """
    faiss, width = needed(), vectors.shape[1] + 1
    number = min(1 << int(np.ceil(np.log2(2 * np.sqrt(num_items)))), num_items)
    sample = np.random.default_rng(0).permutation(num_items)[: SAMPLE * number] + 1
    groups = faiss.Kmeans(width, number, niter=ROUNDS, seed=1, min_points_per_centroid=1)
    groups.train(rows(np.sort(sample).astype(np.int32)))
    halves, lists = np.empty([num_items, width], HALF), np.empty(num_items, np.int32)
    for begin in range(0, num_items, BLOCK):
        block = rows(np.arange(begin + 1, min(begin + BLOCK, num_items) + 1, dtype=np.int32))
        lists[begin : begin + len(block)] = groups.index.search(block, 1)[1][:, 0]
        with np.errstate(over="ignore"):
            halves[begin : begin + len(block)] = block
    if not np.isfinite(halves).all():
        raise UserError("An index needs rows that fit into float16, and this model's do not; export it without one")
    order = np.argsort(lists, kind="stable")
    found = {
        "centroids": groups.centroids,
        "sizes": np.bincount(lists, minlength=number).astype(np.int32),
        "items": (order + 1).astype(np.int32),
        "rows": halves[order],
        "k": np.int32(k),
        "popularity_correction": np.float32(popularity_correction),
    }
    index, probes = ItemIndex({**found, "probes": np.int32(1)}), 1
    while True:
        items, _ = index.search(vectors, best.shape[1], probes)
        recall = float(np.mean([len(np.intersect1d(*pair)) / len(pair[1]) for pair in zip(items, best)]))
        if recall >= wanted or probes == number:
            return {**found, "probes": np.int32(probes)}, recall
        probes = min(2 * probes, number)
