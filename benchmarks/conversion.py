"""Converts a ratings file to sequences: by our code, and by plain pandas with one list per user."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from benchmarks import shapes
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion

LEAST = 5
LARGE = {"ml-20m": (138_493, 26_744, 20, 144.4)}
"""Name -> users, items, the fewest and the mean actions per user."""

FIRST_TIME, LAST_TIME = 789_652_009, 1_427_784_002


def write(path: Path, users: int, items: int, shortest: int, mean: float) -> int:
    """Writes `userId,movieId,rating,timestamp`, grouped by user, with random times. Returns the number of rows."""
    sequences = shapes.generate(users, items, shortest, mean)
    rng = np.random.default_rng(1)
    rows = sequences.num_actions
    table = {
        "userId": np.repeat(np.arange(1, sequences.num_users + 1), sequences.lengths),
        "movieId": rng.permutation(5 * items)[:items][sequences.items - 1],
        "rating": rng.integers(1, 11, rows) / 2,
        "timestamp": rng.integers(FIRST_TIME, LAST_TIME, rows),
    }
    pyarrow.csv.write_csv(pa.table(table), path)
    return rows


def convert_with_package(source: Path, target: Path) -> int:
    """Reads, filters, orders and stores the actions. Returns the number of those kept."""
    interactions = Interactions(str(source), min_user_actions=LEAST, min_item_actions=LEAST)
    sequences, report = conversion.convert(interactions)
    conversion.save(target, sequences, report)
    return sequences.num_actions


def convert_with_pandas(source: Path, target: Path) -> int:
    """Does the same with pandas: a list of items per user, numbered by a dictionary, stored as a line of JSON."""
    table = pd.read_csv(source)
    user_counts = table.groupby("userId")["movieId"].transform("count")
    item_counts = table.groupby("movieId")["userId"].transform("count")
    table = table[(user_counts >= LEAST) & (item_counts >= LEAST)]
    table = table[table.groupby("userId")["movieId"].transform("count") >= LEAST]
    table = table.sort_values(["userId", "timestamp"], kind="stable")
    numbers = {item: number for number, item in enumerate(table["movieId"].value_counts().index, start=1)}
    histories = table.groupby("userId")["movieId"].apply(list)
    with open(target, "w") as file:
        for user, items in histories.items():
            file.write(json.dumps([user, [numbers[item] for item in items]]) + "\n")
    return len(table)
