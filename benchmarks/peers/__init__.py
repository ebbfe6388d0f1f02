"""Trains other packages' models and ours on the same known actions, and measures all on the same test items.

Every model gets each user's actions but the last one, and returns ten unseen items for every user. These lists are
measured here, by one function. Each model has its own settings, may hold out some of the known actions for validation,
and has its own process, on one thread. Each package may have its own interpreter.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import bert4rec_tf
from benchmarks.peers.peer_training import LIST_LENGTH, MODELS
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.data.sources.datasets import resolve_data_folder
from bert4rec_tf.evaluation.metrics import compute_per_user
from bert4rec_tf.foundation import files

DATA = {
    "ml-latest-small": "ml-latest-small-2018-ratings.csv.gz",
    "beauty-5core": "amazon-5core-beauty.txt.gz",
    "ml-1m": "ml-1m.txt.gz",
}
"""Name -> file in the folder BERT4REC_DATA."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
COLUMNS = ("data", "model", "NDCG@10", "HR@10", "processor s", "peak GB", "GFLOP/s", "settings")


def measure(
    interpreters: Mapping[str, str | None], models: Iterable[str], data: Iterable[str], minutes: float, output: Path
) -> None:
    """Measures models on data sets, prints the results, and writes each beside the older ones in `output`.

    Args:
        interpreters: package -> a Python that has it; None for this one.
        models, data: names in MODELS and DATA.
        minutes: of processor time; another package's model stops after the epoch in which they pass.
        output: folder of `peers.json` and `peers.md`, the table.
    """
    files.make_folder(output)
    path = output / "peers.json"
    rows = {(row["data"], row["model"]): row for row in json.loads(path.read_text())} if path.exists() else {}
    for name in data:
        split = LeaveOneOut(inputs.load_any(resolve_data_folder() / DATA[name])[1])
        for model in models:
            folder = output / f"unfinished {name} {model}"
            files.make_folder(folder)
            row = run_model(model, split, interpreters.get(MODELS[model][0]) or sys.executable, minutes, folder)
            files.remove_folder(folder)
            rows[name, model] = {"data": name, "model": model, **row}
            print("  ".join(format_cells(rows[name, model])), flush=True)
            sorted_rows = [rows[data, model] for data in DATA for model in MODELS if (data, model) in rows]
            files.write_json(path, sorted_rows)
            (output / "peers.md").write_text(format_table(sorted_rows))


def run_model(model: str, split: LeaveOneOut, interpreter: str, minutes: float, folder: Path) -> dict[str, Any]:
    """Returns a model's metrics and what its process reports; or only `skipped`, why there are none.

    `folder` is where its process works; a model that keeps checkpoints goes on from those that a killed one left there.
    """
    histories = split.histories("test")
    numbers = np.full(split.sequences.num_items + 1, -2)  # items without known actions cannot be listed
    indices = np.unique(histories.items)
    numbers[indices] = np.random.default_rng(0).permutation(len(indices))  # so that a number says nothing of the item
    users, items = np.repeat(np.arange(histories.num_users), histories.lengths), numbers[histories.items]
    root = str(Path(bert4rec_tf.__file__).parents[1])
    environment = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": root}
    np.savez(folder / "known.npz", users=users, items=items, minutes=minutes)
    command = [interpreter, str(Path(__file__).with_name("peer_training.py")), model]
    process = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if process.returncode:
        return {"skipped": (process.stderr.strip() or f"exit code {process.returncode}").splitlines()[-1]}
    lists = np.load(folder / "lists.npy")
    check_lists(lists, users, items)
    accuracy = compute_list_accuracy(lists[split.users], numbers[split.targets("test")])
    return {**accuracy, **json.loads(process.stdout.splitlines()[-1])}


def check_lists(lists: np.ndarray, users: np.ndarray, items: np.ndarray) -> None:
    """Raises ValueError if a list has an item twice, or one that its user has seen.

    Args:
        lists: int [users, LIST_LENGTH], -1 where there is no item.
        users, items: int [actions], the known ones.
    """
    listers, places = np.nonzero(lists >= 0)
    known_pairs = set(zip(users.tolist(), items.tolist()))
    for pair, times in Counter(zip(listers.tolist(), lists[listers, places].tolist())).items():
        if times > 1 or pair in known_pairs:
            raise ValueError(f"`lists` must have different unseen items. Received: user {pair[0]}, item {pair[1]}")


def compute_list_accuracy(lists: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Returns NDCG@10 and HR@10. `lists`: int [users, LIST_LENGTH], the best first. `targets`: int [users]."""
    is_target = lists == targets[:, None]
    ranks = np.where(is_target.any(axis=1), is_target.argmax(axis=1), LIST_LENGTH)
    return {name: float(compute_per_user(name, ranks).mean()) for name in ("ndcg@10", "hr@10")}


def format_cells(row: Mapping[str, Any]) -> list[str]:
    """Returns the texts of COLUMNS."""
    if "skipped" in row:
        return [row["data"], row["model"], *[""] * 5, f"skipped: {row['skipped']}"]
    numbers = f"{row['ndcg@10']:.4f}", f"{row['hr@10']:.4f}", f"{row['processor']:,.0f}"
    limits = f"{row['memory'] / 1e9:.1f}", f"{row['rate'] / 1e9:.0f}"
    return [row["data"], row["model"], *numbers, *limits, row["settings"]]


def format_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns the rows of `peers.json` as a table in Markdown."""
    lines = [COLUMNS, ["---"] * 2 + ["---:"] * 5 + ["---"], *map(format_cells, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
