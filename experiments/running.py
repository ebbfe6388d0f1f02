"""Does a run in its process, and measures the attention of Figure 2. The only module here that imports TensorFlow."""

from pathlib import Path

import numpy as np

from bert4rec_tf.foundation.startup import import_tensorflow

import_tensorflow()

from bert4rec_tf.config.run_record import Run
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.environment import set_threads
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import BERT4Rec
from bert4rec_tf.runs.experiment import execute
from experiments.results import find_folder_of_data

POSITIONS = 10
"""Figure 2 shows this many last positions of an input, the mask token included."""

BATCH_SIZE = 512
"""Users whose attention is computed at a time."""


def carry_out(
    run: Run, workdir: Path, prepared_dir: Path, data_dir: Path | None, attention: Path | None, threads: int | None
) -> Path:
    """Does a run and returns its folder.

    Args:
        run: the run to do.
        workdir, prepared_dir, data_dir: folders, as for a run.
        attention: where to write the mean attention; None for nowhere.
        threads: number of threads; None for all.
    """
    sequences, report = datasets.load_with_report(run.dataset, data_dir)
    print(datasets.describe_data(run.dataset, sequences, report), flush=True)
    if threads is not None:
        set_threads(threads)
    folder = find_folder_of_data(workdir, sequences.fingerprint)
    result = execute(run, sequences, workdir=folder, prepared_dir=prepared_dir)
    if attention is not None:
        keep_attention(attention, run, result.model, sequences)
    return folder


def compute_mean_attention(
    model: BERT4Rec, histories: Sequences, users: np.ndarray, batch_size: int = BATCH_SIZE
) -> tuple[np.ndarray, int]:
    """Returns the mean attention among the last POSITIONS of the users' test inputs, and the number of users.

    Attention to earlier positions is left out, and each row is scaled to a sum of 1. Users with shorter inputs are
    skipped. The attention is float64 [layers, heads, POSITIONS, POSITIONS]; rows are the positions that attend. Raises
    UserError if no input is long enough.
    """
    sizes = np.minimum(histories.lengths[users], model.max_history) + 1  # with the mask token
    num_users = int(np.sum(sizes >= POSITIONS))
    if not num_users:
        raise UserError(f"Figure 2 needs inputs of at least {POSITIONS} positions; no user has one")
    total = np.zeros(())
    for size in np.unique(sizes[sizes >= POSITIONS]):
        group = users[sizes == size]
        for begin in range(0, len(group), batch_size):
            items, lengths = histories.take_last(group[begin : begin + batch_size], int(size) - 1)
            inputs, _ = model.append_mask({"items": items, "lengths": lengths})
            _, attention = model.encode(inputs, return_attention=True)
            values = np.stack([np.asarray(layer[:, :, -POSITIONS:, -POSITIONS:], np.float64) for layer in attention])
            total = total + (values / values.sum(axis=-1, keepdims=True)).sum(axis=1)
    return total / num_users, num_users


def keep_attention(path: Path, run: Run, model: BERT4Rec, sequences: Sequences) -> None:
    """Measures a trained model's mean attention and writes it as JSON."""
    split = LeaveOneOut(sequences)
    attention, users = compute_mean_attention(model, split.histories("test"), split.users)
    files.make_folder(path.parent)
    files.write_json(path, {"key": run.digest, "users": users, "attention": attention.round(6).tolist()})
