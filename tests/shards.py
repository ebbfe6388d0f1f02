"""A small catalogue and what its prepared shards hold, for the tests of preparing, reading and masking."""

import dataclasses

import numpy as np
import tensorflow as tf

from bert4rec_tf.config import MaskingSettings
from bert4rec_tf.sequences import Sequences

MAX_LENGTH = 6
STATIC = MaskingSettings(mask_proportion=0.5, max_predictions=3, mask_copies=2, window_step=0.5)
DYNAMIC = dataclasses.replace(STATIC, masking="dynamic")


def catalogue(num_users, longest=11, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, longest + 1, num_users)
    flat = rng.integers(0, 40, lengths.sum())
    _, first, codes = np.unique(flat, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    items = np.array([f"item{flat[place]}" for place in np.sort(first)], object)
    users = np.array([f"user{user}" for user in range(num_users)], object)
    return Sequences.from_codes(np.repeat(np.arange(num_users), lengths), order[codes], users, items)


SEQUENCES = catalogue(23)
NUM_ITEMS = SEQUENCES.num_items


def contents(shards):
    return {path.name: path.read_bytes() for path in shards.folder.iterdir()}


def records(shards):
    return [
        tf.train.Example.FromString(record.numpy())
        for name in shards.names
        for record in tf.data.TFRecordDataset(str(shards.folder / name))
    ]


def values(example, name):
    return list(example.features.feature[name].int64_list.value)


def as_rows(batches):
    found = []
    for batch in batches:
        columns = {name: tensor.numpy().tolist() for name, tensor in batch.items()}
        found += [
            tuple(tuple(value) if isinstance(value, list) else value for value in row)
            for row in zip(*(columns[name] for name in sorted(columns)))
        ]
    return found
