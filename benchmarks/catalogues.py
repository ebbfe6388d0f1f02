"""Measures exports of 100,000 to 10,000,000 items.

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
WIDTH, USERS, LENGTH, ROUNDS = 64, 256, 20, 7


def measure(with_largest: bool) -> list[dict[str, Any]]:
    """Measures, prints and returns the figures of each catalogue."""
    rows = []
    for number in (*CATALOGUES, *[LARGEST] * with_largest):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "export"
            facts, peak = measuring.peak_memory(make, number, folder)
            uses, peak_of_use = measuring.peak_memory(use, number, folder)
            row = {"items": number, **facts, "export, peak GB": peak / 1e9, **uses, "use, peak GB": peak_of_use / 1e9}
            print(", ".join(f"{name} {value:,.4g}" for name, value in row.items()), flush=True)
            rows.append(row)
    return rows


def vectors(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns vectors of items, float32 [number + 1, d], and of users, [USERS, d]."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal([number // 200, WIDTH], np.float32)
    items = rng.standard_normal([number + 1, WIDTH], np.float32) * np.float32(0.5)
    items += centres[rng.integers(len(centres), size=number + 1)]
    user_centres = centres[rng.integers(len(centres), size=USERS)]
    return items, user_centres + 0.5 * rng.standard_normal([USERS, WIDTH], np.float32)


def make(number: int, folder: Path) -> dict[str, float]:
    """Exports a model. Returns the seconds and the size."""
    from bert4rec_tf.data.sequences import Vocabulary
    from bert4rec_tf.export.saved_model import export
    from bert4rec_tf.foundation.lines import Lines
    from bert4rec_tf.models import BprMf

    items, users = vectors(number)
    model = BprMf(number, num_users=USERS, hidden_dim=WIDTH)
    model.items.assign(items)
    model.users.assign(users)
    vocabulary = Vocabulary(Lines.from_texts(f"item{n}" for n in range(number)), np.arange(number, 0, -1))
    begin = time.perf_counter()
    export(model, vocabulary, folder, users=[str(n) for n in range(USERS)])
    seconds = time.perf_counter() - begin
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"export s": seconds, "size GB": size / 1e9}


def use(number: int, folder: Path) -> dict[str, float]:
    """Returns the seconds to load a model, and the milliseconds to recommend to 1 and to 64 histories."""
    from bert4rec_tf.serving.client import Choices, SavedRecommender

    begin = time.perf_counter()
    model = SavedRecommender(folder)
    figures = {"load s": time.perf_counter() - begin}
    rng = np.random.default_rng(1)
    histories = [[f"item{n}" for n in rng.integers(number, size=LENGTH)] for _ in range(64)]
    users = [str(n) for n in range(64)]
    for rows in (1, 64):
        call = lambda rows=rows: model.recommend(histories[:rows], users[:rows], Choices())  # noqa: E731
        figures[f"{rows} rows, ms"] = 1_000 * measuring.alternate({"": call}, ROUNDS)[""].median
    return figures
