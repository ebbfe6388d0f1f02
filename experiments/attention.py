"""Figure 2: where BERT4Rec looks, on average over the users of the test."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf import files, pipeline
from bert4rec_tf.config import Run
from bert4rec_tf.data import datasets
from bert4rec_tf.models import BERT4Rec
from bert4rec_tf.sequences import LeaveOneOut, Sequences
from bert4rec_tf.workdir import WorkDirectory
from experiments.results import Results

POSITIONS = 10
"""The last ones of an input, the mask token among them."""

BATCH_SIZE = 512


def mean_attention(model: BERT4Rec, histories: Sequences, users: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns the attention among the last POSITIONS of the test input, and over how many users it is the mean.

    Each row is divided by its sum, for what a position gives to those before the last ones is not shown.

    Args:
        model: trained.
        histories: what comes before the test item.
        users: those to look at; the ones whose input has fewer positions are passed over.

    Returns:
        float64 [layers, heads, POSITIONS, POSITIONS], rows the positions that attend; and a number.
    """
    kept = users[np.minimum(histories.lengths[users], model.max_history) + 1 >= POSITIONS]
    kept = kept[np.argsort(histories.lengths[kept], kind="stable")]
    total = 0.0
    for begin in range(0, len(kept), BATCH_SIZE):
        batch_users = kept[begin : begin + BATCH_SIZE]
        items, lengths = histories.last(batch_users, int(min(histories.lengths[batch_users].max(), model.max_history)))
        inputs, ends = model.masked_history({"items": items, "lengths": lengths})
        _, attention = model.encode(inputs, return_attention=True)
        places = ends[:, None] - POSITIONS + 1 + tf.range(POSITIONS)
        for_heads = tf.repeat(places[:, None], attention[0].shape[1], axis=1)
        layers = [
            tf.gather(tf.gather(one, for_heads, batch_dims=2), for_heads, axis=3, batch_dims=2) for one in attention
        ]
        found = np.stack([np.asarray(layer, np.float64) for layer in layers])
        total = total + (found / found.sum(axis=-1, keepdims=True)).sum(axis=1)
    return np.asarray(total) / max(len(kept), 1), len(kept)


def path_of(results: Results, key: str) -> Path:
    """Returns where the attention of a run is kept."""
    return results.folder / f"attention-{key}.json"


def keep(results: Results, key: str, folder: Path, data_dir: Path | None) -> dict[str, Any]:
    """Measures the attention of a finished run and keeps it beside the results.

    Args:
        results: in whose folder it is kept.
        key: of the run.
        folder: its work directory.
        data_dir: where its data lie.
    """
    workdir = WorkDirectory(folder)
    config = workdir.read_config()
    run = Run.from_dict(config["run"])
    split = LeaveOneOut(datasets.load(run.dataset, data_dir))
    model = pipeline.trained_model(run, split.sequences.num_items, split.sequences.num_users, workdir)
    attention, users = mean_attention(model, split.histories("test"), split.users)
    content = {"key": key, "users": users, "attention": attention.round(6).tolist()}
    files.write_json(path_of(results, key), content)
    return content
