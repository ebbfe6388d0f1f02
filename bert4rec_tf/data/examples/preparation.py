"""Prepares the shards of a training, once per fingerprint."""

import contextlib
import hashlib
import json
from pathlib import Path

import numpy as np

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples import tfrecords
from bert4rec_tf.data.examples.cloze import ClozeExamples, cut_windows_and_prefixes
from bert4rec_tf.data.examples.masked import StoredExamples
from bert4rec_tf.data.examples.tfrecords import Shards
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.progress import Progress

SHARD_SIZE = 8_192
"""Examples per shard. It changes the bytes of the shards."""


def prepare_examples(
    sequences: Sequences,
    masking: MaskingSettings,
    max_length: int,
    seed: int,
    folder: Path,
    shard_size: int = SHARD_SIZE,
) -> StoredExamples:
    """Returns the Cloze examples of training sequences, stored in shuffled order. Writes missing or damaged shards.

    They get their own folder in `folder`, named by their fingerprint. If another process works there, this one waits.
    The seed decides the masks and the order on disk; a shard depends on its number alone. `max_length`: N.

    Raises UserError if a file cannot be written.
    """
    windows = cut_windows_and_prefixes(sequences, max_length, masking)
    examples = ClozeExamples(windows, masking, max_length, sequences.num_items)
    facts = [tfrecords.SHARD_FORMAT, shard_size, sequences.fingerprint, masking.record(), max_length, seed]
    fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    order = np.random.default_rng([seed, 0]).permutation(examples.num_examples)
    parts = [order[begin : begin + shard_size] for begin in range(0, len(order), shard_size)]
    predictions = min(masking.max_predictions, max_length)
    widths = {"user": None, "items": max_length, "mask_positions": predictions, "mask_targets": predictions}
    shards = Shards(folder / fingerprint[:16], tuple(map(len, parts)), widths)
    with files.FolderLock(folder).lock():
        files.make_folder(shards.folder)
        files.remove_partials(shards.folder)
        if numbers := shards.find_missing(fingerprint):
            with contextlib.closing(Progress("preparing", len(numbers), examples_per_step=shard_size)) as progress:
                for number in numbers:
                    arrays = examples.mask(parts[number], [seed, 1, number])
                    num_masked = np.count_nonzero(arrays["mask_targets"], axis=1)
                    lengths = {"items": arrays.pop("lengths"), "mask_positions": num_masked, "mask_targets": num_masked}
                    columns = {"user": arrays.pop("users"), **arrays}
                    tfrecords.write_shard(shards.folder / shards.names[number], columns, lengths)
                    progress.advance()
            shards.write_manifest(fingerprint)
    stored_windows = windows.take(examples.find_windows(order))
    return StoredExamples(shards, stored_windows, sequences.num_items, only_mask_tokens=masking.mask_prob >= 1)
