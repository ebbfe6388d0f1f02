"""Measures exports of 100,000 to 10,000,000 items: exact search, rows in float16, and approximate search.

The model is BPR-MF with d = 64. Its vectors are generated, not trained: items and users lie around the same centres,
one for every 200 items. Histories have 20 items.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measuring

CATALOGUES, LARGEST = (100_000, 1_000_000), 10_000_000
WIDTH, USERS, LENGTH, RECALL, ROUNDS = 64, 256, 20, 0.95, 7
KINDS = {"exact": ("float32", "exact"), "float16": ("float16", "exact"), "approximate": ("float32", "approximate")}


def measure(with_largest: bool) -> list[dict[str, Any]]:
    """Measures, prints and returns the figures of each catalogue."""
    found = []
    for number in (*CATALOGUES, *[LARGEST] * with_largest):
        with tempfile.TemporaryDirectory() as scratch:
            for kind, (dtype, search) in KINDS.items():
                folder = Path(scratch) / kind
                made, peak = measuring.peak_memory(make, number, folder, dtype, search == "approximate")
                used, peak_of_use = measuring.peak_memory(use, number, folder, search)
                row = {"items": number, "kind": kind, **made, "export, peak GB": peak / 1e9}
                row |= {**used, "use, peak GB": peak_of_use / 1e9}
                print(
                    ", ".join(f"{name} {value:,.4g}" if name != "kind" else value for name, value in row.items()),
                    flush=True,
                )
                found.append(row)
    return found


def vectors(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns vectors of items, float32 [number + 1, d], and of users, [USERS, d]."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal([number // 200, WIDTH], np.float32)
    items = rng.standard_normal([number + 1, WIDTH], np.float32) * np.float32(0.5)
    items += centres[rng.integers(len(centres), size=number + 1)]
    near = centres[rng.integers(len(centres), size=USERS)]
    return items, near + 0.5 * rng.standard_normal([USERS, WIDTH], np.float32)


def make(number: int, folder: Path, dtype: str, with_index: bool) -> dict[str, float]:
    """Exports a model. Returns the seconds, the size and, with an index, its recall."""
    from bert4rec_tf.data.sequences import Sequences, Vocabulary
    from bert4rec_tf.export.options import ExportOptions, IndexRequest
    from bert4rec_tf.export.saved_model import export
    from bert4rec_tf.foundation.lines import Lines
    from bert4rec_tf.models import BprMf

    items, users = vectors(number)
    model = BprMf(number, num_users=USERS, hidden_dim=WIDTH)
    model.items.assign(items)
    model.users.assign(users)
    vocabulary = Vocabulary(Lines.of(f"item{n}" for n in range(number)), np.arange(number, 0, -1))
    names = [str(n) for n in range(USERS)]
    # The model knows its users by their numbers, so any histories will do.
    histories = Sequences(np.ones(USERS, np.int32), np.arange(USERS + 1), np.array(names, object), vocabulary)
    index = IndexRequest(RECALL, histories) if with_index else None
    begin = time.perf_counter()
    recall = export(model, vocabulary, folder, ExportOptions(dtype=dtype, index=index), names)
    seconds = time.perf_counter() - begin
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"export s": seconds, "size GB": size / 1e9, **({} if recall is None else {"recall@10": recall})}


def use(number: int, folder: Path, search: str) -> dict[str, float]:
    """Returns the seconds to load a model, and the milliseconds to recommend to 1 and to 64 histories."""
    from bert4rec_tf.serving.client import Choices, SavedRecommender

    begin = time.perf_counter()
    model = SavedRecommender(folder, search=search)
    figures = {"load s": time.perf_counter() - begin}
    rng = np.random.default_rng(1)
    histories = [[f"item{n}" for n in rng.integers(number, size=LENGTH)] for _ in range(64)]
    users = [str(n) for n in range(64)]
    for rows in (1, 64):
        call = lambda rows=rows: model.recommend(histories[:rows], users[:rows], Choices())  # noqa: E731
        figures[f"{rows} rows, ms"] = 1_000 * measuring.alternate({"": call}, ROUNDS)[""].median
    return figures
